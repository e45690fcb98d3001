"""Watts from energy counters: a tree as the kernel's, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.generation.request import GenerationRequest
from tandem.services.drafter.energy_meter import EnergyMeter, energy_counters
from tandem.specdec.objective import Prices
from tests.services.scripted_suite import scripted_suite

DECLARED = Prices(cloud_second=3.0, edge_watts=10.0, edge_idle_watts=2.0)
RANGE_UJ = 262_143_328_850


class Machine:
    """Draws 20 W, and 45 W more while its engine works; a subdomain counts a part once more."""

    def __init__(self, folder: Path, begins_uj: int = 0) -> None:
        self.folder, self.now, self.uj = folder, 100.0, begins_uj
        for name in ("intel-rapl:0", "intel-rapl:0:0", "intel-rapl"):
            (folder / name).mkdir()
            (folder / name / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
            (folder / name / "energy_uj").write_text(f"{begins_uj}\n")
        self.meter = EnergyMeter(DECLARED, energy_counters(folder), clock=lambda: self.now)

    def lasts(self, seconds: float, worked_s: float) -> None:
        self.now += seconds
        self.uj += round(1e6 * (20 * seconds + 45 * worked_s))
        (self.folder / "intel-rapl:0" / "energy_uj").write_text(f"{self.uj % (RANGE_UJ + 1)}\n")
        self.meter.worked(worked_s)


@pytest.mark.parametrize("begins_uj", [0, RANGE_UJ - 150_000_000])
def test_watts_are_measured_across_the_counter_s_end(tmp_path: Path, begins_uj: int) -> None:
    machine = Machine(tmp_path, begins_uj)
    for number in range(12):
        machine.lasts(2.0, worked_s=(number % 3) * 0.9)
    prices = machine.meter.prices
    assert (prices.edge_watts, prices.edge_idle_watts) == pytest.approx((45, 20))
    assert prices.cloud_second == 3.0


def test_what_is_declared_holds_until_idle_and_busy_were_seen(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for _ in range(20):
        machine.lasts(2.0, worked_s=1.5)
    assert machine.meter.prices == DECLARED
    machine.lasts(30.0, worked_s=0.0)
    assert machine.meter.prices.edge_idle_watts == pytest.approx(20)


def test_passes_within_a_second_are_one_reading(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    for number in range(100):
        machine.lasts(0.1, worked_s=0.1 * (number // 20 % 2))
    assert machine.meter.prices.edge_watts == pytest.approx(45, rel=0.05)


def test_without_a_counter_that_may_be_read_nothing_is_measured(tmp_path: Path) -> None:
    assert energy_counters(tmp_path / "none") == []
    machine = Machine(tmp_path)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("no number")
    assert energy_counters(tmp_path) == []
    for number in range(12):
        machine.now += 2.0
        machine.meter.worked(0.9 * (number % 2))
    assert machine.meter.prices == DECLARED


class Asked(EnergyMeter):
    """Notes what it is told and asked."""

    seconds, times = 0.0, 0

    def worked(self, seconds: float) -> None:
        self.seconds += seconds

    @property
    def prices(self) -> Prices:
        self.times += 1
        return DECLARED


async def test_a_drafter_tells_of_each_pass_and_each_request_asks() -> None:
    meter = Asked(DECLARED, [])
    async with scripted_suite(meter=meter) as suite:
        await suite.client.generate(GenerationRequest("meter", "coupled", max_tokens=8, seed=1))
    assert meter.seconds > 0
    assert meter.times == 1
