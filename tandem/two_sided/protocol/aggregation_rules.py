"""The rules by which the next token of an answer from two sides is decided, and what each side must
know for it.

Both ends hold the same rule, which knows its side. Invariant: a token follows from both sides'
drafts, their distributions and the seed alone, wherever it is decided. So the text depends neither
on the aggregation side nor on the link or its losses.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np

from tandem.core.randomness import RandomSource
from tandem.core.tokens import TokenSource
from tandem.two_sided.protocol.draft_head import DraftHead, aggregate_sent
from tandem.two_sided.protocol.messages import AggregationRequest, SentProbs, SideDraftFrame
from tandem.two_sided.protocol.mixture import Side, SideDraft, Weights, coupled_side, side_weights
from tandem.two_sided.protocol.placement import first_side
from tandem.two_sided.protocol.presets import (
    AggregationMode,
    AggregationPreset,
    DocumentTransfer,
    ProbsPayload,
    Sources,
)
from tandem.two_sided.protocol.top_list import TopList, certified_argmax, top_list

_SIDES = {Side.DEVICE: TokenSource.DEVICE, Side.CLOUD: TokenSource.CLOUD}
FETCH_FACTOR = 8
"""By how much a top list grows that could not certify the argmax."""


Drafts = Mapping[Side, SideDraftFrame]
"""The sides' drafts for one position after one text, as far as they are here."""


@dataclass(frozen=True, slots=True)
class NeedsTopList:
    """The token is undecided before the other side's top list has `count` entries."""

    count: int


class TokenRule:
    """The token of a position from the sides' drafts and what came with them. As it stands here,
    nothing is mixed: a draft is the token."""

    def token(self, drafts: Drafts, at: Side, position: int) -> int | NeedsTopList:
        """Decide from both drafts at the side `at`, where its own distribution is known in full."""
        raise AssertionError("the token is one side's draft")

    def payload(self, draft: SideDraftFrame, count: int) -> SentProbs:
        """Return what the other side must know of a draft's distribution; `count`: top list
        entries."""
        return None

    def accepts(self, probs: SentProbs) -> bool:
        """Return whether this is what must come with a draft."""
        return probs is None


class MixtureRule(TokenRule):
    """DRAGON's Algorithm 1, with the weights that came with the drafts. `headed`: of both sides'
    distributions only the heads are known."""

    def __init__(self, rng: RandomSource, *, headed: bool = False) -> None:
        self._rng = rng
        self._headed = headed

    def token(self, drafts: Drafts, at: Side, position: int) -> int | NeedsTopList:
        return aggregate_sent(
            device=_sent(drafts[Side.DEVICE]),
            cloud=_sent(drafts[Side.CLOUD]),
            weights=weights_of(drafts),
            rng=self._rng,
            position=position,
        ).token_id

    def payload(self, draft: SideDraftFrame, count: int) -> SentProbs:
        return draft.probs

    def accepts(self, probs: SentProbs) -> bool:
        return isinstance(probs, DraftHead if self._headed else np.ndarray)


class ArgmaxRule(TokenRule):
    """Temperature 0: the argmax of the mixture, from the other side's top list."""

    def token(self, drafts: Drafts, at: Side, position: int) -> int | NeedsTopList:
        local = drafts[at].probs
        other = drafts[at.other].probs
        assert isinstance(local, np.ndarray), "a side knows its own distributions"
        assert isinstance(other, TopList), "checked on receipt"
        count = len(other.ids)
        lists = {at: top_list(local, count, other.ids), at.other: other}
        argmax = certified_argmax(
            [lists[side] for side in Side],
            weights_of(drafts),
        )
        return NeedsTopList(count * FETCH_FACTOR) if argmax is None else argmax

    def payload(self, draft: SideDraftFrame, count: int) -> SentProbs:
        assert isinstance(draft.probs, np.ndarray), "a side knows its own distributions"
        return top_list(draft.probs, count)

    def accepts(self, probs: SentProbs) -> bool:
        return isinstance(probs, TopList)


class AggregationRule:
    """Tells a side's machine whether it decides, sends or waits. As it stands here, both sides
    decide each token and find the same."""

    sends_targets = False
    """Whether the side that decides sends its tokens to the other."""
    whole_answer = False
    """Whether it does so once, when the answer is complete."""

    def __init__(self, side: Side, token_rule: TokenRule) -> None:
        self.token_rule = token_rule
        self._side = side

    def decide(self, position: int, drafts: Drafts) -> int | NeedsTopList | None:
        """Return the token, if this side decides it and has what it takes."""
        is_due = len(drafts) == len(Side)
        return self.token_rule.token(drafts, self._side, position) if is_due else None

    def token_source(self, position: int, token_id: int, drafts: Drafts) -> TokenSource:
        """Return who made the token that these drafts decided."""
        sides = [side for side, draft in drafts.items() if draft.token_id == token_id]
        if not sides:
            return TokenSource.RECOVERED
        return TokenSource.BOTH if len(sides) > 1 else _SIDES[sides[0]]

    def sends_draft(self, position: int) -> bool:
        """Return whether the other side needs this side's draft for the position."""
        return True

    def receives_drafts(self) -> bool:
        """Return whether this side needs the other's drafts."""
        return True

    def receives_targets(self) -> bool:
        """Return whether the other side tells this one its tokens."""
        return False


class SingleAggregator(AggregationRule):
    """One side decides, and may hand over."""

    sends_targets = True

    def __init__(self, side: Side, aggregation_side: Side, token_rule: TokenRule) -> None:
        super().__init__(side, token_rule)
        self.aggregation_side = aggregation_side

    @property
    def here(self) -> bool:
        return self.aggregation_side is self._side

    def decide(self, position: int, drafts: Drafts) -> int | NeedsTopList | None:
        return super().decide(position, drafts) if self.here else None

    def sends_draft(self, position: int) -> bool:
        return not self.here

    def receives_targets(self) -> bool:
        return not self.here


class SharedCoin(AggregationRule):
    """A coin says whose draft is the token. Both sides know it beforehand, so neither waits in
    vain.

    Its weights may change every `every` tokens of an answer from `start` on; 0: never. The first
    drafts of a stretch carry the new h, so both are sent and both are waited for: one way more per
    stretch. `first`: where this stream begins, in the middle of a stretch or not."""

    def __init__(
        self, side: Side, weights: Weights, *, rng: RandomSource, every: int, start: int, first: int
    ) -> None:
        super().__init__(side, TokenRule())
        self._weights = weights
        self._rng = rng
        self._every = every
        self._start = start
        self._first = first
        self._known_until: float = first if every else inf

    def decide(self, position: int, drafts: Drafts) -> int | NeedsTopList | None:
        if self._begins_stretch(position):
            if len(drafts) < len(Side):
                return None
            self._weights = weights_of(drafts)
            stretch = (position - self._start) // self._every
            self._known_until = self._start + (stretch + 1) * self._every
        draft = drafts.get(self._owner(position))
        return None if draft is None else draft.token_id

    def token_source(self, position: int, token_id: int, drafts: Drafts) -> TokenSource:
        # Not whether the other side drafted the same, which is known here only at times.
        return _SIDES[self._owner(position)]

    def sends_draft(self, position: int) -> bool:
        if self._begins_stretch(position):
            return True
        return position < self._known_until and self._owner(position) is self._side

    def _owner(self, position: int) -> Side:
        return coupled_side(self._weights, self._rng, position)

    def _begins_stretch(self, position: int) -> bool:
        if not self._every:
            return False
        return position == self._first or (position - self._start) % self._every == 0


class OneSide(AggregationRule):
    """One side's drafts are the tokens. The cloud does not need the device's. `whole_answer`: the
    other side gets them when the answer is complete."""

    def __init__(self, side: Side, owner: Side, whole_answer: bool = False) -> None:
        super().__init__(side, TokenRule())
        self.whole_answer = self.sends_targets = whole_answer and side is owner is Side.CLOUD
        self._owner = owner
        self._streams = not whole_answer

    def decide(self, position: int, drafts: Drafts) -> int | NeedsTopList | None:
        draft = drafts.get(self._owner)
        return None if draft is None else draft.token_id

    def token_source(self, position: int, token_id: int, drafts: Drafts) -> TokenSource:
        return _SIDES[self._owner]

    def sends_draft(self, position: int) -> bool:
        return self._streams and self._side is self._owner is Side.CLOUD

    def receives_drafts(self) -> bool:
        return self._side is not self._owner

    def receives_targets(self) -> bool:
        return self._side is not self._owner


def aggregation_rule_for(
    request: AggregationRequest,
    side: Side,
    *,
    aggregation_side: Side | None,
    log_masses: Mapping[Side, float | None],
    rng: RandomSource,
    first: int,
) -> AggregationRule | None:
    """Return the preset's rule, given each side's h; None while it depends on an unknown h.
    `aggregation_side`: None at the start; `first`: the first position that this stream decides."""
    preset = request.preset
    greedy = request.sampling.greedy
    start = len(request.prompt_ids)
    device = log_masses[Side.DEVICE]
    cloud = log_masses[Side.CLOUD]
    if (owner := _only_side(preset, device, cloud)) is not None:
        return OneSide(side, owner)
    headed = preset.probs.payload is ProbsPayload.HEAD
    token_rule: TokenRule = ArgmaxRule() if greedy else MixtureRule(rng, headed=headed)
    if preset.mode is AggregationMode.AGGREGATOR:
        if aggregation_side is None:
            aggregation_side = first_side(preset.placement)
        return SingleAggregator(side, aggregation_side, token_rule)
    if device is None or cloud is None:
        return None
    weights = side_weights(device, cloud)
    if preset.mode is AggregationMode.ANSWER_COIN:
        return OneSide(side, coupled_side(weights, rng, start), whole_answer=True)
    if greedy:
        return AggregationRule(side, token_rule)
    # Processors leave more of one side's mass than of another's, position by position.
    every = 1 if request.processors.active else preset.reweigh_every
    return SharedCoin(side, weights, rng=rng, every=every, start=start, first=first)


def _only_side(preset: AggregationPreset, device: float | None, cloud: float | None) -> Side | None:
    """Return the side that answers alone, by choice or since the other has no documents; with none
    at all the cloud, whose model is no smaller."""
    if preset.sources is Sources.DEVICE or preset.transfer is not DocumentTransfer.NONE:
        return Side.DEVICE
    if preset.sources is Sources.CLOUD or device == -np.inf:
        return Side.CLOUD
    return Side.DEVICE if cloud == -np.inf else None


def weights_of(drafts: Drafts) -> Weights:
    """Return the sides' shares by the h that came with their drafts."""
    return side_weights(drafts[Side.DEVICE].log_mass, drafts[Side.CLOUD].log_mass)


def _sent(draft: SideDraftFrame) -> SideDraft:
    assert isinstance(draft.probs, DraftHead | np.ndarray), "checked on receipt"
    return SideDraft(draft.token_id, draft.probs)
