"""Early verdicts: what a cloud could get wrong in one, and which leaves it first."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tandem.core.errors import ProtocolError
from tandem.core.probs import Array
from tandem.core.randomness import SeededRandom
from tandem.core.tokens import PrefixMismatch
from tandem.specdec.choices import Predraft, PredraftOrder, RejectionPayload, Schedule
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Interrupt
from tandem.specdec.messages import Cancel, Committed, Work
from tandem.specdec.rounds.exits import early_payload_rule
from tandem.specdec.rounds.messages import EarlyVerdict
from tandem.specdec.rules import acceptance_rule
from tandem.specdec.verify_task import VerifyTask
from tests.virtual_time.cases import preset
from tests.virtual_time.cloud_frames import (
    MODELS,
    draft_after,
    opening,
    own_tokens,
    pass_of,
    work_of,
)
from tests.virtual_time.edge_frames import (
    SPARSE,
    V,
    draft,
    drafts_in_flight,
    edge_of,
    task_of,
    verdict_of,
)
from tests.virtual_time.lockstep import judgement_for, model_for
from tests.virtual_time.machine_state import state_of

SPLIT = preset("fsd", 2, payload_top=1)
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
        len(edge.committed),
        edge.committed.prefix,
        exit_index=1,
        accepted=accepted,
        rejected=rejected,
        outcome=outcome,  # type: ignore[arg-type]
        confidence=0.5,
    )


def test_an_early_verdict_changes_nothing_but_what_is_drafted_ahead() -> None:
    edge, other = waiting(), waiting()
    assert edge.work(0.0) is None
    assert edge.receive(early(edge, 1, True, 2), 0.1) == []
    assert (edge.stats.early_verdicts, edge.phase) == (1, other.phase)
    assert (drafts_in_flight(edge), edge.kv_length) == (drafts_in_flight(other), other.kv_length)
    work = task_of(edge, 0.1)
    assert (work.branch, work.position, work.token_ids) == (True, 4, (2,))
    outputs = [each.receive(verdict_of(each, 0, True, 1), 0.2) for each in (edge, other)]
    assert outputs[0] == [Interrupt(work), *outputs[1]]


BAD: dict[str, tuple[Callable[[EarlyVerdict], EarlyVerdict], type[Exception]]] = {
    "another session": (lambda m: replace(m, session=m.session + 1), ProtocolError),
    "another base": (lambda m: replace(m, base=m.base + 1), ProtocolError),
    "another text": (lambda m: replace(m, prefix_hash=m.prefix_hash ^ 1), PrefixMismatch),
    "more than was sent": (lambda m: replace(m, accepted=2, rejected=True), ProtocolError),
    "judges nothing": (lambda m: replace(m, accepted=0, rejected=False), ProtocolError),
    "no token of the vocabulary": (lambda m: replace(m, outcome=V), ProtocolError),
    "a distribution where the cloud draws": (lambda m: replace(m, outcome=SPARSE), ProtocolError),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_one_is_rejected_and_changes_nothing(name: str) -> None:
    spoil, error = BAD[name]
    edge = waiting()
    before = state_of(edge)
    with pytest.raises(error):
        edge.receive(spoil(early(edge, 1, True, 2)), 0.1)
    assert state_of(edge) == before


def test_one_that_nobody_asked_for_is_rejected() -> None:
    edge = waiting(preset("coupled", 2))
    with pytest.raises(ProtocolError, match="no early exits asked for"):
        edge.receive(early(edge, 1, True, 2), 0.1)


def spoken(exit_index: int, confidence: float, base: int = 5) -> EarlyVerdict:
    return EarlyVerdict(1, base, 9, exit_index, 1, True, 2, confidence)


def cloud_with_exits(exits: int = 4, chosen: object = COUPLED) -> CloudMachine:
    model = replace(model_for(MODELS, frozenset()), exits=exits)
    return CloudMachine(opening(chosen), model)  # type: ignore[arg-type]


def pass_over(
    cloud: CloudMachine, drafts: tuple[int, ...], begun: tuple[int, ...] = ()
) -> VerifyTask:
    """The pass that judges a chunk, with the next one begun."""
    pass_of(cloud)
    cloud.receive(draft_after(cloud, drafts))
    if begun:
        cloud.receive(draft_after(cloud, begun, pending=drafts, end_of_chunk=False))
    work = work_of(cloud)
    assert work.drafts == len(drafts)
    return work


def speaking(
    order: PredraftOrder = PredraftOrder.FIFO, seed: int = 3
) -> tuple[CloudMachine, VerifyTask]:
    """A cloud whose pass is under way."""
    model = replace(model_for(MODELS, frozenset()), exits=4)
    cloud = CloudMachine(opening(replace(COUPLED, exit_order=order), seed=seed), model)
    cloud.receive(draft_after(cloud, (0, 1)))
    work = work_of(cloud)
    return cloud, work


def waiting_at(cloud: CloudMachine) -> list[EarlyVerdict]:
    """What it would send, in that order."""
    found = []
    while cloud.early_verdicts:
        found.append(cloud.early_verdicts.pop())
    return found


def left(order: PredraftOrder, seed: int = 3, base: int = 5) -> list[int]:
    cloud, work = speaking(order, seed)
    for exit_index, confidence in ((0, 0.2), (1, 0.9), (2, 0.5)):
        cloud.push_early_verdict(work, spoken(exit_index, confidence, base))
    return [verdict.exit_index for verdict in waiting_at(cloud)]


def test_the_order_in_which_early_verdicts_leave() -> None:
    assert left(PredraftOrder.CONFIDENCE) == [1, 2, 0]
    assert left(PredraftOrder.FIFO) == [0, 1, 2]
    orders = {tuple(left(PredraftOrder.RANDOM, seed)) for seed in range(60)}
    assert len(orders) == 6
    assert left(PredraftOrder.RANDOM) == left(PredraftOrder.RANDOM)
    rounds = {tuple(left(PredraftOrder.RANDOM, base=base)) for base in range(60)}
    assert len(rounds) == 6, "another order each round"


def test_an_exit_s_newer_verdict_replaces_its_older_and_the_final_one_discards_all() -> None:
    cloud, work = speaking()
    cloud.push_early_verdict(work, spoken(0, 0.5))
    cloud.push_early_verdict(work, spoken(0, 0.7))
    assert [verdict.confidence for verdict in waiting_at(cloud)] == [0.7]
    cloud.push_early_verdict(work, spoken(1, 0.5))
    cloud.complete(judgement_for(MODELS, cloud, work), Work())
    assert waiting_at(cloud) == []


@pytest.mark.parametrize(("has", "speaks"), [(4, (1, 2, 3)), (3, (0, 1, 2)), (2, (0, 1)), (0, ())])
def test_the_deepest_exits_speak_as_many_as_were_asked_for(has: int, speaks: tuple[int]) -> None:
    cloud = cloud_with_exits(has)
    assert cloud.exits == speaks


@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize("further", [True, False])
def test_an_early_verdict_has_a_bonus_just_where_the_final_one_has(
    bonus: bool, further: bool
) -> None:
    """That is after the last of the drafts that came, if the schedule gives one."""
    chosen = replace(COUPLED, schedule=Schedule(4, 2, bonus=bonus))
    right = own_tokens(chosen, 4)
    cloud = cloud_with_exits(chosen=chosen)
    work = pass_over(cloud, right[:2], right[2:3] if further else ())
    assert work.early is not None
    assert work.early.judge.bonus == (bonus and not further)

    def probs_at(row: int) -> Array:
        return MODELS.target_probs((1, 2, *right[: row + 1]))

    verdict = work.early.verdict(1, probs_at, lambda row: 0.5)
    answers = cloud.complete(work.judge.judge(probs_at), Work())
    (final,) = [answer for answer in answers if isinstance(answer, Committed)]
    assert final.accepted == 2
    assert (final.token_ids == ()) == (not bonus or further)
    assert ((verdict.outcome,) if verdict else ()) == final.token_ids


def test_an_early_verdict_never_carries_a_full_distribution() -> None:
    rng = SeededRandom(1)
    for name, kind in (
        ("dssd-full", RejectionPayload.LOSSLESS_SPARSE),
        ("dssd", RejectionPayload.LOSSLESS_SPARSE),
        ("dsd", RejectionPayload.TOKEN),
    ):
        chosen = preset(name, 2)
        rule = acceptance_rule(chosen, 1, rng)
        assert early_payload_rule(chosen.verify_settings, rule, rng).kind is kind, name


def test_only_the_pass_that_runs_may_speak() -> None:
    cloud = cloud_with_exits()
    right = own_tokens(COUPLED, 4)
    work = pass_over(cloud, right[:2])
    cloud.push_early_verdict(replace(work), spoken(1, 0.5))
    assert not cloud.early_verdicts, "another pass"
    cloud.push_early_verdict(work, spoken(1, 0.5))
    assert cloud.early_verdicts
    cloud.receive(Cancel(7, 2, cloud.committed.prefix))
    assert not cloud.early_verdicts
    cloud.push_early_verdict(work, spoken(2, 0.5))
    assert not cloud.early_verdicts, "nobody listens any more"


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_confidence_is_that_of_the_row_that_speaks(accepted: int) -> None:
    """Before the first draft there is no row: what stands there is certain."""
    right = own_tokens(COUPLED, 3)
    drafts = tuple((t if n < accepted else (t + 1) % V) for n, t in enumerate(right[:2]))
    cloud = cloud_with_exits()
    if accepted == 0:  # the first row is that of the prompt's last token, fed with the drafts
        cloud.receive(draft_after(cloud, drafts))
        work = work_of(cloud)
        texts = [(1, 2), (1, 2, drafts[0])]
    else:
        work = pass_over(cloud, drafts)
        texts = [(1, 2, *drafts[:n]) for n in (1, 2)]
    assert work.early is not None
    verdict = work.early.verdict(
        0, lambda row: MODELS.target_probs(texts[row]), lambda row: 0.1 * (row + 1)
    )
    assert verdict is not None
    assert (verdict.accepted, verdict.rejected) == (accepted, accepted < 2)
    assert verdict.confidence == pytest.approx((0.1, 0.1, 0.2)[accepted])
