"""Who decides the next token of an answer from two sides, and what each side must know for it.

Both ends hold the same rule, which knows its side. Invariant: a token follows from both sides'
drafts, their distributions and the seed alone, wherever it is decided. So the text depends neither
on the aggregation side nor on the link or its losses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from tandem.core.probs import Array
from tandem.core.randomness import RandomSource
from tandem.core.tokens import TokenSource
from tandem.two_sided.protocol.draft_queues import FirstDrafts, QueuedDraft
from tandem.two_sided.protocol.messages import AggregationRequest
from tandem.two_sided.protocol.mixture import (
    Side,
    SideDraft,
    Weights,
    aggregate,
    coupled_number,
    coupled_side,
    shares_of,
    side_weights,
)
from tandem.two_sided.protocol.placement import first_side
from tandem.two_sided.protocol.presets import (
    AggregationMode,
    AggregationPreset,
    DocumentTransfer,
    Sources,
)
from tandem.two_sided.protocol.top_list import TopList, certified_argmax, top_list

_SIDES = {Side.DEVICE: TokenSource.DEVICE, Side.CLOUD: TokenSource.CLOUD}
FETCH_FACTOR = 8
"""By how much a top list grows that could not certify the argmax."""


@dataclass(frozen=True, slots=True)
class NeedsTopList:
    """The token is undecided before the other side's top list has `count` entries."""

    count: int


class TokenRule:
    """The token of a position from the sides' drafts and what came with them. As it stands here,
    nothing is mixed: a draft is the token."""

    def token(self, drafts: Sequence[QueuedDraft], at: Side, position: int) -> int | NeedsTopList:
        """`drafts`: of all sides, in the order of their numbers; `at`: the side that decides, where
        its own distribution is known in full."""
        raise AssertionError("the token is one side's draft")

    def payload(self, draft: QueuedDraft, count: int) -> Array | TopList | None:
        """What the other side must know of a draft's distribution; `count`: top list entries."""
        return None

    def accepts(self, probs: Array | TopList | None) -> bool:
        """Whether this is what must come with a draft."""
        return probs is None


class MixtureRule(TokenRule):
    """DRAGON's Algorithm 1, with the weights that came with the drafts."""

    def __init__(self, rng: RandomSource) -> None:
        self._rng = rng

    def token(self, drafts: Sequence[QueuedDraft], at: Side, position: int) -> int | NeedsTopList:
        device, cloud = drafts
        weights = side_weights(device.log_mass, cloud.log_mass)
        pair = _with_probs(device), _with_probs(cloud)
        return aggregate(*pair, weights, self._rng, position).token_id

    def payload(self, draft: QueuedDraft, count: int) -> Array | TopList | None:
        return draft.probs

    def accepts(self, probs: Array | TopList | None) -> bool:
        return isinstance(probs, np.ndarray)


class ArgmaxRule(TokenRule):
    """Temperature 0: the argmax of the mixture, from the other sides' top lists."""

    def token(self, drafts: Sequence[QueuedDraft], at: Side, position: int) -> int | NeedsTopList:
        own = drafts[at].probs
        assert isinstance(own, np.ndarray), "a side knows its own distributions"
        lists = [draft.probs for draft in drafts if isinstance(draft.probs, TopList)]
        assert len(lists) == len(drafts) - 1, "checked on receipt"
        count = min(len(each.ids) for each in lists)
        lists.insert(at, top_list(own, count, reduce(np.union1d, [each.ids for each in lists])))
        found = certified_argmax(lists, shares_of([draft.log_mass for draft in drafts]))
        return NeedsTopList(count * FETCH_FACTOR) if found is None else found

    def payload(self, draft: QueuedDraft, count: int) -> Array | TopList | None:
        assert isinstance(draft.probs, np.ndarray), "a side knows its own distributions"
        return top_list(draft.probs, count)

    def accepts(self, probs: Array | TopList | None) -> bool:
        return isinstance(probs, TopList)


class AggregationRule:
    """What a side's machine asks before it decides, sends or waits. As it stands here, all sides
    decide each token and find the same."""

    sends_targets = False
    """Whether the side that decides sends its tokens to the other."""
    whole_answer = False
    """Whether it does so once, when the answer is complete."""
    tells_sources = True
    """Whether it tells whose draft each was."""

    def __init__(self, side: Side, token_rule: TokenRule) -> None:
        self.token_rule = token_rule
        self._side = side

    def decide(self, position: int, drafts: FirstDrafts) -> int | NeedsTopList | None:
        """The token, if this side decides it and has what it takes."""
        here = drafts.all()
        return None if here is None else self.token_rule.token(here, self._side, position)

    def token_source(self, position: int, token_id: int, drafts: FirstDrafts) -> TokenSource:
        """Who made the token that these drafts decided."""
        device, *others = (
            draft is not None and draft.token_id == token_id
            for draft in (drafts.device, drafts.cloud, *drafts.others)
        )
        if device:
            return TokenSource.BOTH if any(others) else TokenSource.DEVICE
        return TokenSource.CLOUD if any(others) else TokenSource.RECOVERED

    def token_sides(self, token_id: int, drafts: FirstDrafts) -> tuple[int, ...]:
        """Of more than two sides the numbers of those whose draft the token is."""
        return ()

    def sends_draft(self, position: int) -> bool:
        """Whether the other side needs this side's draft for the position."""
        return True

    def receives_drafts(self) -> bool:
        """Whether this side needs the other's drafts."""
        return True


class SingleAggregator(AggregationRule):
    """One side decides, and may hand over."""

    sends_targets = True

    def __init__(self, side: Side, aggregation_side: Side, token_rule: TokenRule) -> None:
        super().__init__(side, token_rule)
        self.aggregation_side = aggregation_side

    @property
    def here(self) -> bool:
        return self.aggregation_side is self._side

    def decide(self, position: int, drafts: FirstDrafts) -> int | NeedsTopList | None:
        return super().decide(position, drafts) if self.here else None

    def sends_draft(self, position: int) -> bool:
        return not self.here


class DeviceDecides(SingleAggregator):
    """The device decides for any number of sides, each of which hears nothing of the others but the
    tokens."""

    tells_sources = False

    def __init__(self, side: Side, token_rule: TokenRule) -> None:
        super().__init__(side, Side.DEVICE, token_rule)

    def token_source(self, position: int, token_id: int, drafts: FirstDrafts) -> TokenSource:
        return _source_of(self.token_sides(token_id, drafts))

    def token_sides(self, token_id: int, drafts: FirstDrafts) -> tuple[int, ...]:
        everyone = (drafts.device, drafts.cloud, *drafts.others)
        return tuple(
            number
            for number, draft in enumerate(everyone)
            if draft is not None and draft.token_id == token_id
        )


class DeviceCoin(DeviceDecides):
    """A coin that the device throws, as it alone hears every side's h. `log_masses`: these by the
    sides' numbers; it takes drafts, but decides nothing, while one is unknown. Where weights change
    every `every` tokens of an answer from `start` on, the first drafts of a stretch carry the new
    h, and all are waited for; `first`: where this stream begins."""

    def __init__(
        self,
        side: Side,
        log_masses: Sequence[float | None],
        rng: RandomSource,
        every: int,
        start: int,
        first: int,
    ) -> None:
        super().__init__(side, TokenRule())
        known = [mass for mass in log_masses if mass is not None]
        complete = self.here and len(known) == len(log_masses)
        self._shares = shares_of(known) if complete else None
        self._rng = rng
        self._every = every
        self._start = start
        self._first = first
        self._owner = 0

    def decide(self, position: int, drafts: FirstDrafts) -> int | NeedsTopList | None:
        if self._shares is None:
            return None
        if self._every and _begins(position, self._every, self._start, self._first):
            if (here := drafts.all()) is None:
                return None
            self._shares = shares_of([draft.log_mass for draft in here])
        self._owner = coupled_number(self._shares, self._rng, position)
        draft = drafts.of(self._owner)
        return None if draft is None else draft.token_id

    def token_sides(self, token_id: int, drafts: FirstDrafts) -> tuple[int, ...]:
        return (self._owner,)  # of the token that was decided last, whoever else drafted it


class SharedCoin(AggregationRule):
    """A coin says whose draft is the token. Both sides know it beforehand, so neither waits in
    vain."""

    def __init__(self, side: Side, weights: Weights, rng: RandomSource) -> None:
        super().__init__(side, TokenRule())
        self._weights = weights
        self._rng = rng

    def decide(self, position: int, drafts: FirstDrafts) -> int | NeedsTopList | None:
        draft = drafts.of(self._owner(position))
        return None if draft is None else draft.token_id

    def token_source(self, position: int, token_id: int, drafts: FirstDrafts) -> TokenSource:
        # Not whether the other side drafted the same, which is known here only at times.
        return _SIDES[self._owner(position)]

    def sends_draft(self, position: int) -> bool:
        return self._owner(position) is self._side

    def _owner(self, position: int) -> Side:
        return coupled_side(self._weights, self._rng, position)


class ReweightedCoin(SharedCoin):
    """The same where the weights change every `every` tokens of an answer from `start` on. The
    first drafts of a stretch carry the new h, so both are sent and both are waited for: one way
    more per stretch. `first`: where this stream begins, in the middle of a stretch or not."""

    def __init__(
        self, side: Side, weights: Weights, rng: RandomSource, every: int, start: int, first: int
    ) -> None:
        super().__init__(side, weights, rng)
        self._every = every
        self._start = start
        self._first = first
        self._known_until = first

    def decide(self, position: int, drafts: FirstDrafts) -> int | NeedsTopList | None:
        if _begins(position, self._every, self._start, self._first):
            if drafts.device is None or drafts.cloud is None:
                return None
            self._weights = side_weights(drafts.device.log_mass, drafts.cloud.log_mass)
            stretch = (position - self._start) // self._every
            self._known_until = self._start + (stretch + 1) * self._every
        return super().decide(position, drafts)

    def sends_draft(self, position: int) -> bool:
        if _begins(position, self._every, self._start, self._first):
            return True
        return position < self._known_until and super().sends_draft(position)


class OneSide(AggregationRule):
    """One side's drafts are the tokens. The cloud does not need the device's. `whole_answer`: the
    other side gets them when the answer is complete."""

    def __init__(self, side: Side, owner: Side, whole_answer: bool = False) -> None:
        super().__init__(side, TokenRule())
        self.whole_answer = self.sends_targets = whole_answer and side is owner is Side.CLOUD
        self._owner = owner
        self._streams = not whole_answer

    def decide(self, position: int, drafts: FirstDrafts) -> int | NeedsTopList | None:
        draft = drafts.of(self._owner)
        return None if draft is None else draft.token_id

    def token_source(self, position: int, token_id: int, drafts: FirstDrafts) -> TokenSource:
        return _SIDES[self._owner]

    def sends_draft(self, position: int) -> bool:
        return self._streams and self._side is self._owner is Side.CLOUD

    def receives_drafts(self) -> bool:
        return self._side is not self._owner


def aggregation_rule_for(
    request: AggregationRequest,
    side: Side,
    aggregation_side: Side | None,
    masses: Sequence[float | None],
    rng: RandomSource,
    first: int,
) -> AggregationRule | None:
    """The preset's rule, given each side's h, by its number; None while it depends on an unknown h.
    `aggregation_side`: None at the start; `first`: the first position that this stream decides."""
    preset = request.preset
    greedy = request.sampling.greedy
    start = len(request.prompt_ids)
    # Processors leave more of one side's mass than of another's, position by position.
    every = 1 if request.processors.active else preset.reweigh_every
    if preset.mode is AggregationMode.DEVICE_COIN:
        if greedy:
            return DeviceDecides(side, ArgmaxRule())
        return DeviceCoin(side, masses, rng=rng, every=every, start=start, first=first)
    device, cloud = masses
    if (owner := _only_side(preset, device, cloud)) is not None:
        return OneSide(side, owner)
    token_rule: TokenRule = ArgmaxRule() if greedy else MixtureRule(rng)
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
    if every:
        return ReweightedCoin(side, weights, rng=rng, every=every, start=start, first=first)
    return SharedCoin(side, weights, rng)


def _only_side(preset: AggregationPreset, device: float | None, cloud: float | None) -> Side | None:
    """The side that answers alone, by choice or since the other has no documents; with none at all
    the cloud, whose model is no smaller."""
    if preset.sources is Sources.DEVICE or preset.transfer is not DocumentTransfer.NONE:
        return Side.DEVICE
    if preset.sources is Sources.CLOUD or device == -np.inf:
        return Side.CLOUD
    return Side.DEVICE if cloud == -np.inf else None


def _source_of(numbers: tuple[int, ...]) -> TokenSource:
    """Of a token that is the draft of these sides."""
    if len(numbers) != 1:
        return TokenSource.BOTH if numbers else TokenSource.RECOVERED
    return _SIDES[Side(numbers[0])] if numbers[0] < len(Side) else TokenSource.SIDE


def _begins(position: int, every: int, start: int, first: int) -> bool:
    """Whether a stretch with new weights begins at a position, or the stream."""
    return position == first or (position - start) % every == 0


def _with_probs(draft: QueuedDraft) -> SideDraft:
    assert isinstance(draft.probs, np.ndarray), "checked on receipt"
    return SideDraft(draft.token_id, draft.probs)
