"""What the draft model begins with: what is kept of the text, whatever was computed before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tandem.backends.interface import KV_BLOCK, ForwardRequest, Session
from tandem.core.tokens import PrefixedTokens
from tandem.net.tenant import Tenant
from tandem.runtime.engine_thread import EngineThread
from tandem.runtime.prefix_cache import KeptText, PrefixCache, PrefixLimits
from tandem.services.drafter.prefill import DraftPrefill
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.scripted import scripted_pair

TEXT = tuple(range(1, 2 * KV_BLOCK + 4))
TENANT = Tenant("edge-1")


class Drafting:
    """As much of an edge's machine as a prefill asks for."""

    may_prefill = True
    predicts = False

    def __init__(self, kv_length: int) -> None:
        self.committed = PrefixedTokens(TEXT)
        self.kv_length = kv_length

    @property
    def fed_tokens(self) -> tuple[int, ...]:
        return TEXT[: self.kv_length]

    def adopt_prefix(self, kv_length: int) -> None:
        self.kv_length = kv_length


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    draft, _ = scripted_pair(0.3)
    running = EngineThread(draft, "draft-engine")
    yield running
    running.stop()


def fed(thread: EngineThread, tokens: int) -> Session:
    """Return keys and values that hold the text's first tokens."""
    kv = thread.engine.open(2 * len(TEXT))
    if tokens:
        thread.engine.forward([ForwardRequest(kv, TEXT[:tokens], logits_to_keep=0)])
    return kv


@pytest.mark.parametrize(("computed", "known"), [(0, 0), (KV_BLOCK + 5, KV_BLOCK + 5), (9, 0)])
async def test_it_begins_with_what_is_kept_or_goes_on_with_what_is_computed(
    thread: EngineThread, computed: int, known: int
) -> None:
    """A memory's drafts come before the model has the text. Where they end in mid-task, the model
    computes the text itself, and the prefix that was kept of an earlier answer no longer fits in:
    the request failed then. The last case is a draft that was given up, whose computing the
    machine does not count."""
    series = Metrics(new_registry(), "device").engine("scripted")
    prefixes = PrefixCache(thread, PrefixLimits(), lambda: 2**20, series)
    text = KeptText(TENANT, ())

    async def prefilled(kv: Session, kv_length: int) -> Drafting:
        machine: Any = Drafting(kv_length)
        prefill = DraftPrefill(machine, thread, kv, prefixes, text, lambda: 0)
        assert prefill.due
        await prefill.run()
        prefill.leave()
        assert isinstance(machine, Drafting)
        return machine

    await prefilled(fed(thread, 0), 0)  # keeps two blocks
    kv = fed(thread, computed)
    machine = await prefilled(kv, known)
    assert machine.kv_length == kv.length == 2 * KV_BLOCK
