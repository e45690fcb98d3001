"""One thing that `tandem doctor` looked at.

Must not import grpc or torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


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
    """Good with what `look` returns, bad with what it raises: a check never ends the others."""
    try:
        return Check(name, True, look())
    except Exception as error:
        return Check(name, False, str(error) or type(error).__name__, todo)
