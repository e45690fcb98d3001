"""The judge of chains, trees and early exits: what it finds, and what it never asks for."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.distribution import distribution_of
from tandem.core.probs import Array, SamplingParams
from tandem.core.randomness import SeededRandom
from tandem.runtime.session_jobs import VerifyJob
from tandem.specdec.cloud import VerifyTask
from tandem.specdec.judge import DraftTree, EarlyJudge, Judge, Preparation, Step, chain_steps
from tandem.specdec.messages import Draft, EarlyVerdict, Frame
from tandem.specdec.rules import (
    AcceptanceRule,
    GumbelCouplingRule,
    Proposal,
    RejectionRule,
    TokenPayload,
)
from tandem.testing.scripted import ScriptedEngine, scripted_probs

V = 6
RULE = GumbelCouplingRule(1)
PAYLOADS = TokenPayload(RULE, SeededRandom(0))


def one_hot(token: int) -> Array:
    probs: Array = np.eye(V, dtype=np.float32)[token]
    return probs


class Rows:
    """Distributions that all lie on one token, and the rows that were asked for."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self.asked: list[int] = []
        self._token_ids = token_ids

    def __call__(self, row: int) -> Array:
        self.asked.append(row)
        return one_hot(self._token_ids[row])


def chain(*token_ids: int) -> list[Proposal]:
    return [Proposal((token_id,), draft_probs=one_hot(token_id)) for token_id in token_ids]


def judge_of(*token_ids: int, **changes: object) -> Judge:
    return Judge(3, chain_steps(chain(*token_ids)), RULE, PAYLOADS, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "accepted", "asked"),
    [
        ((5, 2, 3, 4), (), [0]),
        ((1, 5, 3, 4), (1,), [0, 1]),
        ((1, 2, 5, 4), (1, 2), [0, 1, 2]),
        ((1, 2, 3, 4), (1, 2, 3), [0, 1, 2, 3]),
    ],
)
def test_nothing_is_asked_for_after_the_first_rejection(
    target: tuple[int, ...], accepted: tuple[int, ...], asked: list[int]
) -> None:
    rows = Rows(target)
    verification = judge_of(1, 2, 3).judge(rows)
    assert (verification.token_ids, rows.asked) == (accepted, asked)
    assert verification.replacement == (None if len(accepted) == 3 else 5)
    assert verification.next_target == target[len(accepted)]


def test_nothing_is_asked_for_after_the_end_of_the_text() -> None:
    for changes in ({"eos": frozenset({2})}, {"length_limit": 5}):
        rows = Rows((1, 2, 3, 4))
        verification = judge_of(1, 2, 3, **changes).judge(rows)
        assert (verification.token_ids, rows.asked) == ((1, 2), [0, 1])
        assert verification.next_target is None


def test_the_row_after_the_last_draft_is_left_alone_where_no_bonus_follows() -> None:
    rows = Rows((1, 2, 3))
    verification = judge_of(1, 2, bonus=False).judge(rows)
    assert (verification.token_ids, verification.next_target, rows.asked) == ((1, 2), None, [0, 1])


def test_known_targets_take_the_place_of_the_first_rows() -> None:
    rows = Rows((2, 3))
    verification = judge_of(1, 2, known=(1,)).judge(rows)
    assert (verification.token_ids, verification.next_target, rows.asked) == ((1, 2), 3, [0, 1])
    rows = Rows((3, 4))
    verification = judge_of(1, 2, 3, known=(1, 2)).judge(rows)
    assert (verification.token_ids, verification.next_target, rows.asked) == ((1, 2, 3), 4, [0, 1])
    for known in ((4,), (1, 4)):
        rows = Rows((2, 3))
        verification = judge_of(1, 2, 3, known=known).judge(rows)
        assert (verification.replacement, rows.asked) == (4, [])
        assert verification.token_ids == known[:-1]


def test_a_preparation_reads_every_row_and_judges_nothing() -> None:
    rows = Rows((4, 5, 3))
    verification = Preparation(3, 3, judge_of(1).rule).judge(rows)
    assert (verification.path, verification.targets) == ((), (4, 5, 3))
    assert rows.asked == [0, 1, 2]


def test_a_tree_of_single_candidates_is_a_chain() -> None:
    """Bit for bit, with both rules."""
    source = np.random.default_rng(7)
    for seed in range(200):
        target = source.dirichlet(np.ones(V), 4).astype(np.float32)
        drafted = source.dirichlet(np.ones(V), 3).astype(np.float32)
        rng = SeededRandom(seed)
        for rule in (RejectionRule(rng), GumbelCouplingRule(seed)):
            token_ids = tuple(rule.propose(probs, at) for at, probs in enumerate(drafted, start=3))
            draft = Draft(*(1, 0, 3, 0), token_ids, True, distributions=drafted, parents=(-1, 0, 1))
            proposals = [
                Proposal((token_id,), draft_probs=probs)
                for token_id, probs in zip(token_ids, drafted, strict=True)
            ]
            payloads = TokenPayload(rule, rng)
            shapes = (DraftTree.of(draft).steps, chain_steps(proposals))
            found = [Judge(3, steps, rule, payloads).judge(target.__getitem__) for steps in shapes]
            assert found[0].path == found[1].path
            assert found[0].replacement == found[1].replacement


def test_a_tree_is_followed_down_one_path() -> None:
    steps = {
        -1: Step((0, 1), Proposal((1, 2))),
        0: Step((2,), Proposal((5,))),
        1: Step((3,), Proposal((3,))),
    }
    rows = Rows((2, 0, 3, 0, 4))
    verification = Judge(3, steps, RULE, PAYLOADS).judge(rows)
    assert (verification.path, verification.token_ids) == ((1, 3), (2, 3))
    assert (verification.next_target, rows.asked) == (4, [0, 2, 4])


def test_an_early_exit_judges_as_the_pass_does() -> None:
    for target in ((5, 2, 3), (1, 5, 3), (1, 2, 3)):
        judge, rows = judge_of(1, 2), Rows(target)
        early = EarlyJudge(Frame(1, 0, 3, 0), (0,), judge).verdict(0, rows, lambda row: row / 10)
        verification = judge.judge(Rows(target))
        assert early is not None
        assert (early.accepted, early.rejected) == (
            len(verification.path),
            verification.replacement is not None,
        )
        assert early.outcome == verification.next_target
        assert early.confidence == rows.asked[-1] / 10


class Logits:
    """The rows of a pass's logits [rows, V], and which of them were read."""

    def __init__(self, rows: Array) -> None:
        self.read: list[int] = []
        self._rows = rows

    def __getitem__(self, row: int) -> Array:
        self.read.append(row)
        taken: Array = self._rows[row]
        return taken


def test_a_verify_job_makes_distributions_of_the_rows_that_are_judged() -> None:
    engine = ScriptedEngine(V, scripted_probs(1, V))
    work = VerifyTask(0, (0, 0, 0, 1, 2, 3), 4, 3, judge_of(1, 2, 3))
    job = VerifyJob(engine.open(10), work, SamplingParams(temperature=0.0))
    logits = Logits(np.log(np.stack([one_hot(token) for token in (1, 5, 3, 4)]) + 1e-9))
    assert job.take(logits)  # type: ignore[arg-type]
    assert (job.result().token_ids, job.result().replacement) == ((1,), 5)
    assert logits.read == [0, 1]


def early_judge(
    rule: AcceptanceRule, drafts: Sequence[tuple[int, Array]], **changes: Any
) -> EarlyJudge:
    """An exit's judge of drafts, each with the distribution it was drawn from."""
    proposals = [Proposal((token_id,), draft_probs=probs) for token_id, probs in drafts]
    payloads = TokenPayload(rule, SeededRandom(0))
    judge = Judge(3, chain_steps(proposals), rule, payloads, **changes)
    return EarlyJudge(Frame(1, 2, 3, 4), (0, 1), judge)


def from_probabilities(
    early: EarlyJudge, sampling: SamplingParams, rows: Sequence[Array]
) -> EarlyVerdict | None:
    """As an engine does that reads one probability for each draft, and one distribution."""
    checked = early.drafts_to_check(sampling)
    assert checked is not None
    accepted = 0
    while accepted < len(checked.drafts):
        token_id, least = checked.drafts[accepted]
        if not rows[accepted][token_id] > least:
            break
        accepted += 1
    after = distribution_of(rows[min(accepted, len(rows) - 1)])
    return early.verdict_of(1, checked, accepted, after, accepted / 10)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bonus": False},
        {"eos": frozenset({2, 4})},
        {"length_limit": 5},
        {"length_limit": 6},
        {"length_limit": 7},
    ],
    ids=str,
)
def test_a_probability_for_each_draft_tells_an_exit_s_whole_verdict(
    changes: dict[str, Any],
) -> None:
    source, found = np.random.default_rng(5), Counter[int]()
    for seed in range(60):
        rule = RejectionRule(SeededRandom(seed))
        rows = source.dirichlet(np.ones(V), 4).astype(np.float32)
        drawn = source.dirichlet(np.ones(V), 3).astype(np.float32)
        drafts = [(rule.propose(probs, at), probs) for at, probs in enumerate(drawn, start=3)]
        early = early_judge(rule, drafts, **changes)
        expected = early.verdict(1, rows.__getitem__, lambda row: row / 10)
        assert from_probabilities(early, SamplingParams(), [*rows]) == expected
        found[-1 if expected is None else expected.accepted] += 1
    assert len(found) >= 3


def test_at_temperature_0_a_draft_stands_where_all_the_probability_is() -> None:
    rule = RejectionRule(SeededRandom(1))
    for target in ((5, 2, 3, 4), (1, 5, 3, 4), (1, 2, 3, 4)):
        drafts = [(token, one_hot(token)) for token in (1, 2, 3)]
        early, rows = early_judge(rule, drafts), [one_hot(token) for token in target]
        expected = early.verdict(1, rows.__getitem__, lambda row: row / 10)
        assert from_probabilities(early, SamplingParams(0.0), rows) == expected


def test_an_early_verdict_names_its_exit_its_place_and_what_comes_there() -> None:
    rule = RejectionRule(SeededRandom(1))
    drafts = [(token, one_hot(token)) for token in (1, 2)]
    early, rows = early_judge(rule, drafts), [one_hot(token) for token in (1, 5, 3)]
    expected = EarlyVerdict(
        session=1,
        epoch=2,
        base=3,
        prefix_hash=4,
        exit_index=1,
        accepted=1,
        rejected=True,
        outcome=5,
        confidence=0.1,
    )
    assert from_probabilities(early, SamplingParams(0.0), rows) == expected


@pytest.mark.parametrize(("known", "accepted"), [((1,), 2), ((1, 2), 3), ((5,), None)])
def test_targets_that_were_known_before_are_judged_at_once(
    known: tuple[int, ...], accepted: int | None
) -> None:
    """What is left is checked from the pass's first row on; a rejection leaves nothing."""
    rule = RejectionRule(SeededRandom(1))
    drafts = [(token, one_hot(token)) for token in (1, 2, 3)]
    targets = tuple(one_hot(token) for token in known)
    early = early_judge(rule, drafts, known=targets)
    checked = early.drafts_to_check(SamplingParams(0.0))
    if accepted is None:
        assert checked is None
        return
    assert checked is not None
    assert (checked.known, len(checked.drafts)) == (len(known), 3 - len(known))
    rows = [one_hot(token) for token in (2, 5, 5)][len(known) - 1 :]
    found = from_probabilities(early, SamplingParams(0.0), rows)
    expected = early.verdict(1, rows.__getitem__, lambda row: row / 10)
    assert found is not None
    assert expected is not None
    assert (found.accepted, found.outcome) == (expected.accepted, expected.outcome) == (2, 5)


@pytest.mark.parametrize(
    ("sampling", "checked"),
    [
        (SamplingParams(0.01), True),
        (SamplingParams(0.009), False),
        (SamplingParams(100.0), True),
        (SamplingParams(101.0), False),
        (SamplingParams(0.0, top_k=3, top_p=0.5), True),
        (SamplingParams(top_k=3), False),
        (SamplingParams(top_p=0.5), False),
        (SamplingParams(min_p=0.5), False),
        (SamplingParams(typical_p=0.5), False),
    ],
)
def test_where_more_of_a_distribution_decides_no_number_does(
    sampling: SamplingParams, checked: bool
) -> None:
    drafts = [(1, one_hot(1))]
    early = early_judge(RejectionRule(SeededRandom(1)), drafts)
    assert (early.drafts_to_check(sampling) is not None) is checked


def test_under_the_shared_noise_no_number_decides() -> None:
    early = early_judge(GumbelCouplingRule(1), [(1, one_hot(1))])
    assert early.drafts_to_check(SamplingParams()) is None
    greedy = early.drafts_to_check(SamplingParams(0.0))
    assert greedy is not None
    assert greedy.drafts == ((1, 0.5),)


def test_each_exit_has_its_own_temperature() -> None:
    early = early_judge(RULE, [])
    assert early.temperature(1) == 1.0
    calibrated = replace(early, temperatures=(0.5, 2.0))
    assert [calibrated.temperature(index) for index in (0, 1)] == [0.5, 2.0]
