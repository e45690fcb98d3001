"""A drafter that is told of several verifiers: sessions go where it is better, leave what is lost
or leaving, and no move changes a text."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
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
from tandem.netem.link_model import LinkSettings
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.routing import router
from tandem.services.drafter.__main__ import build
from tandem.services.drafter.cloud.listed import ListedCloud, clouds_in, clouds_of
from tandem.services.drafter.config import DrafterSettings
from tandem.services.drafter.servicer import DrafterLimits
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.settings import SettingsError, load_settings
from tandem.specdec.liveness import LivenessTimes
from tandem.specdec.messages import GenerationParams
from tandem.telemetry.cloud_series import CloudSeries
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.paced import PacedEngine
from tests.long_runs import with_long_cases
from tests.services.scripted_suite import Path, Suite, scripted_suite, started, target_engine

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
        async with asyncio.timeout(WAIT_S):
            while not self._begun.is_set():
                await asyncio.sleep(0.005)

    def go_on(self) -> None:
        self._goes_on.set()


class CloudEngine(PacedEngine):
    """Slow enough for a request to be moved on its way; counts its passes. `first_s`: of a pass;
    `further_s`: of each token beyond the first."""

    def __init__(
        self,
        standstill: Standstill | None = None,
        engine: Engine | None = None,
        further_s: float = 0.0,
        first_s: float = 0.004,
    ) -> None:
        super().__init__(engine or target_engine(), first_s, further_s, further_s)
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
    relayed: list[str]

    def value(self, name: str, **labels: str) -> float:
        registry = self.suite.edge_metrics.registry
        return registry.get_sample_value(name, {"side": "device", **labels}) or 0.0

    def moves(self, reason: str) -> float:
        return self.value("tandem_cloud_moves_total", reason=reason)

    @property
    def addresses(self) -> list[str]:
        if self.links:
            return [f"127.0.0.1:{each.address[1]}" for each in self.links]
        if self.relayed:
            return self.relayed
        return [self.suite.verifier.target, self.second.target]

    async def until(self, reached: Callable[[], bool]) -> None:
        """Raises TimeoutError."""
        async with asyncio.timeout(WAIT_S):
            while not reached():
                await asyncio.sleep(0.005)

    def sessions(self, cloud: int) -> int:
        return int(self.value("tandem_cloud_sessions", cloud=self.addresses[cloud]))

    async def both_known(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while not all(cloud.serving for cloud in (await self.suite.client.describe()).clouds):
                await asyncio.sleep(0.02)

    async def until_served(self, cloud: int, sessions: int) -> None:
        engine = self.engines[cloud]
        await self.until(lambda: min(self.sessions(cloud), engine.sessions_open) >= sessions)


@asynccontextmanager
async def two_clouds(
    second: Engine | None = None,
    links: bool = False,
    relays: Sequence[Path] = (),
    file: FilePath | None = None,
    first: Engine | None = None,
    draft: Engine | None = None,
) -> AsyncIterator[TwoClouds]:
    """Before each cloud an emulated link, or the relay that `relays` has for it; a `file` names the
    first alone. The edge gives no cloud up, and takes both for near: on a busy machine one may
    answer late, which says nothing of either."""
    metrics = Metrics(new_registry(), "cloud")
    engines = (first or CloudEngine(), second or CloudEngine())
    limits = VerifierLimits(stuck_after_s=10 * WAIT_S)
    emulators: list[TcpLinkEmulator] = []
    known: list[str] = []
    other = await started(VerifierServicer(engines[1], limits, metrics))

    @asynccontextmanager
    async def both(first: str) -> AsyncIterator[Any]:
        if file is not None:
            file.write_text(f"{first} price=3\n")
            yield clouds_in(file)
            return
        if relays:
            async with relays[0](first) as one, relays[1](other.target) as two:
                known[:] = [one, two]
                yield f"{one}, {two}"
            return
        if not links:
            yield f"{first}, {other.target}"
            return
        link = LinkSettings(delay_s=0.005)
        async with AsyncExitStack() as stack:
            for target in (first, other.target):
                host, _, port = target.rpartition(":")
                emulator = TcpLinkEmulator(("127.0.0.1", 0), (host, int(port)), link, link)
                emulators.append(await stack.enter_async_context(emulator))
            yield ",".join(f"127.0.0.1:{each.address[1]}" for each in emulators)

    drafts = DrafterLimits(liveness=PATIENT)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(router, "NEAR_S", WAIT_S)
            async with scripted_suite(
                limits, drafts, target=engines[0], draft=draft, path=both
            ) as suite:
                clouds = TwoClouds(suite, other, engines, emulators, known)
                await clouds.both_known()
                try:
                    yield clouds
                finally:
                    for engine in engines:
                        if isinstance(engine, CloudEngine):
                            engine.go_on()
    finally:
        await other.drain(0.0)


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


async def test_new_sessions_spread_and_texts_are_the_same() -> None:
    asked = requests(4)
    engines = CloudEngine(), CloudEngine()
    async with two_clouds(first=engines[0], second=engines[1]) as clouds:
        together = await asyncio.gather(*begun(clouds.suite, asked))
        assert all(engine.passes for engine in engines)
        assert [each.token_ids for each in together] == await expected(clouds.suite, asked)
        assert [clouds.sessions(0), clouds.sessions(1)] == [0, 0]


@pytest.mark.parametrize("preset", with_long_cases(["coupled", "dssd", "ar"], ("coupled", "ar")))
async def test_sessions_leave_a_cloud_that_stops_without_a_word(preset: str) -> None:
    """What a killed process looks like: connections end, and nobody listens."""
    asked, still = requests(4, preset), Standstill(10)
    async with two_clouds(links=True, second=CloudEngine(still)) as clouds:
        under_way = begun(clouds.suite, asked)
        await still.begun()
        clouds.links[1].cut()
        clouds.links[1].drop()
        still.go_on()
        answers = await asyncio.gather(*under_way)
        assert clouds.moves("lost") >= 1
        assert [each.token_ids for each in answers] == await expected(clouds.suite, asked)
        assert not any(each.unverified for each in answers)


async def test_sessions_leave_a_cloud_that_drains_and_come_back_to_none_that_is_gone() -> None:
    asked, still = requests(4, max_tokens=90), Standstill(10)
    async with two_clouds(second=CloudEngine(still)) as clouds:
        under_way = begun(clouds.suite, asked)
        await still.begun()
        draining = asyncio.create_task(clouds.second.drain(20.0))
        still.go_on()
        await draining
        answers = await asyncio.gather(*under_way)
        assert clouds.moves("draining") >= 1
        assert clouds.sessions(1) == 0
        assert [each.token_ids for each in answers] == await expected(clouds.suite, asked)
        described = await clouds.suite.client.describe()
        assert described.HasField("target")
        assert [each.serving for each in described.clouds] == [True, False]


async def test_sessions_leave_a_cloud_that_drains_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where they go their texts are computed anew: at once they would wait for each other's. So the
    other cloud makes passes between the first and the last that comes."""
    still, near = Standstill(12), CloudEngine()
    asked = [each.with_fields(prompt="m" * 40) for each in requests(6, max_tokens=120)]
    passes_at: list[int] = []
    moved = CloudSeries.moved

    def noted(series: CloudSeries, reason: str) -> None:
        if reason == "draining":
            passes_at.append(near.passes)
        moved(series, reason)

    monkeypatch.setattr(CloudSeries, "moved", noted)
    async with two_clouds(first=near, second=CloudEngine(still, further_s=0.004)) as clouds:
        under_way = begun(clouds.suite, asked)
        await still.begun()
        draining = asyncio.create_task(clouds.second.drain(20.0))
        still.go_on()
        await draining
        answers = await asyncio.gather(*under_way)
        assert len(set(passes_at)) >= 2
        assert clouds.moves("not_serving") == 0
        assert [each.token_ids for each in answers] == await expected(clouds.suite, asked)


async def test_sessions_leave_a_cloud_that_became_far() -> None:
    asked, still = requests(2, max_tokens=150), Standstill(10)
    async with two_clouds(links=True, first=CloudEngine(still)) as clouds:
        under_way = begun(clouds.suite, asked)
        await still.begun()
        far = LinkSettings(delay_s=0.1)
        clouds.links[0].configure(far, far)
        still.go_on()
        answers = await asyncio.gather(*under_way)
        assert clouds.moves("better") >= 1
        assert [each.token_ids for each in answers] == await expected(clouds.suite, asked)


async def test_a_chat_goes_back_to_where_its_keys_and_values_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the other cloud is as near, and has fewer sessions."""
    first = GenerationRequest("m" * 200, "coupled", GenerationParams(max_tokens=8, ignore_eos=True))
    homes: set[str] = set()
    holds = CloudSeries.holds

    def noted(series: CloudSeries, cloud: str, sessions: int) -> None:
        homes.update({cloud} if sessions else ())
        holds(series, cloud, sessions)

    monkeypatch.setattr(CloudSeries, "holds", noted)
    async with two_clouds() as clouds:
        for text in ("m" * 200, "n" * 200):
            homes.clear()
            for turn in range(4):
                asked = first.with_fields(prompt=text + "and then? " * turn, max_tokens=24)
                await clouds.suite.client.generate(asked)
            assert len(homes) == 1


async def test_doctor_tells_of_each_cloud() -> None:
    async with two_clouds() as clouds:
        await clouds.second.drain(0.0)
        await clouds.until(lambda: not clouds.value(USABLE, cloud=clouds.addresses[1]))
        checks = judge_suite("here", await clouds.suite.client.describe())
    near, gone = (check for check in checks if check.name in clouds.addresses)
    assert (near.ok, gone.ok) == (True, False)
    assert "round trip" in near.found
    assert "TANDEM_VERIFIER" in gone.todo


async def test_a_cloud_of_another_model_is_not_used() -> None:
    other = target_engine()
    other.model_name = "another"
    asked = requests(4)
    async with two_clouds(second=CloudEngine(engine=other)) as clouds:
        answers = await asyncio.gather(*map(clouds.suite.client.generate, asked))
        assert clouds.sessions(1) == 0
        assert clouds.value("tandem_cloud_usable", cloud=clouds.addresses[1]) == 1
        assert [each.token_ids for each in answers] == await expected(clouds.suite, asked)


async def test_a_file_of_clouds_is_followed(tmp_path: FilePath) -> None:
    """The second one is added, then takes the place of the first: its sessions move with their
    texts, and no new ones go there."""
    asked = requests(4, "ar")
    file = tmp_path / "verifiers"
    async with two_clouds(file=file, first=CloudEngine(first_s=0.02)) as clouds:
        first, second = clouds.addresses
        assert [each.address for each in (await clouds.suite.client.describe()).clouds] == [first]
        under_way = begun(clouds.suite, [each.with_fields(max_tokens=120) for each in asked])
        await clouds.until_served(0, 4)
        replace_file(file, f"{second}  # price=7\n".encode(), PUBLIC)
        answers = await asyncio.gather(*under_way)
        assert clouds.moves("not_serving") == 4
        told = [
            (each.address, each.price) for each in (await clouds.suite.client.describe()).clouds
        ]
        assert told == [(second, 0.0)]
        again = await expected(clouds.suite, asked)
        assert [each.token_ids[:60] for each in answers] == again
        await clouds.until(lambda: not clouds.engines[0].sessions_open)
        assert clouds.sessions(0) == 0
        usable = {"side": "device", "cloud": first}
        assert clouds.suite.edge_metrics.registry.get_sample_value(USABLE, usable) is None
        replace_file(file, f"{second} price=2\n{first} price=1.5\n".encode(), PUBLIC)
        async with asyncio.timeout(WAIT_S):
            while sum(each.price for each in (await clouds.suite.client.describe()).clouds) != 3.5:
                await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("text", "clouds"),
    [
        ("verifier:50051", [("verifier:50051", 0)]),
        ("a:1, b:2,a:1", [("a:1", 0), ("b:2", 0)]),
        ("a:1 price=0.5 , b:2", [("a:1", 0.5), ("b:2", 0)]),
        ("ipv4:10.0.0.1:1,10.0.0.2:1", [("ipv4:10.0.0.1:1,10.0.0.2:1", 0)]),
        ("dns:///eu:1,dns:///us:1", [("dns:///eu:1", 0), ("dns:///us:1", 0)]),
    ],
)
def test_a_setting_names_several(text: str, clouds: list[tuple[str, float]]) -> None:
    assert clouds_of(text) == tuple(ListedCloud(*each) for each in clouds)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (" , ", "must name a verifier"),
        ("a:1 price=-1", "'price=-1' must be price=NUMBER"),
        ("a:1 b:2", "'b:2' must be price=NUMBER"),
    ],
)
def test_what_names_none_stops_the_start(text: str, why: str, tmp_path: FilePath) -> None:
    with pytest.raises(SettingsError, match=f"--verifier: .*{why}"):
        load_settings(DrafterSettings, {"verifier": text})
    file = tmp_path / "verifiers"
    file.write_text(f"# none\n{text.replace(',', '')}\n")
    with pytest.raises(BadFile, match=why):
        clouds_in(file)
    settings = load_settings(DrafterSettings, {"verifiers_file": file, "insecure": True})
    with pytest.raises(SettingsError, match=f"TANDEM_VERIFIERS_FILE: .*{why}"):
        build(settings, Metrics(new_registry(), "device"))
