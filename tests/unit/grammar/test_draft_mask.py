"""Drafts do without a mask that is late."""

from __future__ import annotations

from concurrent import futures
from concurrent.futures import Future
from typing import Any, cast

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument, ResourceExhausted
from tandem.grammar import draft_mask
from tandem.grammar.draft_mask import MAX_LATE, DraftMask
from tandem.grammar.matcher_mask import MatcherMask


class Scripted:
    """A mask of three tokens whose computing ends when the test says so."""

    vocabulary_size = 3

    def __init__(self) -> None:
        self.computing: list[Future[None]] = []
        self.is_there = False
        self.error: InvalidArgument | None = None

    def prepare(self, answers: Any) -> Future[None] | None:
        if self.is_there:
            return None
        self.computing.append(Future())
        return self.computing[-1]

    def allowed(self, answer: tuple[int, ...]) -> np.ndarray:
        if self.error:
            raise self.error
        return np.array([False, True, False])

    def forced(self, answer: tuple[int, ...]) -> int:
        return 1


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_mask, "LATE_S", 0.001)
    monkeypatch.setattr(draft_mask, "STRICT_LATE_S", 0.001)


def allowed(mask: DraftMask) -> list[bool] | None:
    found = mask.allowed(())
    return None if found is None else found.tolist()


def test_what_is_there_is_followed() -> None:
    scripted = Scripted()
    scripted.is_there = True
    mask = DraftMask(cast(MatcherMask, scripted))
    assert (allowed(mask), mask.forced(())) == ([False, True, False], 1)


def test_while_one_mask_is_late_drafts_are_free_and_nobody_waits_again() -> None:
    scripted = Scripted()
    mask = DraftMask(cast(MatcherMask, scripted))
    assert (allowed(mask), mask.forced(())) == ([True] * 3, None)
    assert len(scripted.computing) == 1
    scripted.computing[0].set_result(None)
    scripted.is_there = True
    assert allowed(mask) == [False, True, False]


def test_after_some_late_masks_none_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float]()

    def counted(pending: Any, timeout_s: float) -> Any:
        waits.append(timeout_s)
        return futures.wait(pending, timeout_s)

    monkeypatch.setattr(draft_mask, "wait", counted)
    scripted = Scripted()
    mask = DraftMask(cast(MatcherMask, scripted))
    for _ in range(MAX_LATE + 3):
        assert allowed(mask) == [True] * 3
        scripted.computing[-1].set_result(None)
    assert waits == [0.001] * MAX_LATE + [0.0] * 3


def test_a_grammar_that_fails_is_the_verifier_s_to_refuse() -> None:
    scripted = Scripted()
    scripted.is_there, scripted.error = True, InvalidArgument("grammar", "too dear")
    assert allowed(DraftMask(cast(MatcherMask, scripted))) == [True] * 3
    with pytest.raises(InvalidArgument, match="too dear"):
        allowed(DraftMask(cast(MatcherMask, scripted), strict=True))


def test_where_drafts_may_become_the_text_a_late_mask_fails_the_request() -> None:
    with pytest.raises(InvalidArgument, match=r"grammar: computing a mask took more than 0.001 s"):
        allowed(DraftMask(cast(MatcherMask, Scripted()), strict=True))


def test_too_many_waiting_masks_are_done_without() -> None:
    class Full(Scripted):
        def prepare(self, answers: Any) -> Future[None] | None:
            raise ResourceExhausted("masks: full")

    assert allowed(DraftMask(cast(MatcherMask, Full()))) == [True] * 3
    with pytest.raises(ResourceExhausted):
        allowed(DraftMask(cast(MatcherMask, Full()), strict=True))
