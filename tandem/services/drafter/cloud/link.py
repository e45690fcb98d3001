"""One session's link to its cloud: it picks a cloud, opens streams there, and says when to leave.
Used on the event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from grpc import StatusCode

from tandem.net.connection import Connection
from tandem.net.frame_stream import FrameStream
from tandem.net.tenant import Tenant
from tandem.services.drafter.cloud.clouds import Clouds
from tandem.services.drafter.cloud.route import CloudRoute
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import EdgeOutput
from tandem.specdec.messages import CloudMessage, EdgeMessage, GoingAway, Opened

VerifyStream = FrameStream[EdgeMessage, CloudMessage]
OnFrame = Callable[[CloudMessage, int], None]
OnEnd = Callable[[BaseException | None], None]
OpenVerify = Callable[[Connection, OnFrame, OnEnd], VerifyStream]
"""Over which connection, and then as `OpenStream`."""


class CloudLink:
    """Between one session and the clouds of its drafter."""

    def __init__(
        self,
        clouds: Clouds,
        machine: EdgeMachine,
        tenant: Tenant,
        kept_prompt_ids: Sequence[int],
        open_verify: OpenVerify,
    ) -> None:
        """Link one session to `clouds`. `kept_prompt_ids`: the prompt, if a cloud may keep its keys
        and values for this tenant."""
        self._route = CloudRoute(clouds, machine.request.session, tenant, kept_prompt_ids)
        self._machine = machine
        self._open_verify = open_verify

    def open_stream(self, on_frame: OnFrame, on_end: OnEnd) -> VerifyStream:
        """Open a stream to the cloud that is best for the session now."""
        return self._open_verify(self._route.connect(), on_frame, on_end)

    async def why_silent(self) -> str:
        """Return why its cloud does not answer; empty if it does."""
        return await self._route.why_silent()

    def admits(self, opened: Opened) -> bool:
        """Return whether the connected cloud, which says this of itself, may continue the text."""
        self._route.opened(opened.max_draft_length)
        return self._route.admits(opened.model_name)

    def failed(self, code: StatusCode) -> bool:
        """Record that the stream ended with `code`, or was silent for too long, and return whether
        a cloud is left to try that has not refused the session."""
        return self._route.failed(code, time.monotonic())

    def end(self) -> None:
        """Record that the session is over."""
        self._route.end(self._machine.committed.since(0))

    def heard(self, message: CloudMessage, now: float) -> None:
        """Record a frame that came for the session."""
        if isinstance(message, GoingAway):
            self._route.asked_to_leave(now)

    def time_passed(self, now: float) -> list[EdgeOutput]:
        """Leave a cloud for a better one."""
        if (reason := self._route.why_leave(now)) is None:
            return []
        self._route.leaves(reason, now)
        return self._machine.leave()
