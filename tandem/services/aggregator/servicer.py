"""gRPC handlers of the aggregator: the door by which other programs of ours come in. Invariant: a
request is `Requests`' from its first message to its status."""

from contextlib import aclosing
from typing import Any

import grpc

from tandem.generation.conversation import cancelled, read_start
from tandem.net.access import ClientAccess
from tandem.net.admission import SESSIONS, Admission, quota_of
from tandem.net.status import Rejected, errors_as_status
from tandem.net.stream_limits import served, stream_limits
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.requests import Requests
from tandem.services.aggregator.side_resources import SideResources
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.tracing import NO_TRACING, Tracing
from tandem.two_sided.interface import AGGREGATION_PRESETS, CloudAnswers
from tandem_api.aggregator.v1 import aggregator_pb2
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tandem_api.common.v1 import generation_pb2 as pb


class AggregatorServicer(pb_grpc.AggregatorServiceServicer):
    """Serves `requests`, which other doors of this process may use too."""

    full_name = aggregator_pb2.DESCRIPTOR.services_by_name["AggregatorService"].full_name

    def __init__(
        self,
        settings: AggregatorSettings,
        metrics: Metrics,
        access: ClientAccess | None = None,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """Set up the service. `access` is what the drafter is shown; without it the connection to
        the drafter is plain."""
        access = access or ClientAccess()
        self._side = settings.side
        self._streams = stream_limits(settings)
        self._resources = SideResources(settings, metrics, access)
        self.requests = Requests(settings, metrics, access, self._resources, tracing)
        self._cloud_answers = CloudAnswers(
            decoder=self._resources.decoder,
            profiling=self._resources.profiling,
            search=self._resources.retrieval.search,
            admission=Admission(
                {SESSIONS: settings.max_running},
                quota=quota_of(settings),
                series=metrics.holders(),
            ),
            tracing=tracing,
            request_timeout_s=settings.request_timeout_s,
        )

    def register(self, server: grpc.aio.Server) -> None:
        pb_grpc.add_AggregatorServiceServicer_to_server(self, server)

    @property
    def open_requests(self) -> int:
        return self.requests.open_requests + self._cloud_answers.open_streams

    def going_away(self, grace_s: float) -> None:
        """Let requests under way run to their end within `grace_s`, and refuse new ones."""
        self.requests.going_away()
        self._cloud_answers.going_away()

    async def close(self) -> None:
        await self.requests.close()
        await self._cloud_answers.close()
        await self._resources.close()

    async def Describe(  # noqa: N802  # the RPC's name
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.DescribeResponse:
        async with errors_as_status(context):
            if self._side == "cloud":  # it has no drafter, and serves no callers
                return pb.DescribeResponse(presets=AGGREGATION_PRESETS)
            return await self.requests.describe()
        raise AssertionError("abort ends the call")

    # The generated stubs know generators only; grpc.aio serves read/write handlers as well.
    async def Generate(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with served(context, self._streams) as stream:
            self._check_side("device")
            start = await read_start(stream)
            left_s = stream.time_remaining()
            headers = stream.invocation_metadata()
            answers = self.requests.answers(start, left_s, lambda: cancelled(stream), headers)
            async with aclosing(answers):
                async for answer in answers:
                    await stream.write(answer)

    async def Collaborate(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with served(context, self._streams) as stream:
            self._check_side("cloud")
            await self._cloud_answers.collaborate(stream)

    async def FetchDocuments(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        async with served(context, self._streams) as stream:
            self._check_side("cloud")
            await self._cloud_answers.fetch_documents(stream)

    def _check_side(self, called: str) -> None:
        """Refuse a call that is for the other side's aggregator."""
        if self._side != called:
            why = f"this aggregator runs at the {self._side}; this call is for the {called}'s"
            raise Rejected(grpc.StatusCode.FAILED_PRECONDITION, f"side: {why}")
