"""Presets of answers from documents on two sides (DRAGON, DESIGN §3.6): compositions of choices.

Invariant: a preset is data. Nothing anywhere branches on its name; a paper's ablation is
`dataclasses.replace` of one field. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from tandem.core.codecs import Precision
from tandem.core.errors import InvalidArgument
from tandem.core.truncation import NO_TRUNCATION, Truncation

MAX_AHEAD = 64
MAX_TOP = 4096
MAX_REWEIGH_EVERY = 4096
MAX_VOCABULARY_SIZE = 2**31 - 1


class Agreement(StrEnum):
    """Who decides a token."""

    AGGREGATOR = "aggregator"
    """One side at a time, which has both drafts with their laws (DRAGON's Algorithm 1)."""
    COIN = "coin"
    """A coin that both sides know says whose draft is the token (DESIGN §3.6)."""
    ANSWER_COIN = "answer_coin"
    """One coin says whose whole answer it is, which then comes at once: RAG-Sequence's law, which
    is another one than the token-wise mixture."""


class Placement(StrEnum):
    """Which side aggregates."""

    DEVICE = "device"
    CLOUD = "cloud"
    RANDOM = "random"
    """At each token by chance."""
    SCHEDULED = "scheduled"
    """DRAGON §5.1: where tokens are expected sooner, by what was measured."""


class Sources(StrEnum):
    """Whose documents count."""

    BOTH = "both"
    DEVICE = "device"
    CLOUD = "cloud"


class Draw(StrEnum):
    """How a side draws its draft from its local law."""

    INDEPENDENT = "independent"
    """From random numbers of its own."""
    SHARED_NOISE = "shared_noise"
    """From the noise both sides derive from the seed: similar laws give mostly equal drafts."""
    LIKELIEST = "likeliest"
    """The most likely token; at temperature 0, whatever a preset says."""


class LawPayload(StrEnum):
    """What goes with a draft of the law it was drawn from."""

    NONE = "none"
    FULL = "full"
    SPARSE = "sparse"


class Travel(StrEnum):
    """What of the cloud's documents is sent to the device, to be generated from there."""

    NOTHING = "nothing"
    TEXT = "text"
    KV = "kv"


@dataclass(frozen=True, slots=True)
class LocalLaw:
    """The law a side draws its drafts from, and what of it travels.

    `cut_after_draw`: the draft is drawn from the whole law and only what is sent is truncated, as
    DRAGON's program does. Lossy.
    """

    draw: Draw = Draw.INDEPENDENT
    payload: LawPayload = LawPayload.SPARSE
    precision: Precision = "float16"
    truncation: Truncation = NO_TRUNCATION
    cut_after_draw: bool = False

    def validate(self, vocabulary_size: int) -> None:
        """Raise InvalidArgument naming the first choice that does not fit."""
        truncation = self.truncation
        if not 0 <= truncation.top_k <= vocabulary_size:
            raise InvalidArgument("law_top_k", f"{truncation.top_k} is not in 0…{vocabulary_size}")
        if not 0 < truncation.top_p <= 1:
            raise InvalidArgument("law_top_p", f"{truncation.top_p} is not in (0, 1]")
        if self.payload is LawPayload.FULL and self.precision != "float32":
            raise InvalidArgument("precision", "whole laws travel as float32")
        if self.cut_after_draw and self.payload is not LawPayload.SPARSE:
            raise InvalidArgument("cut_after_draw", "is about sparse laws")


@dataclass(frozen=True, slots=True)
class AggregationPreset:
    """One method of answering from documents on two sides."""

    name: str
    agreement: Agreement
    law: LocalLaw
    placement: Placement = Placement.DEVICE
    sources: Sources = Sources.BOTH
    travel: Travel = Travel.NOTHING
    ahead: int = 8
    """Drafts that a side may decode past what is settled; 1: it waits for every token."""
    top: int = 16
    """At temperature 0: entries of a law that go with a draft at first."""
    reweigh_every: int = 0
    """Each side estimates its documents' relevances anew, from the text up to there, every so many
    tokens; 0: never."""

    @property
    def lossy(self) -> bool:
        """Whether the output law may differ from the mixture of the two sides' laws."""
        return self.law.cut_after_draw or self.agreement is Agreement.ANSWER_COIN

    @property
    def two_sided(self) -> bool:
        """Whether both sides decode."""
        return self.sources is Sources.BOTH and self.travel is Travel.NOTHING

    def validate(self) -> None:
        """Raise InvalidArgument naming the first choice that does not fit the others."""
        self.law.validate(MAX_VOCABULARY_SIZE)
        if not 1 <= self.ahead <= MAX_AHEAD:
            raise InvalidArgument("ahead", f"must be 1…{MAX_AHEAD}, is {self.ahead}")
        if not 1 <= self.top <= MAX_TOP:
            raise InvalidArgument("top", f"must be 1…{MAX_TOP}, is {self.top}")
        if not 0 <= self.reweigh_every <= MAX_REWEIGH_EVERY:
            raise InvalidArgument("reweigh_every", f"must be 0…{MAX_REWEIGH_EVERY}")
        if self.reweigh_every and self.agreement is Agreement.ANSWER_COIN:
            raise InvalidArgument("reweigh_every", "one coin for the answer cannot follow weights")
        if self.agreement is Agreement.AGGREGATOR and self.law.payload is LawPayload.NONE:
            raise InvalidArgument("law", "an aggregator needs the laws of the drafts")
        if self.travel is not Travel.NOTHING and self.sources is not Sources.BOTH:
            raise InvalidArgument("sources", "documents travel to be joined with the device's")


_IDS = LocalLaw(Draw.SHARED_NOISE, LawPayload.NONE)

_DRAGON = AggregationPreset(
    "dragon",
    Agreement.AGGREGATOR,
    LocalLaw(truncation=Truncation(top_k=64)),
    placement=Placement.SCHEDULED,
)

_ONE_SIDE = AggregationPreset("crcg-device", Agreement.COIN, _IDS, sources=Sources.DEVICE)


def _presets() -> Mapping[str, AggregationPreset]:
    listed = (
        _DRAGON,
        replace(_DRAGON, name="dragon-device", placement=Placement.DEVICE),
        replace(_DRAGON, name="dragon-cloud", placement=Placement.CLOUD),
        replace(_DRAGON, name="dragon-random", placement=Placement.RANDOM),
        replace(
            _DRAGON,
            name="dragon-lossy",
            law=LocalLaw(truncation=Truncation(top_p=0.8), cut_after_draw=True),
        ),
        # Algorithm 1 needs each draft to have its side's law, not the two to be independent: drawn
        # by one noise they are mostly equal, and more of them are the token.
        replace(
            _DRAGON, name="dragon-shared-noise", law=replace(_DRAGON.law, draw=Draw.SHARED_NOISE)
        ),
        AggregationPreset("dragon-coupled", Agreement.COIN, _IDS),
        _ONE_SIDE,
        replace(_ONE_SIDE, name="crcg-cloud", sources=Sources.CLOUD),
        replace(_ONE_SIDE, name="drcg-text", sources=Sources.BOTH, travel=Travel.TEXT),
        replace(_ONE_SIDE, name="drcg-kv", sources=Sources.BOTH, travel=Travel.KV),
        replace(_DRAGON, name="drdg-tw", placement=Placement.DEVICE, ahead=1),
        AggregationPreset("drdg-sw", Agreement.ANSWER_COIN, _DRAGON.law),
    )
    for preset in listed:
        preset.validate()
    return MappingProxyType({preset.name: preset for preset in listed})


AGGREGATION_PRESETS: Mapping[str, AggregationPreset] = _presets()


def find_aggregation_preset(name: str) -> AggregationPreset:
    """The preset of that name; InvalidArgument("preset") if there is none."""
    try:
        return AGGREGATION_PRESETS[name]
    except KeyError:
        known = ", ".join(AGGREGATION_PRESETS)
        raise InvalidArgument("preset", f"{name!r} is none of {known}") from None
