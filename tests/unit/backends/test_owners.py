"""Whose sessions find each other's keys and values, where an engine keeps some itself."""

from __future__ import annotations

import pytest

from tandem.backends.interface import Engine, OpensForOwners, open_session
from tandem.testing.context_engine import ContextSession
from tandem.testing.paced import PacedEngine
from tandem.testing.scripted import ScriptedEngine, scripted_probs


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
