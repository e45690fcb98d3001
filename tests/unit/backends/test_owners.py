"""Whose sessions find each other's keys and values, where an engine keeps some itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tandem.backends.interface import Engine, OpensForOwners, open_session
from tandem.backends.vllm.engine import VllmEngine
from tandem.testing.context_engine import ContextSession
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, scripted_probs


def vllm_engine() -> VllmEngine:
    """Without vLLM: it opens sessions, and makes no pass."""
    config = SimpleNamespace(
        cache_config=SimpleNamespace(num_gpu_blocks=100),
        scheduler_config=SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=64),
        model_config=SimpleNamespace(max_model_len=512),
        use_v2_model_runner=False,
    )
    scheduler = SimpleNamespace(kv_cache_manager=None, block_size=16)
    return VllmEngine(
        SimpleNamespace(vllm_config=config, scheduler=scheduler),
        model_name="m",
        vocabulary_hash="h",
        vocabulary_size=64,
        eos_token_ids=frozenset(),
        kv_bytes_per_token=1,
    )


def test_pages_of_vllm_have_a_salt_of_their_owner() -> None:
    engine = vllm_engine()
    alice, again, bob = (engine.open_for(owner, 40) for owner in ("alice", "alice", "bob"))
    assert alice.salt == again.salt != bob.salt
    assert "alice" not in alice.salt
    assert engine.fork(alice, 0, 40).salt == alice.salt


def test_a_session_of_vllm_without_an_owner_shares_with_its_forks_alone() -> None:
    engine = vllm_engine()
    first, second = engine.open(40), engine.open(40)
    assert first.salt != second.salt
    assert engine.fork(first, 0, 40).salt == first.salt


class Noting(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__(64, scripted_probs(1, 64))
        self.owners: list[str] = []

    def open_for(self, owner: str, capacity: int, spare: int = 0) -> ContextSession:
        self.owners.append(owner)
        return super().open(capacity, spare)


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: PacedEngine(e, 0, 0)])
def test_an_engine_over_another_tells_it_whose_a_session_is(wrap: type) -> None:
    noting = Noting()
    engine: Engine = wrap(noting)
    open_session(engine, "alice", 10, 2).close()
    engine.open(10).close()
    assert noting.owners == ["alice"]


def test_an_engine_that_keeps_nothing_opens_a_session_for_anybody() -> None:
    engine = ScriptedEngine(64, scripted_probs(1, 64))
    assert not isinstance(engine, OpensForOwners)
    assert open_session(engine, "alice", 10, 2).slots == 12
