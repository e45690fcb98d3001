"""What `tandem doctor` reports of one thing, and its checks of index folders."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tandem.core.extras import missing_package

DAMAGED = "restore the folder from a copy, or ingest the documents into a new one"
NO_INDEX = "name a folder that `tandem ingest` or a retriever has filled"


@dataclass(frozen=True, slots=True)
class Check:
    """`found` is what was seen, `todo` what to do about it when that is bad."""

    name: str
    ok: bool
    found: str
    todo: str = ""

    def line(self) -> str:
        words = " ".join(self.found.split())
        advice = f"; {self.todo}" if self.todo and not self.ok else ""
        return f"{'ok ' if self.ok else 'bad'}  {self.name}: {words}{advice}"

    def as_object(self) -> dict[str, Any]:
        return asdict(self)


def check(name: str, look: Callable[[], str], todo: str) -> Check:
    """Run a check: it is good with what `look` returns, and bad with what `look` raises, so that no
    check ends the others."""
    try:
        return Check(name, True, look())
    except ModuleNotFoundError as error:
        return Check(name, False, missing_package(error))
    except Exception as error:
        return Check(name, False, str(error) or type(error).__name__, todo)


def index_checks(folders: Sequence[Path]) -> list[Check]:
    """Check each folder. One that another process has open counts as bad: stop that first."""
    from tandem.index.sqlite_store import DATABASE

    return [
        check(
            f"index {folder}",
            partial(_verify, folder),
            DAMAGED if (folder / DATABASE).exists() else NO_INDEX,
        )
        for folder in folders
    ]


def _verify(folder: Path) -> str:
    from tandem.index.sqlite_store import verify_folder

    stored = verify_folder(folder)
    return (
        f"{stored.documents} documents, {stored.texts} texts, {stored.snapshot_bytes} bytes,"
        " all as written"
    )
