"""The edge draws recovered tokens: in one step, or in two that are one draw."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tandem.core.acceptance import recover
from tandem.core.errors import ProtocolError
from tandem.core.probs import Array
from tandem.core.randomness import SeededRandom
from tandem.core.sparse_payload import FullPayload, SparsePayload, make_sparse_payload
from tandem.specdec.choices import Predraft
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Drafted, DraftTask
from tandem.specdec.presets import Preset
from tandem.specdec.rounds.messages import (
    EarlyVerdict,
    FullDistribution,
    NeedFullDistribution,
    Recovered,
)
from tests.virtual_time.cases import preset
from tests.virtual_time.edge_frames import connected, frame_of, sent, task_of, verdict_of

TARGET = np.array([0.5, 0.3, 0.2], dtype=np.float32)
DRAFT = np.array([0.1, 0.1, 0.8], dtype=np.float32)
REFUSED = 2
POSITION = 2
WHOLE = preset("dssd-full", 2)
SPLIT = preset("dssd", 2)
FORESEEING = {
    name: preset(name, 2, exits=2, predraft=Predraft.EARLY_EXITS) for name in ("dssd", "dssd-full")
}


def waiting(chosen: Preset, seed: int, probs: Array = DRAFT) -> EdgeMachine:
    """Two drafts are out, of which the first will be refused."""
    edge = connected(chosen, seed=seed, max_tokens=90)
    task = task_of(edge)
    edge.drafted(task, [Drafted(REFUSED, probs)] * 2, task.position + 1, 0.0, 0.0)
    return edge


def sparse(seed: int, top: int, tail_draws: int, position: int = POSITION) -> SparsePayload:
    return make_sparse_payload(TARGET, top, tail_draws, SeededRandom(seed), position)


def refuse(edge: EdgeMachine, payload: FullPayload | SparsePayload) -> int | None:
    """The token that the edge draws in the place of its first draft; None where it asks for the
    whole distribution first."""
    (answer,) = sent(edge.receive(verdict_of(edge, 0, True, payload), 0.1))
    if isinstance(answer, NeedFullDistribution):
        assert edge.work(0.1) is None, "nothing is drafted before that"
        return None
    assert isinstance(answer, Recovered)
    assert edge.committed.last == answer.token_id
    return answer.token_id


def finish(edge: EdgeMachine, probs: Array = TARGET) -> int:
    """The token that it draws with the whole distribution."""
    session, base, prefix = frame_of(edge)
    answer = FullDistribution(session, base, prefix, target_probs=probs)
    (recovered,) = sent(edge.receive(answer, 0.2))
    assert isinstance(recovered, Recovered)
    return recovered.token_id


def unfinished(top: int, tail_draws: int) -> Iterator[tuple[int, EdgeMachine]]:
    for seed in range(120):
        edge = waiting(SPLIT, seed)
        if refuse(edge, sparse(seed, top, tail_draws)) is None:
            yield seed, edge


def test_a_whole_distribution_is_drawn_from_at_once() -> None:
    for seed in range(50):
        drawn = refuse(waiting(WHOLE, seed), FullPayload(TARGET))
        assert drawn == recover(TARGET, (REFUSED,), DRAFT, SeededRandom(seed), POSITION)
        assert drawn in (0, 1), "the refused token has no residual"


def test_a_head_that_holds_everything_is_enough() -> None:
    for seed in range(50):
        assert refuse(waiting(SPLIT, seed), sparse(seed, 3, 0)) in (0, 1)


@pytest.mark.parametrize(("top", "tail_draws"), [(0, 0), (1, 0), (1, 1)])
def test_a_draw_goes_on_with_the_full_distribution(top: int, tail_draws: int) -> None:
    tokens = [finish(edge) for _, edge in unfinished(top, tail_draws)]
    assert set(tokens) <= {0, 1}
    assert len(tokens) > 12


def test_a_rejection_received_again_is_decided_the_same_way() -> None:
    for seed, edge in unfinished(1, 0):
        edge.lost(0.2)
        edge.connect(0.3)
        assert refuse(edge, sparse(seed, 1, 0)) is None
        other = waiting(SPLIT, seed)
        refuse(other, sparse(seed, 1, 0))
        assert finish(edge) == finish(other)


def test_a_bad_full_distribution_leaves_the_draw_waiting() -> None:
    _, edge = next(unfinished(1, 0))
    head_only = np.array([1.0, 0.0, 0.0], dtype=np.float32)
    with pytest.raises(ProtocolError, match="target_probs"):
        finish(edge, head_only)
    assert finish(edge) in (0, 1)


def branch_for(edge: EdgeMachine, payload: SparsePayload) -> DraftTask | None:
    """What an early verdict with that payload has the edge draft ahead, if anything."""
    verdict = EarlyVerdict(*frame_of(edge), 0, 0, True, payload, 0.5)
    assert edge.receive(verdict, 0.1) == []
    return edge.work(0.1)


def foretold(edge: EdgeMachine, payload: SparsePayload) -> int | None:
    """The token that it drafts for."""
    task = branch_for(edge, payload)
    return None if task is None else task.token_ids[-1]


def test_what_an_early_verdict_foretells_is_what_the_verdict_brings() -> None:
    """By the same random numbers at the same position, and another draw at another."""
    edge, tokens = waiting(FORESEEING["dssd-full"], 3), set[int | None]()
    for _ in range(20):
        task = branch_for(edge, sparse(3, 3, 0))
        assert task is not None
        tokens.add(refuse(edge, FullPayload(TARGET)))
        assert edge.committed.last == task.token_ids[-1]
        edge.drafted(task, [Drafted(REFUSED, DRAFT)] * 2, task.position, 0.0, 0.0)
    assert tokens == {0, 1}
    nothing = sparse(3, 0, 1)
    payload = SparsePayload(nothing.ids, nothing.probs, 1.0, nothing.ids, nothing.probs)
    assert foretold(edge, payload) is None


@pytest.mark.parametrize(("top", "tail_draws"), [(3, 0), (1, 1), (1, 0), (0, 1)])
def test_a_sparse_early_verdict_foretells_what_the_payload_tells(top: int, tail_draws: int) -> None:
    """The token of the verdict with that payload, or none where the full distribution is needed."""
    told: list[int | None] = []
    for seed in range(40):
        payload, edge = sparse(seed, top, tail_draws), waiting(FORESEEING["dssd"], seed)
        told.append(foretold(edge, payload))
        assert refuse(edge, payload) == told[-1]
    assert {0, 1} & set(told)
    assert (None in told) is (top < 3)


def test_a_rejection_that_a_second_stream_brings_again_counts_once() -> None:
    """The first one was lost before the distribution came that its token is drawn from."""
    seed, edge = next(unfinished(0, 0))
    edge.lost(0.2)
    edge.connect(0.3)
    assert refuse(edge, sparse(seed, 0, 0)) is None
    finish(edge)
    stats = edge.stats
    assert (stats.rejected, stats.rounds, stats.acceptance_histogram) == (1, 1, [1, 0])
    assert stats.full_distribution_requests == 2
    assert edge.controller.acceptance.judged == 1
