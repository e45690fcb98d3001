"""What both sides' aggregators have: a decoder, a retriever, and a chooser of the side.

Must not import torch.
"""

from __future__ import annotations

import asyncio

from services.aggregator.config import AggregatorSettings
from services.aggregator.profiling import Profiling
from services.aggregator.retrieval import Retrieval
from tandem.core.aggregation import Side
from tandem.core.chance import SeededChance
from tandem.policy.placement import Placing, placing_for
from tandem.policy.profiler import SideProfiler
from tandem.policy.side_scheduler import BothSides
from tandem.protocol.aggregation_outputs import AggregationRequest
from tandem.rpc.access import ClientAccess
from tandem.rpc.connection import Connection
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.side_decisions import SideDecisions

FAREWELL_S = 1.0
_SIDES = {"device": Side.DEVICE, "cloud": Side.CLOUD}


class SideParts:
    """Used on the event loop only. `farewells`: closings of streams that are still under way."""

    def __init__(
        self, settings: AggregatorSettings, metrics: Metrics, access: ClientAccess
    ) -> None:
        self._max_message_bytes = settings.max_message_bytes
        self._access = access
        self.decoder = self.connection(settings.decoder or settings.drafter)
        retriever = settings.retriever
        self.retrieval = Retrieval(self.connection(retriever) if retriever else None)
        self.farewells: set[asyncio.Task[None]] = set()
        self.profiling = Profiling(
            _SIDES[settings.side], metrics, settings.prometheus, settings.profile_file
        )
        self._decisions = SideDecisions(metrics)

    def connection(self, target: str) -> Connection:
        return Connection(target, self._max_message_bytes, self._access)

    def placing(self, request: AggregationRequest, profiler: SideProfiler) -> Placing:
        earlier = self.profiling.earlier()

        def measured() -> BothSides | None:
            transfer = profiler.transfer
            if transfer.known:
                self._decisions.bandwidth(transfer.up_bytes_per_s, transfer.down_bytes_per_s)
            return self.profiling.sides(profiler, earlier)

        return placing_for(
            request.preset.placement,
            SeededChance(request.seed),
            measured,
            self._decisions.decided,
            self._decisions.unmeasured,
        )

    async def close(self) -> None:
        if self.farewells:
            await asyncio.wait(self.farewells, timeout=FAREWELL_S)
        await self.profiling.close()
        await self.retrieval.close()
        await self.decoder.close()
