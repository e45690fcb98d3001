"""The judge of chains, trees and early exits: what it finds, and what it never asks for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tandem.core.probs import Array
from tandem.core.randomness import SeededRandom
from tandem.specdec.judge import Judge, Preparation, Step, chain_steps
from tandem.specdec.messages import Drafts, Frame
from tandem.specdec.rounds.cloud import DraftTree
from tandem.specdec.rounds.exits import EarlyJudge
from tandem.specdec.rules import (
    AcceptanceRule,
    GumbelCouplingRule,
    PayloadRule,
    Proposal,
    RejectionRule,
)

V = 6
RULE = GumbelCouplingRule(1)
PAYLOADS = PayloadRule(RULE, SeededRandom(0))


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
            draft = Drafts(*(1, 3, 0), token_ids, True, distributions=drafted, parents=(-1, 0, 1))
            proposals = [
                Proposal((token_id,), draft_probs=probs)
                for token_id, probs in zip(token_ids, drafted, strict=True)
            ]
            payloads = PayloadRule(rule, rng)
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
        early = EarlyJudge(Frame(1, 3, 0), (0,), judge).verdict(0, rows, lambda row: row / 10)
        verification = judge.judge(Rows(target))
        assert early is not None
        assert (early.accepted, early.rejected) == (
            len(verification.path),
            verification.replacement is not None,
        )
        assert early.outcome == verification.next_target
        assert early.confidence == rows.asked[-1] / 10


def early_judge(
    rule: AcceptanceRule, drafts: Sequence[tuple[int, Array]], **changes: Any
) -> EarlyJudge:
    """An exit's judge of drafts, each with the distribution it was drawn from."""
    proposals = [Proposal((token_id,), draft_probs=probs) for token_id, probs in drafts]
    payloads = PayloadRule(rule, SeededRandom(0))
    judge = Judge(3, chain_steps(proposals), rule, payloads, **changes)
    return EarlyJudge(Frame(1, 3, 4), (0, 1), judge)


@pytest.mark.parametrize(
    ("known", "accepted", "confidence"), [((1,), 2, 0.1), ((1, 2), 2, 0.0), ((5,), 0, 1.0)]
)
def test_targets_that_were_known_before_take_no_row_of_an_exit(
    known: tuple[int, ...], accepted: int, confidence: float
) -> None:
    """What is left is judged from the pass's first row on; a rejection before it is certain."""
    rule = RejectionRule(SeededRandom(1))
    targets = tuple(one_hot(token) for token in known)
    early = early_judge(rule, [(token, one_hot(token)) for token in (1, 2, 3)], known=targets)
    rows = np.stack([one_hot(token) for token in (2, 5, 5)[len(known) - 1 :]])
    verdict = early.verdict(1, rows.__getitem__, lambda row: row / 10)
    assert verdict is not None
    assert (verdict.accepted, verdict.rejected, verdict.outcome) == (accepted, True, 5)
    assert verdict.confidence == confidence
