"""Decisions of the side scheduler as metrics and log lines."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry

from tandem.telemetry.metrics import Metrics
from tandem.two_sided.profiling.side_metrics import SideDecisions
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.placement import BothSides, SideTimes, choose_side

SIDES = BothSides(SideTimes(0.06, 0.04, 0.9), SideTimes(0.05, 0.06, 0.4))


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def decisions(registry: CollectorRegistry) -> SideDecisions:
    return SideDecisions(Metrics(registry, "device"))


def test_a_decision_is_counted_with_what_it_was_made_from(
    registry: CollectorRegistry, decisions: SideDecisions, caplog: pytest.LogCaptureFixture
) -> None:
    choice = choose_side(SIDES, Side.DEVICE)
    assert choice.moves
    with caplog.at_level(logging.INFO):
        decisions.decided(choice, SIDES)
        decisions.decided(choose_side(SIDES, Side.CLOUD), SIDES)
    (line,) = caplog.records  # staying is no news
    assert vars(line)["tandem_fields"]["gain_ms"] == pytest.approx(choice.gain_s * 1e3, abs=1e-3)
    decisions.unmeasured()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"side": "device", **labels})

    count = "tandem_scheduler_decisions_total"
    assert value(count, reason="move_saves_time") == 1
    assert value(count, reason="stay_saves_time") == 1
    assert value(count, reason="unmeasured") == 1
    assert value("tandem_scheduler_gain_seconds") == pytest.approx(-choice.gain_s)
    assert registry.get_sample_value("tandem_scheduler_acceptance_ratio", {"side": "cloud"}) == 0.4


def test_bandwidth_without_a_limit_is_infinite(
    registry: CollectorRegistry, decisions: SideDecisions
) -> None:
    decisions.bandwidth(1e6, float("inf"))
    name = "tandem_scheduler_bandwidth_bytes_per_second"
    assert registry.get_sample_value(name, {"side": "device"}) == 1e6
    assert registry.get_sample_value(name, {"side": "cloud"}) == float("inf")
