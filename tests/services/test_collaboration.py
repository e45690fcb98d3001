"""The stream from the device's aggregator to the cloud's over real gRPC, frame by frame."""

from __future__ import annotations

import asyncio
import math
import tracemalloc
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tandem.core.codecs import sparse_probs_to_bytes
from tandem.net.status import Rejected
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.two_sided.protocol.mixture import (
    Side,
)
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tandem_api.decoding.v1 import decoding_pb2
from tests.services.decoding_peer import prefix_of
from tests.services.scripted_suite import emulated, until
from tests.services.two_sided_suite import TOKENS, TwoSides, asking, two_sides


async def test_each_call_is_for_one_side(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        with pytest.raises(Rejected, match="runs at the cloud"):
            await suite.cloud_client.generate(asking("dragon"))
        assert await collaboration(suite.client.target, []) == (
            "FAILED_PRECONDITION",
            "side: this aggregator runs at the device; this call is for the cloud's",
        )
        described = await suite.client.describe(), await suite.cloud_client.describe()
        assert set(AGGREGATION_PRESETS) < set(described[0].presets)
        assert set(AGGREGATION_PRESETS) == set(described[1].presets)


BAD_OPENINGS: dict[str, tuple[dict[str, Any], str]] = {
    "no choices": ({}, "INVALID_ARGUMENT agreement"),
    "no prompt": ({"prompt_ids": []}, "INVALID_ARGUMENT prompt_ids"),
    "foreign ids": ({"prompt_ids": [64]}, "INVALID_ARGUMENT prompt_ids"),
    "complete": ({"committed_ids": [1, 2, 3]}, "INVALID_ARGUMENT committed_ids"),
    "no distribution": ({"probs": 1}, "INVALID_ARGUMENT probs"),
    "other vocabulary": ({"vocabulary_hash": "abc"}, "FAILED_PRECONDITION vocabulary_hash"),
    "a huge vocabulary": ({"vocabulary_size": 2**31}, "INVALID_ARGUMENT vocabulary_size"),
    "a long query": ({"query": "x" * 4097}, "INVALID_ARGUMENT query"),
    "NaN": ({"log_mass": math.nan}, "INVALID_ARGUMENT log_mass"),
    "wrong hash": ({"prefix": 3}, "DATA_LOSS prefix"),
    "wrong base": ({"base": 3}, "INVALID_ARGUMENT base"),
}


async def test_bad_openings_are_refused_by_name(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        for name, (changes, expected) in BAD_OPENINGS.items():
            fields = {} if name == "no choices" else opening_fields(suite)
            head = {"base": 2, "prefix": prefix_of((1, 2))}
            head |= {key: changes[key] for key in head if key in changes}
            fields |= {key: value for key, value in changes.items() if key not in head}
            if name in ("no prompt", "complete"):
                head = {"base": len(fields["prompt_ids"]), "prefix": 0}
            frame = pb.CollaborateRequest(
                session=1,
                open=pb.CollaborationOpen(**fields),
                **head,  # type: ignore[arg-type]
            )
            code, details = await collaboration(suite.cloud_aggregator.target, [frame])
            assert f"{code} {details}".startswith(expected), name
        ping = pb.CollaborateRequest(ping=pb.Ping())
        code, details = await collaboration(suite.cloud_aggregator.target, [ping])
        assert (code, details.split(":")[0]) == ("INVALID_ARGUMENT", "open")


BAD_FRAMES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "INVALID_ARGUMENT message"),
    "a gap": ({"base": 4, "target": pb.Target(token_ids=[1])}, "INVALID_ARGUMENT base"),
    "other text": ({"prefix": 7, "target": pb.Target(token_ids=[1])}, "DATA_LOSS prefix"),
    "a foreign token": ({"target": pb.Target(token_ids=[64])}, "INVALID_ARGUMENT token_ids"),
    "another session": ({"session": 2, "ping": pb.Ping()}, "INVALID_ARGUMENT message"),
    "a draft without its distribution": (
        {"draft": decoding_pb2.Draft(token_id=1)},
        "INVALID_ARGUMENT probs",
    ),
    "a fetch of nothing": ({"fetch": pb.Fetch()}, "INVALID_ARGUMENT count"),
}


async def test_bad_frames_end_a_stream_with_their_status(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        head: dict[str, Any] = {"session": 1, "base": 2, "prefix": prefix_of((1, 2))}
        opened = pb.CollaborationOpen(**opening_fields(suite))
        begin = pb.CollaborateRequest(open=opened, **head)
        for name, (fields, expected) in BAD_FRAMES.items():
            bad = pb.CollaborateRequest(**(head | fields))
            code, details = await collaboration(suite.cloud_aggregator.target, [begin, bad])
            assert f"{code} {details}".startswith(expected), name
        code, details = await collaboration(suite.cloud_aggregator.target, [begin, begin])
        assert f"{code} {details}".startswith("INVALID_ARGUMENT open")


async def test_drafts_cost_nothing_before_the_vocabulary_is_compared(tmp_path: Path) -> None:
    """Each would become an array of the size that the device names."""
    async with two_sides(tmp_path) as suite:
        head: dict[str, Any] = {"session": 1, "base": 2, "prefix": prefix_of((1, 2))}
        fields = opening_fields(suite) | {"vocabulary_size": 2**22, "vocabulary_hash": "abc"}
        begin = pb.CollaborateRequest(open=pb.CollaborationOpen(**fields), **head)
        probs = sparse_probs_to_bytes(np.ones(2, np.float32) / 2, "float32")
        draft = pb.CollaborateRequest(draft=decoding_pb2.Draft(token_id=1, probs=probs), **head)
        tracemalloc.start()
        try:
            code, _ = await collaboration(suite.cloud_aggregator.target, [begin, *[draft] * 8])
            assert code == "FAILED_PRECONDITION"
            assert tracemalloc.get_traced_memory()[1] < 2**22
        finally:
            tracemalloc.stop()


async def test_pings_are_answered_while_documents_are_being_read(tmp_path: Path) -> None:
    """However long that takes, the device does not take the cloud for dead."""
    links: list[TcpLinkEmulator] = []
    head: dict[str, Any] = {"session": 1, "base": 2, "prefix": prefix_of((1, 2))}
    async with two_sides(tmp_path, decoder_way=lambda address: emulated(address, links)) as suite:
        opened = pb.CollaborationOpen(**opening_fields(suite))
        links[Side.CLOUD].cut()
        async with grpc.aio.insecure_channel(suite.cloud_aggregator.target) as channel:
            call: Any = pb_grpc.AggregatorServiceStub(channel).Collaborate(timeout=20)
            await call.write(pb.CollaborateRequest(open=opened, **head))
            await call.write(pb.CollaborateRequest(ping=pb.Ping(nonce=7), **head))
            assert (await call.read()).pong.nonce == 7
            links[Side.CLOUD].restore()
            assert (await call.read()).HasField("opened")
            call.cancel()


async def test_frames_that_come_early_wait_in_bounded_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.two_sided.cloud_answers.MAX_EARLY_BYTES", 65_536)
    links: list[TcpLinkEmulator] = []
    head: dict[str, Any] = {"session": 1, "base": 2, "prefix": prefix_of((1, 2))}
    async with two_sides(tmp_path, decoder_way=lambda address: emulated(address, links)) as suite:
        opened = pb.CollaborationOpen(**opening_fields(suite))
        large = pb.CollaborateRequest(fetch=pb.Fetch(count=1), **head)
        large.MergeFromString(b"\xa2\x06\xb0\xea\x01" + bytes(30_000))  # field 100, unknown
        links[Side.CLOUD].cut()
        ended = await collaboration(
            suite.cloud_aggregator.target,
            [pb.CollaborateRequest(open=opened, **head), large, large, large],
        )
        assert ended == ("RESOURCE_EXHAUSTED", "frames: 65536 bytes came before `opened`")
        links[Side.CLOUD].restore()


async def test_a_device_that_does_not_read_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.two_sided.cloud_answers.MAX_QUEUED_FRAMES", 16)
    async with two_sides(tmp_path) as suite:
        head = {"session": 1, "base": 2, "prefix": prefix_of((1, 2))}
        opened = pb.CollaborationOpen(**opening_fields(suite))
        ping = pb.CollaborateRequest(ping=pb.Ping(), **head)  # type: ignore[arg-type]
        # gRPC must not widen the window: the answers would all fit into it.
        narrow = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1)]
        async with grpc.aio.insecure_channel(suite.cloud_aggregator.target, narrow) as channel:
            call: Any = pb_grpc.AggregatorServiceStub(channel).Collaborate(timeout=100)

            async def ping_without_reading() -> None:
                await call.write(pb.CollaborateRequest(open=opened, **head))  # type: ignore[arg-type]
                while True:
                    await call.write(ping)

            served = suite.cloud_aggregator.service
            pinging = asyncio.create_task(ping_without_reading())
            await until(lambda: served.open_requests)
            # The status may be lost, behind a frame that nobody reads or in grpc.aio (36066).
            await until(lambda: not served.open_requests)
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)
        answer = await suite.client.generate(asking("dragon"))
        assert len(answer.token_ids) == TOKENS


def opening_fields(suite: TwoSides) -> dict[str, Any]:
    return {
        "vocabulary_hash": suite.cloud.vocabulary_hash,
        "vocabulary_size": 64,
        "prompt_ids": [1, 2],
        "query": "heron",
        "documents": 2,
        "sampling": {"temperature": 1.0, "top_p": 1.0},
        "max_tokens": 3,
        "agreement": pb.AGREEMENT_AGGREGATOR,
        "placement": pb.PLACEMENT_DEVICE,
        "sources": pb.SOURCES_BOTH,
        "draw": 1,
        "probs": 3,
        "precision": 1,
        "local_top_p": 1.0,
        "ahead": 4,
        "top": 4,
    }


async def collaboration(target: str, frames: list[pb.CollaborateRequest]) -> tuple[str, str]:
    """Status and details of a stream with these frames."""
    async with grpc.aio.insecure_channel(target) as channel:
        call: Any = pb_grpc.AggregatorServiceStub(channel).Collaborate(timeout=20)
        try:
            for frame in frames:
                await call.write(frame)
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        return (await call.code()).name, await call.details() or ""
