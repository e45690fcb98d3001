"""The stream handling of every machine: open, miss, leave, replace and give up a stream.

Used at the device's end by one-sided answers (`edge`) and two-sided ones
(`two_sided.protocol.side_machine`). What a stream carries is theirs; when there is one is decided
here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from tandem.core.errors import ProtocolError
from tandem.core.stopping import FinishReason
from tandem.specdec.events import Finish, Reconnect
from tandem.specdec.liveness import Liveness, Phase

Output = TypeVar("Output")
"""What a machine asks of its shell, besides `Reconnect` and `Finish`, which all of them ask."""


class Resumable(ABC, Generic[Output]):
    """Base of a request's machine that outlives its streams.

    Its shell calls `connect` on each fresh stream, `lost` when one broke, `tick` regularly and
    `cancel` when the caller leaves; it does what each returns. `phase` says what is open."""

    def __init__(self, liveness: Liveness, phase: Phase = Phase.CONNECTING) -> None:
        """Begin a request.

        Args:
            liveness: when the other end counts as dead, and as given up.
            phase: RUNNING where the other end opens the stream."""
        self.phase = phase
        self.finish_reason: FinishReason | None = None
        self._liveness = liveness

    @property
    def goes_on_alone(self) -> bool:
        """True if this end continues alone once the other is given up."""
        return self._liveness.goes_on_alone

    def connect(self, now: float) -> list[Output | Reconnect | Finish]:
        """Take a fresh stream into use: open or resume the request at the committed text."""
        if self.phase is not Phase.CONNECTING:
            raise ProtocolError(self.phase, "connect")
        self.phase = Phase.RUNNING
        self._liveness.connected(now)
        return self._open_stream(now)

    def lost(self, now: float, stuck_s: float = 0.0) -> list[Output | Reconnect | Finish]:
        """Reconnect, or give up: the stream broke or was found dead. `stuck_s`: see
        `Liveness.lost`."""
        if self.phase is not Phase.RUNNING:
            return []
        return self._miss_stream(now, stuck_s)

    def tick(self, now: float) -> list[Output | Reconnect | Finish]:
        """Ping a silent peer, notice a dead one, and give up a lost one, as time has passed."""
        self._liveness.tick(now)
        if self.phase is Phase.CONNECTING:
            return self._give_up_if_due(now)
        if self.phase is not Phase.RUNNING:
            return []
        if self._liveness.is_dead(now):
            return self.lost(now)
        # The outage began with earlier streams: of this one's connection nothing bad is known.
        if self._liveness.is_given_up(now):
            return self._miss_stream(now, lost=False)
        return self._ping(now)

    def cancel(self) -> list[Output | Reconnect | Finish]:
        """End the request: the caller left."""
        return [] if self.phase is Phase.DONE else self._finish(FinishReason.CANCELLED)

    def _miss_stream(
        self, now: float, stuck_s: float = 0.0, *, lost: bool = True
    ) -> list[Output | Reconnect | Finish]:
        """Leave a stream on which nothing more is expected, and give up if that is due."""
        reconnect = self._leave_stream(lost=lost)
        self._count_loss(self._liveness.lost(now, stuck_s))
        return [*reconnect, *self._give_up_if_due(now)]

    def _leave_stream(self, *, lost: bool = True) -> list[Output | Reconnect | Finish]:
        """Ask for another stream, which carries again what was under way on this one. `lost`: see
        `Reconnect`."""
        self.phase = Phase.CONNECTING
        self._forget_stream()
        return [Reconnect(lost=lost)]

    def _give_up_if_due(self, now: float) -> list[Output | Reconnect | Finish]:
        if not self._liveness.is_given_up(now):
            return []
        if not self.goes_on_alone:
            return self._finish(FinishReason.ERROR)
        self.phase = Phase.ALONE
        return self._go_on_alone(now)

    def _finish(self, reason: FinishReason) -> list[Output | Reconnect | Finish]:
        """End the request, at the other end too where a stream is open to it."""
        outputs = self._close()
        self.phase = Phase.DONE
        self.finish_reason = reason
        return [*outputs, Finish(reason)]

    @abstractmethod
    def _open_stream(self, now: float) -> list[Output | Reconnect | Finish]:
        """Open or resume the request on a fresh stream."""

    @abstractmethod
    def _forget_stream(self) -> None:
        """Drop what belonged to the stream that is gone."""

    @abstractmethod
    def _count_loss(self, silent_s: float) -> None:
        """Count a stream that was lost after a silence of that many seconds."""

    @abstractmethod
    def _ping(self, now: float) -> list[Output | Reconnect | Finish]:
        """Ask the peer for a sign of life where one is due."""

    @abstractmethod
    def _go_on_alone(self, now: float) -> list[Output | Reconnect | Finish]:
        """Answer without the peer, which was given up."""

    @abstractmethod
    def _close(self) -> list[Output | Reconnect | Finish]:
        """Stop what is under way; tell the peer where a stream is open to it."""
