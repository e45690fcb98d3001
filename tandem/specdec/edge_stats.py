"""The running totals of one request at the edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.specdec.events import Drafted
from tandem.specdec.messages import Committed, Drafts, Opened
from tandem.specdec.observers import EdgeObserver, Settled
from tandem.specdec.proposers import DraftSource


@dataclass(slots=True)
class EdgeStats(EdgeObserver):
    """Running totals of one request; times in seconds, each by the clock of who did the work."""

    prompt_tokens: int = 0
    rounds: int = 0
    """Messages of the cloud that settled drafts."""
    drafted: int = 0
    accepted: int = 0
    """Drafts in flight that were right: the token at their position is theirs."""
    rejected: int = 0
    """Drafts in flight in whose place another token came. Those after them are in neither."""
    tokens: int = 0
    unverified_tokens: int = 0
    target_passes: int = 0
    full_distribution_requests: int = 0
    predrafted: int = 0
    """Tokens drafted before it was known whether they are wanted."""
    predraft_hits: int = 0
    predraft_misses: int = 0
    predraft_begun: int = 0
    """Misses for which drafting was under way, and the next message had to wait for it."""
    early_verdicts: int = 0
    proposed_prediction_tokens: int = 0
    """Drafts from the caller's prediction that were in flight."""
    accepted_prediction_tokens: int = 0
    proposed_memory_tokens: int = 0
    """Drafts from earlier texts, the prompt or the answer so far that were in flight."""
    accepted_memory_tokens: int = 0
    forced_tokens: int = 0
    """Drafts that a grammar alone decided."""
    acceptance_histogram: list[int] = field(default_factory=list)
    """Rounds in which 0, 1, 2, … drafts were right; as long as the most that one settled."""
    cloud_drafted: int = 0
    """Drafts that the cloud made itself, and judged."""
    cloud_accepted: int = 0
    cached_tokens: int = 0
    same_bits: bool | None = None
    """Whether all clouds so far promise it; None before the first."""
    batch_invariant: bool | None = None
    """Likewise."""
    links_lost: int = 0
    departures: int = 0
    loss_noticed_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    queue_s: float = 0.0
    round_s: float = 0.0
    _stream_passes: int = 0
    _streams: int = 0
    _round_started_s: float | None = None

    @property
    def rejected_prediction_tokens(self) -> int:
        """Those that were proposed and are not in the answer."""
        return self.proposed_prediction_tokens - self.accepted_prediction_tokens

    @property
    def rejected_memory_tokens(self) -> int:
        """Likewise of drafts from the memory."""
        return self.proposed_memory_tokens - self.accepted_memory_tokens

    @property
    def model_drafts(self) -> int:
        """Drafts that the draft model made."""
        proposed = self.proposed_prediction_tokens + self.proposed_memory_tokens
        return self.drafted - proposed - self.forced_tokens

    @property
    def resumes(self) -> int:
        """Streams after the first."""
        return max(0, self._streams - 1)

    def on_connected(self, now: float) -> None:
        """Begin to count the cloud's passes, which it counts from the start of a stream."""
        self._stream_passes = 0
        self._streams += 1

    def on_opened(self, opened: Opened) -> None:
        """Record what the cloud promises, and how much of the prompt it had cached when the first
        stream opened."""
        self.same_bits = opened.same_bits and self.same_bits is not False
        self.batch_invariant = opened.batch_invariant and self.batch_invariant is not False
        if self._streams <= 1:
            self.cached_tokens = min(opened.cached_tokens, self.prompt_tokens)

    def on_departed(self) -> None:
        self.departures += 1

    def on_lost(self, silent_s: float) -> None:
        self.links_lost += 1
        self.loss_noticed_s = max(self.loss_noticed_s, silent_s)

    def on_draft_begun(self, now: float) -> None:
        """Begin to time a round, with the first drafting since the last answer."""
        if self._round_started_s is None:
            self._round_started_s = now

    def on_drafted(
        self,
        drafts: Sequence[Drafted],
        positions: int,
        draft_s: float,
        now: float,
        *,
        pure_decode: bool,
    ) -> None:
        self.drafted += positions
        self.draft_s += draft_s
        self._count_proposed(drafts)

    def on_sent(self, frame: Drafts, now: float) -> None:
        self.on_draft_begun(now)

    def on_predrafted(self, count: int) -> None:
        self.predrafted += count

    def on_adopted(self, drafts: Sequence[Drafted]) -> None:
        self.drafted += len(drafts)
        self._count_proposed(drafts)

    def _count_proposed(self, drafts: Sequence[Drafted]) -> None:
        """Count those that were put in flight, by who proposed them."""
        sources = [drafted.source for drafted in drafts]
        self.proposed_prediction_tokens += sources.count(DraftSource.PREDICTION)
        self.proposed_memory_tokens += sources.count(DraftSource.MEMORY)
        self.forced_tokens += sources.count(DraftSource.GRAMMAR)

    def on_resolved(self, *, begun: bool, ready: bool) -> None:
        self.predraft_hits += ready
        self.predraft_misses += not ready
        self.predraft_begun += begun and not ready

    def on_early_verdict(self) -> None:
        self.early_verdicts += 1

    def on_committed(
        self, message: Committed, settled: Settled, drafts: Sequence[Drafted], now: float
    ) -> None:
        work, count = message.work, settled.count
        self.cloud_drafted += work.cloud_drafts
        self.cloud_accepted += message.cloud_accepted
        self.target_passes += work.target_passes - self._stream_passes
        self._stream_passes = work.target_passes
        self.verify_s += work.verify_s
        self.queue_s += work.queue_s
        if not count:
            return
        self.rounds += 1
        self.accepted += settled.right
        self.rejected += settled.departs
        missing = 1 + count - len(self.acceptance_histogram)
        self.acceptance_histogram += [0] * missing
        self.acceptance_histogram[settled.right] += 1
        if self._round_started_s is not None:
            self.round_s += now - self._round_started_s
        self._round_started_s = None

    def on_right(self, drafts: Sequence[Drafted]) -> None:
        sources = [drafted.source for drafted in drafts]
        self.accepted_prediction_tokens += sources.count(DraftSource.PREDICTION)
        self.accepted_memory_tokens += sources.count(DraftSource.MEMORY)

    def on_full_distribution_needed(self) -> None:
        self.full_distribution_requests += 1

    def on_left(self) -> None:
        """Abandon the timing of this round."""
        self._round_started_s = None

    def on_text(self, count: int, *, unverified: bool) -> None:
        self.tokens += count
        self.unverified_tokens += count if unverified else 0
