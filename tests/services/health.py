"""Health as a probe sees it."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 60.0


def health_stub(channel: grpc.aio.Channel) -> Any:
    """The published types know neither the methods of this stub nor asynchronous channels."""
    stub: Any = health_pb2_grpc.HealthStub
    return stub(channel)


async def health_of(target: str, service: str = "") -> str:
    """SERVING, NOT_SERVING, or the status code of a call that failed."""
    async with grpc.aio.insecure_channel(target) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = await health_stub(channel).Check(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
