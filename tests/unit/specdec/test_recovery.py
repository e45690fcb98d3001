"""The edge draws recovered tokens: in one step, or in two that are one draw."""

from collections.abc import Iterator

import numpy as np
import pytest

from tandem.core.acceptance import recover
from tandem.core.errors import InvalidArgument
from tandem.core.randomness import SeededRandom
from tandem.core.sparse_payload import FullPayload, SparsePayload, make_sparse_payload
from tandem.specdec.edge import Recovery
from tandem.specdec.events import Drafted
from tandem.specdec.rules import RejectionRule

TARGET = np.array([0.5, 0.3, 0.2], dtype=np.float32)
DRAFT = np.array([0.1, 0.1, 0.8], dtype=np.float32)
REFUSED = Drafted(2, DRAFT)
POSITION = 9


def recovery(seed: int) -> Recovery:
    rng = SeededRandom(seed)
    return Recovery(RejectionRule(rng), rng)


def sparse(seed: int, top: int, tail_draws: int) -> SparsePayload:
    return make_sparse_payload(TARGET, top, tail_draws, SeededRandom(seed), POSITION)


def test_a_whole_distribution_is_drawn_from_at_once() -> None:
    for seed in range(50):
        drawn = recovery(seed).start(FullPayload(TARGET), REFUSED, POSITION)
        assert drawn == recover(TARGET, (REFUSED.token_id,), DRAFT, SeededRandom(seed), POSITION)
        assert drawn in (0, 1), "the refused token has no residual"


def test_a_head_that_holds_everything_is_enough() -> None:
    for seed in range(50):
        drawing = recovery(seed)
        assert drawing.start(sparse(seed, 3, 0), REFUSED, POSITION) in (0, 1)
        assert not drawing.waits


def unfinished(top: int, tail_draws: int) -> Iterator[tuple[int, Recovery]]:
    for seed in range(200):
        drawing = recovery(seed)
        if drawing.start(sparse(seed, top, tail_draws), REFUSED, POSITION) is None:
            yield seed, drawing


@pytest.mark.parametrize(("top", "tail_draws"), [(0, 0), (1, 0), (1, 1)])
def test_a_draw_goes_on_with_the_full_distribution(top: int, tail_draws: int) -> None:
    waited = 0
    for _, drawing in unfinished(top, tail_draws):
        assert drawing.waits
        assert drawing.finish(TARGET, REFUSED, POSITION) in (0, 1)
        assert not drawing.waits
        waited += 1
    assert waited > 20


def test_a_rejection_received_again_is_decided_the_same_way() -> None:
    for seed, drawing in unfinished(1, 0):
        drawing.forget()
        assert not drawing.waits
        assert drawing.start(sparse(seed, 1, 0), REFUSED, POSITION) is None
        again = drawing.finish(TARGET, REFUSED, POSITION)
        other = recovery(seed)
        other.start(sparse(seed, 1, 0), REFUSED, POSITION)
        assert other.finish(TARGET, REFUSED, POSITION) == again


def test_a_bad_full_distribution_leaves_the_draw_waiting() -> None:
    _, drawing = next(unfinished(1, 0))
    head_only = np.array([1.0, 0.0, 0.0], dtype=np.float32)
    with pytest.raises(InvalidArgument) as caught:
        drawing.finish(head_only, REFUSED, POSITION)
    assert caught.value.field == "target_probs"
    assert drawing.waits


def test_what_an_early_verdict_foretells_is_what_the_verdict_brings() -> None:
    """By the same random numbers at the same position, and another draw at another."""
    tokens = set()
    for position in range(40):
        drawing = Recovery(RejectionRule(SeededRandom(3)), SeededRandom(3), True)
        told = drawing.predict(sparse(3, 3, 0), REFUSED, position)
        brought = recovery(3).start(FullPayload(TARGET), REFUSED, position)
        assert told == brought
        tokens.add(told)
    assert tokens == {0, 1}
    nothing = make_sparse_payload(TARGET, 0, 1, SeededRandom(3), POSITION)
    assert drawing.predict(nothing, REFUSED, POSITION) is None


@pytest.mark.parametrize(("top", "tail_draws"), [(3, 0), (1, 1), (1, 0), (0, 1)])
def test_a_sparse_early_verdict_foretells_what_the_payload_tells(top: int, tail_draws: int) -> None:
    """The token of the verdict with that payload, or none where the full distribution is needed;
    nothing is left waiting."""
    told: list[int | None] = []
    for seed in range(60):
        drawing, payload = recovery(seed), sparse(seed, top, tail_draws)
        told.append(drawing.predict(payload, REFUSED, POSITION))
        assert not drawing.waits
        assert told[-1] == recovery(seed).start(payload, REFUSED, POSITION)
    assert {0, 1} & set(told)
    assert (None in told) is (top < 3)


def test_what_is_foretold_of_a_whole_distribution_follows_the_residual() -> None:
    """A token that both models like alike is never recovered."""
    liked = np.array([0.5, 0.1, 0.4], dtype=np.float32)
    drawing = Recovery(RejectionRule(SeededRandom(3)), SeededRandom(3), True)
    told = {drawing.predict(sparse(3, 3, 0), Drafted(2, liked), position) for position in range(60)}
    assert told == {1}, "0.5 of 0.5 leaves no residual"
