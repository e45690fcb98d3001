"""Rules as a preset composes them; their exactness is tested where they are defined, in core."""

import numpy as np
import pytest

from tandem.core.acceptance import recover, sample_draft, sample_target
from tandem.core.gumbel import coupled_token
from tandem.core.randomness import SeededRandom
from tandem.specdec.choices import Acceptance, RejectionPayload
from tandem.specdec.presets import PRESETS
from tandem.specdec.rules import (
    AcceptanceRule,
    GumbelCouplingRule,
    Proposal,
    RejectionRule,
    acceptance_rule,
)

RNG = SeededRandom(5)
TARGET = np.array([0.5, 0.3, 0.2, 0.0], dtype=np.float32)
DRAFT = np.array([0.1, 0.1, 0.4, 0.4], dtype=np.float32)


def test_a_preset_is_lossy_where_one_of_its_rules_is_not_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {kind for kind in RejectionPayload if not kind.exact} == {RejectionPayload.TOP_K}
    assert not PRESETS["dsd"].lossy
    monkeypatch.setattr(RejectionRule, "exact", False)
    assert PRESETS["dsd"].lossy
    assert not PRESETS["coupled"].lossy


@pytest.mark.parametrize("name", PRESETS)
def test_the_preset_names_the_rule(name: str) -> None:
    rule = acceptance_rule(PRESETS[name], 5, RNG)
    if PRESETS[name].acceptance is Acceptance.GUMBEL:
        assert rule == GumbelCouplingRule(5)
    else:
        assert rule == RejectionRule(RNG)


def test_rejection_uses_one_stream_per_purpose() -> None:
    rule = RejectionRule(RNG)
    for position in range(50):
        assert rule.propose(DRAFT, position) == sample_draft(DRAFT, RNG, position)
        assert rule.target_token(TARGET, position) == sample_target(TARGET, RNG, position)
        whole = Proposal((2,), draft_probs=DRAFT)
        assert rule.recovered(TARGET, whole, position) == recover(
            TARGET, (2,), DRAFT, RNG, position
        )
        split = Proposal((2,), draft_prob=float(DRAFT[2]))
        assert rule.accepted(TARGET, whole, position) == rule.accepted(TARGET, split, position)
        assert rule.accepted(TARGET, Proposal((3,), draft_prob=0.4), position) is None
        assert rule.accepted(TARGET, Proposal((0,), draft_prob=0.1), position) == 0


def test_gumbel_coupling_accepts_the_targets_own_token_only() -> None:
    rule = GumbelCouplingRule(5)
    for position in range(50):
        own = coupled_token(TARGET, 5, position)
        assert rule.target_token(TARGET, position) == own
        assert rule.recovered(TARGET, Proposal((3,)), position) == own
        assert [rule.accepted(TARGET, Proposal((token,)), position) for token in range(4)] == [
            0 if token == own else None for token in range(4)
        ]
        assert rule.propose(DRAFT, position) == coupled_token(DRAFT, 5, position)


@pytest.mark.parametrize("rule", [GumbelCouplingRule(5), RejectionRule(RNG)], ids=["shared", "own"])
def test_a_prepared_distribution_is_judged_as_the_distribution_itself(rule: AcceptanceRule) -> None:
    for position in range(50):
        prepared = rule.prepare(TARGET, position)
        assert rule.target_token(prepared, position) == rule.target_token(TARGET, position)
        for token in range(4):
            proposal = Proposal((token,), draft_probs=DRAFT)
            accepted = rule.accepted(TARGET, proposal, position)
            assert rule.accepted(prepared, proposal, position) == accepted
            recovered = rule.recovered(TARGET, proposal, position)
            assert rule.recovered(prepared, proposal, position) == recovered


def test_what_replaces_rejected_candidates_depends_on_whether_they_may_repeat() -> None:
    """After token 3 is rejected, 0.3, 0.1 and 0.6 are left of the target. Where token 1 was drawn
    from the same distribution, 0.05 and 0.6 are; where 3 could not come again it was drawn from two
    halves, and all that is left is token 2."""
    target = np.array([0.4, 0.3, 0.3, 0.0], dtype=np.float32)
    drafted = np.array([0.25, 0.25, 0.0, 0.5], dtype=np.float32)
    rejected = Proposal((3, 1), draft_probs=drafted)
    for with_replacement, tokens in ((True, {0, 2}), (False, {2})):
        rule = RejectionRule(RNG, with_replacement)
        assert {rule.recovered(target, rejected, position) for position in range(99)} == tokens


def test_candidates_of_a_layer_s_nodes_are_drawn_apart() -> None:
    """The draws of a node are numbered from its first: no number decides twice."""
    rule = RejectionRule(RNG)
    first, second, both = [], [], []
    for position in range(30):
        first.append(rule.candidates(DRAFT, 2, position, 0))
        second.append(rule.candidates(DRAFT, 2, position, 2))
        both.append(rule.candidates(DRAFT, 1, position, 0))
        assert len({*first[-1]}) == 2, "without replacement"
    assert first != second
    assert [one for one, _ in first] == [one for (one,) in both]
    assert [rule.propose(DRAFT, position) for position in range(30)] == [one for one, _ in first]
