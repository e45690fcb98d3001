"""Acceptance rules and rejection answers as policy objects, composed from a preset's choices.

Invariant: what is accepted, refused and redrawn is decided from the very law that was sampled from.
Randomness comes from streams keyed (seed, position, purpose), so a decision taken again after a
resume is the same decision. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.core.acceptance import accepts, recover, sample_draft, sample_target
from tandem.core.chance import Chance, Purpose
from tandem.core.laws import Array
from tandem.core.noise import coupled_candidates, coupled_token
from tandem.core.rivals import Rivals, coupled_rivals, likely_rivals
from tandem.core.sparse_answer import make_sparse_answer
from tandem.core.top_k_answer import make_top_k_answer
from tandem.core.tree_acceptance import choose_candidate, draw_candidates
from tandem.policy.choices import Acceptance, Answer
from tandem.policy.presets import Preset
from tandem.protocol.messages import FullAnswer, Outcome


@dataclass(frozen=True, slots=True)
class Proposal:
    """One draft token with as much of its law as the uplink carries."""

    token_id: int
    draft_prob: float | None = None
    draft_probs: Array | None = None


TargetLaw = Array | int
"""The target's law at a position, or its token where the rule has already decided it."""


class AcceptanceRule(Protocol):
    """How tokens are drawn on either side, and when a draft counts as the target's own.

    A position of a chain has one draft (`propose`, `accepts`, `recovered`), one of a tree several
    (`candidates`, `choose`).
    """

    def propose(self, draft_probs: Array, position: int) -> int:
        """The edge's draft token at an absolute position."""

    def rivals(self, draft_probs: Array, token_id: int, position: int, count: int) -> Rivals:
        """Tokens that may well come in the place of the draft `token_id`, the likeliest first."""

    def prepare(self, target_probs: Array, position: int) -> TargetLaw:
        """The law reduced to what judging needs, computed where the laws are: judging with it gives
        what judging with the law itself gives."""

    def own_token(self, target: TargetLaw, position: int) -> int:
        """The cloud's token where it judges no draft."""

    def accepts(self, target: TargetLaw, proposal: Proposal, position: int) -> bool:
        """Whether the draft stands."""

    def recovered(self, target: TargetLaw, proposal: Proposal, position: int) -> int:
        """The token in place of a refused draft, drawn where both laws are known."""

    def candidates(
        self, draft_probs: Array, count: int, position: int, first_draw: int
    ) -> list[int]:
        """Up to `count` tokens for one position; `first_draw` numbers its first random decision,
        differently for each node of a tree."""

    def choose(
        self,
        target: TargetLaw,
        candidates: Sequence[int],
        draft_probs: Array | None,
        position: int,
    ) -> tuple[int | None, int]:
        """(index, token) of the candidate that stands, or (None, token in place of all)."""


@dataclass(frozen=True, slots=True)
class RejectionRule:
    """DESIGN §3.1 (Leviathan/Chen)."""

    chance: Chance
    with_replacement: bool = False

    def propose(self, draft_probs: Array, position: int) -> int:
        return sample_draft(draft_probs, self.chance, position)

    def rivals(self, draft_probs: Array, token_id: int, position: int, count: int) -> Rivals:
        return likely_rivals(draft_probs, token_id, count)

    def prepare(self, target_probs: Array, position: int) -> TargetLaw:
        return target_probs

    def own_token(self, target: TargetLaw, position: int) -> int:
        return sample_target(law_of(target), self.chance, position)

    def accepts(self, target: TargetLaw, proposal: Proposal, position: int) -> bool:
        draft_prob = proposal.draft_prob
        if draft_prob is None:
            assert proposal.draft_probs is not None, "a proposal carries a probability or a law"
            draft_prob = proposal.draft_probs[proposal.token_id]
        return accepts(law_of(target), proposal.token_id, draft_prob, self.chance, position)

    def recovered(self, target: TargetLaw, proposal: Proposal, position: int) -> int:
        assert proposal.draft_probs is not None, "drawing from the residual needs the draft law"
        return recover(law_of(target), proposal.draft_probs, self.chance, position)

    def candidates(
        self, draft_probs: Array, count: int, position: int, first_draw: int
    ) -> list[int]:
        return draw_candidates(
            draft_probs, count, self.chance, position, first_draw, self.with_replacement
        )

    def choose(
        self,
        target: TargetLaw,
        candidates: Sequence[int],
        draft_probs: Array | None,
        position: int,
    ) -> tuple[int | None, int]:
        assert draft_probs is not None, "judging several candidates needs the draft law"
        return choose_candidate(
            law_of(target), candidates, draft_probs, self.chance, position, self.with_replacement
        )


@dataclass(frozen=True, slots=True)
class RacingRejectionRule(RejectionRule):
    """The rejection rule where a draft and a token of the cloud's own race for each position.

    Whichever comes first decides the position, so one number may serve both; that makes them equal
    as often as can be, and what was drafted after the draft stays valid. Exact as long as who comes
    first does not depend on that number.
    """

    def propose(self, draft_probs: Array, position: int) -> int:
        return self.chance.couple(draft_probs, position, Purpose.DRAFT)

    def own_token(self, target: TargetLaw, position: int) -> int:
        return self.chance.couple(law_of(target), position, Purpose.DRAFT)


@dataclass(frozen=True, slots=True)
class SharedNoiseRule:
    """DESIGN §3.3: accepted iff equal to the target's own token under the same noise."""

    seed: int

    def propose(self, draft_probs: Array, position: int) -> int:
        return coupled_token(draft_probs, self.seed, position)

    def rivals(self, draft_probs: Array, token_id: int, position: int, count: int) -> Rivals:
        return coupled_rivals(draft_probs, token_id, self.seed, position, count)

    def prepare(self, target_probs: Array, position: int) -> TargetLaw:
        """The target's token: the noise decides it, whatever the drafts."""
        return coupled_token(target_probs, self.seed, position)

    def own_token(self, target: TargetLaw, position: int) -> int:
        return target if isinstance(target, int) else coupled_token(target, self.seed, position)

    def accepts(self, target: TargetLaw, proposal: Proposal, position: int) -> bool:
        return self.own_token(target, position) == proposal.token_id

    def recovered(self, target: TargetLaw, proposal: Proposal, position: int) -> int:
        return self.own_token(target, position)

    def candidates(
        self, draft_probs: Array, count: int, position: int, first_draw: int
    ) -> list[int]:
        return coupled_candidates(draft_probs, self.seed, position, count)

    def choose(
        self,
        target: TargetLaw,
        candidates: Sequence[int],
        draft_probs: Array | None,
        position: int,
    ) -> tuple[int | None, int]:
        token = self.own_token(target, position)
        return (candidates.index(token) if token in candidates else None), token


@dataclass(frozen=True, slots=True)
class LawKeepingNoiseRule(SharedNoiseRule):
    """Where more is asked of a law than which token the noise takes from it."""

    def prepare(self, target_probs: Array, position: int) -> TargetLaw:
        return target_probs


def law_of(target: TargetLaw) -> Array:
    """The law itself, for rules and answers that need more than a token of it."""
    assert not isinstance(target, int), "this rule judges by whole laws"
    return target


class AnswerRule(Protocol):
    """What a refusal carries back to the edge."""

    def answer(self, target: TargetLaw, proposal: Proposal, position: int) -> Outcome:
        """The outcome of the verdict that refuses `proposal`."""


@dataclass(frozen=True, slots=True)
class TokenAnswer:
    """The cloud draws the token itself."""

    rule: AcceptanceRule

    def answer(self, target: TargetLaw, proposal: Proposal, position: int) -> Outcome:
        return self.rule.recovered(target, proposal, position)


@dataclass(frozen=True, slots=True)
class FullLawAnswer:
    """DSSD: the whole target law, the edge draws."""

    def answer(self, target: TargetLaw, proposal: Proposal, position: int) -> Outcome:
        return FullAnswer(law_of(target))


@dataclass(frozen=True, slots=True)
class LosslessSparseAnswer:
    """DESIGN §3.2: top entries, tail mass, tail draws; the edge draws, exactly."""

    chance: Chance
    top: int
    tail_draws: int

    def answer(self, target: TargetLaw, proposal: Proposal, position: int) -> Outcome:
        target_probs = law_of(target)
        return make_sparse_answer(target_probs, self.top, self.tail_draws, self.chance, position)


@dataclass(frozen=True, slots=True)
class TopKAnswer:
    """PicoSpec: the head of the target law as if it had no tail; the edge draws, with a bias."""

    top: int

    def answer(self, target: TargetLaw, proposal: Proposal, position: int) -> Outcome:
        return make_top_k_answer(law_of(target), self.top)


def acceptance_rule(
    preset: Preset, seed: int, chance: Chance, keep_laws: bool = False
) -> AcceptanceRule:
    """The rule a preset names, with its randomness. `keep_laws`: positions keep their whole law."""
    if preset.acceptance is Acceptance.SHARED_NOISE:
        return LawKeepingNoiseRule(seed) if keep_laws else SharedNoiseRule(seed)
    if preset.schedule.decode_when_idle:
        return RacingRejectionRule(chance, preset.with_replacement)
    return RejectionRule(chance, preset.with_replacement)


def answer_rule(preset: Preset, rule: AcceptanceRule, chance: Chance) -> AnswerRule:
    """The rejection answer a preset names."""
    match preset.answer:
        case Answer.TOKEN:
            return TokenAnswer(rule)
        case Answer.FULL_LAW:
            return FullLawAnswer()
        case Answer.TOP_K:
            return TopKAnswer(preset.answer_top)
        case Answer.LOSSLESS_SPARSE:
            return LosslessSparseAnswer(chance, preset.answer_top, preset.answer_tail_draws)
