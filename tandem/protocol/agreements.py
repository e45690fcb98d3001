"""Who decides the next token of an answer from two sides, and what each must know for it.

An agreement is the same object at both ends, told which side it is at. Invariant: whatever decides,
and wherever, a token follows from both sides' drafts, their laws and the seed alone. So the text
does not depend on who aggregates, on the link, or on cuts. Must not import asyncio, grpc, torch or
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tandem.core.aggregation import Side, SideDraft, Weights, aggregate, coupled_side, side_weights
from tandem.core.chance import Chance
from tandem.core.laws import Array
from tandem.core.top_list import TopList, certified_argmax, top_list
from tandem.policy.aggregation_presets import AggregationPreset, Sources, Travel
from tandem.policy.aggregation_presets import Agreement as Choice
from tandem.protocol.aggregation_drafts import QueuedDraft
from tandem.protocol.outputs import Maker

_SIDES = {Side.DEVICE: Maker.DEVICE, Side.CLOUD: Maker.CLOUD}
FETCH_FACTOR = 8
"""By how much a top list grows that could not certify the argmax."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The token cannot be named before the other side's top list has so many entries."""

    count: int


@dataclass(frozen=True, slots=True)
class DraftPair:
    """Both sides' drafts for one position after one text, as far as they are here."""

    device: QueuedDraft | None
    cloud: QueuedDraft | None

    def of(self, side: Side) -> QueuedDraft | None:
        return self.device if side is Side.DEVICE else self.cloud


class TokenRule(Protocol):
    """The token of a position from two drafts and what came with them."""

    def token(
        self, device: QueuedDraft, cloud: QueuedDraft, at: Side, position: int
    ) -> int | Wanted:
        """`at`: the side that decides, where its own law is known in full."""

    def payload(self, draft: QueuedDraft, count: int) -> Array | TopList | None:
        """What the other side must know of a draft's law; `count`: entries of a top list."""

    def accepts(self, law: Array | TopList | None) -> bool:
        """Whether that came with a draft."""


@dataclass(frozen=True, slots=True)
class MixtureRule:
    """DRAGON's Algorithm 1, with the weights that came with the drafts."""

    chance: Chance

    def token(
        self, device: QueuedDraft, cloud: QueuedDraft, at: Side, position: int
    ) -> int | Wanted:
        weights = side_weights(device.log_mass, cloud.log_mass)
        return aggregate(_judged(device), _judged(cloud), weights, self.chance, position).token_id

    def payload(self, draft: QueuedDraft, count: int) -> Array | TopList | None:
        return draft.law

    def accepts(self, law: Array | TopList | None) -> bool:
        return isinstance(law, np.ndarray)


@dataclass(frozen=True, slots=True)
class ArgmaxRule:
    """Temperature 0: the argmax of the mixture, from the other side's top list."""

    def token(
        self, device: QueuedDraft, cloud: QueuedDraft, at: Side, position: int
    ) -> int | Wanted:
        weights = side_weights(device.log_mass, cloud.log_mass)
        own, theirs = (device, cloud) if at is Side.DEVICE else (cloud, device)
        assert isinstance(theirs.law, TopList), "checked as it came in"
        assert own.law is not None, "a side knows its own laws"
        assert not isinstance(own.law, TopList), "a side knows its own laws"
        count = len(theirs.law.ids)
        lists = {at: top_list(own.law, count, theirs.law.ids), at.other: theirs.law}
        found = certified_argmax(lists[Side.DEVICE], lists[Side.CLOUD], weights)
        return Wanted(count * FETCH_FACTOR) if found is None else found

    def payload(self, draft: QueuedDraft, count: int) -> Array | TopList | None:
        assert isinstance(draft.law, np.ndarray), "a side knows its own laws"
        return top_list(draft.law, count)

    def accepts(self, law: Array | TopList | None) -> bool:
        return isinstance(law, TopList)


@dataclass(frozen=True, slots=True)
class TokenAlone:
    """Nothing is mixed: the draft is the token."""

    def token(
        self, device: QueuedDraft, cloud: QueuedDraft, at: Side, position: int
    ) -> int | Wanted:
        raise AssertionError("a coin needs one draft only")

    def payload(self, draft: QueuedDraft, count: int) -> Array | TopList | None:
        return None

    def accepts(self, law: Array | TopList | None) -> bool:
        return law is None


class Agreement(Protocol):
    """What a side's machine asks before it decides, sends or waits."""

    rule: TokenRule
    tells: bool
    """Whether the side that decides tells the other in targets."""
    whole: bool
    """Whether it does so once, when the answer is complete."""

    def decide(self, position: int, drafts: DraftPair) -> int | Wanted | None:
        """The token, if this side decides it and has what it takes."""

    def maker(self, position: int, token_id: int, drafts: DraftPair) -> Maker:
        """Who made the token that these drafts decided."""

    def sends(self, position: int) -> bool:
        """Whether this side's draft for the position must travel."""

    def hears(self) -> bool:
        """Whether the other side's drafts matter here."""


class AtAggregator:
    """One side decides, and may hand over."""

    tells = True
    whole = False

    def __init__(self, side: Side, aggregating: Side, rule: TokenRule) -> None:
        self.aggregating = aggregating
        self.rule = rule
        self._side = side

    @property
    def here(self) -> bool:
        return self.aggregating is self._side

    def decide(self, position: int, drafts: DraftPair) -> int | Wanted | None:
        if not self.here or drafts.device is None or drafts.cloud is None:
            return None
        return self.rule.token(drafts.device, drafts.cloud, self._side, position)

    def maker(self, position: int, token_id: int, drafts: DraftPair) -> Maker:
        return _whose_draft(token_id, drafts)

    def sends(self, position: int) -> bool:
        return not self.here

    def hears(self) -> bool:
        return True


class AtBoth:
    """Each side decides for itself, and both find the same."""

    tells = whole = False

    def __init__(self, side: Side, rule: TokenRule) -> None:
        self.rule = rule
        self._side = side

    def decide(self, position: int, drafts: DraftPair) -> int | Wanted | None:
        if drafts.device is None or drafts.cloud is None:
            return None
        return self.rule.token(drafts.device, drafts.cloud, self._side, position)

    def maker(self, position: int, token_id: int, drafts: DraftPair) -> Maker:
        return _whose_draft(token_id, drafts)

    def sends(self, position: int) -> bool:
        return True

    def hears(self) -> bool:
        return True


class ByCoin:
    """A coin says whose draft is the token; both know it beforehand, so neither waits in vain."""

    tells = whole = False

    def __init__(self, side: Side, weights: Weights, chance: Chance) -> None:
        self.rule: TokenRule = TokenAlone()
        self._side = side
        self._weights = weights
        self._chance = chance

    def decide(self, position: int, drafts: DraftPair) -> int | Wanted | None:
        draft = drafts.of(self._owner(position))
        return None if draft is None else draft.token_id

    def maker(self, position: int, token_id: int, drafts: DraftPair) -> Maker:
        # Not whether the other side drafted the same: that is known here or not by chance.
        return _SIDES[self._owner(position)]

    def sends(self, position: int) -> bool:
        return self._owner(position) is self._side

    def hears(self) -> bool:
        return True

    def _owner(self, position: int) -> Side:
        return coupled_side(self._weights, self._chance, position)


class ByCoinAnew(ByCoin):
    """The same where the weights change every `every` tokens of an answer from `start` on.

    The first drafts of a stretch say the new h, so both travel and both are waited for: one way
    more per stretch. `first`: where this stream begins, in the middle of a stretch or not.
    """

    def __init__(
        self, side: Side, weights: Weights, chance: Chance, every: int, start: int, first: int
    ) -> None:
        super().__init__(side, weights, chance)
        self._every = every
        self._start = start
        self._first = first
        self._known_until = first

    def decide(self, position: int, drafts: DraftPair) -> int | Wanted | None:
        if self._begins(position):
            if drafts.device is None or drafts.cloud is None:
                return None
            self._weights = side_weights(drafts.device.log_mass, drafts.cloud.log_mass)
            stretch = (position - self._start) // self._every
            self._known_until = self._start + (stretch + 1) * self._every
        return super().decide(position, drafts)

    def sends(self, position: int) -> bool:
        if self._begins(position):
            return True
        return position < self._known_until and super().sends(position)

    def _begins(self, position: int) -> bool:
        return position == self._first or (position - self._start) % self._every == 0


class OneSide:
    """One side's drafts are the tokens. The cloud needs not hear of the device's.

    `whole`: the other side hears of them when the answer is complete.
    """

    def __init__(self, side: Side, owner: Side, whole: bool = False) -> None:
        self.rule: TokenRule = TokenAlone()
        self.whole = self.tells = whole and side is owner is Side.CLOUD
        self._side = side
        self._owner = owner
        self._streams = not whole

    def decide(self, position: int, drafts: DraftPair) -> int | Wanted | None:
        draft = drafts.of(self._owner)
        return None if draft is None else draft.token_id

    def maker(self, position: int, token_id: int, drafts: DraftPair) -> Maker:
        return _SIDES[self._owner]

    def sends(self, position: int) -> bool:
        return self._streams and self._side is self._owner is Side.CLOUD

    def hears(self) -> bool:
        return self._side is not self._owner


def agreement_for(
    preset: AggregationPreset,
    greedy: bool,
    side: Side,
    aggregating: Side,
    masses: dict[Side, float | None],
    chance: Chance,
    start: int,
    first: int,
) -> Agreement | None:
    """How the two sides agree, from a preset's choices and what documents they have; None while
    that depends on an h that is not known. `start`: the answer's first position; `first`: the first
    of it that this stream decides."""
    device, cloud = masses[Side.DEVICE], masses[Side.CLOUD]
    if (owner := _only_side(preset, device, cloud)) is not None:
        return OneSide(side, owner)
    rule: TokenRule = ArgmaxRule() if greedy else MixtureRule(chance)
    if preset.agreement is Choice.AGGREGATOR:
        return AtAggregator(side, aggregating, rule)
    if device is None or cloud is None:
        return None
    if preset.agreement is Choice.ANSWER_COIN:
        owner = coupled_side(side_weights(device, cloud), chance, start)
        return OneSide(side, owner, whole=True)
    if greedy:
        return AtBoth(side, rule)
    weights = side_weights(device, cloud)
    if preset.reweigh_every:
        return ByCoinAnew(side, weights, chance, preset.reweigh_every, start, first)
    return ByCoin(side, weights, chance)


def _only_side(preset: AggregationPreset, device: float | None, cloud: float | None) -> Side | None:
    """The side that answers alone: by choice, or since the other has no documents; with none at
    all it is the cloud, whose model is no smaller."""
    if preset.sources is Sources.DEVICE or preset.travel is not Travel.NOTHING:
        return Side.DEVICE
    if preset.sources is Sources.CLOUD or device == -np.inf:
        return Side.CLOUD
    return Side.DEVICE if cloud == -np.inf else None


def _whose_draft(token_id: int, drafts: DraftPair) -> Maker:
    """Where a token was decided from both sides' drafts."""
    device, cloud = (
        draft is not None and draft.token_id == token_id for draft in (drafts.device, drafts.cloud)
    )
    if device and cloud:
        return Maker.BOTH
    if device:
        return Maker.DEVICE
    return Maker.CLOUD if cloud else Maker.RECOVERED


def _judged(draft: QueuedDraft) -> SideDraft:
    assert isinstance(draft.law, np.ndarray), "checked as it came in"
    return SideDraft(draft.token_id, draft.law)
