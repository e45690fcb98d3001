"""Rules as a preset composes them; their exactness is tested where they are defined, in core."""

import numpy as np
import pytest

from tandem.core.acceptance import recover, sample_draft, sample_target
from tandem.core.chance import SeededChance
from tandem.core.noise import coupled_token
from tandem.core.sparse_answer import SparseAnswer
from tandem.policy.choices import Acceptance
from tandem.policy.presets import PRESETS
from tandem.protocol.messages import FullAnswer
from tandem.protocol.rules import (
    AcceptanceRule,
    Proposal,
    RacingRejectionRule,
    RejectionRule,
    SharedNoiseRule,
    acceptance_rule,
    answer_rule,
)
from tests.protocol.cases import preset

CHANCE = SeededChance(5)
TARGET = np.array([0.5, 0.3, 0.2, 0.0], dtype=np.float32)
DRAFT = np.array([0.1, 0.1, 0.4, 0.4], dtype=np.float32)


@pytest.mark.parametrize("name", PRESETS)
def test_the_preset_names_the_rule(name: str) -> None:
    rule = acceptance_rule(PRESETS[name], 5, CHANCE)
    if PRESETS[name].acceptance is Acceptance.SHARED_NOISE:
        assert rule == SharedNoiseRule(5)
    elif PRESETS[name].schedule.decode_when_idle:
        assert rule == RacingRejectionRule(CHANCE)
    else:
        assert rule == RejectionRule(CHANCE)


def test_rejection_uses_one_stream_per_purpose() -> None:
    rule = RejectionRule(CHANCE)
    for position in range(50):
        assert rule.propose(DRAFT, position) == sample_draft(DRAFT, CHANCE, position)
        assert rule.own_token(TARGET, position) == sample_target(TARGET, CHANCE, position)
        whole = Proposal(2, draft_probs=DRAFT)
        assert rule.recovered(TARGET, whole, position) == recover(TARGET, DRAFT, CHANCE, position)
        split = Proposal(2, draft_prob=float(DRAFT[2]))
        assert rule.accepts(TARGET, whole, position) == rule.accepts(TARGET, split, position)
        assert not rule.accepts(TARGET, Proposal(3, draft_prob=0.4), position)
        assert rule.accepts(TARGET, Proposal(0, draft_prob=0.1), position)


def test_shared_noise_accepts_the_targets_own_token_only() -> None:
    rule = SharedNoiseRule(5)
    for position in range(50):
        own = coupled_token(TARGET, 5, position)
        assert rule.own_token(TARGET, position) == own
        assert rule.recovered(TARGET, Proposal(3), position) == own
        assert [rule.accepts(TARGET, Proposal(token), position) for token in range(4)] == [
            token == own for token in range(4)
        ]
        assert rule.propose(DRAFT, position) == coupled_token(DRAFT, 5, position)


@pytest.mark.parametrize("rule", [SharedNoiseRule(5), RejectionRule(CHANCE)], ids=["shared", "own"])
def test_a_prepared_law_is_judged_as_the_law_itself(rule: AcceptanceRule) -> None:
    for position in range(50):
        prepared = rule.prepare(TARGET, position)
        assert rule.own_token(prepared, position) == rule.own_token(TARGET, position)
        for token in range(4):
            proposal = Proposal(token, draft_probs=DRAFT)
            accepted = rule.accepts(TARGET, proposal, position)
            assert rule.accepts(prepared, proposal, position) == accepted
            recovered = rule.recovered(TARGET, proposal, position)
            assert rule.recovered(prepared, proposal, position) == recovered


def test_answers() -> None:
    def answer(name: str, **choices: int) -> object:
        chosen = preset(name, **choices)
        rule = acceptance_rule(chosen, 5, CHANCE)
        return answer_rule(chosen, rule, CHANCE).answer(TARGET, Proposal(2, None, DRAFT), 7)

    assert answer("dsd") == recover(TARGET, DRAFT, CHANCE, 7)
    assert answer("coupled") == coupled_token(TARGET, 5, 7)
    full = answer("dssd-full")
    assert isinstance(full, FullAnswer)
    assert full.target_probs is TARGET
    sparse = answer("dssd", answer_top=1, answer_tail_draws=3)
    assert isinstance(sparse, SparseAnswer)
    assert (sparse.ids.tolist(), len(sparse.tail_ids)) == ([0], 3)
