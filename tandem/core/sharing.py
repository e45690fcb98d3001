"""Groups of callers that find what the others in the group left behind, as an operator writes them.
Invariant: nobody is in two groups, so that what one group keeps never reaches another."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tandem.core.errors import InvalidArgument

EVERYBODY = "*"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Sharing:
    """`groups` of names of callers; nobody shares by default."""

    groups: tuple[frozenset[str], ...] = ()
    everybody: bool = False

    def group_of(self, name: str) -> str:
        """Return the name that stands for all who share with the caller `name`: the caller's own
        where nobody does. A group's has a comma or a star, which no caller's has."""
        if self.everybody:
            return EVERYBODY
        group = next((group for group in self.groups if name in group), frozenset({name}))
        return ",".join(sorted(group))


NOBODY_SHARES = Sharing()


def parse_sharing(text: str) -> Sharing:
    """Parse groups with semicolons between them, names with commas between them
    ("alice,bob;carol,dave"), or "*" for everybody; "" shares nothing. Raises
    InvalidArgument("share_prefixes")."""
    if not text.strip():
        return NOBODY_SHARES
    if text.strip() == EVERYBODY:
        return Sharing(everybody=True)
    groups = [[name.strip() for name in group.split(",")] for group in text.split(";")]
    names = [name for group in groups for name in group]
    for name in names:
        if not _NAME.fullmatch(name):
            why = "must be names such as alice,bob;carol,dave, or * for all"
            raise InvalidArgument(
                "share_prefixes", f"{why}; {name[:80]!r} is not the name of a key holder"
            )
        if names.count(name) > 1:
            raise InvalidArgument("share_prefixes", f"must contain {name!r} only once")
    alone = next((group[0] for group in groups if len(group) == 1), None)
    if alone is not None:
        raise InvalidArgument(
            "share_prefixes", f"must have a second name in the group of {alone!r}"
        )
    return Sharing(tuple(map(frozenset, groups)))
