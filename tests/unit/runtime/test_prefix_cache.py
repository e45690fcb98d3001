"""What sessions leave has only the room that no session holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.backends.interface import KV_BLOCK
from tandem.net.admission import SESSIONS, Admission
from tandem.net.tenant import Tenant
from tandem.runtime.prefix_cache import KeptText, PrefixCache, PrefixLimits
from tandem.telemetry.metrics import Metrics, new_registry

TEXT = tuple(range(3 * KV_BLOCK + 1))
"""Three whole blocks, of a byte a token."""
OWN = KeptText(Tenant("edge-1"), TEXT)


class Copying:
    """An engine's thread that copies at once."""

    def __init__(self) -> None:
        can = SimpleNamespace(same_bits=False)
        self.engine = SimpleNamespace(kv_copies=self, kv_bytes_per_token=1, capabilities=can)

    def copy(self, session: Any, first: int, end: int) -> Sequence[Any]:
        return [object() for _ in range(first, end, KV_BLOCK)]

    def call(self, work: Callable[[], None]) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        work()
        done.set_result(None)
        return done


@pytest.mark.parametrize(("torn_off", "blocks"), [(False, 3), (True, 1)])
async def test_a_call_that_was_torn_off_has_given_its_room_back_already(
    torn_off: bool, blocks: int
) -> None:
    """Another session may hold that room before the copy is made: only a block is free."""
    admission = Admission({SESSIONS: 4}, 4 * KV_BLOCK)
    series = Metrics(new_registry(), "cloud").engine("scripted")
    thread: Any = Copying()
    kept = PrefixCache(thread, PrefixLimits(), lambda: admission.kv_free_bytes, series)
    own = kept.find(OWN)
    with admission.reserve(3 * KV_BLOCK) as reservation:
        if not torn_off:
            own.leave(thread, TEXT, gives_back=reservation.kv_bytes)
    with admission.reserve(3 * KV_BLOCK) if torn_off else admission.reserve():
        if torn_off:
            own.leave(thread, TEXT, gives_back=reservation.kv_bytes)
        assert kept.index.size_bytes == blocks * KV_BLOCK
        assert kept.index.size_bytes <= admission.kv_free_bytes


async def test_where_one_leaves_a_text_uncomputed_the_next_computes_it_and_the_others_wait() -> (
    None
):
    thread: Any = Copying()
    series = Metrics(new_registry(), "device").engine("scripted")
    kept = PrefixCache(thread, PrefixLimits(), lambda: 10 * KV_BLOCK, series)
    first = await kept.found(OWN)
    others = [asyncio.ensure_future(kept.found(OWN)) for _ in range(3)]
    await _settled()
    first.leave(thread, ())  # its answer ended before
    await _settled()
    (second,) = [each.result() for each in others if each.done()]
    assert second.tokens == 0
    second.leave(thread, TEXT, ends=False)
    assert sorted(each.tokens for each in await asyncio.gather(*others)) == [0] + 2 * [3 * KV_BLOCK]


async def test_nobody_waits_for_what_another_tenant_computes() -> None:
    """Who waits learns that somebody asks the same."""
    thread: Any = Copying()
    series = Metrics(new_registry(), "device").engine("scripted")
    kept = PrefixCache(thread, PrefixLimits(), lambda: 10 * KV_BLOCK, series)
    await kept.found(KeptText(Tenant("edge", b"alice"), TEXT))
    other = asyncio.ensure_future(kept.found(KeptText(Tenant("edge", b"bob"), TEXT)))
    own = asyncio.ensure_future(kept.found(KeptText(Tenant("edge", b"alice"), TEXT)))
    await _settled()
    assert (other.done(), own.done()) == (True, False)
    own.cancel()


async def _settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
