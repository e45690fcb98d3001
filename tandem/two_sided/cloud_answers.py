"""Answers from documents on two sides at the cloud: devices' streams, each admitted, traced, and
served with the cloud's documents. Invariant: nothing of a stream is kept when it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tandem.core.errors import Unavailable
from tandem.net.admission import Admission
from tandem.net.connection import Connection
from tandem.telemetry.logging import get_logger, log_context
from tandem.telemetry.metric import OTHER
from tandem.telemetry.tracing import Headers, Span, Tracing
from tandem.two_sided.profiling.profile_sources import Profiling
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tandem.two_sided.serving.cloud_session import (
    CloudSession,
    CollaborationStream,
    read_opening,
)
from tandem.two_sided.serving.document_transfer import (
    FetchStream,
    Search,
    documents_asked,
    give_documents,
)
from tandem.two_sided.serving.peer_codec import CloudSideCodec
from tandem.two_sided.serving.side_session import SideDecoding

log = get_logger(__name__)


class CloudAnswers:
    """The cloud's part in all answers; used on the event loop only."""

    def __init__(
        self,
        *,
        decoder: Connection,
        profiling: Profiling,
        search: Search,
        admission: Admission,
        tracing: Tracing,
        request_timeout_s: float,
    ) -> None:
        """Begin to serve; `decoder`, the one beside the cloud, and `profiling` stay the caller's to
        close. Streams count as sessions of the `admission`."""
        self._decoding = SideDecoding(decoder, profiling)
        self._search = search
        self._admission = admission
        self._tracing = tracing
        self._request_timeout_s = request_timeout_s
        self._sessions: set[CloudSession] = set()
        self._leaving = False

    @property
    def open_streams(self) -> int:
        return self._admission.sessions

    def going_away(self) -> None:
        """Refuse new streams, and ask the devices of open sessions to go on elsewhere."""
        self._leaving = True
        for session in self._sessions:
            session.going_away()

    async def close(self) -> None:
        """Wait for streams that are being closed, a little."""
        await self._decoding.close()

    async def collaborate(self, stream: CollaborationStream) -> None:
        """Serve one device's answer until the device cancels or half-closes; raises what ended it
        otherwise. It costs nothing before its opening frame was checked."""
        codec = CloudSideCodec()
        opening = await read_opening(stream, codec)
        preset = opening.request.preset.name  # the device's; any text
        label = preset if preset in AGGREGATION_PRESETS else OTHER
        headers = stream.invocation_metadata()
        with self._admitted(
            "collaborate", headers, session=f"{opening.session:08x}", preset=label
        ) as span:
            session = CloudSession(
                stream,
                codec,
                opening,
                decoding=self._decoding,
                search=self._search,
                deadline_s=self._request_timeout_s,
                headers=span.headers(),
            )
            self._sessions.add(session)
            try:
                await session.run()
            finally:
                self._sessions.discard(session)

    async def fetch_documents(self, stream: FetchStream) -> None:
        """Serve one device's stream that asks for documents; raises what ended it."""
        find = await documents_asked(stream)
        with self._admitted("fetch documents", stream.invocation_metadata()) as span:
            await give_documents(
                stream,
                find,
                self._search,
                decoder=self._decoding.connection,
                deadline_s=self._request_timeout_s,
                headers=span.headers(),
            )

    @contextmanager
    def _admitted(self, what: str, headers: Headers | None, **named: str) -> Iterator[Span]:
        """Hold a place for a device's stream. Raises ResourceExhausted, or Unavailable while the
        service stops."""
        if self._leaving:
            raise Unavailable("the aggregator is stopping")
        with (
            self._admission.reserve(),
            log_context(**named),
            self._tracing.span(what, headers, **named) as span,
        ):
            log.info(f"{what}: begun")
            try:
                yield span
            finally:
                log.info(f"{what}: ended")
