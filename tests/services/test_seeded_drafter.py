"""What a drafter's request begins with: earlier requests of the process, or what a real Prometheus
knows of others by this repository's recording rules."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tandem.control.estimates import NO_WARM_START, Estimates, WarmStart
from tandem.control.least_cost import LeastCost
from tandem.control.schedule import Schedule
from tandem.services.drafter.warm_start import WarmStarts
from tandem.specdec.presets import PRESETS
from tandem.telemetry.endpoint import serve_metrics
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.prometheus_server import (
    ACCEPTANCE,
    DRAFT_STEP,
    ROUND_TRIP,
    VERIFY_STEP,
    PrometheusServer,
    Sample,
)
from tests.prometheus_process import prometheus
from tests.services.scripted_suite import until

PAIR = {"engine": "small", "model_name": "large"}
OTHERS = (
    Sample(ACCEPTANCE, {**PAIR, "preset": "stream"}, 0.05),
    Sample(DRAFT_STEP, {"engine": "small", "side": "device", "instance": "b"}, 0.024),
    Sample(VERIFY_STEP, {"model_name": "large", "side": "cloud", "instance": "v"}, 0.03),
    Sample(ROUND_TRIP, {"model_name": "large", "side": "device", "instance": "b"}, 0.2),
)


def requested(now: float = 0.0) -> WarmStart:
    """Of 10 judged drafts 8 stood: steps of 20 ms, passes of 50 ms, round trips of 30 ms."""
    estimates = Estimates(now=now)
    estimates.drafted(2, 0.04, now)
    estimates.passed(0.05, 0, now)
    estimates.tripped(0.03, now)
    estimates.acceptance.add(8, 2)
    return estimates.snapshot(now)


def others_numbers(known: WarmStart) -> None:
    """All is what the server knows."""
    assert known.acceptance is not None
    assert (known.acceptance.rate, _values(known)) == (0.05, [0.024, 0.03, 0.2])


def _values(known: WarmStart) -> list[float]:
    readings = (known.draft, known.first, known.trip)
    return [value for aged in readings for _, value in aged[-1:]]


def test_a_request_begins_with_what_the_one_before_measured() -> None:
    starts = WarmStarts("small")
    assert starts.known("stream") == NO_WARM_START
    starts.ended("stream", "large", requested())
    assert _values(starts.known("stream")) == pytest.approx([0.02, 0.05, 0.03])


def test_what_a_prediction_s_drafts_measured_is_not_believed_of_the_draft_model() -> None:
    """They took no time, and stood as often as the caller was right; the cloud is the same."""
    starts = WarmStarts("small")
    starts.ended("auto", "large", requested())
    estimates = Estimates(starts.known("auto", predicted=True))
    assert estimates.draft.value == pytest.approx(1e-4)
    estimates.drafted(8, 1e-4, 1.0)
    estimates.passed(0.09, 0, 1.0)
    estimates.passed(0.09, 0, 1.0)
    estimates.acceptance.add(99, 1)
    starts.ended("auto", "large", estimates.snapshot(1.0), predicted=True)
    known = starts.known("auto")
    assert [value for _, value in known.draft] == pytest.approx([0.02])
    assert known.acceptance is not None
    assert known.acceptance.rate == pytest.approx(0.8)
    assert known.first[-1][1] == pytest.approx(0.09), "passes are passes"
    predicted = starts.known("stream", predicted=True).acceptance
    assert predicted is not None
    assert predicted.rate == pytest.approx(0.99)
    assert WarmStarts("small").known("auto", predicted=True).acceptance is not None


def test_nothing_is_kept_of_another_target() -> None:
    starts = WarmStarts("small")
    starts.ended("stream", "large", requested())
    starts.ended("dssd", "larger", NO_WARM_START)
    assert starts.known("stream") == NO_WARM_START


def test_the_fresher_of_own_and_others_numbers_counts() -> None:
    now = 0.0
    starts = WarmStarts("small", "", lambda: OTHERS, lambda: now)
    others_numbers(starts.known("stream"))  # a restarted process
    starts.ended("stream", "large", requested())
    assert starts.known("stream").trip == ((0.0, 0.03),)
    now += 400.0
    known = starts.known("stream").acceptance
    assert known is not None
    assert known.rate == pytest.approx(0.8)
    now += 100.0  # older than the middle of the quarter of an hour that the server looks back on
    others_numbers(starts.known("stream"))


async def test_a_real_prometheus_changes_what_a_new_drafter_does(tmp_path: Path) -> None:
    """Another drafter with the same models is accepted once in ten; a verifier serves both."""
    edge, cloud = CollectorRegistry(), CollectorRegistry()
    drafter, verifier = Metrics(edge, "device"), Metrics(cloud, "cloud")
    drafter.engine("small").kv_budget_bytes.set(1)
    verifier.engine("large").kv_budget_bytes.set(1)
    asked, served = drafter.method("stream", "large"), verifier.method("stream", "large")
    with serve_metrics(edge, "127.0.0.1", 0) as one, serve_metrics(cloud, "127.0.0.1", 0) as two:
        async with prometheus(tmp_path, [one.port, two.port]) as address:
            server = PrometheusServer(address, {"suite": "tandem"}, period_s=0.1)
            server.start()
            starts = WarmStarts("small", "restarted:9100", server.read)
            cold = _first_schedule(starts.known("stream"))
            assert cold.window == 0, "the cloud alone is to be measured first"
            async with asyncio.timeout(60):
                while not (known := starts.known("stream")).acceptance or len(_values(known)) < 3:
                    asked.judged(10, 1, "device")
                    asked.draft_step.observe(0.024)
                    asked.round_trip.observe(0.3)
                    served.verify_step.observe(0.03)
                    await asyncio.sleep(0.1)
            assert known.acceptance.rate == pytest.approx(0.1)
            assert _values(known) == pytest.approx([0.024, 0.03, 0.3])
            seeded = _first_schedule(known)
            assert seeded.window == 0, "such drafts never overtake the cloud alone"
        await until(lambda: not server.read())
        assert starts.known("stream") == NO_WARM_START
        await server.close()


def _first_schedule(known: WarmStart) -> Schedule:
    """What preset `auto` begins with."""
    return LeastCost(PRESETS["auto"].schedule, known).schedule
