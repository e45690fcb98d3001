"""What a drafter's request begins with: earlier requests of the process, or what a real Prometheus
knows of others by this repository's recording rules."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tandem.services.drafter.earlier_requests import EarlierRequests
from tandem.specdec.messages import Draft, Work
from tandem.specdec.pacing import Pacing
from tandem.specdec.presets import PRESETS
from tandem.specdec.profile import NOTHING_EARLIER, Earlier, Profile
from tandem.telemetry.endpoint import serve_metrics
from tandem.telemetry.metrics import Metrics
from tandem.telemetry.prometheus_server import (
    ACCEPTANCE,
    DRAFT_STEP,
    QUEUE,
    ROUND_TRIP,
    VERIFY_STEP,
    PrometheusServer,
    Sample,
)
from tests.services.prometheus_process import prometheus

PAIR = {"engine": "small", "model_name": "large"}
OTHERS = (
    Sample(ACCEPTANCE, {**PAIR, "preset": "stream"}, 0.05),
    Sample(DRAFT_STEP, {"engine": "small", "side": "device", "instance": "b"}, 0.024),
    Sample(VERIFY_STEP, {"model_name": "large", "side": "cloud", "instance": "v"}, 0.03),
    Sample(ROUND_TRIP, {"model_name": "large", "side": "device", "instance": "b"}, 0.2),
    Sample(QUEUE, {"model_name": "large", "side": "cloud", "instance": "v"}, 0.4),
)


OTHERS_KNOW = Earlier(0.024, 0.03, 0.2, 0.05, 0.4)


def requested() -> Profile:
    """Of 10 judged drafts 8 stood: steps of 20 ms, passes of 50 ms, round trips of 30 ms."""
    profile = Profile()
    profile.drafted(2, 0.04)
    profile.sent(Draft(1, 0, 5, 9, (1, 2), end_of_chunk=True), 1.0)
    profile.answered(7, Work(verify_s=0.05, queue_s=0.1, drafts=2), 1.18)
    profile.judged(8, 2)
    return profile


def test_a_request_begins_with_what_the_one_before_measured() -> None:
    earlier = EarlierRequests("small")
    assert earlier.known("stream") == NOTHING_EARLIER
    earlier.ended("stream", "large", requested())
    known = earlier.known("stream")
    assert known.draft_s == pytest.approx(0.02)
    assert known.verify_s == pytest.approx(0.05)
    assert known.rtt_s == pytest.approx(0.03)
    assert known.acceptance_rate == pytest.approx(0.8)
    assert earlier.known("dssd").acceptance_rate is None, "acceptance is a preset's own"
    assert earlier.known("dssd").draft_s == known.draft_s


def test_nothing_is_kept_of_another_target() -> None:
    earlier = EarlierRequests("small")
    earlier.ended("stream", "large", requested())
    earlier.ended("dssd", "larger", Profile())
    assert earlier.known("stream") == NOTHING_EARLIER


def test_the_fresher_of_own_and_others_numbers_counts() -> None:
    now = 0.0
    earlier = EarlierRequests("small", "", lambda: OTHERS, lambda: now)
    assert earlier.known("stream") == OTHERS_KNOW, "a restarted process"
    earlier.ended("stream", "large", requested())
    assert earlier.known("stream").queue_s == pytest.approx(0.01)
    now += 400.0
    assert earlier.known("stream").acceptance_rate == pytest.approx(0.8)
    assert earlier.known("stream").queue_s == 0.4, "others load the verifier meanwhile"
    now += 100.0  # older than the middle of the quarter of an hour that the server looks back on
    assert earlier.known("stream") == OTHERS_KNOW


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
            earlier = EarlierRequests("small", "restarted:9100", server.read)
            cold = Pacing(PRESETS["stream"], earlier.known("stream")).schedule
            assert cold == PRESETS["stream"].schedule
            async with asyncio.timeout(60):
                while None in (known := earlier.known("stream"), *_numbers(known)):
                    asked.judged(10, 1, "device")
                    asked.draft_step.observe(0.024)
                    asked.round_trip.observe(0.3)
                    served.verify_step.observe(0.03)
                    served.queue.observe(0.4)
                    await asyncio.sleep(0.1)
            assert known.acceptance_rate == pytest.approx(0.1)
            assert known.draft_s == pytest.approx(0.024)
            assert known.rtt_s == pytest.approx(0.3)
            assert known.verify_s == pytest.approx(0.03)
            assert known.queue_s == pytest.approx(0.4), "of others' requests"
            seeded = Pacing(PRESETS["stream"], known).schedule
            assert seeded.window == 0, "such drafts never overtake the cloud alone"
        async with asyncio.timeout(60):  # the server is gone, and the drafter starts as if alone
            while server.read():
                await asyncio.sleep(0.05)
        assert earlier.known("stream") == NOTHING_EARLIER
        await server.close()


def _numbers(known: Earlier) -> tuple[float | None, ...]:
    return known.draft_s, known.verify_s, known.rtt_s, known.acceptance_rate, known.queue_s
