"""A device's aggregator by hand: what it opens a stream with, and how the cloud's ends it."""

from __future__ import annotations

from typing import Any

import grpc

from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tests.services.two_sided_suite import TwoSides


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
