"""That what is looked for on the wire would be found there."""

from __future__ import annotations

from pathlib import Path

from tandem.net.retriever_client import RetrieverClient, Upload
from tandem_api.common.v1 import generation_pb2
from tandem_api.retriever.v1 import retriever_pb2
from tests.services.two_sided_suite import retriever
from tests.wire_tap import id_lists_in, leaked, texts_in, wire_tap

SECRET = b"the blue envelope lies in the second drawer, below the maps"


async def test_everything_a_client_sends_is_kept_and_read(tmp_path: Path) -> None:
    long = SECRET * 4000  # many HTTP/2 frames
    async with (
        retriever(tmp_path, "cloud") as served,
        wire_tap(served.running.target) as tap,
        RetrieverClient(tap.address) as client,
    ):
        uploads = [Upload("short", SECRET), Upload("long", long)]
        assert len([answer async for answer in client.ingest(uploads)]) == 2
        assert (await client.stats()).documents == 2
    sent = tap.messages(retriever_pb2.IngestRequest)
    assert [message.content for message in sent if message.id] == [SECRET, long]
    assert any(SECRET in text for message in sent for text in texts_in(message))
    assert leaked([SECRET], tap.everything, [], 16)


def test_pieces_that_others_may_see_are_no_leak() -> None:
    seen = b"...in the second drawer, below..."
    assert leaked([SECRET], seen, [], 16) == b"in the second dr"
    assert leaked([SECRET], seen, [b"what is in the second drawer, below it?"], 16) == b""
    assert leaked([SECRET], b"in the sec and drawer", [], 16) == b""
    assert leaked([], seen, [], 16) == b""


def test_ids_are_found_wherever_they_are() -> None:
    committed = generation_pb2.Committed(position=3, token_ids=[5, 6])
    answer = generation_pb2.GenerateResponse(committed=committed)
    assert list(id_lists_in(answer)) == [("token_ids", [5, 6])]
