"""The drafts of both sides that wait to be committed, as one side sees them. A draft counts only if
the text it was drawn after, which its prefix hash names, is the committed text; so drafts may come
late or twice. Both queues begin at the first uncommitted position."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tandem.core.stopping import FinishReason
from tandem.core.tokens import PrefixedTokens, PrefixHash, TokenSource, extend_prefix
from tandem.specdec.edge import CommittedText
from tandem.two_sided.protocol.counters import AggregationCounters
from tandem.two_sided.protocol.decoder_messages import DecodingDraft
from tandem.two_sided.protocol.messages import SentProbs, SideDraftFrame
from tandem.two_sided.protocol.mixture import Side


@dataclass(frozen=True, slots=True)
class QueuedDraft:
    """A side's draft for `position` after the text that `prefix` names, in its side's `epoch`;
    `probs` as far as it is known here, `decode_s` where it is this side's own."""

    position: int
    prefix: PrefixHash
    epoch: int
    token_id: int
    probs: SentProbs
    log_mass: float
    decode_s: float = 0.0


def decoded_draft(draft: DecodingDraft, epoch_offset: int) -> QueuedDraft:
    """Return a draft of this side's decoder, which counts its epochs from `epoch_offset` on."""
    return QueuedDraft(
        position=draft.base,
        prefix=draft.prefix_hash,
        epoch=epoch_offset + draft.epoch,
        token_id=draft.token_id,
        probs=draft.probs,
        log_mass=draft.log_mass,
        decode_s=draft.cost.decode_s,
    )


def peer_draft(frame: SideDraftFrame) -> QueuedDraft:
    """Return a draft that the other side sent."""
    return QueuedDraft(
        position=frame.base,
        prefix=frame.prefix_hash,
        epoch=frame.epoch,
        token_id=frame.token_id,
        probs=frame.probs,
        log_mass=frame.log_mass,
    )


@dataclass(frozen=True, slots=True)
class BothDrafts:
    """The two sides' drafts for one position after one text."""

    device: QueuedDraft
    cloud: QueuedDraft

    def of(self, side: Side) -> QueuedDraft:
        return self.device if side is Side.DEVICE else self.cloud


@dataclass(frozen=True, slots=True)
class FirstDrafts:
    """The sides' drafts for one position after one text, as far as they are here."""

    device: QueuedDraft | None
    cloud: QueuedDraft | None

    def of(self, side: Side) -> QueuedDraft | None:
        return self.device if side is Side.DEVICE else self.cloud

    def both(self) -> BothDrafts | None:
        """Return both sides' drafts; None until both are here."""
        if self.device is None or self.cloud is None:
            return None
        return BothDrafts(self.device, self.cloud)


@dataclass(slots=True)
class CommitBatch:
    """Tokens committed in one go, from `base` on, and why the answer ended with them."""

    base: int
    prefix: PrefixHash
    token_ids: list[int] = field(default_factory=list)
    token_sources: list[TokenSource] = field(default_factory=list)
    reason: FinishReason | None = None


class SideDrafts:
    """Both queues after the committed text, which grows token by token."""

    def __init__(self, side: Side, text: CommittedText, counters: AggregationCounters) -> None:
        self.own = OwnDrafts(text.tokens)
        self.peer = PeerDrafts(text.tokens)
        self._side = side
        self._text = text
        self._counters = counters

    def begin(self) -> CommitBatch:
        """Return an empty batch at the end of the committed text."""
        return CommitBatch(len(self._text.tokens), self._text.tokens.prefix)

    def first(self) -> FirstDrafts:
        """Return the drafts for the first uncommitted position."""
        pair = {self._side: self.own.first, self._side.other: self.peer.first}
        return FirstDrafts(pair[Side.DEVICE], pair[Side.CLOUD])

    def commit(self, token_id: int, token_source: TokenSource | None, batch: CommitBatch) -> None:
        """Commit one token; `token_source`: where known."""
        advanced = {
            self._side: self.own.advance(token_id),
            self._side.other: self.peer.advance(token_id),
        }
        for side, draft in advanced.items():
            if draft is not None:
                self._counters.verified(side, draft.token_id == token_id)
        _, batch.reason = self._text.append((token_id,))
        batch.token_ids.append(token_id)
        if token_source is not None:
            batch.token_sources.append(token_source)

    def clear(self) -> None:
        self.own.clear()
        self.peer.clear()


class OwnDrafts:
    """This side's drafts after the committed text, without a gap."""

    def __init__(self, committed: PrefixedTokens) -> None:
        self._committed = committed
        self._drafts: list[QueuedDraft] = []
        self._decided: dict[int, QueuedDraft] = {}

    def __iter__(self) -> Iterator[QueuedDraft]:
        return iter(self._drafts)

    def __len__(self) -> int:
        return len(self._drafts)

    @property
    def first(self) -> QueuedDraft | None:
        """The draft for the first position that is not committed."""
        return self._drafts[0] if self._drafts else None

    def add(self, draft: QueuedDraft) -> bool:
        """Queue it if it follows the queued drafts; if not, its decoder will draw it again."""
        position = len(self._committed)
        prefix = self._committed.prefix
        if self._drafts:
            last = self._drafts[-1]
            position = last.position + 1
            prefix = extend_prefix(last.prefix, (last.token_id,))
        if (draft.position, draft.prefix) != (position, prefix):
            return False
        self._drafts.append(draft)
        return True

    def advance(self, token_id: int) -> QueuedDraft | None:
        """Commit `token_id` at the first position, whose draft is returned; where it differs all
        drafts that follow are void."""
        if not self._drafts:
            return None
        first = self._drafts.pop(0)
        self._decided[first.position] = first
        if first.token_id != token_id:
            self._drafts.clear()
        return first

    def at(self, position: int, prefix: PrefixHash) -> QueuedDraft | None:
        """Return the draft for a position after a text, decided or not."""
        draft = self._decided.get(position)
        if draft is None:
            draft = next((draft for draft in self._drafts if draft.position == position), None)
        return draft if draft is not None and draft.prefix == prefix else None

    def forget_before(self, position: int) -> None:
        """Forget what is before `position`, where the other side will fetch nothing."""
        for decided in [known for known in self._decided if known < position]:
            del self._decided[decided]

    def clear(self) -> None:
        self._drafts.clear()


class PeerDrafts:
    """The other side's drafts, of which the newest for each position is kept."""

    def __init__(self, committed: PrefixedTokens) -> None:
        self._committed = committed
        self._drafts: dict[int, QueuedDraft] = {}

    def __len__(self) -> int:
        return len(self._drafts)

    @property
    def first(self) -> QueuedDraft | None:
        """The draft for the first position that is not committed, if it is of this text."""
        draft = self._drafts.get(len(self._committed))
        return draft if draft is not None and draft.prefix == self._committed.prefix else None

    def add(self, draft: QueuedDraft) -> None:
        if draft.position >= len(self._committed):
            self._drafts[draft.position] = draft

    def advance(self, token_id: int) -> QueuedDraft | None:
        """Do as `OwnDrafts.advance`; drafts of a later epoch were drawn after the other side had
        received the token, and stay."""
        first = self.first
        self._drafts.pop(len(self._committed), None)
        if first is not None and first.token_id != token_id:
            for draft in [old for old in self._drafts.values() if old.epoch <= first.epoch]:
                del self._drafts[draft.position]
        return first

    def clear(self) -> None:
        self._drafts.clear()
