"""Answers from documents on two sides at the cloud: one device's stream after the other. Invariant:
nothing of a stream is kept when it has ended."""

from __future__ import annotations

from dataclasses import replace

from tandem.net.connection import Connection
from tandem.telemetry.tracing import Sent
from tandem.two_sided.profiling.profile_sources import Profiling
from tandem.two_sided.protocol.decoder_messages import ContextDocument, DecodingOpened
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.presets import Sources
from tandem.two_sided.protocol.side_machine import SideMachine
from tandem.two_sided.serving.cloud_session import (
    CloudSession,
    Collaboration,
    CollaborationStream,
    open_collaboration,
)
from tandem.two_sided.serving.decoder_link import DecoderEvents, DecoderLink
from tandem.two_sided.serving.document_transfer import (
    FetchStream,
    Search,
    documents_asked,
    give_documents,
)
from tandem.two_sided.serving.side_session import SideDecoding
from tandem_api.aggregator.v1.aggregator_pb2 import FindDocuments


class CloudAnswers:
    """The cloud's part in all answers; used on the event loop only."""

    def __init__(
        self, *, decoder: Connection, profiling: Profiling, request_timeout_s: float
    ) -> None:
        """Begin to serve; `decoder`, the one beside the cloud, and `profiling` stay the caller's to
        close."""
        self._decoding = SideDecoding(decoder, profiling)
        self._request_timeout_s = request_timeout_s
        self._sessions: set[CloudSession] = set()

    async def open(self, stream: CollaborationStream) -> Collaboration:
        """Read and check the opening frame of a device's stream, which costs nothing yet. Raises
        InvalidArgument if the device says anything else, or nothing, and PrefixMismatch."""
        return await open_collaboration(stream)

    async def serve(
        self, collaboration: Collaboration, search: Search, headers: Sent = None
    ) -> None:
        """Serve a stream until the device cancels or half-closes; raises what ended it otherwise.
        `headers`: the asking span's."""
        opening = collaboration.opening
        request = opening.request

        async def open_decoder(events: DecoderEvents) -> DecoderLink:
            documents: tuple[ContextDocument, ...] = ()
            if request.preset.sources is not Sources.DEVICE:
                documents = await search(request.query, request.documents)
            decoding = replace(
                request.decoding_opening(
                    Side.CLOUD, prompt=request.prompt_ids, documents=documents
                ),
                vocabulary_hash=request.vocabulary_hash,
                vocabulary_size=request.vocabulary_size,
                end_ids=tuple(sorted(request.eos_token_ids)),
            )
            return self._decoding.link(decoding, events, self._request_timeout_s, headers)

        def make_machine(opened: DecodingOpened) -> SideMachine:
            granted = replace(request, max_tokens=opened.max_tokens)
            return self._decoding.machine(
                Side.CLOUD, granted, opened, peer_log_mass=opening.log_mass
            )

        session = CloudSession(
            collaboration,
            open_decoder=open_decoder,
            make_machine=make_machine,
            closing_tasks=self._decoding.closing_tasks,
        )
        self._sessions.add(session)
        try:
            await session.run()
        finally:
            self._sessions.discard(session)

    async def asked(self, stream: FetchStream) -> FindDocuments:
        """Read and check what a device that generates alone asks for, which costs nothing yet.
        Raises InvalidArgument."""
        return await documents_asked(stream)

    async def give(
        self, stream: FetchStream, find: FindDocuments, search: Search, headers: Sent = None
    ) -> None:
        """Send the documents that are asked for; raises what ended it."""
        await give_documents(
            stream,
            find,
            search,
            decoder=self._decoding.connection,
            deadline_s=self._request_timeout_s,
            headers=headers,
        )

    def going_away(self, grace_s: float) -> None:
        """Ask the devices of all open sessions to go on elsewhere."""
        for session in self._sessions:
            session.going_away(grace_s)

    async def close(self) -> None:
        """Wait for streams that are being closed, a little."""
        await self._decoding.close()
