"""One session's link to its cloud: it picks a cloud, opens streams there, has the text computed
where the session will go, and says when to leave. Invariants: a warm-up may fail without any loss
to the session; the machine's state changes by its own transitions alone. Used on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from grpc import StatusCode

from tandem.net.connection import Connection
from tandem.net.frame_stream import FrameStream
from tandem.net.tenant import Tenant
from tandem.services.drafter.cloud.clouds import Clouds
from tandem.services.drafter.cloud.route import CloudRoute
from tandem.services.drafter.cloud.warm_up import warm_up
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import EdgeOutput
from tandem.specdec.messages import CloudMessage, EdgeMessage, GoingAway, Opened
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

VerifyStream = FrameStream[EdgeMessage, CloudMessage]
OnFrame = Callable[[CloudMessage, int], None]
OnEnd = Callable[[BaseException | None], None]
OpenVerify = Callable[[Connection, OnFrame, OnEnd], VerifyStream]
"""Over which connection, and then as `OpenStream`."""
Dispatch = Callable[[Callable[[], Sequence[EdgeOutput]]], None]
"""Takes an event in, unless the session has ended."""

RELIEVED_WITHIN_S = 2.0
"""How long a session stays at most at a cloud that is busier than another."""


class CloudLink:
    """Between one session and the clouds of its drafter."""

    def __init__(
        self,
        clouds: Clouds,
        machine: EdgeMachine,
        tenant: Tenant,
        kept_prompt_ids: Sequence[int],
        open_verify: OpenVerify,
        closing_tasks: set[asyncio.Task[None]],
    ) -> None:
        """Link one session to `clouds`. `kept_prompt_ids`: the prompt, if a cloud may keep its keys
        and values for this tenant. `closing_tasks` holds the closing of streams, which may outlast
        the session."""
        self._route = CloudRoute(clouds, machine.request.session, tenant, kept_prompt_ids)
        self._machine = machine
        self._open_verify = open_verify
        self._closing_tasks = closing_tasks
        self._dispatch: Dispatch | None = None
        self._warming: asyncio.Task[None] | None = None

    def attach(self, dispatch: Dispatch) -> None:
        """Give events of this link to `dispatch` from now on."""
        self._dispatch = dispatch

    # The session's own stream.

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

    def reconnects(self) -> None:
        """Prepare for the session to open another stream."""
        self._end_warm_up()

    def end(self) -> None:
        """End what was begun for the session, which is over."""
        self._end_warm_up()
        self._route.end(self._machine.committed.since(0))

    # What goes over it.

    def heard(self, message: CloudMessage, now: float) -> bool:
        """Record a frame that came for the session, and return whether its machine is to see it. A
        frame that asks the session to leave is kept from the machine while the text is computed
        where the session will go."""
        if isinstance(message, GoingAway):
            self._route.asked_to_leave(now)
            return not self._warms_up(message.grace_s)
        return True

    def time_passed(self, now: float) -> list[EdgeOutput]:
        """Leave a cloud for a better one."""
        if self._warming is None and (reason := self._route.why_leave(now)) is not None:
            stays = self._route.leaves(reason, now) and self._warms_up(RELIEVED_WITHIN_S)
            return [] if stays else self._machine.leave()
        return []

    # The text computed where the session will go.

    def _warms_up(self, grace_s: float) -> bool:
        """Return whether the session stays while its text is computed where it will go."""
        if self._warming is None and (cloud := self._route.next_cloud()) is not None:
            self._warming = asyncio.create_task(self._warm_up(cloud, grace_s))
            self._warming.add_done_callback(self._warmed_up)
        return self._warming is not None

    async def _warm_up(self, cloud: int, grace_s: float) -> None:
        machine = self._machine
        await warm_up(
            opening=lambda: machine.request.opening(machine.epoch, machine.committed),
            open_stream=partial(self._open_verify, self._route.connection(cloud)),
            turn=self._route.turn(cloud),
            rest_s=self._route.pass_s(cloud),
            grace_s=grace_s,
            closing_tasks=self._closing_tasks,
        )

    def _warmed_up(self, warming: asyncio.Task[None]) -> None:
        if warming.cancelled():
            return
        self._warming = None
        if (error := warming.exception()) is not None:
            log.warning("text not computed before the move", reason=str(error))
        assert self._dispatch is not None, "attached before its first event"
        self._dispatch(self._machine.leave)

    def _end_warm_up(self) -> None:
        warming, self._warming = self._warming, None
        if warming is not None:
            warming.cancel()
