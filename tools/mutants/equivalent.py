"""Mutants that no test can find, since they change nothing that anyone could see."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.mutants.mutations import Mutant

Change = tuple[str, str, str]


@dataclass(slots=True)
class Equivalents:
    """(module, lines, what they become) of each, as `equivalent.toml` lists them with a reason."""

    listed: frozenset[Change]
    seen: set[Change] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path) -> Equivalents:
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
        without = [entry for entry in entries if not entry.get("reason", "").strip()]
        if without:
            raise ValueError(f"{path}: no reason is given for {without[0]}")
        return cls(frozenset((one["module"], one["line"], one["becomes"]) for one in entries))

    def __contains__(self, mutant: Mutant) -> bool:
        of_module = [change for change in self.listed if change[0] == mutant.path]
        if not of_module:
            return False
        old, new = mutant.fragment()
        if not any(old in line and new in becomes for _, line, becomes in of_module):
            return False
        change = (mutant.path, *mutant.change())
        if change not in self.listed:
            return False
        self.seen.add(change)
        return True

    def unused(self, modules: Sequence[str]) -> list[Change]:
        """Those of `modules` that name no mutant: the code has changed since."""
        return sorted(one for one in self.listed - self.seen if one[0] in modules)
