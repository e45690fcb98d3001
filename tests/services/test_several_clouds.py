"""A drafter with a list of verifiers: requests go to the first healthy one, leave what is lost,
refuses them or stops, and no move changes a text."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import pytest

from tandem.backends.interface import Engine, ForwardRequest, Logits, never
from tandem.commands.check_suite import judge_suite
from tandem.commands.keys import PUBLIC, replace_file
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.lifecycle import RunningService
from tandem.net.reloaded import BadFile
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.services.drafter.__main__ import build
from tandem.services.drafter.cloud.listed import clouds_in, clouds_of
from tandem.services.drafter.config import DrafterSettings
from tandem.services.drafter.servicer import DrafterLimits
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.settings import SettingsError, load_settings
from tandem.specdec.liveness import LivenessTimes
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.paced import PacedEngine
from tests.long_runs import with_long_cases
from tests.services.scripted_suite import (
    Suite,
    emulated,
    sample,
    scripted_suite,
    serving,
    target_engine,
    until,
)

WAIT_S = 60.0
PATIENT = LivenessTimes(give_up_after_s=WAIT_S)
USABLE = "tandem_cloud_usable"


class Standstill:
    """Of the first engine that has made so many passes, until `go_on`: what a test does meanwhile
    happens in the middle of answers, however slow the machine is."""

    def __init__(self, passes: int) -> None:
        self._begun, self._goes_on = threading.Event(), threading.Event()
        self._passes, self._choosing = passes, threading.Lock()
        self._stands: object = None

    def met(self, engine: object, passes: int) -> None:
        """Wait on the engine's thread, if it is this engine that stands."""
        with self._choosing:
            if passes >= self._passes and self._stands is None:
                self._stands = engine
        if self._stands is engine:
            self._begun.set()
            self._goes_on.wait(WAIT_S)

    async def begun(self) -> None:
        """Until an engine stands. No thread waits, which would outlive a test that fails."""
        await until(lambda: self._begun.is_set())

    def go_on(self) -> None:
        self._goes_on.set()


class CloudEngine(PacedEngine):
    """Slow enough for a request to be moved on its way; counts its passes, of `pass_s` each."""

    def __init__(
        self,
        standstill: Standstill | None = None,
        engine: Engine | None = None,
        pass_s: float = 0.004,
    ) -> None:
        super().__init__(engine or target_engine(), pass_s, 0.0)
        self._standstill = standstill
        self.passes = 0

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.passes += 1
        if self._standstill is not None:
            self._standstill.met(self, self.passes)
        return super().forward(batch, cancelled)

    def go_on(self) -> None:
        """For a test that ends while it stands: nobody could stop it."""
        if self._standstill is not None:
            self._standstill.go_on()


@dataclass
class TwoClouds:
    suite: Suite
    second: RunningService
    engines: tuple[Engine, Engine]
    links: list[TcpLinkEmulator]

    def value(self, name: str, **labels: str) -> float:
        return sample(self.suite.edge_metrics, name, **labels)

    def moves(self, reason: str) -> float:
        return self.value("tandem_cloud_moves_total", reason=reason)

    @property
    def addresses(self) -> list[str]:
        if self.links:
            return [f"127.0.0.1:{each.address[1]}" for each in self.links]
        return [self.suite.verifier.target, self.second.target]

    def sessions(self, cloud: int) -> int:
        return int(self.value("tandem_cloud_sessions", cloud=self.addresses[cloud]))

    async def both_known(self, both: bool = True) -> None:
        """Until both serve, or the first alone."""
        async with asyncio.timeout(WAIT_S):
            while True:
                clouds = (await self.suite.client.describe()).clouds
                if all(cloud.serving for cloud in (clouds if both else clouds[:1])):
                    return
                await asyncio.sleep(0.02)

    async def told(self) -> list[str]:
        """The addresses that the drafter knows."""
        return [cloud.address for cloud in (await self.suite.client.describe()).clouds]

    async def until_served(self, cloud: int, sessions: int) -> None:
        engine = self.engines[cloud]
        await until(lambda: min(self.sessions(cloud), engine.sessions_open) >= sessions)


@asynccontextmanager
async def two_clouds(
    second: Engine | None = None,
    links: bool = False,
    file: FilePath | None = None,
    first: Engine | None = None,
    max_sessions: int | None = None,
    same_model: bool = True,
) -> AsyncIterator[TwoClouds]:
    """Before each cloud an emulated link; a `file` names the first alone. The edge gives no cloud
    up. `max_sessions`: of the first one."""
    metrics = Metrics(new_registry(), "cloud")
    engines = (first or CloudEngine(), second or CloudEngine())
    limits = VerifierLimits(stuck_after_s=10 * WAIT_S)
    first_limits = limits if max_sessions is None else replace(limits, max_sessions=max_sessions)
    emulators: list[TcpLinkEmulator] = []

    @asynccontextmanager
    async def both(first: str) -> AsyncIterator[Any]:
        if file is not None:
            file.write_text(f"{first}\n")
            yield clouds_in(file)
            return
        if not links:
            yield f"{first}, {other.target}"
            return
        async with (
            emulated(first, emulators, 0.005) as one,
            emulated(other.target, emulators, 0.005) as two,
        ):
            yield f"{one},{two}"

    drafts = DrafterLimits(liveness=PATIENT)
    second_verifier = serving(VerifierServicer(engines[1], limits, metrics), drain_s=0.0)
    async with (
        second_verifier as other,
        scripted_suite(first_limits, drafts, target=engines[0], path=both) as suite,
    ):
        clouds = TwoClouds(suite, other, engines, emulators)
        await clouds.both_known(both=same_model)
        try:
            yield clouds
        finally:
            for engine in engines:
                if isinstance(engine, CloudEngine):
                    engine.go_on()


def requests(count: int, preset: str = "coupled", max_tokens: int = 60) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            "m", preset, GenerationParams(seed=seed, max_tokens=max_tokens, ignore_eos=True)
        )
        for seed in range(count)
    ]


def begun(suite: Suite, asked: list[GenerationRequest]) -> list[asyncio.Task[Generated]]:
    return [asyncio.create_task(suite.client.generate(each)) for each in asked]


async def expected(suite: Suite, asked: list[GenerationRequest]) -> list[list[int]]:
    answers = await asyncio.gather(*map(suite.client.generate, asked))
    return [each.token_ids for each in answers]


async def test_requests_go_to_the_first_cloud() -> None:
    engines = CloudEngine(), CloudEngine()
    async with two_clouds(first=engines[0], second=engines[1]) as clouds:
        await asyncio.gather(*begun(clouds.suite, requests(4)))
        assert engines[0].passes
        assert not engines[1].passes
        assert [clouds.sessions(0), clouds.sessions(1)] == [0, 0]


@pytest.mark.parametrize("preset", with_long_cases(["coupled", "dssd", "ar"], ("coupled", "ar")))
async def test_sessions_leave_a_cloud_that_stops_without_a_word(preset: str) -> None:
    """What a killed process looks like: connections end, and nobody listens. Once it is back, new
    requests go there again."""
    asked, still = requests(4, preset), Standstill(10)
    engines = CloudEngine(still), CloudEngine()
    async with two_clouds(links=True, first=engines[0], second=engines[1]) as clouds:
        under_way = begun(clouds.suite, asked)
        await still.begun()
        clouds.links[0].cut()
        clouds.links[0].drop()
        still.go_on()
        answers = await asyncio.gather(*under_way)
        assert clouds.moves("lost") == 4
        assert not any(each.unverified for each in answers)
        clouds.links[0].restore()
        await clouds.both_known()
        passes = engines[1].passes
        assert [each.token_ids for each in answers] == await expected(clouds.suite, asked)
        assert engines[1].passes == passes


async def test_a_session_stays_at_the_next_cloud_when_the_first_one_is_back() -> None:
    asked, lost, here = requests(2, max_tokens=90), Standstill(10), Standstill(8)
    engines = CloudEngine(lost), CloudEngine(here)
    async with two_clouds(links=True, first=engines[0], second=engines[1]) as clouds:
        under_way = begun(clouds.suite, asked)
        await lost.begun()
        clouds.links[0].cut()
        clouds.links[0].drop()
        lost.go_on()
        await here.begun()
        clouds.links[0].restore()
        await clouds.both_known()
        here.go_on()
        answers = await asyncio.gather(*under_way)
        assert clouds.moves("lost") == 2
        assert [each.token_ids for each in answers] == await expected(clouds.suite, asked)


async def test_sessions_leave_a_cloud_that_drains_and_come_back_to_none_that_is_gone() -> None:
    asked, still = requests(4, max_tokens=90), Standstill(10)
    async with two_clouds(first=CloudEngine(still)) as clouds:
        under_way = begun(clouds.suite, asked)
        await still.begun()
        draining = asyncio.create_task(clouds.suite.verifier.drain(20.0))
        still.go_on()
        await draining
        answers = await asyncio.gather(*under_way)
        assert clouds.moves("draining") == 4
        assert clouds.sessions(0) == 0
        assert [each.token_ids for each in answers] == await expected(clouds.suite, asked)
        described = await clouds.suite.client.describe()
        assert described.HasField("target")
        assert [each.serving for each in described.clouds] == [False, True]


async def test_what_a_full_cloud_refuses_the_next_one_answers() -> None:
    asked, still = requests(4), Standstill(4)
    async with two_clouds(first=CloudEngine(still), max_sessions=2) as clouds:
        under_way = begun(clouds.suite, asked)
        await still.begun()
        await until(lambda: clouds.moves("refused") >= 2)
        # A busy machine may lose a session once more: each then finds its place again.
        await until(lambda: [clouds.sessions(0), clouds.sessions(1)] == [2, 2])
        still.go_on()
        answers = await asyncio.gather(*under_way)
        assert [each.token_ids for each in answers] == await expected(clouds.suite, asked)


async def test_doctor_tells_of_each_cloud() -> None:
    async with two_clouds() as clouds:
        await clouds.second.drain(0.0)
        await until(lambda: not clouds.value(USABLE, cloud=clouds.addresses[1]))
        checks = judge_suite("here", await clouds.suite.client.describe())
    first, gone = (check for check in checks if check.name in clouds.addresses)
    assert (first.ok, gone.ok) == (True, False)
    assert "round trip" in first.found
    assert "TANDEM_VERIFIER" in gone.todo


async def test_a_cloud_of_another_model_is_not_used() -> None:
    """Not even where the first one is lost: the text would be another's."""
    other = target_engine()
    other.model_name = "another"
    asked, still = requests(2), Standstill(10)
    engines = CloudEngine(still), CloudEngine(engine=other)
    async with two_clouds(
        links=True, first=engines[0], second=engines[1], same_model=False
    ) as clouds:
        under_way = begun(clouds.suite, asked)
        await still.begun()
        clouds.links[0].cut()
        clouds.links[0].drop()
        still.go_on()
        await asyncio.sleep(1.0)
        clouds.links[0].restore()
        answers = await asyncio.gather(*under_way)
        assert not any(each.unverified for each in answers)
        alone = await expected(clouds.suite, asked)
        assert [each.token_ids for each in answers] == alone
        assert clouds.value(USABLE, cloud=clouds.addresses[1]) == 0


async def test_a_file_of_clouds_is_followed(tmp_path: FilePath) -> None:
    """The second one is added, then takes the place of the first: its sessions end there, and new
    ones go to the second."""
    asked = requests(4, "ar")
    file = tmp_path / "verifiers"
    async with two_clouds(file=file, first=CloudEngine(pass_s=0.02)) as clouds:
        first, second = clouds.addresses
        assert await clouds.told() == [first]
        under_way = begun(clouds.suite, [each.with_fields(max_tokens=120) for each in asked])
        await clouds.until_served(0, 4)
        replace_file(file, f"{second}  # the other one\n".encode(), PUBLIC)
        async with asyncio.timeout(WAIT_S):
            while await clouds.told() != [second]:
                await asyncio.sleep(0.02)
        again = await expected(clouds.suite, asked)
        assert isinstance(clouds.engines[1], CloudEngine)
        assert clouds.engines[1].passes
        answers = await asyncio.gather(*under_way)
        assert [each.token_ids[:60] for each in answers] == again
        await until(lambda: not clouds.engines[0].sessions_open)
        assert clouds.sessions(0) == 0
        usable = {"side": "device", "cloud": first}
        assert clouds.suite.edge_metrics.registry.get_sample_value(USABLE, usable) is None
        replace_file(file, f"{second}\n{first}\n".encode(), PUBLIC)
        async with asyncio.timeout(WAIT_S):
            while await clouds.told() != [second, first]:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("text", "clouds"),
    [
        ("verifier:50051", ["verifier:50051"]),
        ("a:1, b:2,a:1", ["a:1", "b:2"]),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", ["ipv4:10.0.0.1:1,10.0.0.2:1"]),
        ("dns:///eu:1,dns:///us:1", ["dns:///eu:1", "dns:///us:1"]),
    ],
)
def test_a_setting_names_several(text: str, clouds: list[str]) -> None:
    assert clouds_of(text) == tuple(clouds)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (" , ", "must name a verifier"),
        ("a:1 b:2", "must be HOST:PORT"),
        (",".join(f"a:{port}" for port in range(65)), "names more than 64 verifiers"),
    ],
)
def test_what_names_none_stops_the_start(text: str, why: str, tmp_path: FilePath) -> None:
    with pytest.raises(SettingsError, match=f"--verifier: .*{why}"):
        load_settings(DrafterSettings, {"verifier": text})
    file = tmp_path / "verifiers"
    lines = text.replace(",", "\n")
    file.write_text(f"# none\n{lines}\n")
    with pytest.raises(BadFile, match=why):
        clouds_in(file)
    settings = load_settings(DrafterSettings, {"verifiers_file": file, "insecure": True})
    with pytest.raises(SettingsError, match=f"TANDEM_VERIFIERS_FILE: .*{why}"):
        build(settings, Metrics(new_registry(), "device"))
