"""What the edge machine is asked for, and what it asks its shell to do. Invariant: frozen values,
but for the running totals of `EdgeStats`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median

import numpy as np

from tandem.core.probs import Array
from tandem.core.runners_up import RunnersUp
from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.choices import Control
from tandem.specdec.messages import (
    EdgeMessage,
    GenerationParams,
    Open,
    Opened,
    TokenLogprob,
    Tokens,
    Verdict,
    Work,
)
from tandem.specdec.objective import NO_PRICES, Prices
from tandem.specdec.presets import MAX_DRAFT_LENGTH, Preset
from tandem.specdec.profile import NOTHING_EARLIER, Earlier


@dataclass(frozen=True, slots=True)
class EdgeRequest:
    """One request, checked: `params.max_tokens` fits the context, the preset is valid."""

    session: int
    prompt_ids: tuple[int, ...]
    vocabulary_hash: str
    vocabulary_size: int
    params: GenerationParams
    preset: Preset
    eos_token_ids: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()
    earlier: Earlier = NOTHING_EARLIER
    prices: Prices = NO_PRICES
    tenant: bytes = b""
    public_tokens: int = 0
    """See `Open`."""

    @property
    def max_tokens(self) -> int:
        return self.params.max_tokens

    @property
    def ignore_eos(self) -> bool:
        return self.params.ignore_eos

    def opening(self, epoch: int, committed: PrefixedTokens) -> Open:
        """The frame that opens a stream at the committed text."""
        return Open(
            self.session,
            epoch,
            len(committed),
            committed.prefix,
            vocabulary_hash=self.vocabulary_hash,
            vocabulary_size=self.vocabulary_size,
            prompt_ids=self.prompt_ids,
            committed_ids=committed.since(len(self.prompt_ids)),
            params=self.params,
            preset=self._announced,
            tenant=self.tenant,
            public_tokens=self.public_tokens,
        )

    @property
    def lengthens_forced(self) -> bool:
        """Whether a chunk goes on with what a grammar forces after its last draft: where chunks are
        judged whole, and a draft costs a few bytes."""
        preset = self.preset
        whole = preset.drafts and preset.schedule.stop_and_wait and preset.control is Control.FIXED
        few = not (preset.carries_probs or preset.expansion)
        return self.params.processors.grammar is not None and whole and few

    @property
    def _announced(self) -> Preset:
        """With room for longer chunks."""
        if not self.lengthens_forced:
            return self.preset
        schedule = replace(self.preset.schedule, window=MAX_DRAFT_LENGTH, chunk=MAX_DRAFT_LENGTH)
        return replace(self.preset, schedule=schedule)

    @property
    def draft_ends(self) -> frozenset[int]:
        """The draft tokens after which more drafts would be wasted. None where arrival times decide
        how drafts are judged: there, they must not depend on the drafts."""
        if self.preset.judges_by_timing:
            return frozenset()
        return self.stop_token_ids if self.ignore_eos else self.eos_token_ids | self.stop_token_ids


@dataclass(frozen=True, slots=True)
class DraftWork:
    """Roll the draft KV back to `keep`, feed `token_ids`, draft `count` tokens from `position` on,
    or up to the first that is among `ends`.

    `stepwise`: hand each token over as soon as it is drafted. `alternatives`: how many runners-up
    to name beside each. `guess`: the first token predicts one the cloud will add by itself, and is
    drawn as the cloud would. `branch`: on a fork of the draft KV, which itself stays as it is.
    `expansion`: draft a tree of `count` layers, in which each node of layer i has expansion[i]
    children, but none after a token among `ends`. `path`: the KV holds a tree after its first
    `keep` tokens; keep these nodes in place of a rollback. `spare`: how many more tokens may follow
    the last, as long as a grammar leaves no other."""

    keep: int
    token_ids: tuple[int, ...]
    position: int
    count: int
    ends: frozenset[int] = frozenset()
    stepwise: bool = False
    alternatives: int = 0
    guess: bool = False
    branch: bool = False
    expansion: tuple[int, ...] = ()
    path: tuple[int, ...] = ()
    spare: int = 0


NO_PROBS: Array = np.empty(0, dtype=np.float32)
"""Where nothing that is sent or drawn depends on a draft's distribution."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """A draft token and the distribution it was drawn from, in wire precision. `alternatives`: the
    likeliest tokens in its place, best first, with weights (the draft token's is 1). `parent`: the
    node it follows in a tree, -1 for the committed text. `ends_chunk`: the draft model was not sure
    of it, so what would follow is not worth drafting before it is judged."""

    token_id: int
    draft_probs: Array
    alternatives: RunnersUp = ()
    parent: int = -1
    ends_chunk: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Put a frame on the open stream."""

    message: EdgeMessage


class TokenSource(StrEnum):
    """Who made a committed token."""

    DRAFT = "draft"
    """The draft model; the target accepted it."""
    TARGET = "target"
    """The target: in place of a rejected draft, after accepted ones, or decoding alone."""
    EDGE = "edge"
    """The draft model with the cloud lost; nobody verified it."""
    DEVICE = "device"
    """Of two sides the device: its draft became the token, and the cloud's did not."""
    CLOUD = "cloud"
    """Of two sides the cloud, likewise."""
    BOTH = "both"
    """Both sides had drafted the token; of more than two, several."""
    RECOVERED = "recovered"
    """No side's draft: drawn from what the sides' distributions give together."""
    SIDE = "side"
    """Of more than two sides one beyond the cloud: its draft alone became the token."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Tokens that are final. `unverified`: drawn by the draft model with the cloud lost."""

    token_ids: tuple[int, ...]
    unverified: bool = False
    token_sources: tuple[TokenSource, ...] = field(default=(), compare=False)
    """Of each token; how it came to be, which does not change what was committed."""
    logprobs: tuple[TokenLogprob, ...] = field(default=(), compare=False)
    """Of each token, where asked for."""
    token_sides: tuple[tuple[int, ...], ...] = field(default=(), compare=False)
    """Of each token the numbers of the sides whose draft it was; of more than two sides only."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Stop this draft work, which is under way, and discard its tokens."""

    work: DraftWork


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Close the stream, open a fresh one, then call `connect`."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The request is over."""

    reason: FinishReason


EdgeOutput = Send | Commit | Interrupt | Reconnect | Finish


@dataclass(slots=True)
class EdgeStats:
    """Running totals of one request; times in seconds, each by the clock of who did the work."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    unverified_tokens: int = 0
    target_passes: int = 0
    full_distribution_requests: int = 0
    predrafted: int = 0
    """Tokens drafted before it was known whether they are wanted."""
    predraft_hits: int = 0
    predraft_misses: int = 0
    early_verdicts: int = 0
    cached_tokens: int = 0
    same_bits: bool | None = None
    """Whether all clouds so far promise it; None before the first."""
    links_lost: int = 0
    departures: int = 0
    loss_noticed_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    queue_s: float = 0.0
    round_s: float = 0.0
    round_overheads_s: list[float] = field(default_factory=list)
    _stream_passes: int = 0
    _streams: int = 0
    _round_started_s: float | None = None
    _round_draft_s: float = 0.0

    @property
    def resumes(self) -> int:
        """Streams after the first."""
        return max(0, self._streams - 1)

    @property
    def round_overhead_median_s(self) -> float:
        """Median over rounds of round time minus model time on both sides."""
        return median(self.round_overheads_s) if self.round_overheads_s else 0.0

    def begin_stream(self) -> None:
        """The cloud counts a session's passes from the start of its stream."""
        self._stream_passes = 0
        self._streams += 1

    def switch_stream(self) -> None:
        """As `begin_stream`, of one that was open beside the first."""
        self._stream_passes = 0

    def count_opened(self, opened: Opened, prompt_tokens: int) -> None:
        """What the cloud promises, and had kept of the prompt when the first stream opened."""
        self.same_bits = opened.same_bits and self.same_bits is not False
        if self._streams <= 1:
            self.cached_tokens = min(opened.cached_tokens, prompt_tokens)

    def count_loss(self, silent_s: float) -> None:
        """A stream broke, or was found dead after a silence."""
        self.links_lost += 1
        self.loss_noticed_s = max(self.loss_noticed_s, silent_s)

    def count_drafts(self, count: int, draft_s: float) -> None:
        self.drafted += count
        self.draft_s += draft_s
        self._round_draft_s += draft_s

    def count_resolved(self, hit: bool) -> None:
        """A token came that the drafts in flight did not hold; `hit`: it had been drafted for."""
        self.predraft_hits += hit
        self.predraft_misses += not hit

    def count_verdict(self, verdict: Verdict) -> None:
        self.rounds += 1
        self.accepted += verdict.accepted
        self._count_passes(verdict.work.target_passes)
        self.verify_s += verdict.work.verify_s
        self.queue_s += verdict.work.queue_s

    def count_tokens(self, message: Tokens) -> None:
        self._count_passes(message.work.target_passes)
        self.verify_s += message.work.verify_s
        self.queue_s += message.work.queue_s

    def begin_round(self, now: float) -> None:
        """The first drafting since the last verdict starts."""
        if self._round_started_s is None:
            self._round_started_s = now
            self._round_draft_s = 0.0

    def end_round(self, work: Work, now: float) -> None:
        """A verdict came: what neither side's model needed of the time was spent in between."""
        if self._round_started_s is not None:
            round_s = now - self._round_started_s
            self.round_s += round_s
            self.round_overheads_s.append(round_s - self._round_draft_s - work.verify_s)
        self.abandon_round()

    def abandon_round(self) -> None:
        """The stream is gone: this round is not timed."""
        self._round_started_s = None
        self._round_draft_s = 0.0

    def count_commit(self, count: int, unverified: bool) -> None:
        self.tokens += count
        self.unverified_tokens += count if unverified else 0

    def _count_passes(self, stream_passes: int) -> None:
        self.target_passes += stream_passes - self._stream_passes
        self._stream_passes = stream_passes
