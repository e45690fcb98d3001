"""A drafter and a verifier of different versions, over real gRPC: what one adds to the messages of
the other is ignored. The text stays the same."""

from __future__ import annotations

from typing import Any

from tandem.generation.request import GenerationRequest
from tandem.specdec.messages import GenerationParams
from tests.services.scripted_suite import scripted_suite, summary_of
from tests.services.test_broken_cloud import TamperingCloud
from tests.unit.wire.test_golden import add_unknown


async def test_the_text_is_the_same_with_a_peer_of_another_version() -> None:
    requests = [
        GenerationRequest((1, 2, 3), preset, GenerationParams(max_tokens=24, seed=5))
        for preset in ("coupled", "dssd", "tslt", "stream")
    ]
    async with scripted_suite() as suite:
        alike = [(await suite.client.generate(request)).token_ids for request in requests]
    seen: list[str] = []

    def with_more(frame: Any) -> bytes:
        """The frame with fields that this version does not know."""
        add_unknown(frame)
        seen.append(frame.WhichOneof("message"))
        return bytes(frame.SerializeToString())

    newer = TamperingCloud(with_more, on_the_way_up=with_more)
    async with scripted_suite(path=newer.before) as suite:
        for request, token_ids in zip(requests, alike, strict=True):
            answer = await suite.client.generate(request)
            assert answer.token_ids == token_ids
            assert summary_of(answer).resumes == 0, "no frame was refused"
    assert {"open", "drafts", "opened", "committed"} <= set(seen)
