"""Presets: one frozen composition of choices per method (DESIGN §1).

Invariant: a preset is data. Nothing anywhere branches on its name; a paper's ablation is
`dataclasses.replace` of one field. Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from tandem.core.codecs import Precision
from tandem.core.errors import InvalidArgument
from tandem.core.tree import expansion_nodes
from tandem.core.truncation import NO_TRUNCATION, Truncation
from tandem.policy.choices import (
    Acceptance,
    Answer,
    Control,
    Predraft,
    PredraftOrder,
    Schedule,
    Uplink,
)

MAX_DRAFT_LENGTH = 64
MAX_ANSWER_TOP = 4096
MAX_ANSWER_TAIL_DRAWS = 256
MAX_VOCABULARY_SIZE = 2**31 - 1
"""Bounds what depends on a vocabulary where none is known yet."""
MAX_PREDRAFT_WORKERS = 32
MAX_PREDRAFT_OUTCOMES = 256
MAX_EXITS = 64


@dataclass(frozen=True, slots=True)
class Preset:
    """One method. `validate` refuses combinations whose output law would not be the target's."""

    name: str
    schedule: Schedule
    acceptance: Acceptance
    uplink: Uplink
    answer: Answer
    uplink_precision: Precision = "float32"
    answer_top: int = 64
    answer_tail_draws: int = 4
    truncation: Truncation = NO_TRUNCATION
    control: Control = Control.FIXED
    idle_weight: float = 1.0
    """What the idle cloud's own passes may cost: 1 is for latency, 0 for the fewest passes."""
    expansion: tuple[int, ...] = ()
    """Of a token tree: how many candidates follow each node, layer by layer; empty for a chain."""
    with_replacement: bool = False
    """Whether candidates may repeat, as in the paper; without, more are accepted."""
    predraft: Predraft = Predraft.OFF
    predraft_order: PredraftOrder = PredraftOrder.CONFIDENCE
    predraft_workers: int = 4
    """Outcomes drafted for at the same time, in one packed pass a step."""
    predraft_outcomes: int = 16
    """Most outcomes kept at a time, drafted for or waiting."""
    exits: int = 0
    """Early exits of the target that judge too, at most: the deepest it has."""
    exit_order: PredraftOrder = PredraftOrder.CONFIDENCE
    """Which early verdict leaves the cloud first, when several wait for the link."""

    @property
    def tree_nodes(self) -> int:
        """Most nodes of a tree; 0 for a chain."""
        return expansion_nodes(self.expansion)

    @property
    def carries_laws(self) -> bool:
        """Whether the cloud learns the laws the drafts were drawn from."""
        return self.uplink in (Uplink.FULL_LAWS, Uplink.SPARSE_LAWS)

    @property
    def lossy(self) -> bool:
        """Whether the output law may differ from the target's."""
        return self.drafts and self.answer is Answer.TOP_K

    @property
    def cloud_draws(self) -> bool:
        """Whether the cloud draws every token that is not a draft, and so knows all their laws."""
        return self.answer is Answer.TOKEN

    @property
    def drafts(self) -> bool:
        return self.schedule.window > 0

    @property
    def branch_tokens(self) -> int:
        """Most tokens that pre-drafting keeps in the draft KV beside the text itself."""
        longest = self.schedule.window + self.schedule.chunk + 1
        return 0 if self.predraft is Predraft.OFF else self.predraft_workers * longest

    @property
    def spare_tokens(self) -> int:
        """Most tokens that the draft KV holds beside the text: of branches, or of a tree."""
        return self.branch_tokens + self.tree_nodes

    @property
    def judges_by_timing(self) -> bool:
        """Whether a draft that comes late finds its position taken by a token of the cloud's own.

        Under the rejection rule that is exact only if lateness does not depend on the draft: drafts
        that end a text sent earlier than others would be judged more often, and come out too often.
        """
        schedule = self.schedule
        parts = schedule.token_by_token and schedule.verify_on_arrival
        by_clock = self.control is not Control.FIXED
        bonus = schedule.bonus and (parts or by_clock or schedule.window > schedule.chunk)
        by_timing = self.drafts and (bonus or schedule.decode_when_idle)
        return by_timing and self.acceptance is Acceptance.REJECTION

    def with_draft_length(self, length: int) -> Preset:
        """The same method with another draft length; one that drafts nothing stays as it is."""
        if not 1 <= length <= MAX_DRAFT_LENGTH:
            raise InvalidArgument("draft_length", f"must be 1…{MAX_DRAFT_LENGTH}, is {length}")
        if not self.drafts:
            return self
        if self.expansion:
            return self.with_expansion(_of_length(self.expansion, length))
        windows = self.schedule.window // self.schedule.chunk
        return replace(self, schedule=replace(self.schedule, window=windows * length, chunk=length))

    def fitted(self, vocabulary_size: int) -> Preset:
        """The same method where its draft law may keep no more tokens than there are."""
        if self.truncation.top_k <= vocabulary_size:
            return self
        return replace(self, truncation=replace(self.truncation, top_k=vocabulary_size))

    def with_expansion(self, expansion: tuple[int, ...]) -> Preset:
        """The same rules over trees of that expansion, in stop and wait."""
        layers = len(expansion)
        schedule = replace(self.schedule, window=layers, chunk=layers)
        return replace(self, expansion=expansion, schedule=schedule)

    def validate(self) -> None:
        """Raise InvalidArgument naming the first choice that does not fit the others."""
        schedule = self.schedule
        if schedule.window < 0 or schedule.window > 4 * MAX_DRAFT_LENGTH:
            raise InvalidArgument("window", f"must be 0…{4 * MAX_DRAFT_LENGTH}")
        if not self.drafts and not schedule.decode_when_idle:
            raise InvalidArgument("decode_when_idle", "must be on when nothing is drafted")
        if self.drafts and not 1 <= schedule.chunk <= schedule.window:
            raise InvalidArgument("chunk", "must be 1…window")
        if not 0 <= self.answer_top <= MAX_ANSWER_TOP:
            raise InvalidArgument("answer_top", f"must be 0…{MAX_ANSWER_TOP}")
        if not 0 <= self.answer_tail_draws <= MAX_ANSWER_TAIL_DRAWS:
            raise InvalidArgument("answer_tail_draws", f"must be 0…{MAX_ANSWER_TAIL_DRAWS}")
        if not self.answer_top and self.answer is Answer.TOP_K:
            raise InvalidArgument("answer_top", "must be at least 1 where it is all that is sent")
        if not 0 <= self.idle_weight <= 1:
            raise InvalidArgument("idle_weight", f"must be 0…1, is {self.idle_weight}")
        self.truncation.validate(MAX_VOCABULARY_SIZE)
        if not 1 <= self.predraft_workers <= MAX_PREDRAFT_WORKERS:
            raise InvalidArgument("predraft_workers", f"must be 1…{MAX_PREDRAFT_WORKERS}")
        if not 1 <= self.predraft_outcomes <= MAX_PREDRAFT_OUTCOMES:
            raise InvalidArgument("predraft_outcomes", f"must be 1…{MAX_PREDRAFT_OUTCOMES}")
        if not 0 <= self.exits <= MAX_EXITS:
            raise InvalidArgument("exits", f"must be 0…{MAX_EXITS}, is {self.exits}")
        if self.predraft is Predraft.EARLY_EXITS and not self.exits:
            raise InvalidArgument(
                "exits", "must be at least 1 where outcomes come from early exits"
            )
        self._validate_payloads()
        if self.expansion:
            self._validate_tree()

    def _validate_tree(self) -> None:
        """A tree is sent whole and judged whole, by a cloud that knows what it must."""
        schedule = self.schedule
        if min(self.expansion) < 1 or self.tree_nodes > MAX_DRAFT_LENGTH:
            why = f"{self.expansion}: numbers from 1 on, at most {MAX_DRAFT_LENGTH} nodes in all"
            raise InvalidArgument("expansion", why)
        if schedule.chunk != len(self.expansion) or not schedule.stop_and_wait:
            raise InvalidArgument("expansion", "needs stop and wait, one layer per token of it")
        if not schedule.bonus or schedule.token_by_token:
            raise InvalidArgument("expansion", "a tree goes up whole, and a bonus token follows it")
        if self.predraft is not Predraft.OFF:
            raise InvalidArgument("predraft", "outcomes of a tree are not drafted for")
        if self.exits:
            raise InvalidArgument("exits", "early exits do not judge trees")
        if self.control is not Control.FIXED:
            raise InvalidArgument("control", "a tree is always as deep as its expansion is long")
        if self.acceptance is Acceptance.SHARED_NOISE:
            if self.with_replacement:
                raise InvalidArgument("with_replacement", "shared noise would repeat one candidate")
            return
        if not self.carries_laws:
            raise InvalidArgument("uplink", "judging several candidates needs the draft laws")
        if self.answer is not Answer.TOKEN:
            raise InvalidArgument("answer", "the cloud knows a tree's laws; it must be 'token'")

    def _validate_payloads(self) -> None:
        if self.acceptance is Acceptance.SHARED_NOISE:
            if self.answer is not Answer.TOKEN:
                raise InvalidArgument("answer", "shared noise knows the token; it must be 'token'")
            return
        if self.drafts and self.uplink is Uplink.IDS:
            raise InvalidArgument("uplink", "the rejection rule needs draft probabilities")
        split = self.uplink is Uplink.PROBABILITIES
        if self.drafts and split and self.answer is Answer.TOKEN:
            raise InvalidArgument("answer", "the cloud cannot draw from a residual it cannot form")
        if split and self.schedule.decode_when_idle and self.drafts:
            raise InvalidArgument(
                "decode_when_idle", "the cloud waits for the token the edge draws"
            )


def _of_length(expansion: tuple[int, ...], length: int) -> tuple[int, ...]:
    """So many layers: those there are, then single candidates; where that has too many nodes, the
    deepest branches are given up."""
    wanted = [*expansion[:length], *(1 for _ in range(length - len(expansion)))]
    while expansion_nodes(wanted) > MAX_DRAFT_LENGTH:
        deepest = max(layer for layer, width in enumerate(wanted) if width > 1)
        wanted[deepest] -= 1
    return tuple(wanted)


def _stop_and_wait(draft_length: int) -> Schedule:
    return Schedule(window=draft_length, chunk=draft_length)


_PICOSPEC = Preset(
    "picospec",
    Schedule(window=8, chunk=4, verify_on_arrival=True, bonus=False, token_by_token=True),
    Acceptance.REJECTION,
    Uplink.PROBABILITIES,
    Answer.LOSSLESS_SPARSE,
    control=Control.LATENCY_AWARE,
)


_STREAM = Preset(
    "stream",
    Schedule(
        window=16,
        chunk=8,
        verify_on_arrival=True,
        decode_when_idle=True,
        token_by_token=True,
    ),
    Acceptance.SHARED_NOISE,
    Uplink.IDS,
    Answer.TOKEN,
    control=Control.WINDOW,
    # Branches ride along in the passes that draft the text: simulated on the demo pair, a tenth to
    # a seventh more tokens per second; twice as many workers bring no more.
    predraft=Predraft.LIKELY_OUTCOMES,
    predraft_workers=8,
    predraft_outcomes=32,
)


_CLOUD_ALONE = Schedule(window=0, chunk=0, decode_when_idle=True)

_LISTED = (
    Preset("ar", _CLOUD_ALONE, Acceptance.SHARED_NOISE, Uplink.IDS, Answer.TOKEN),
    Preset("dsd", _stop_and_wait(4), Acceptance.REJECTION, Uplink.FULL_LAWS, Answer.TOKEN),
    Preset(
        "dssd",
        _stop_and_wait(4),
        Acceptance.REJECTION,
        Uplink.PROBABILITIES,
        Answer.LOSSLESS_SPARSE,
    ),
    Preset(
        "dssd-full",
        _stop_and_wait(4),
        Acceptance.REJECTION,
        Uplink.PROBABILITIES,
        Answer.FULL_LAW,
    ),
    Preset(
        "tslt",
        _stop_and_wait(4),
        Acceptance.REJECTION,
        Uplink.SPARSE_LAWS,
        Answer.TOKEN,
        uplink_precision="float16",
        truncation=Truncation(top_k=320),
    ),
    _PICOSPEC,
    replace(_PICOSPEC, name="picospec-top-k", answer=Answer.TOP_K),
    Preset(
        "mc-dsd",
        _stop_and_wait(3),
        Acceptance.REJECTION,
        Uplink.SPARSE_LAWS,
        Answer.TOKEN,
        uplink_precision="float16",
        truncation=Truncation(top_k=320),
        expansion=(2, 2, 2),
    ),
    _STREAM,
    replace(
        _STREAM,
        name="stream-rejection",
        acceptance=Acceptance.REJECTION,
        uplink=Uplink.SPARSE_LAWS,
        uplink_precision="float16",
        truncation=Truncation(top_k=320),
    ),
    Preset("coupled", _stop_and_wait(4), Acceptance.SHARED_NOISE, Uplink.IDS, Answer.TOKEN),
    Preset(
        "predraft",
        _stop_and_wait(4),
        Acceptance.SHARED_NOISE,
        Uplink.IDS,
        Answer.TOKEN,
        predraft=Predraft.LIKELY_OUTCOMES,
    ),
    Preset(
        "fsd",
        _stop_and_wait(4),
        Acceptance.REJECTION,
        Uplink.PROBABILITIES,
        Answer.LOSSLESS_SPARSE,
        predraft=Predraft.EARLY_EXITS,
        # The two deepest: wrong guesses of shallower ones keep the draft model busy. Demo pair,
        # simulated at 30 ms and draft length 4: 1.07 times dssd with 2 exits, 1.04 with 4.
        exits=2,
    ),
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _LISTED})


def find_preset(name: str) -> Preset:
    """The preset of that name; InvalidArgument lists the names there are."""
    try:
        return PRESETS[name]
    except KeyError:
        known = ", ".join(PRESETS)
        raise InvalidArgument("preset", f"unknown: {name!r}; there are {known}") from None
