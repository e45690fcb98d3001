"""Acceptance rules and rejection payloads as policy objects, composed from a preset's choices.

Invariant: what is accepted, rejected and redrawn is decided from the very distribution that was
sampled from. Randomness is keyed by (seed, position, purpose), so a decision taken again after a
resume is the same decision. Every rule says itself whether it is exact.

To add an acceptance rule:

1. `tandem/specdec/choices.py`: a member of `Acceptance`;
2. this file: a subclass of `AcceptanceRule` and its arm in `acceptance_type`;
3. `protos/tandem_api/verifier/v1/verifier.proto`: a value of `AcceptanceRule`, named as the member
   (`tandem/wire/open_codec.py` pairs the two by name);
4. `tandem/specdec/presets.py`: a preset that names it;
5. a test of its output distribution (`tests/virtual_time/test_exact_distribution.py` does it with
   fractions).

mypy reports a missing arm; `tests/howto/test_add_acceptance_rule.py` follows these steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self, assert_never

import numpy as np

from tandem.core.acceptance import (
    accepted_candidate,
    accepts,
    draw_candidates,
    recover,
    sample_draft,
    sample_target,
)
from tandem.core.distribution import (
    Distribution,
    RunnersUp,
    distribution_of,
    gumbel_runners_up,
    known_probs,
    likely_runners_up,
)
from tandem.core.frozen import frozen
from tandem.core.gumbel import coupled_candidates, coupled_token
from tandem.core.probs import Array
from tandem.core.randomness import RandomSource
from tandem.core.sparse_payload import (
    FullPayload,
    SparsePayload,
    make_sparse_payload,
    make_top_k_payload,
)
from tandem.specdec.choices import Acceptance, RejectionPayload


@frozen
class Proposal:
    """The drafts for one position, one in a chain or several in a tree, with as much of the
    distribution they were drawn from as the uplink carries. A `draft_prob` of 1 is that of a draft
    which nothing else could have been, so that it tells the whole distribution."""

    token_ids: tuple[int, ...]
    draft_prob: float | None = None
    draft_probs: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DecidedTarget:
    """The target's token at a position, with its distribution where more is asked of it."""

    token_id: int
    probs: Array


TargetProbs = Array | int | DecidedTarget
"""The target's distribution at a position, or its token where the rule has already decided it."""

Replacement = int | FullPayload | SparsePayload
"""What a rejection brings: the token in place of the draft, or what the edge draws it from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleChoices:
    """The choices that make up the rules, and what follows from them."""

    acceptance: Acceptance
    rejection_payload: RejectionPayload
    payload_top: int = 64
    payload_tail_draws: int = 4
    with_replacement: bool = False
    """Whether candidates may repeat, as in the paper; without, more are accepted."""

    @property
    def drafter_invariant(self) -> bool:
        """True if the text does not depend on the drafts or on when they arrive."""
        return acceptance_type(self).drafter_invariant

    @property
    def cloud_draws(self) -> bool:
        """True if the cloud draws every token except the drafts, and so knows their
        distributions."""
        return self.rejection_payload is RejectionPayload.TOKEN


class AcceptanceRule(ABC):
    """Sampling of tokens on either side, and acceptance of drafts."""

    __slots__ = ()
    exact: ClassVar[bool] = True
    """Whether the output distribution is the target's."""
    drafter_invariant: ClassVar[bool] = False
    """Whether the text is the same whatever was drafted, and whenever drafts arrive. Such a rule
    needs no draft probabilities, and the cloud knows the token in place of a rejected draft."""

    @classmethod
    @abstractmethod
    def of(cls, choices: RuleChoices, seed: int, rng: RandomSource, keep_probs: bool) -> Self:
        """Return the rule for one session. `keep_probs`: `prepare` keeps whole distributions."""

    @abstractmethod
    def propose(self, draft_probs: Array | Distribution, position: int) -> int:
        """Return the edge's draft token at an absolute position."""

    @abstractmethod
    def candidates(
        self, draft_probs: Array, count: int, position: int, first_draw: int
    ) -> list[int]:
        """Return up to `count` draft tokens for one position of a tree; `first_draw` numbers its
        first random decision, differently for each node of a layer."""

    def top_alternatives(
        self, draft_probs: Array | Distribution, token_id: int, position: int, count: int
    ) -> RunnersUp:
        """Return tokens that may well come in the place of the draft `token_id`, the likeliest
        first."""
        return likely_runners_up(known_probs(draft_probs), token_id, count)

    def prepare(self, target: Array | Distribution, position: int) -> TargetProbs:
        """Compute what judging needs of the distribution, once."""
        return known_probs(target)

    @abstractmethod
    def target_token(self, target: TargetProbs, position: int) -> int:
        """Return the target's own token where no draft is judged: a bonus token, or one decoded
        alone."""

    @abstractmethod
    def accepted(self, target: TargetProbs, proposal: Proposal, position: int) -> int | None:
        """Return the index of the draft that is accepted; None if all are rejected."""

    @abstractmethod
    def recovered(self, target: TargetProbs, proposal: Proposal, position: int) -> int:
        """Return the token in place of rejected drafts, drawn where both distributions are
        known."""


@dataclass(frozen=True, slots=True)
class RejectionRule(AcceptanceRule):
    """Rejection sampling (Leviathan et al. 2023, Chen et al. 2023)."""

    rng: RandomSource
    with_replacement: bool = False

    @classmethod
    def of(cls, choices: RuleChoices, seed: int, rng: RandomSource, keep_probs: bool) -> Self:
        return cls(rng, choices.with_replacement)

    def propose(self, draft_probs: Array | Distribution, position: int) -> int:
        return sample_draft(known_probs(draft_probs), self.rng, position)

    def candidates(
        self, draft_probs: Array, count: int, position: int, first_draw: int
    ) -> list[int]:
        return draw_candidates(
            draft_probs,
            count,
            rng=self.rng,
            position=position,
            first_draw=first_draw,
            with_replacement=self.with_replacement,
        )

    def target_token(self, target: TargetProbs, position: int) -> int:
        return sample_target(probs_of(target), self.rng, position)

    def accepted(self, target: TargetProbs, proposal: Proposal, position: int) -> int | None:
        probs = probs_of(target)
        token_ids = proposal.token_ids
        if proposal.draft_probs is not None:
            return accepted_candidate(
                target_probs=probs,
                candidates=token_ids,
                draft_probs=proposal.draft_probs,
                rng=self.rng,
                position=position,
                with_replacement=self.with_replacement,
            )
        assert proposal.draft_prob is not None, "judging needs the draft probability"
        first_accepted = accepts(
            probs, token_ids[0], proposal.draft_prob, rng=self.rng, position=position
        )
        return 0 if first_accepted else None

    def recovered(self, target: TargetProbs, proposal: Proposal, position: int) -> int:
        probs = probs_of(target)
        draft_probs = proposal.draft_probs
        if draft_probs is None:
            assert proposal.draft_prob == 1, "drawing from the residual needs the distribution"
            draft_probs = np.zeros_like(probs)
            draft_probs[proposal.token_ids[0]] = 1
        return recover(
            target_probs=probs,
            candidates=proposal.token_ids,
            draft_probs=draft_probs,
            rng=self.rng,
            position=position,
            with_replacement=self.with_replacement,
        )


@dataclass(frozen=True, slots=True)
class GumbelCouplingRule(AcceptanceRule):
    """A draft is accepted iff equal to the target's own token under the same noise (Daliri, Musco &
    Suresh 2024). `keep_probs`: more is asked of a distribution than which token the noise takes."""

    drafter_invariant: ClassVar[bool] = True
    seed: int
    keep_probs: bool = False

    @classmethod
    def of(cls, choices: RuleChoices, seed: int, rng: RandomSource, keep_probs: bool) -> Self:
        return cls(seed, keep_probs)

    def propose(self, draft_probs: Array | Distribution, position: int) -> int:
        return distribution_of(draft_probs).coupled_token(self.seed, position)

    def candidates(
        self, draft_probs: Array, count: int, position: int, first_draw: int
    ) -> list[int]:
        return coupled_candidates(draft_probs, self.seed, position, count)

    def top_alternatives(
        self, draft_probs: Array | Distribution, token_id: int, position: int, count: int
    ) -> RunnersUp:
        return gumbel_runners_up(draft_probs, token_id, self.seed, position=position, count=count)

    def prepare(self, target: Array | Distribution, position: int) -> TargetProbs:
        """Return the target's token: the noise decides it, whatever the drafts."""
        token_id = distribution_of(target).coupled_token(self.seed, position)
        return DecidedTarget(token_id, known_probs(target)) if self.keep_probs else token_id

    def target_token(self, target: TargetProbs, position: int) -> int:
        if isinstance(target, DecidedTarget):
            return target.token_id
        return target if isinstance(target, int) else coupled_token(target, self.seed, position)

    def accepted(self, target: TargetProbs, proposal: Proposal, position: int) -> int | None:
        token = self.target_token(target, position)
        token_ids = proposal.token_ids
        return token_ids.index(token) if token in token_ids else None

    def recovered(self, target: TargetProbs, proposal: Proposal, position: int) -> int:
        return self.target_token(target, position)


def probs_of(target: TargetProbs) -> Array:
    """Return the distribution itself, for rules and payloads that need more than a token of it."""
    assert not isinstance(target, int), "this rule judges by whole distributions"
    return target.probs if isinstance(target, DecidedTarget) else target


@dataclass(frozen=True, slots=True)
class PayloadRule:
    """What a rejection brings, which `kind` says: at most `top` entries and `tail_draws` draws."""

    rule: AcceptanceRule
    rng: RandomSource
    kind: RejectionPayload = RejectionPayload.TOKEN
    top: int = 0
    tail_draws: int = 0

    def payload(self, target: TargetProbs, proposal: Proposal, position: int) -> Replacement:
        """Return the outcome of the verdict that rejects `proposal`."""
        match self.kind:
            case RejectionPayload.TOKEN:
                return self.rule.recovered(target, proposal, position)
            case RejectionPayload.FULL_DISTRIBUTION:
                return FullPayload(probs_of(target))
            case RejectionPayload.TOP_K:
                return make_top_k_payload(probs_of(target), self.top)
            case RejectionPayload.LOSSLESS_SPARSE:
                return make_sparse_payload(
                    probs_of(target),
                    top=self.top,
                    tail_draws=self.tail_draws,
                    rng=self.rng,
                    position=position,
                )
            case _:
                assert_never(self.kind)


def acceptance_type(choices: RuleChoices) -> type[AcceptanceRule]:
    """Return the class of the rule that a preset names."""
    match choices.acceptance:
        case Acceptance.REJECTION:
            return RejectionRule
        case Acceptance.GUMBEL:
            return GumbelCouplingRule
        case _:
            assert_never(choices.acceptance)


def acceptance_rule(
    choices: RuleChoices, seed: int, rng: RandomSource, keep_probs: bool = False
) -> AcceptanceRule:
    """Return the rule that a preset names, with its randomness."""
    return acceptance_type(choices).of(choices, seed, rng, keep_probs)


def payload_rule(choices: RuleChoices, rule: AcceptanceRule, rng: RandomSource) -> PayloadRule:
    """Return the rejection payload that a preset names."""
    kind = choices.rejection_payload
    return PayloadRule(rule, rng, kind, choices.payload_top, choices.payload_tail_draws)
