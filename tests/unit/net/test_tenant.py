"""Ids that tell tenants apart, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.sharing import Sharing, parse_sharing
from tandem.net.access import ClientAccess
from tandem.net.access_keys import KEY_BYTES, new_key
from tandem.net.scopes import Caller, Scope, note_caller
from tandem.net.tenant import (
    ID_BYTES,
    MAX_ID_BYTES,
    Tenant,
    TenantIds,
    calling_tenant,
    check_tenant_id,
    is_told_apart,
    tenant_ids,
)

CALL_KEY, CLOUD_KEY = (new_key(bytes([byte]) * KEY_BYTES) for byte in (1, 2))
ALICE = Tenant("alice")


class Key:
    """In the place of a file with one."""

    def __init__(self, key: str) -> None:
        self.key = key

    def current(self) -> str:
        return self.key


def ids_by(key: str) -> TenantIds:
    return TenantIds(lambda: key)


def access(**keys: Key) -> ClientAccess:
    found: dict[str, object] = dict(keys)
    return ClientAccess(None, **found)  # type: ignore[arg-type]


def test_an_id_is_the_same_for_one_key_and_another_for_the_next() -> None:
    assert ids_by(CALL_KEY).id_of(ALICE) == ids_by(CALL_KEY).id_of(ALICE)
    assert ids_by(CALL_KEY).id_of(ALICE) != ids_by(CLOUD_KEY).id_of(ALICE)
    assert len(ids_by(CALL_KEY).id_of(ALICE)) == ID_BYTES


def test_an_id_has_neither_name_nor_key_in_it() -> None:
    found = ids_by(CALL_KEY).id_of(Tenant("al", b"ice"))
    assert not any(part in found for part in (b"al", b"ice", CALL_KEY.encode()[:8]))


def test_different_tenants_have_different_ids() -> None:
    ids = ids_by(CALL_KEY)
    tenants = (
        ALICE,
        Tenant("alic", b"e"),
        Tenant("alice", b"\0"),
        Tenant("", b"alice"),
        Tenant("alice", ids.id_of(ALICE)),
    )
    assert len(set(map(ids.id_of, tenants))) == len(tenants)


@pytest.mark.parametrize("caller", ["", "*"])
def test_where_there_is_nobody_to_tell_apart_there_is_no_id(caller: str) -> None:
    assert ids_by(CALL_KEY).id_of(Tenant(caller)) == b""
    assert ids_by(CALL_KEY).id_of(Tenant(caller, b"x")) != b""


def test_without_a_key_that_the_cloud_does_not_know_ids_are_this_process_s() -> None:
    """It could try names with one that it knows."""
    call, cloud = Key(CALL_KEY), Key(CLOUD_KEY)
    by_call_key = ids_by(CALL_KEY).id_of(ALICE)
    assert tenant_ids(access(key=call, cloud_key=cloud)).id_of(ALICE) == by_call_key
    for open_to_cloud in (access(), access(key=call)):
        first, second = tenant_ids(open_to_cloud), tenant_ids(open_to_cloud)
        assert first.id_of(ALICE) == first.id_of(ALICE)
        assert len({first.id_of(ALICE), second.id_of(ALICE), by_call_key}) == 3


def test_a_changed_key_makes_other_ids() -> None:
    key = Key(CALL_KEY)
    ids = TenantIds(key.current)
    before = ids.id_of(ALICE)
    key.key = CLOUD_KEY
    assert ids.id_of(ALICE) != before


async def tenant_of(
    caller: str, given_id: bytes, sharing: Sharing, over_http: bool = False
) -> Tenant:
    async def served() -> Tenant:
        note_caller(Caller(caller, frozenset(Scope), over_http=over_http))
        return calling_tenant(given_id, sharing)

    return await asyncio.create_task(served())


@pytest.mark.parametrize("shared", ["", "a,b", "*"])
async def test_an_id_counts_for_the_caller_that_gave_it_alone(shared: str) -> None:
    sharing = parse_sharing(shared)
    assert await tenant_of("a", b"x", sharing) != await tenant_of("b", b"x", sharing)


@pytest.mark.parametrize("given_id", [b"", b"x"])
async def test_a_name_in_the_file_of_the_other_door_is_somebody_else(given_id: bytes) -> None:
    alone, group = parse_sharing(""), parse_sharing("alice,bob")
    over_grpc = await tenant_of("alice", given_id, alone)
    over_http = await tenant_of("alice", given_id, alone, over_http=True)
    assert over_grpc != over_http
    ids = TenantIds(lambda: CALL_KEY)
    assert ids.id_of(over_grpc) != ids.id_of(over_http)
    together = [await tenant_of("alice", b"", group, over_http=door) for door in (False, True)]
    assert together[0] == together[1], "the operator names both"
    assert await tenant_of("", b"", alone, over_http=True) == await tenant_of("", b"", alone)


async def test_callers_that_share_are_one_tenant_where_they_name_none() -> None:
    sharing = parse_sharing("a,b")
    found = [await tenant_of(name, b"", sharing) for name in "abc"]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("given_id", "shared", "apart"),
    [
        (b"", "", True),
        (b"", "a,b", False),
        (b"", "*", False),
        (b"x", "a,b", True),
        (b"x", "*", True),
    ],
)
async def test_callers_that_share_are_told_apart_by_the_id_that_they_give(
    given_id: bytes, shared: str, apart: bool
) -> None:
    tenant = await tenant_of("a", given_id, parse_sharing(shared))
    assert is_told_apart(tenant, Tenant("a", given_id)) is apart


def test_an_id_has_at_most_so_many_bytes() -> None:
    check_tenant_id(bytes(MAX_ID_BYTES))
    with pytest.raises(InvalidArgument, match="tenant: 33 bytes"):
        check_tenant_id(bytes(MAX_ID_BYTES + 1))
