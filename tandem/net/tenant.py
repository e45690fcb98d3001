"""Whom kept text belongs to: keys and values of a prompt are found by the tenant that left them.

A tenant is the holder of a key at the edge. On its way to the cloud it is an id in the place of the
name: each service makes the ids that it sends with a secret that its receiver does not have.
Invariants: an id tells nobody a name, and one edge's ids are no other edge's; a receiver believes
an id only as one of the caller that showed its key, so that a caller separates its own tenants and
reaches nobody else's.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from tandem.core.errors import InvalidArgument
from tandem.core.sharing import EVERYBODY, Sharing
from tandem.net.access import ClientAccess
from tandem.net.scopes import OVER_HTTP, current_caller

ID_BYTES = 16
MAX_ID_BYTES = 32
_PURPOSE = b"tandem tenant ids, version 1"


@dataclass(frozen=True, slots=True)
class Tenant:
    """`caller`: the authenticated caller of this port, or the group that it shares with; `id`: for
    whom it asks, by its own account; "" where it does not say."""

    caller: str
    id: bytes = b""

    @property
    def key(self) -> bytes:
        """The tenant as bytes, unlike those of any other."""
        return self.caller.encode() + b"\0" + self.id

    @property
    def shown(self) -> str:
        """The tenant in a refusal, which its caller reads."""
        holder = f"'{self.caller.removesuffix(OVER_HTTP)}'" if self.caller else ""
        if self.id:
            return f"a tenant of {holder}" if holder else "a tenant"
        return holder or "everybody together"


def calling_tenant(given_id: bytes, sharing: Sharing) -> Tenant:
    """Return the tenant of the current call, which sent this id. Callers that share do so with what
    is theirs, and what they call public: what one of them keeps apart for a tenant stays apart,
    even from another that gives the same id."""
    caller = current_caller()
    group = sharing.group_of(caller.holder)
    shared = caller.name if group == caller.holder else group
    return Tenant(shared, caller.name.encode() + b"\0" + given_id if given_id else b"")


def paying_tenant(given_id: bytes = b"") -> Tenant:
    """Return the tenant that pays for the current call, and takes turns with others. Callers that
    share what is kept do not share that."""
    return Tenant(current_caller().name, given_id)


def is_told_apart(tenant: Tenant, payer: Tenant) -> bool:
    """Return whether the next service can tell a call's `tenant` from that of every other payer:
    not where callers share what is kept, and this one names nobody for whom it asks."""
    return bool(tenant.id) or tenant.caller == payer.caller


def check_tenant_id(given_id: bytes, field: str = "tenant") -> None:
    """Raise InvalidArgument(field) for an id that is too long."""
    if len(given_id) > MAX_ID_BYTES:
        why = f"{len(given_id)} bytes; at most {MAX_ID_BYTES}"
        raise InvalidArgument(field, why)


class TenantIds:
    """Makes the ids that a service sends: keyed hashes (HMAC-SHA256, 128 bits of it)."""

    def __init__(self, key: Callable[[], str] | None = None) -> None:
        """Prepare to make ids. `key` returns a key that no receiver of the ids knows; the ids then
        outlast this process and are the same in each of its replicas. Without it they are this
        process's alone."""
        self._key = key
        self._random = secrets.token_bytes(32)

    def id_of(self, tenant: Tenant) -> bytes:
        """Return the id for `tenant` at the next service; "" if there is nobody to tell apart: on a
        port without keys, or if all tenants share."""
        if tenant.caller in ("", EVERYBODY) and not tenant.id:
            return b""
        # No name has a zero byte, so that no two tenants are one text.
        text = tenant.caller.encode() + b"\0" + tenant.id
        return hmac.digest(self._secret(), text, hashlib.sha256)[:ID_BYTES]

    def _secret(self) -> bytes:
        if self._key is None:
            return self._random
        return hmac.digest(self._key().encode(), _PURPOSE, hashlib.sha256)


def tenant_ids(access: ClientAccess) -> TenantIds:
    """Return the ids of tenants, made with the key that this side's services show each other.

    The key is used only where the cloud is shown another: with a key that the cloud knows it could
    try names until one gives an id that it has seen.
    """
    key = access.key if access.cloud_key is not None else None
    return TenantIds(None if key is None else key.current)
