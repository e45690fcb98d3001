"""Two sources of the profiler beside a request's own stream: this process's metrics, and a
Prometheus server. Reading never waits and never fails: a server that is gone, slow or talks
nonsense knows nothing until it answers again. Three small questions every few seconds need no
client library."""

import asyncio
import json
import math
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from prometheus_client import CollectorRegistry

from tandem.core.errors import InvalidArgument
from tandem.telemetry.document_series import MeasuredSideSeries
from tandem.telemetry.logging import get_logger
from tandem.telemetry.metrics import Side as SideName
from tandem.two_sided.protocol.profiler import Reading

log = get_logger(__name__)

PERIOD_S = 10.0
TIMEOUT_S = 2.0
WINDOW = "15m"
MAX_ANSWER_BYTES = 2**20
SIDES: tuple[SideName, ...] = ("device", "cloud")

MEASURED = {
    "decode_s": MeasuredSideSeries.decode.name,
    "transfer_s": MeasuredSideSeries.transfer.name,
    "acceptance": MeasuredSideSeries.acceptance.name,
}
"""The metric that holds each number of a reading."""


class RegistrySource:
    """What earlier requests of this process measured: the gauges it exports itself."""

    name = "registry"

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def reading(self) -> Reading:
        found = {}
        for field, metric in MEASURED.items():
            for side in SIDES:
                number = self._registry.get_sample_value(metric, {"side": side})
                found[f"{side}_{field}"] = _plausible(field, number)
        return Reading(**found)


class PrometheusSource:
    """What a Prometheus server at `address` (http://prometheus:9090; a path before `/api` is kept)
    knows of the last quarter of an hour; `run` asks it every `period_s`. Raises InvalidArgument for
    another scheme."""

    name = "prometheus"

    def __init__(
        self, address: str, period_s: float = PERIOD_S, timeout_s: float = TIMEOUT_S
    ) -> None:
        if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).netloc:
            raise InvalidArgument("prometheus", f"{address!r} is not an http or https address")
        self._query_url = address.rstrip("/") + "/api/v1/query"
        self._period_s, self._timeout_s = period_s, timeout_s
        self._reading = Reading()
        self._reached: bool | None = None

    def reading(self) -> Reading:
        return self._reading

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(self._period_s)

    async def refresh(self) -> bool:
        """Ask once; whether all was answered. Nothing is raised for a server that does not."""
        try:
            answers = {field: await self._ask(metric) for field, metric in MEASURED.items()}
        except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
            self._reading = Reading()
            self._tell(False, str(error) or type(error).__name__)
            return False
        self._reading = Reading(
            **{
                f"{side}_{field}": _plausible(field, answer.get(side))
                for field, answer in answers.items()
                for side in SIDES
            }
        )
        self._tell(True)
        return True

    async def _ask(self, metric: str) -> Mapping[str, float]:
        """The mean of a gauge by side."""
        query = f"avg by (side) (avg_over_time({metric}[{WINDOW}]))"
        url = f"{self._query_url}?{urlencode({'query': query})}"
        async with asyncio.timeout(self._timeout_s):  # urlopen's own is for each piece of an answer
            answer = await asyncio.to_thread(_get_json, url, self._timeout_s)
        if answer["status"] != "success":
            raise ValueError(f"answered {answer.get('error', answer['status'])}")
        rows = answer["data"]["result"]
        return {row["metric"]["side"]: float(row["value"][1]) for row in rows if row["metric"]}

    def _tell(self, reached: bool, why: str = "") -> None:
        """A line when it is lost and one when it is back, not one every time."""
        if reached and not self._reached:
            log.info("metrics server answers", address=self._query_url)
        elif not reached and self._reached is not False:
            log.warning("metrics server lost; going on without", address=self._query_url, why=why)
        self._reached = reached


def _get_json(url: str, timeout_s: float) -> Any:
    with urlopen(Request(url, headers={"Accept": "application/json"}), timeout=timeout_s) as answer:
        content = answer.read(MAX_ANSWER_BYTES + 1)
    if len(content) > MAX_ANSWER_BYTES:
        raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
    return json.loads(content)


def _plausible(field: str, number: float | None) -> float | None:
    """What can have been measured, else None: what comes from outside decides nothing wrong."""
    if number is None or not math.isfinite(number) or number < 0:
        return None
    return number if field != "acceptance" or number <= 1 else None
