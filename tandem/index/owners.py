"""The owners of documents, and who finds them.

A document is known by its owner and its name, so two owners may each have an `a.md`. The operator's
are found by everybody, a tenant's by that tenant, and what a tenant shares by everybody too.
Invariant: texts, vectors and statistics of words are kept apart by `Collection`, so what nobody
else may find cannot reach others through a score, a count or a text that both happen to have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tandem.core.errors import InvalidArgument, ResourceExhausted

OPERATOR = ""
"""The owner of what the operator ingests, and of all that was stored before there were owners."""

_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PRIVATE = "private"
_SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Collection:
    """Documents that the same tenants find: those of one owner, shared or not. What the operator
    has is found by everybody, so `shared` is False there."""

    owner: str = OPERATOR
    shared: bool = False

    @classmethod
    def of(cls, owner: str, shared: bool = False) -> Collection:
        """Return the collection of an owner's documents, private or shared; the operator has only
        one. Raises InvalidArgument("owner")."""
        check_owner(owner)
        return cls(owner, shared and owner != OPERATOR)

    @classmethod
    def named(cls, name: str) -> Collection:
        """Return the one with this `name`."""
        owner, _, kind = name.partition(":")
        return cls(owner, kind == _SHARED)

    @property
    def name(self) -> str:
        """Name in stores: empty for the operator's, "ann:private" or "ann:shared"."""
        return f"{self.owner}:{_SHARED if self.shared else _PRIVATE}" if self.owner else ""

    def visible_to(self, tenant: str) -> bool:
        """Return True if `tenant` finds these; the operator finds its own and what is shared."""
        return self.shared or self.owner in (OPERATOR, tenant)

    def content_key(self, digest: str) -> str:
        """Return the key of a text with this digest. Equal texts of two collections have two."""
        return f"{self.name}:{digest}" if self.owner else digest


OPERATORS = Collection()
"""What the operator has."""


def collection_of(content_key: str) -> Collection:
    """Return the collection of a content with this key."""
    return Collection.named(content_key.rpartition(":")[0])


def check_owner(owner: str) -> None:
    """Raise InvalidArgument for what is not the name of a tenant. The operator's name is empty."""
    if owner != OPERATOR and _OWNER.fullmatch(owner) is None:
        why = "must be empty, or 1 to 64 letters, digits, dots, dashes or underscores"
        raise InvalidArgument("owner", f"{why}, got {owner[:80]!r}")


@dataclass(frozen=True, slots=True)
class DocumentQuota:
    """Most that one owner may have; 0: no limit. `bytes` are of titles and texts in UTF-8, counted
    for each document, whether or not another one has the same text."""

    documents: int = 0
    bytes: int = 0

    def over(self, default: DocumentQuota) -> DocumentQuota:
        """Return this quota, with the values of `default` where it states none."""
        return DocumentQuota(self.documents or default.documents, self.bytes or default.bytes)


NO_DOCUMENT_QUOTA = DocumentQuota()


@dataclass(frozen=True, slots=True)
class OwnerUsage:
    """Storage used by an owner, as quotas count it."""

    documents: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ListedDocument:
    """A document without its text; `bytes` as quotas count them."""

    name: str
    bytes: int
    shared: bool


class DocumentQuotaExceeded(ResourceExhausted):
    """An owner would have more than it may; nothing was changed."""


def check_quota(owner: str, quota: DocumentQuota, before: OwnerUsage, after: OwnerUsage) -> None:
    """Raise DocumentQuotaExceeded, saying what is left, if a change exceeds the quota. A change
    that adds nothing is allowed even above a quota that was lowered meanwhile."""
    for what, most, had, wanted in (
        ("documents", quota.documents, before.documents, after.documents),
        ("bytes", quota.bytes, before.bytes, after.bytes),
    ):
        if most and wanted > max(most, had):
            left = max(0, most - had)
            why = f"{wanted - had} {what} more needed, '{owner}' has {left} of {most} left"
            raise DocumentQuotaExceeded(f"quota of documents: {why}; delete some first")
