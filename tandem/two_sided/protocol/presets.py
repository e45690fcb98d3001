"""Presets of answers from documents on two sides (DRAGON): compositions of choices. A preset is
data: nothing branches on its name; a paper's ablation is `dataclasses.replace` of one field."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from tandem.core.codecs import Precision
from tandem.core.errors import InvalidArgument, unknown_name
from tandem.core.probs import MAX_VOCABULARY_SIZE, NO_TRUNCATION, Truncation

MAX_AHEAD = 64
MAX_TOP = 4096
MAX_HEAD = 4096
MAX_REWEIGH_EVERY = 4096
MAX_QUERY_CHARACTERS = 4096


class AggregationMode(StrEnum):
    """The way in which a token is decided."""

    AGGREGATOR = "aggregator"
    """One side at a time, which has both drafts with their distributions (DRAGON's Algorithm 1)."""
    COIN = "coin"
    """A coin that both sides know says whose draft is the token."""
    ANSWER_COIN = "answer_coin"
    """One coin says whose whole answer it is, which then comes at once: RAG-Sequence's
    distribution, which is another one than the token-wise mixture."""


class Placement(StrEnum):
    """The side that aggregates, or the rule that chooses it."""

    DEVICE = "device"
    CLOUD = "cloud"
    RANDOM = "random"
    """At each token at random."""
    SCHEDULED = "scheduled"
    """DRAGON §5.1: where tokens are expected sooner, by what was measured."""


class Sources(StrEnum):
    """The sides whose documents count."""

    BOTH = "both"
    DEVICE = "device"
    CLOUD = "cloud"


class Draw(StrEnum):
    """The way in which a side draws its draft from its local distribution."""

    INDEPENDENT = "independent"
    """From random numbers of its own."""
    GUMBEL = "gumbel"
    """From the noise both sides derive from the seed: similar distributions give mostly equal
    drafts."""
    LIKELIEST = "likeliest"
    """The most likely token; at temperature 0, whatever a preset says."""


class ProbsPayload(StrEnum):
    """The part of a draft's distribution that is sent with it."""

    NONE = "none"
    FULL = "full"
    SPARSE = "sparse"
    """Its positive entries, which are to be few: it is cut before the draw, or after it."""
    HEAD = "head"
    """Its likeliest entries, and one draw from the rest. Nothing is cut."""


class DocumentTransfer(StrEnum):
    """The form in which the cloud's documents are sent to the device, which then generates
    alone."""

    NONE = "none"
    TEXT = "text"
    KV = "kv"


class DocumentContext(StrEnum):
    """How one side reads several documents."""

    SEPARATE = "separate"
    """Each in a sequence of its own, whose distributions are mixed by relevance (output
    aggregation)."""
    JOINED = "joined"
    """One after another in one sequence (context aggregation): what CRCG and DRCG do. Relevance
    decides only which documents are found."""


@dataclass(frozen=True, slots=True)
class LocalProbs:
    """The distribution a side draws its drafts from, and what of it is sent. `cut_after_draw`: only
    what is sent is truncated, as DRAGON's program does. Lossy."""

    draw: Draw = Draw.INDEPENDENT
    payload: ProbsPayload = ProbsPayload.SPARSE
    precision: Precision = "float16"
    truncation: Truncation = NO_TRUNCATION
    cut_after_draw: bool = False
    head: int = 0
    """Entries that are sent as the head."""

    @property
    def lossy(self) -> bool:
        """True if drafts may follow another distribution than that of the side's documents, or be
        judged by another than they follow."""
        rounded = self.payload is ProbsPayload.SPARSE and self.precision != "float32"
        cut = self.truncation.cuts or self.cut_after_draw
        return rounded or cut or self.draw is Draw.LIKELIEST

    def validate(self, vocabulary_size: int) -> None:
        """Raise InvalidArgument naming the first choice that does not fit."""
        top_k, top_p = self.truncation.top_k, self.truncation.top_p
        whole = self.payload is ProbsPayload.FULL
        fewest = 1 if self.payload is ProbsPayload.HEAD else 0
        sparse = self.payload is ProbsPayload.SPARSE
        _check_all(
            (
                "local_top_k",
                0 <= top_k <= vocabulary_size,
                f"{top_k} is not in 0…{vocabulary_size}",
            ),
            ("local_top_p", 0 < top_p <= 1, f"{top_p} is not in (0, 1]"),
            (
                "precision",
                not whole or self.precision == "float32",
                "whole distributions are sent as float32",
            ),
            (
                "cut_after_draw",
                sparse or not self.cut_after_draw,
                "is about sparse distributions",
            ),
            (
                "head",
                fewest <= self.head <= MAX_HEAD,
                f"must be {fewest}…{MAX_HEAD}, is {self.head}",
            ),
        )


@dataclass(frozen=True, slots=True)
class AggregationPreset:
    """One method of answering from documents on two sides."""

    name: str
    mode: AggregationMode
    probs: LocalProbs
    placement: Placement = Placement.DEVICE
    sources: Sources = Sources.BOTH
    transfer: DocumentTransfer = DocumentTransfer.NONE
    context: DocumentContext = DocumentContext.SEPARATE
    ahead: int = 8
    """Drafts that a side may decode past what is committed; 1: it waits for every token."""
    top: int = 16
    """At temperature 0: entries of a distribution that go with a draft at first."""
    reweigh_every: int = 0
    """Each side estimates its documents' relevances again, from the text so far, every so many
    tokens; 0: never."""

    @property
    def lossy(self) -> bool:
        """True if the output distribution may differ from the mixture of the two sides'."""
        return self.probs.lossy or self.mode is AggregationMode.ANSWER_COIN

    @property
    def needs_cloud(self) -> bool:
        """True if the cloud takes part, with its decoder or with its documents alone."""
        return self.sources is not Sources.DEVICE

    @property
    def two_sided(self) -> bool:
        """True if both sides decode."""
        return self.sources is Sources.BOTH and self.transfer is DocumentTransfer.NONE

    def with_draft_length(self, length: int) -> "AggregationPreset":
        """Return the same method with sides that decode so far ahead."""
        return replace(self, ahead=length)

    def with_expansion(self, expansion: tuple[int, ...]) -> "AggregationPreset":
        """Raise InvalidArgument: there are no trees here."""
        raise InvalidArgument("expansion", "an answer from two sides drafts chains")

    def validate(self) -> None:
        """Raise InvalidArgument naming the first choice that does not fit the others."""
        self.probs.validate(MAX_VOCABULARY_SIZE)
        joined = self.context is DocumentContext.JOINED
        one_coin = self.mode is AggregationMode.ANSWER_COIN
        aggregates = self.mode is AggregationMode.AGGREGATOR
        sends = self.transfer is not DocumentTransfer.NONE
        _check_all(
            ("ahead", 1 <= self.ahead <= MAX_AHEAD, f"must be 1…{MAX_AHEAD}, is {self.ahead}"),
            ("top", 1 <= self.top <= MAX_TOP, f"must be 1…{MAX_TOP}, is {self.top}"),
            (
                "reweigh_every",
                0 <= self.reweigh_every <= MAX_REWEIGH_EVERY,
                f"must be 0…{MAX_REWEIGH_EVERY}",
            ),
            (
                "reweigh_every",
                not (self.reweigh_every and one_coin),
                "one coin for the answer cannot follow weights",
            ),
            (
                "reweigh_every",
                not (self.reweigh_every and joined),
                "joined documents have no weights",
            ),
            (
                "probs",
                not aggregates or self.probs.payload is not ProbsPayload.NONE,
                "an aggregator needs the distributions of the drafts",
            ),
            (
                "sources",
                not sends or self.sources is Sources.BOTH,
                "documents are sent to join the device's",
            ),
            (
                "context",
                not (joined and self.two_sided),
                "only one side that decodes alone joins documents",
            ),
        )


def _check_all(*rules: tuple[str, bool, str]) -> None:
    """Raise InvalidArgument for the first rule that is broken: the field, whether it fits, and what
    is wrong where it does not."""
    for field, fits, why in rules:
        if not fits:
            raise InvalidArgument(field, why)


_IDS = LocalProbs(Draw.GUMBEL, ProbsPayload.NONE)

_DRAGON = AggregationPreset(
    "dragon",
    AggregationMode.AGGREGATOR,
    LocalProbs(payload=ProbsPayload.HEAD, head=64),
    placement=Placement.SCHEDULED,
)

_ONE_SIDE = AggregationPreset(
    "crcg-device",
    AggregationMode.COIN,
    _IDS,
    sources=Sources.DEVICE,
    context=DocumentContext.JOINED,
)


def _presets() -> Mapping[str, AggregationPreset]:
    listed = (
        _DRAGON,
        replace(_DRAGON, name="dragon-device", placement=Placement.DEVICE),
        replace(
            _DRAGON,
            name="dragon-lossy",
            probs=LocalProbs(truncation=Truncation(top_p=0.8), cut_after_draw=True),
        ),
        AggregationPreset("dragon-coupled", AggregationMode.COIN, _IDS),
        _ONE_SIDE,
        replace(_ONE_SIDE, name="crcg-cloud", sources=Sources.CLOUD),
        replace(_ONE_SIDE, name="drcg-text", sources=Sources.BOTH, transfer=DocumentTransfer.TEXT),
        replace(_ONE_SIDE, name="drcg-kv", sources=Sources.BOTH, transfer=DocumentTransfer.KV),
        replace(_DRAGON, name="drdg-tw", placement=Placement.DEVICE, ahead=1),
        AggregationPreset("drdg-sw", AggregationMode.ANSWER_COIN, _DRAGON.probs),
    )
    for preset in listed:
        preset.validate()
    return MappingProxyType({preset.name: preset for preset in listed})


AGGREGATION_PRESETS: Mapping[str, AggregationPreset] = _presets()


def find_aggregation_preset(name: str) -> AggregationPreset:
    """Return the preset of that name. Raises InvalidArgument, which lists the names."""
    if name not in AGGREGATION_PRESETS:
        raise unknown_name("preset", name, AGGREGATION_PRESETS)
    return AGGREGATION_PRESETS[name]
