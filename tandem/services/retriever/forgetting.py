"""Telling this side's decoder of documents that leave, before they do.

Keys and values give a text away, so a document counts as deleted only when its decoder has none of
it. Invariant: what is told goes to the decoder of this side, which had the texts to decode, and
nowhere else.
"""

from collections.abc import Iterable, Iterator

import grpc

from tandem.core.errors import Unavailable
from tandem.net.connection import Connection
from tandem.net.status import details_of
from tandem_api.decoding.v1 import decoding_pb2 as pb
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc

TIMEOUT_S = 10.0
TEXTS_PER_CALL = 256
CHARACTERS_PER_CALL = 2**18


class Forgetting:
    """Used on the event loop only."""

    def __init__(self, connections: Iterable[Connection]) -> None:
        self._connections = tuple(connections)

    async def forget(self, texts: Iterable[str], owner: str = "") -> None:
        """Have the decoders forget these texts of an owner's; return when none keeps anything of
        them. Raises Unavailable naming the decoder."""
        for part in _parts(dict.fromkeys(texts)):
            for connection in self._connections:
                await _tell(connection, part, owner)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()


async def _tell(connection: Connection, texts: list[str], owner: str) -> None:
    request = pb.ForgetDocumentsRequest(texts=texts, owner=owner)
    first = f"the decoder at {connection.target} must forget a document first"
    try:
        async for channel in connection.every_replica():
            stub = pb_grpc.DecodingServiceStub(channel)
            await stub.ForgetDocuments(request, timeout=TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        raise Unavailable(f"{first}: {error.code().name} {details_of(error)}") from None
    except OSError as error:
        raise Unavailable(f"{first}: its name cannot be resolved: {error}") from None


def _parts(texts: Iterable[str]) -> Iterator[list[str]]:
    """Split ids into calls: bounded in number and, except for a single text, in characters."""
    part: list[str] = []
    for text in texts:
        if part and sum(map(len, part)) + len(text) > CHARACTERS_PER_CALL:
            yield part
            part = []
        part.append(text)
        if len(part) == TEXTS_PER_CALL:
            yield part
            part = []
    if part:
        yield part
