"""What an aggregator's chooser of the side knows, from where it is told to look."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tandem.core.errors import TandemError
from tandem.net.process import prometheus_server
from tandem.services.aggregator.config import AggregatorSettings
from tandem.settings import SettingsError
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.prometheus_server import (
    DRAFT_STEP,
    QUEUE,
    ROUND_TRIP,
    SIDE_ACCEPTANCE,
    PrometheusServer,
)
from tandem.two_sided.profiling.decode_fits import StoredFit, write_fits
from tandem.two_sided.profiling.profile_sources import Profiling
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import BothSides, SideTimes, choose_side
from tandem.two_sided.protocol.profiler import DecodeFit, SideProfiler
from tests.prometheus_process import served, vector
from tests.unit.two_sided.side_frames import request_for

EARLIER = BothSides(SideTimes(0.06, 0.04, 0.9), SideTimes(0.05, 0.06, 0.4))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(CollectorRegistry(), "device")


async def test_the_request_s_own_frames_come_before_earlier_ones(metrics: Metrics) -> None:
    profiling = Profiling(Side.DEVICE, metrics)
    profiler = profiling.profiler("demo-draft", 2)
    assert not profiling.sides(profiler, profiling.earlier("dragon")).complete
    profiling.decided(choose_side(EARLIER, Side.DEVICE), EARLIER)
    earlier = profiling.earlier("dragon")
    assert profiling.sides(profiler, earlier) == EARLIER
    profiler.decoded(Side.CLOUD, 10, 0.2)
    sides = profiling.sides(profiler, earlier)
    assert sides.cloud.decode_s == pytest.approx(0.2)
    assert sides.device == EARLIER.device
    await profiling.close()


def known(cloud_queue_s: float = 0.0) -> list[tuple[str, dict[str, str], str]]:
    """What a server knows of others' answers; another device's decoder is slow."""
    step = {"device": {"instance": "d:1", "engine": "small"}, "cloud": {"engine": "large"}}
    return [
        (DRAFT_STEP, {"side": "device", **step["device"]}, "0.11"),
        (DRAFT_STEP, {"side": "device", "instance": "e:1", "engine": "small"}, "0.9"),
        (DRAFT_STEP, {"side": "cloud", **step["cloud"]}, "0.04"),
        (QUEUE, {"side": "cloud", "model_name": "large"}, str(cloud_queue_s)),
        (ROUND_TRIP, {"side": "device", "instance": "d:1", "model_name": "large"}, "0.1"),
        *(
            (SIDE_ACCEPTANCE, {"side": side, "preset": "dragon", "model_name": "large"}, rate)
            for side, rate in (("device", "0.7"), ("cloud", "0.8"))
        ),
    ]


async def asked(metrics: Metrics, cloud_queue_s: float, preset: str = "dragon") -> BothSides:
    """What a fresh process with no request yet knows."""
    with served(lambda what, query: (200, vector(*known(cloud_queue_s)))) as address:
        server = PrometheusServer(address, {})
        assert await server.refresh()
        profiling = Profiling(Side.DEVICE, metrics, server=server, instance="d:1")
        try:
            return profiling.sides(profiling.profiler("small", 2), profiling.earlier(preset))
        finally:
            await profiling.close()


async def test_a_fresh_process_begins_with_what_others_measured(metrics: Metrics) -> None:
    sides = await asked(metrics, 0.0)
    assert sides == BothSides(SideTimes(0.11, 0.05, 0.7), SideTimes(0.04, 0.05, 0.8))
    other = await asked(metrics, 0.0, "dragon-device")
    assert not other.complete, "acceptance is a preset's own"


def drafted(profiler: SideProfiler) -> None:
    """The request measures all but the queues: a slow device, a way of 20 ms."""
    for side, step_s in ((Side.DEVICE, 0.11), (Side.CLOUD, 0.04)):
        profiler.decoded(side, 10, step_s)
        for accepted in (1, 0):
            profiler.verified(side, accepted)
    profiler.exchanged(10, 10, 0.02)


async def test_others_load_moves_an_answer_while_it_runs(metrics: Metrics) -> None:
    """Before, the queues were those that the server knew as the request came, to its end."""
    queue_s, reached = 0.0, True

    def answer(what: str, query: str) -> tuple[int, bytes]:
        return (200, vector(*known(queue_s))) if reached else (500, b"")

    with served(answer) as address:
        server = PrometheusServer(address, {})
        profiling = Profiling(Side.DEVICE, metrics, server=server, instance="d:1")
        assert await server.refresh()
        profiler = profiling.profiler("small", 2)
        drafted(profiler)
        policy = profiling.placement_policy(request_for("dragon"), profiler)
        assert policy(10, Side.DEVICE) is Side.DEVICE
        queue_s = 0.5
        assert policy(11, Side.DEVICE) is Side.DEVICE, "nobody has asked since"
        assert await server.refresh()
        assert policy(12, Side.DEVICE) is Side.CLOUD
        reached = False
        assert not await server.refresh()
        assert policy(13, Side.DEVICE) is Side.DEVICE, "what it said is old"
        await profiling.close()


async def test_the_fresher_counts_and_a_lost_server_is_survived(metrics: Metrics) -> None:
    now, good = 0.0, True
    answer = (200, vector(*known(0.2)))
    with served(lambda what, query: answer if good else (500, b"")) as address:
        server = PrometheusServer(address, {})
        assert await server.refresh()
        profiling = Profiling(
            Side.DEVICE, metrics, server=server, instance="d:1", clock=lambda: now
        )
        profiling.decided(choose_side(EARLIER, Side.DEVICE), EARLIER)
        profiler = profiling.profiler("small", 2)
        for size in (10, 2000):
            profiler.exchanged(size, size, 0.1)
        profiling.sides(profiler, BothSides())
        now += 400.0
        assert profiling.earlier("dragon").device.acceptance == EARLIER.device.acceptance
        assert profiling.sides(profiler, BothSides()).cloud.queue_s == 0.2
        now -= 400.0
        profiling.sides(profiler, BothSides())
        now += 400.0
        now += 100.0
        assert profiling.earlier("dragon").device.acceptance == 0.7
        good = False
        assert not await server.refresh()
        assert profiling.earlier("dragon").device.acceptance == EARLIER.device.acceptance
        await profiling.close()


async def test_a_stored_line_holds_for_its_model_and_documents(
    metrics: Metrics, tmp_path: Path
) -> None:
    stored = {
        Side.DEVICE: StoredFit("demo-draft", 2, DecodeFit(2.0, 20_000.0, 0.01)),
        Side.CLOUD: StoredFit("demo-target", 2, DecodeFit(0.0, 20_000.0, 0.5)),
    }
    write_fits(tmp_path / "fits.json", stored)
    profiling = Profiling(Side.DEVICE, metrics, fits=tmp_path / "fits.json")
    sides = profiling.profiler("demo-draft", 2).sides()
    assert sides.device.decode_s == pytest.approx(0.01, rel=0.02)
    assert isnan(sides.cloud.decode_s)  # the other side's is its own aggregator's
    for model, documents in (("demo-draft", 3), ("another", 2)):
        assert isnan(profiling.profiler(model, documents).sides().device.decode_s)
    await profiling.close()


async def test_what_cannot_be_used_stops_the_start(metrics: Metrics, tmp_path: Path) -> None:
    for setting, value in (("prometheus", "prometheus:9090"), ("prometheus_labels", "suite")):
        named: dict[str, Any] = {"prometheus": "http://prometheus:9090", setting: value}
        with pytest.raises(SettingsError, match=f"TANDEM_{setting.upper()}: '{value}' is not"):
            prometheus_server(AggregatorSettings(**named))
    with pytest.raises(SettingsError, match=r"TANDEM_PROFILE_FILE: .*doctor --profile"):
        Profiling(Side.DEVICE, metrics, fits=tmp_path / "none.json")
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(TandemError, match=r"torn\.json"):
        Profiling(Side.DEVICE, metrics, fits=tmp_path / "torn.json")
