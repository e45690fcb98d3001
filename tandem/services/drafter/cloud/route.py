"""One session's way among the clouds that its drafter knows. Invariant: a session counts at the
cloud where it is, until `end`. Used on the event loop."""

import time
from collections.abc import Sequence

from grpc import StatusCode

from tandem.net.channels import is_replicated
from tandem.net.connection import Connection
from tandem.net.frame_stream import FATAL
from tandem.net.tenant import Tenant
from tandem.routing.router import MoveReason, Placement
from tandem.services.drafter.cloud.clouds import Clouds
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

RELIEVE_EVERY_S = 0.3
"""A busy cloud is left for an idle one by one session after the other: each takes some of the load
along, and were all to leave at once, the idle one were the busy one."""
OWN_FAULT = frozenset({StatusCode.DEADLINE_EXCEEDED, StatusCode.INVALID_ARGUMENT})
"""Refusals that any other cloud would give too."""


class CloudRoute:
    """Destination of one session's streams."""

    def __init__(
        self, clouds: Clouds, session: int, tenant: Tenant, prompt_ids: Sequence[int] = ()
    ) -> None:
        """Begin without a cloud. `prompt_ids`: the prompt, if the cloud may keep its keys and
        values for this tenant."""
        self._clouds = clouds
        self._session = session
        self._tenant = tenant
        self._prompt_ids = prompt_ids
        self._place: Placement | None = None
        self._reason: MoveReason | None = None
        self._refused_at: set[str] = set()
        self._model = ""

    @property
    def address(self) -> str:
        return "" if self._place is None else self._clouds.addresses[self._place.cloud]

    def connect(self) -> Connection:
        """Return where the next stream goes; a stream that broke by a fault of the conversation
        comes back to where it was."""
        clouds = self._clouds
        place = self._place
        now = time.monotonic()
        if not clouds.several:
            return clouds.connection(0)
        if place is None:
            kept = clouds.keeping(self._tenant, self._prompt_ids)
            self._settle(Placement(clouds.routing.choose(self._session, kept=kept), now))
        elif self._reason is not None:
            cloud = clouds.routing.choose(self._session, self._model, self._refused, place.cloud)
            if cloud != place.cloud:
                moves = place.moves + (self._reason is MoveReason.BETTER)
                self._moved(place.cloud, cloud, self._reason)
                self._settle(Placement(cloud, now, moves))
            self._reason = None
        assert self._place is not None
        return clouds.connection(self._place.cloud)

    def asked_to_leave(self, now: float) -> None:
        """Record that the session's cloud asked it to leave, unless its address has replicas: other
        replicas still serve there."""
        if self._place is not None and not is_replicated(self.address):
            self._clouds.routing.leaves(self._place.cloud, now)
            self._reason = MoveReason.DRAINING

    def admits(self, model: str) -> bool:
        """Return whether the connected cloud, which serves `model`, may continue the text."""
        self._model = self._model or model
        return self._place is None or self._model == model

    def opened(self, longest_draft: int) -> None:
        """Record how many drafts the connected cloud takes in a frame."""
        self._clouds.takes(0 if self._place is None else self._place.cloud, longest_draft)

    def why_leave(self, now: float) -> MoveReason | None:
        """Return why a session with a working stream should move, if it should."""
        if self._place is None or not self._model:
            return None
        reason = self._clouds.routing.why_leave(self._place, self._session, now, self._model)
        if reason is MoveReason.BETTER and now < self._clouds.relieved_s + RELIEVE_EVERY_S:
            return reason if self._is_far else None
        return reason

    def leaves(self, reason: MoveReason, now: float) -> None:
        """Record that a session with a working stream leaves."""
        self._reason = self._reason or reason
        if reason is MoveReason.BETTER and not self._is_far:
            self._clouds.relieved_s = now

    @property
    def _is_far(self) -> bool:
        """True if the cloud's distance alone, without its load, makes another cloud better."""
        place = self._place
        return place is not None and self._clouds.routing.is_far(place.cloud, self._model)

    def failed(self, code: StatusCode, now: float) -> bool:
        """Record that the session's stream ended with `code`, or was silent for too long, and
        return whether a cloud is left to try that has not refused the session."""
        if self._place is None or code in OWN_FAULT:
            return False
        cloud = self._place.cloud
        if code in FATAL:
            self._refused_at.add(self.address)
            self._reason = MoveReason.REFUSED
            if self._clouds.others(self._refused_at):
                return True
            self._refused_at = {self.address}  # all did: should it ask again, then in turn
            return False
        self._clouds.routing.lost(cloud, now)
        self._reason = MoveReason.LOST
        return True

    async def why_silent(self) -> str:
        return await self._clouds.why_silent(0 if self._place is None else self._place.cloud)

    def end(self, token_ids: Sequence[int]) -> None:
        """Record that the session is over, with this text."""
        if self._place is not None and self._prompt_ids:
            self._clouds.left(self._tenant, token_ids, self._place.cloud)
        self._leave()

    @property
    def _refused(self) -> set[int]:
        """The clouds that refused it, by address: a number may be another's by now."""
        addresses = enumerate(self._clouds.addresses)
        return {number for number, address in addresses if address in self._refused_at}

    def _leave(self) -> None:
        place, self._place = self._place, None
        if place is not None:
            self._count(place.cloud, -1)

    def _settle(self, place: Placement) -> None:
        self._clouds.routing.opened(place.cloud)
        self._leave()
        self._place = place
        self._count(place.cloud, 1)

    def _count(self, cloud: int, change: int) -> None:
        self._clouds.sessions[cloud] += change
        self._clouds.series.holds(self._clouds.addresses[cloud], self._clouds.sessions[cloud])

    def _moved(self, origin: int, destination: int, reason: MoveReason) -> None:
        addresses = self._clouds.addresses
        log.info(
            "session moved", origin=addresses[origin], to=addresses[destination], reason=str(reason)
        )
        self._clouds.series.moved(str(reason))
