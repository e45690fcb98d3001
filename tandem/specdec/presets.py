"""Presets: one frozen composition of choices per method, and what the cloud is told of it.
Invariant: a preset is data. Nothing anywhere branches on its name; a paper's ablation is
`dataclasses.replace` of one field. To add a preset, add one `Preset(...)` to `_LISTED`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from tandem.core.codecs import Precision
from tandem.core.errors import InvalidArgument
from tandem.core.probs import MAX_VOCABULARY_SIZE, NO_TRUNCATION, Truncation
from tandem.core.tree import expansion_nodes
from tandem.specdec.choices import (
    Acceptance,
    CloudDrafts,
    Control,
    Predraft,
    PredraftOrder,
    RejectionPayload,
    Schedule,
    Uplink,
)
from tandem.specdec.rules import RuleChoices, acceptance_type

MAX_DRAFT_LENGTH = 64
MAX_WAITING_DISTRIBUTIONS = 64
"""Drafts with whole distributions that may wait for the cloud: of 152,000 tokens each they take
40 MB of a session."""
MAX_PAYLOAD_TOP = 4096
MAX_PAYLOAD_TAIL_DRAWS = 256
MAX_PREDRAFT_WORKERS = 32
MAX_PREDRAFT_OUTCOMES = 256
MAX_EXITS = 64
MAX_SPLIT_LAYERS = 1024
SPLIT_LAYERS = 3
"""As many of the target's layers as PicoSpec's baseline has at the edge (§4.2)."""

_ONE_LAYER_PER_TOKEN = "requires stop-and-wait, with one layer per token"
_WHOLE_TREE = "a tree is sent as a whole, and a bonus token follows it"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedChoices(RuleChoices):
    """The choices that concern both ends."""

    uplink: Uplink
    uplink_precision: Precision = "float32"
    truncation: Truncation = NO_TRUNCATION
    expansion: tuple[int, ...] = ()
    """Of a token tree: how many candidates follow each node, layer by layer; empty for a chain."""
    exits: int = 0
    """Early exits of the target that judge too, at most: the deepest it has."""
    exit_order: PredraftOrder = PredraftOrder.CONFIDENCE
    """Which early verdict leaves the cloud first, when several wait for the link."""
    split_layers: int = 0
    """So many of the target's first layers run at the edge, where hidden states are sent."""
    cloud_drafts: CloudDrafts = CloudDrafts.NONE
    """What the cloud drafts itself where no draft of the edge has arrived, and it would decode
    alone. None of it crosses the link: the edge hears of the tokens."""
    cloud_draft_length: int = 0
    """Most tokens that the cloud drafts at once."""
    recalls: bool = False
    """Whether it is drafted from what is remembered even where the text of a seed then depends on
    that: under rejection sampling above temperature 0. Elsewhere it always is."""

    @property
    def tree_nodes(self) -> int:
        """Most nodes of a tree; 0 for a chain."""
        return expansion_nodes(self.expansion)

    @property
    def carries_probs(self) -> bool:
        """True if the cloud learns the distributions that drafts were sampled from."""
        return self.uplink.carries_probs


_SHARED = tuple(field.name for field in fields(SharedChoices))


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset(SharedChoices):
    """One method. `validate` rejects combinations that cannot work, or whose output distribution
    would not be the target's though both rules are exact."""

    name: str
    schedule: Schedule
    truncate_after_sampling: bool = False
    """Whether drafts are sampled from the whole distribution, and only what is sent of it is
    truncated (Oh et al. 2025). Lossy."""
    control: Control = Control.FIXED
    confidence_threshold: float = 0.0
    """A chunk ends with the first token that the draft model gives less probability than this,
    before sampling settings."""
    cloud_draft_length: int = 4
    predraft: Predraft = Predraft.OFF
    predraft_order: PredraftOrder = PredraftOrder.CONFIDENCE
    predraft_workers: int = 4
    """Outcomes drafted for at the same time, in one packed pass a step."""
    predraft_outcomes: int = 16
    """Most outcomes kept at a time, drafted for or waiting."""

    @property
    def sends_ids_alone(self) -> bool:
        """True if drafts are sampled from the draft model's own distribution, and only their ids
        are sent."""
        return self.uplink is Uplink.IDS and not self.truncation.cuts

    @property
    def lossy(self) -> bool:
        """True if the output distribution may differ from the target's."""
        if self.split_layers:
            return self.uplink_precision != "float32"
        exact = acceptance_type(self).exact and self.rejection_payload.exact
        return self.drafts and (not exact or self.truncate_after_sampling)

    @property
    def drafts(self) -> bool:
        return self.schedule.window > 0

    @property
    def drafts_in_cloud(self) -> bool:
        """True if the cloud is to have drafts of its own."""
        return self.cloud_drafts in (CloudDrafts.MODEL, CloudDrafts.LOOKUP)

    @property
    def may_draft_in_cloud(self) -> bool:
        """True if the cloud may have drafts of its own."""
        return self.cloud_drafts_asked_for is not CloudDrafts.NONE

    @property
    def cloud_drafts_asked_for(self) -> CloudDrafts:
        """What the cloud is asked to draft itself: any drafts only where it may decode alone, and
        where the text does not depend on which drafts there are, since measured times decide
        that."""
        alone = self.schedule.decode_when_idle
        fits = alone and self.drafter_invariant and not self.split_layers
        if self.cloud_drafts is CloudDrafts.ANY and not fits:
            return CloudDrafts.NONE
        return self.cloud_drafts

    @property
    def drafts_chains(self) -> bool:
        """True if drafts are chains, which may be taken from a text, unlike a tree's candidates."""
        return self.drafts and not self.expansion

    def widened(self) -> Preset:
        """Return the same method with room in its window for drafts that cost no model pass, where
        a controller chooses how much of it is used; otherwise the preset itself."""
        if self.control is not Control.LEAST_COST or not self.drafts_chains:
            return self
        window = max(self.schedule.window, MAX_DRAFT_LENGTH)
        return replace(self, schedule=replace(self.schedule, window=window))

    def spare_tokens(self, max_tokens: int) -> int:
        """Return the most tokens that the draft KV holds beside a text of `max_tokens`: those of
        branches, none of which is longer than that, or of a tree."""
        longest = min(self.schedule.window + self.schedule.chunk + 1, max_tokens)
        workers = 0 if self.predraft is Predraft.OFF else self.predraft_workers
        return workers * longest + self.tree_nodes

    def with_draft_length(self, length: int) -> Preset:
        """Return the same method with another draft length, the cloud's where the edge drafts
        nothing, which stays as it is; one without drafts stays the same."""
        _check_range("draft_length", length, 1, MAX_DRAFT_LENGTH)
        if not self.drafts:
            return replace(self, cloud_draft_length=length) if self.drafts_in_cloud else self
        if self.expansion:
            return self.with_expansion(_of_length(self.expansion, length))
        windows = self.schedule.window // self.schedule.chunk
        schedule = replace(self.schedule, window=windows * length, chunk=length)
        return replace(self, schedule=schedule)

    def fitted(self, vocabulary_size: int) -> Preset:
        """Return the same method where its draft distribution may keep no more tokens than there
        are."""
        top_k = min(self.truncation.top_k, vocabulary_size)
        return replace(self, truncation=replace(self.truncation, top_k=top_k))

    def with_expansion(self, expansion: tuple[int, ...]) -> Preset:
        """Return the same rules over trees of that expansion, in stop and wait."""
        _check_expansion(expansion)
        layers = len(expansion)
        if self.control is Control.LEAST_COST:  # it has no schedule of its own that could not fit
            fixed = replace(self, control=Control.FIXED, predraft=Predraft.OFF)
            return replace(fixed, expansion=expansion, schedule=_stop_and_wait(layers))
        schedule = replace(self.schedule, window=layers, chunk=layers)
        return replace(self, expansion=expansion, schedule=schedule)

    @property
    def verify_settings(self) -> VerifySettings:
        """The settings for the cloud; the rest concerns only the edge."""
        schedule = self.schedule
        shared = {name: getattr(self, name) for name in _SHARED}
        shared["cloud_drafts"] = self.cloud_drafts_asked_for
        if not self.may_draft_in_cloud:
            shared |= {"cloud_draft_length": 0, "recalls": False}
        return VerifySettings(
            **shared,
            preset_name=self.name,
            window=schedule.window,
            verify_on_arrival=schedule.verify_on_arrival,
            decode_when_idle=schedule.decode_when_idle,
            prepare_on_arrival=schedule.prepare_on_arrival,
            bonus=schedule.bonus,
        )

    def validate(self) -> None:
        """Raise InvalidArgument naming the first choice that does not fit the others."""
        schedule = self.schedule
        self.verify_settings.validate()
        if self.drafts:
            _require(1 <= schedule.chunk <= schedule.window, "chunk", "must be 1…window")
        _check_range("confidence_threshold", self.confidence_threshold, 0, 1)
        _check_range("predraft_workers", self.predraft_workers, 1, MAX_PREDRAFT_WORKERS)
        _check_range("predraft_outcomes", self.predraft_outcomes, 1, MAX_PREDRAFT_OUTCOMES)
        why = "requires that distributions are sent"
        sends = self.carries_probs or not self.truncate_after_sampling
        _require(sends, "truncate_after_sampling", why)
        hears_exits = self.predraft is Predraft.EARLY_EXITS
        _require(not hears_exits or self.exits > 0, "exits", "must be at least 1 to predraft from")
        if self.control is Control.LEAST_COST:
            _require(schedule.decode_when_idle, "control", f"{self.control} needs decode_when_idle")
            _require(self.drafter_invariant, "control", f"{self.control} needs a coupled text")
        if self.expansion:
            self._validate_tree_drafting()
        elif self.drafts and not self.drafter_invariant:
            self._validate_bonus()

    def _validate_bonus(self) -> None:
        """Check that timing decides no token: one that the cloud adds to the drafts which have
        arrived would take the place of the next draft, if that is late. The text depends on which
        of the two it is under rejection sampling."""
        schedule = self.schedule
        parts = schedule.token_by_token and schedule.verify_on_arrival
        by_clock = self.control is not Control.FIXED
        late = parts or by_clock or schedule.window > schedule.chunk
        why = "under rejection sampling only rounds of a fixed length may have a bonus token"
        _require(not (schedule.bonus and late), "bonus", why)

    def _validate_tree_drafting(self) -> None:
        """Check the edge's settings for a tree, which is drafted and sent whole."""
        layered = self.schedule.chunk == len(self.expansion)
        _require(layered, "expansion", _ONE_LAYER_PER_TOKEN)
        _require(not self.schedule.token_by_token, "expansion", _WHOLE_TREE)
        _require(self.predraft is Predraft.OFF, "predraft", "outcomes of a tree are not predrafted")
        whole = self.confidence_threshold == 0
        _require(whole, "confidence_threshold", "a tree is drafted whole; it must be 0")
        before = not self.truncate_after_sampling
        why = "candidates of a tree are sampled from what is sent; it must be off"
        _require(before, "truncate_after_sampling", why)
        fixed = self.control is Control.FIXED
        _require(fixed, "control", "a tree is always as deep as its expansion is long")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings(SharedChoices):
    """The part of a preset that the cloud needs: how to judge, what comes up and what goes down.
    `open` carries it (`tandem.wire.open_codec`)."""

    preset_name: str
    """For logs and metrics; it decides nothing."""
    window: int
    """Most drafts that may wait for the cloud; 0 where the edge drafts nothing."""
    verify_on_arrival: bool = False
    decode_when_idle: bool = False
    prepare_on_arrival: bool = False
    bonus: bool = True

    @property
    def drafts(self) -> bool:
        """True if the edge drafts at all."""
        return self.window > 0

    @property
    def may_draft_in_cloud(self) -> bool:
        """True if the cloud may have drafts of its own."""
        return self.cloud_drafts is not CloudDrafts.NONE

    @property
    def most_drafts(self) -> int:
        """Drafts that one message may bring."""
        return self.tree_nodes if self.expansion else self.window

    @property
    def allows_partial_verification(self) -> bool:
        """True if the cloud may verify any part of the drafts that arrived: neither the text nor
        the edge minds how many drafts a pass takes."""
        free = self.drafts and self.verify_on_arrival and self.decode_when_idle
        return free and self.drafter_invariant

    def validate(self) -> None:
        """Raise InvalidArgument naming the first setting that does not fit the others."""
        most = MAX_WAITING_DISTRIBUTIONS if self.carries_probs else 4 * MAX_DRAFT_LENGTH
        _check_range("window", self.window, 0, most)
        goes_on = self.drafts or self.decode_when_idle
        _require(goes_on, "decode_when_idle", "must be on when nothing is drafted")
        _check_range("payload_top", self.payload_top, 0, MAX_PAYLOAD_TOP)
        _check_range("payload_tail_draws", self.payload_tail_draws, 0, MAX_PAYLOAD_TAIL_DRAWS)
        sent = self.payload_top > 0 or self.rejection_payload is not RejectionPayload.TOP_K
        _require(sent, "payload_top", "must be at least 1 where it is all that is sent")
        self.truncation.validate(MAX_VOCABULARY_SIZE)
        _check_range("exits", self.exits, 0, MAX_EXITS)
        self._validate_payloads()
        self._validate_cloud_drafts()
        if self.prepare_on_arrival:
            self._validate_preparation()
        self._validate_split()
        if self.expansion:
            self._validate_tree()

    def _validate_payloads(self) -> None:
        if self.drafter_invariant:
            why = f"{self.acceptance} determines the token, so this must be 'token'"
            _require(self.cloud_draws, "rejection_payload", why)
        elif self.drafts:
            why = f"{self.acceptance} needs draft probabilities"
            _require(self.uplink is not Uplink.IDS, "uplink", why)
            split = self.uplink is Uplink.PROBABILITIES
            why = "the cloud needs draft distributions to draw from the residual"
            _require(not (split and self.cloud_draws), "rejection_payload", why)
            why = f"{self.acceptance} needs a cloud that waits for the drafts; it must be off"
            _require(not self.decode_when_idle, "decode_when_idle", why)

    def _validate_cloud_drafts(self) -> None:
        """Check the settings for drafts that the cloud makes where it would decode alone."""
        if not self.may_draft_in_cloud:
            return
        _check_range("cloud_draft_length", self.cloud_draft_length, 1, MAX_DRAFT_LENGTH)
        why = "the cloud drafts where it would decode alone: needs decode_when_idle"
        _require(self.decode_when_idle, "cloud_drafts", why)
        why = "must be 'none' where layers are split: hidden states come of committed tokens alone"
        _require(not self.split_layers, "cloud_drafts", why)
        chosen = self.cloud_drafts is CloudDrafts.ANY
        why = "measured times choose among any drafts, so the text must not depend on them"
        _require(not chosen or self.drafter_invariant, "cloud_drafts", why)

    def _validate_split(self) -> None:
        """Check that hidden states take the place of drafts where layers are split, and only
        there."""
        _check_range("split_layers", self.split_layers, 0, MAX_SPLIT_LAYERS)
        split = self.uplink is Uplink.HIDDEN_STATES
        _require(split == (self.split_layers > 0), "split_layers", "goes with hidden states")
        _require(not (split and self.drafts), "window", "nothing is drafted where layers are split")
        why = "must be 'token': the cloud has the whole distribution"
        _require(not split or self.cloud_draws, "rejection_payload", why)

    def _validate_preparation(self) -> None:
        """Check the settings for feeding drafts ahead of their judgement: until they are judged
        nothing else is committed in their place."""
        at_once = self.verify_on_arrival or self.decode_when_idle
        why = "drafts are judged as they arrive, or the cloud decodes alone; it must be off"
        _require(not at_once, "prepare_on_arrival", why)
        _require(not self.expansion, "prepare_on_arrival", _WHOLE_TREE)
        why = "early exits judge whole chunks in one pass; it must be off"
        _require(not self.exits, "prepare_on_arrival", why)

    def _validate_tree(self) -> None:
        """Check the settings for a tree, which is judged whole, by a cloud that knows its
        distributions."""
        _check_expansion(self.expansion)
        waits = not (self.verify_on_arrival or self.decode_when_idle)
        layered = self.window == len(self.expansion) and waits
        _require(layered, "expansion", _ONE_LAYER_PER_TOKEN)
        _require(self.bonus, "expansion", _WHOLE_TREE)
        _require(not self.exits, "exits", "early exits do not judge trees")
        if self.drafter_invariant:
            why = f"{self.acceptance} would repeat a candidate"
            _require(not self.with_replacement, "with_replacement", why)
            return
        _require(self.carries_probs, "uplink", "several candidates need the draft distributions")
        why = "must be 'token' for trees: the cloud has their distributions"
        _require(self.cloud_draws, "rejection_payload", why)


def _require(holds: bool, field: str, why: str) -> None:
    if not holds:
        raise InvalidArgument(field, why)


def _check_range(field: str, value: float, least: int, most: int) -> None:
    _require(least <= value <= most, field, f"must be {least}…{most}, is {value}")  # NaN is not


def _check_expansion(expansion: tuple[int, ...]) -> None:
    """Check an expansion, its length first: the number of nodes grows as a product, and its digits
    with it."""
    fits = 1 <= len(expansion) <= MAX_DRAFT_LENGTH and min(expansion) >= 1
    why = f"must be numbers from 1, with at most {MAX_DRAFT_LENGTH} nodes in all"
    _require(fits and expansion_nodes(expansion) <= MAX_DRAFT_LENGTH, "expansion", why)


def _of_length(expansion: tuple[int, ...], length: int) -> tuple[int, ...]:
    """Return the expansion with `length` layers, single candidates at the end; if the nodes are too
    many, the deepest branches are given up."""
    wanted = (*expansion[:length], *(1 for _ in range(length - len(expansion))))
    return expansion_within(wanted, MAX_DRAFT_LENGTH)


def expansion_within(expansion: tuple[int, ...], most_nodes: int) -> tuple[int, ...]:
    """Return the expansion without its deepest branches, and then layers, that make it more than
    `most_nodes` nodes."""
    wanted = list(expansion)
    while expansion_nodes(wanted) > most_nodes:
        branching = [layer for layer, width in enumerate(wanted) if width > 1]
        if branching:
            wanted[branching[-1]] -= 1
        else:
            wanted.pop()
    return tuple(wanted)


def _stop_and_wait(draft_length: int) -> Schedule:
    return Schedule(window=draft_length, chunk=draft_length)


_DSD = Preset(
    name="dsd",
    schedule=_stop_and_wait(4),
    acceptance=Acceptance.REJECTION,
    uplink=Uplink.FULL_DISTRIBUTIONS,
    rejection_payload=RejectionPayload.TOKEN,
    uplink_precision="float16",
)
_DSSD = replace(
    _DSD,
    name="dssd",
    uplink=Uplink.PROBABILITIES,
    uplink_precision="float32",
    rejection_payload=RejectionPayload.LOSSLESS_SPARSE,
)
_TSLT = replace(
    _DSD,
    name="tslt",
    uplink=Uplink.SPARSE_DISTRIBUTIONS,
    truncation=Truncation(top_k=320),
)
_PICOSPEC = replace(
    _DSSD,
    name="picospec",
    schedule=Schedule(window=8, chunk=4, verify_on_arrival=True, bonus=False, token_by_token=True),
    control=Control.LATENCY_AWARE,
)
_COUPLED = Preset(
    name="coupled",
    schedule=_stop_and_wait(4),
    acceptance=Acceptance.GUMBEL,
    uplink=Uplink.IDS,
    rejection_payload=RejectionPayload.TOKEN,
)
_STREAM = replace(
    _COUPLED,
    name="stream",
    schedule=Schedule(
        window=16, chunk=8, verify_on_arrival=True, decode_when_idle=True, token_by_token=True
    ),
    # Every draft leaves by itself, two frames for each token of the answer. In parts of 1, 2 and 5
    # they were 0.9 frames, and answers of 24 simulated cells 2.3 % slower, in the worst 7 %.
    # Branches share the passes that draft the text. Simulated on the demo pair they bring a tenth
    # to a seventh more tokens per second; twice as many workers bring no more.
    predraft=Predraft.LIKELY_OUTCOMES,
    predraft_workers=8,
    predraft_outcomes=32,
)

_AR = replace(_COUPLED, name="ar", schedule=Schedule(window=0, chunk=0, decode_when_idle=True))
_CLOUD_DRAFT = replace(_AR, name="cloud-draft", cloud_drafts=CloudDrafts.MODEL)
_SPLIT = replace(_AR, name="split", uplink=Uplink.HIDDEN_STATES, split_layers=SPLIT_LAYERS)

_DSSD_FULL = replace(_DSSD, name="dssd-full", rejection_payload=RejectionPayload.FULL_DISTRIBUTION)
_MC_DSD = replace(_TSLT, name="mc-dsd", schedule=_stop_and_wait(3), expansion=(2, 2, 2))

_LISTED = (
    _AR,
    _DSD,
    _DSSD,
    _DSSD_FULL,
    _TSLT,
    replace(_TSLT, name="tslt-after", truncate_after_sampling=True),
    _PICOSPEC,
    replace(
        _PICOSPEC,
        name="picospec-preverify",
        schedule=replace(_PICOSPEC.schedule, verify_on_arrival=False, prepare_on_arrival=True),
    ),
    replace(_PICOSPEC, name="picospec-top-k", rejection_payload=RejectionPayload.TOP_K),
    _MC_DSD,
    _STREAM,
    replace(
        _STREAM,
        name="auto",
        control=Control.LEAST_COST,
        cloud_drafts=CloudDrafts.ANY,
        cloud_draft_length=10,
    ),
    _COUPLED,
    replace(_DSSD, name="fsd", predraft=Predraft.EARLY_EXITS, exits=4),
    _CLOUD_DRAFT,
    _SPLIT,
)

PRESETS: Mapping[str, Preset] = MappingProxyType({preset.name: preset for preset in _LISTED})
