"""What a request's observers at the edge hear: those who count, measure and tell, and change
nothing of the conversation. The machine calls each of them as things happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.core.frozen import frozen
from tandem.core.sparse_payload import FullPayload, SparsePayload
from tandem.specdec.events import Drafted
from tandem.specdec.messages import Committed, Drafts, Opened


@frozen
class Settled:
    """What a message says of the drafts that were in flight: the first `right` of them became text,
    and the next one did not if `departs`. `refused`: the cloud had that one when it decided; else
    it was ahead of it."""

    right: int
    departs: bool
    refused: bool

    @classmethod
    def by(cls, message: Committed, sent: Sequence[int]) -> Settled:
        """Compare a message with the drafts that were sent, oldest first."""
        place = message.accepted
        for token_id in message.token_ids:
            if place == len(sent) or sent[place] != token_id:
                break
            place += 1
        more = message.draw_from is not None or place < message.accepted + len(message.token_ids)
        departs = more and place < len(sent)
        return cls(place, departs, departs and message.refuses)

    @property
    def count(self) -> int:
        """Drafts that are settled, right or not."""
        return self.right + self.departs


class EdgeObserver:
    """Hears nothing: override what is to be heard. Times are in seconds, by the caller's clock."""

    __slots__ = ()

    # The stream.

    def on_connected(self, now: float) -> None:
        """A stream begins."""

    def on_opened(self, opened: Opened) -> None:
        """The cloud took the session."""

    def on_left(self) -> None:
        """The stream is gone."""

    def on_lost(self, silent_s: float) -> None:
        """The stream broke, or was found dead after a silence."""

    def on_departed(self) -> None:
        """The stream was left because its cloud goes away."""

    def on_pinged(self, now: float) -> None:
        """A ping leaves."""

    def on_ponged(self, trip_s: float | None, now: float) -> None:
        """A ping is answered, after `trip_s`; None: one of long ago."""

    # Drafts.

    def on_draft_begun(self, now: float) -> None:
        """A task for the next drafts begins."""

    def on_drafted(
        self,
        drafts: Sequence[Drafted],
        positions: int,
        draft_s: float,
        now: float,
        *,
        pure_decode: bool,
    ) -> None:
        """Drafts for so many positions are there. `pure_decode`: no prompt was fed before
        them."""

    def on_sent(self, frame: Drafts, now: float) -> None:
        """A frame of drafts leaves."""

    def on_predrafted(self, count: int) -> None:
        """Tokens were drafted that are wanted only if the text goes on as expected."""

    def on_adopted(self, drafts: Sequence[Drafted]) -> None:
        """The text went on as expected, and these drafts are in flight."""

    def on_resolved(self, *, begun: bool, ready: bool) -> None:
        """A token came that was not drafted. `begun`: what follows it is being drafted; `ready`: it
        can leave at once."""

    def on_discarded(self) -> None:
        """The drafts in flight are void."""

    # Text.

    def on_early_verdict(self) -> None:
        """An early exit of the cloud says what it expects."""

    def on_committed(
        self, message: Committed, settled: Settled, drafts: Sequence[Drafted], now: float
    ) -> None:
        """The cloud commits text. `drafts` were in flight until then."""

    def on_right(self, drafts: Sequence[Drafted]) -> None:
        """These drafts became text."""

    def on_full_distribution_needed(self) -> None:
        """A token cannot be drawn from what was sent of its distribution."""

    def on_drawn(
        self, position: int, token_id: int, payload: FullPayload | SparsePayload, rejected: Drafted
    ) -> None:
        """The edge drew a token in the place of a rejected draft."""

    def on_text(self, count: int, *, unverified: bool) -> None:
        """The answer grows."""


class Observers(EdgeObserver):
    """Several observers as one. A hook that one of them overrides is that method, and one that none
    overrides does nothing: most hear of few, and a token is to cost no more calls."""

    def __init__(self, observers: Sequence[EdgeObserver]) -> None:
        """Begin to tell these, in their order."""
        for name in [name for name in dir(EdgeObserver) if name.startswith("on_")]:
            nothing = getattr(EdgeObserver, name)
            hears = [one for one in observers if getattr(type(one), name) is not nothing]
            if hears:
                setattr(self, name, _all_of([getattr(one, name) for one in hears]))


def _all_of(hooks: Sequence[Callable[..., None]]) -> Callable[..., None]:
    def tell(*heard: object, **named: object) -> None:
        for hook in hooks:
            hook(*heard, **named)

    return hooks[0] if len(hooks) == 1 else tell
