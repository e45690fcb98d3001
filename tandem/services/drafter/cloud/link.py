"""One session's link to the clouds of its drafter: where its streams go. Invariant: it stays at its
cloud until that is lost, refuses it or asks it to leave; then the first healthy one that has not
refused it since the last loss is its cloud. Used on the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum

from grpc import StatusCode

from tandem.net.channels import is_replicated
from tandem.net.connection import Connection
from tandem.net.frame_stream import FATAL, FrameStream
from tandem.services.drafter.cloud.clouds import Clouds
from tandem.specdec.messages import CloudMessage, EdgeMessage, GoingAway, Opened
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

VerifyStream = FrameStream[EdgeMessage, CloudMessage]
OnFrame = Callable[[CloudMessage, int], None]
OnEnd = Callable[[BaseException | None], None]
OpenVerify = Callable[[Connection, OnFrame, OnEnd], VerifyStream]
"""Over which connection, and then as `OpenStream`."""

OWN_FAULT = frozenset({StatusCode.DEADLINE_EXCEEDED, StatusCode.INVALID_ARGUMENT})
"""Refusals that any other cloud would give too."""


class MoveReason(StrEnum):
    """Reason why a session left its cloud."""

    DRAINING = "draining"
    LOST = "lost"
    REFUSED = "refused"


class CloudLink:
    """Between one session and the clouds of its drafter."""

    def __init__(self, clouds: Clouds, open_verify: OpenVerify) -> None:
        """Begin without a cloud."""
        self._clouds = clouds
        self._open_verify = open_verify
        self._address = ""
        self._leaves: MoveReason | None = None
        self._refused_at: set[str] = set()
        self._model = ""

    def open_stream(self, on_frame: OnFrame, on_end: OnEnd) -> VerifyStream:
        """Open a stream to the session's cloud; to the next one, if it left that one."""
        if not self._address or self._leaves is not None:
            self._go_to(self._clouds.order.choose(self._refused_at))
        return self._open_verify(self._clouds.connection(self._address), on_frame, on_end)

    def admits(self, opened: Opened) -> bool:
        """Return whether the connected cloud, which says this of itself, may continue the text: no
        other model may."""
        self._clouds.takes(self._address, opened.max_draft_length)
        self._model = self._model or opened.model_name
        return self._model == opened.model_name

    def heard(self, message: CloudMessage, now: float) -> None:
        """Record a frame that came for the session. Where an address has replicas and one of them
        asks to be left, others serve there."""
        if isinstance(message, GoingAway) and not is_replicated(self._address):
            self._clouds.order.lost(self._address, now)
            self._leaves = MoveReason.DRAINING

    def failed(self, code: StatusCode) -> bool:
        """Record that the stream ended with `code`, or was silent for too long, and return whether
        a cloud is left to try that has not refused the session."""
        if code in OWN_FAULT:
            return False
        if code not in FATAL:
            self._clouds.order.lost(self._address, time.monotonic())
            self._leaves = MoveReason.LOST
            self._refused_at.clear()  # where it was refused there may be room by now
            return self._clouds.several
        self._refused_at.add(self._address)
        self._leaves = MoveReason.REFUSED
        if self._refused_at.issuperset(self._clouds.order.addresses):
            self._refused_at = {self._address}  # all did: should it ask again, then in turn
            return False
        return True

    async def why_silent(self) -> str:
        """Return why its cloud does not answer; empty if it does."""
        return await self._clouds.why_silent(self._address or self._clouds.order.choose())

    def end(self) -> None:
        """Record that the session is over."""
        if self._address:
            self._clouds.count(self._address, -1)

    def _go_to(self, address: str) -> None:
        origin, self._address = self._address, address
        reason, self._leaves = self._leaves, None
        if address == origin:
            return
        self._clouds.count(address, 1)
        if origin and reason is not None:
            self._clouds.count(origin, -1)
            self._clouds.series.moved(str(reason))
            log.info("session moved", origin=origin, to=address, reason=str(reason))
