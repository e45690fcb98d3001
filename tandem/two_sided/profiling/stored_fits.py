"""The decode lines measured at rest, kept in a JSON file from one start to the next.

Invariants: a file is complete or as it was before; a file that cannot be used is refused with its
name, never half used; a line of another model is no line of this one.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tandem.core.errors import InvalidArgument, TandemError
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.profiler_decoding import DecodeFit

FORMAT = 1
NAMES = {"device": Side.DEVICE, "cloud": Side.CLOUD}


@dataclass(frozen=True, slots=True)
class StoredFit:
    """A line, and what it was measured with: `documents` sequences side by side."""

    model_name: str
    documents: int
    fit: DecodeFit


def default_path() -> Path:
    """In the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tandem" / "decode-fits.json"


def read_fits(path: Path) -> dict[Side, StoredFit]:
    """What is stored; nothing where there is no file. Raises TandemError for a file that is none
    of ours, naming it."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise TandemError(f"{path}: cannot be read: {error}; remove it") from None
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']}, not {FORMAT}")
        return {NAMES[side]: _fit_from(entry) for side, entry in content["fits"].items()}
    except (LookupError, TypeError, ValueError, AttributeError, InvalidArgument) as error:
        why = f"{type(error).__name__} {error}"
        raise TandemError(f"{path}: holds no decode fits ({why}); remove it") from None


def write_fits(path: Path, fits: Mapping[Side, StoredFit]) -> None:
    """Replace the file at once. Raises TandemError naming it."""
    entries = {name: _entry(fits[side]) for name, side in NAMES.items() if side in fits}
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "fits": entries}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise TandemError(f"{path}: cannot be written: {error.strerror}") from None


def _entry(stored: StoredFit) -> dict[str, Any]:
    return {
        "model_name": stored.model_name,
        "documents": stored.documents,
        **asdict(stored.fit),
    }


def _fit_from(entry: Mapping[str, Any]) -> StoredFit:
    numbers = (float(entry[name]) for name in ("numerator", "denominator", "intercept_s"))
    return StoredFit(str(entry["model_name"]), int(entry["documents"]), DecodeFit(*numbers))
