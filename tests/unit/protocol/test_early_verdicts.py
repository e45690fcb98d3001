"""Early verdicts: what a cloud could get wrong in one, and which leaves it first."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tandem.core.errors import ProtocolError
from tandem.policy.choices import Predraft, PredraftOrder
from tandem.protocol.early_verdicts import EarlyQueue
from tandem.protocol.edge import EdgeMachine
from tandem.protocol.messages import EarlyVerdict
from tandem.protocol.prefixes import PrefixMismatch
from tests.protocol.cases import preset
from tests.protocol.edge_frames import SPARSE, V, draft, edge_of, state_of

SPLIT = preset("fsd", 2, answer_top=1)
COUPLED = preset("coupled", 2, predraft=Predraft.EARLY_EXITS, exits=3)


def waiting(chosen: object = COUPLED) -> EdgeMachine:
    """An edge with two drafts out."""
    edge = edge_of(chosen)  # type: ignore[arg-type]
    edge.connect(0.0)
    draft(edge, 0, 1)
    return edge


def early(edge: EdgeMachine, accepted: int, rejected: bool, outcome: object) -> EarlyVerdict:
    return EarlyVerdict(
        edge.request.session,
        edge.epoch,
        len(edge.committed),
        edge.committed.prefix,
        exit_index=1,
        accepted=accepted,
        rejected=rejected,
        outcome=outcome,  # type: ignore[arg-type]
        confidence=0.5,
    )


def test_an_early_verdict_changes_nothing_but_what_is_drafted_ahead() -> None:
    edge = waiting()
    before = state_of(edge)
    assert edge.work(0.0) is None
    assert edge.receive(early(edge, 1, True, 2), 0.1) == []
    assert edge.stats.early_verdicts == 1
    edge.stats.early_verdicts = 0
    assert state_of(edge) == before
    work = edge.work(0.1)
    assert work is not None
    assert (work.branch, work.position, work.token_ids) == (True, 4, (2,))


def test_a_law_to_draw_from_is_drawn_from_as_the_verdict_s_own() -> None:
    edge = waiting(SPLIT)
    edge.receive(early(edge, 1, True, SPARSE), 0.1)
    work = edge.work(0.1)
    drawn = edge._recovery.foresee(SPARSE, edge.drafting.in_flight.all[1], 3)
    if drawn is None:
        assert work is None
    else:
        assert work is not None
        assert work.token_ids[-1] == drawn


BAD: dict[str, tuple[Callable[[EarlyVerdict], EarlyVerdict], type[Exception]]] = {
    "another session": (lambda m: replace(m, session=m.session + 1), ProtocolError),
    "another base": (lambda m: replace(m, base=m.base + 1), ProtocolError),
    "another text": (lambda m: replace(m, prefix=m.prefix ^ 1), PrefixMismatch),
    "another epoch": (lambda m: replace(m, epoch=m.epoch + 1), ProtocolError),
    "more than was sent": (lambda m: replace(m, accepted=2, rejected=True), ProtocolError),
    "judges nothing": (lambda m: replace(m, accepted=0, rejected=False), ProtocolError),
    "no token of the vocabulary": (lambda m: replace(m, outcome=V), ProtocolError),
    "a law where the cloud draws": (lambda m: replace(m, outcome=SPARSE), ProtocolError),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_one_is_refused_and_changes_nothing(name: str) -> None:
    spoil, error = BAD[name]
    edge = waiting()
    before = state_of(edge)
    with pytest.raises(error):
        edge.receive(spoil(early(edge, 1, True, 2)), 0.1)
    assert state_of(edge) == before


def test_one_that_nobody_asked_for_is_refused() -> None:
    edge = waiting(preset("coupled", 2))
    with pytest.raises(ProtocolError, match="no early exits asked for"):
        edge.receive(early(edge, 1, True, 2), 0.1)


def spoken(exit_index: int, confidence: float, base: int = 5) -> EarlyVerdict:
    return EarlyVerdict(1, 0, base, 9, exit_index, 1, True, 2, confidence)


def left(order: PredraftOrder, seed: int = 3) -> list[int]:
    queue = EarlyQueue(order, seed)
    for exit_index, confidence in ((0, 0.2), (1, 0.9), (2, 0.5)):
        queue.push(spoken(exit_index, confidence))
    found = []
    while queue:
        found.append(queue.pop().exit_index)
    return found


def test_the_order_in_which_early_verdicts_leave() -> None:
    assert left(PredraftOrder.CONFIDENCE) == [1, 2, 0]
    assert left(PredraftOrder.FIFO) == [0, 1, 2]
    orders = {tuple(left(PredraftOrder.RANDOM, seed)) for seed in range(60)}
    assert len(orders) == 6
    assert left(PredraftOrder.RANDOM) == left(PredraftOrder.RANDOM)


def test_an_exit_that_speaks_again_is_heard_once_and_a_verdict_voids_the_rest() -> None:
    queue = EarlyQueue(PredraftOrder.FIFO, 0)
    queue.push(spoken(0, 0.5))
    queue.push(spoken(0, 0.7))
    assert queue.pop().confidence == 0.7
    assert not queue
    queue.push(spoken(1, 0.5))
    queue.clear()
    assert not queue
