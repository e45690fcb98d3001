"""The three services as processes: signals, exit codes, settings, logs, metrics, a killed verifier.

Scripted models serve, which load at once, paced so that signals meet answers half-way.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.scripted import ScriptedTokenizer
from tests.process.service_process import ServiceProcess, free_port
from tests.services.scripted_suite import VOCABULARY, draft_engine, started

SCRIPTED = ("--engine", "scripted", "--model", "1")
SECRET = "quokka Zanzibar"
PROMPT = f"Once the {SECRET} had been seen,"


@dataclass(slots=True)
class Services:
    """Running processes; the verifier may be another one than at the start."""

    verifier: ServiceProcess
    drafter: ServiceProcess
    aggregator: ServiceProcess
    verifier_port: int
    metrics_ports: tuple[int, int, int]
    address: str
    stack: ExitStack

    def start_verifier(self) -> None:
        self.verifier = self.stack.enter_context(
            _verifier(self.verifier_port, self.metrics_ports[0])
        )


def _verifier(port: int, metrics_port: int) -> ServiceProcess:
    paces = ("--pace-first-s", "0.02", "--pace-further-s", "0.001")
    ports = ("--port", str(port), "--metrics-port", str(metrics_port))
    drafts = (
        "--cloud-draft",
        "1",
        "--cloud-draft-engine",
        "scripted",
        "--pace-cloud-draft-s",
        "0.02",
    )
    return ServiceProcess("tandem.testing.verifier", *SCRIPTED, *ports, *paces, *drafts)


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    verifier_port, *metrics_ports = (free_port() for _ in range(4))
    with ExitStack() as stack:
        verifier = stack.enter_context(_verifier(verifier_port, metrics_ports[0]))
        drafter = stack.enter_context(
            ServiceProcess(
                "tandem.testing.drafter",
                *("--port", "0", "--metrics-port", str(metrics_ports[1]), *SCRIPTED),
                *("--verifier", f"127.0.0.1:{verifier_port}", "--split-model", "1"),
            )
        )
        aggregator = stack.enter_context(
            ServiceProcess(
                "tandem.services.aggregator",
                *("--port", "0", "--metrics-port", str(metrics_ports[2])),
                *("--http-port", "0", "--drafter", drafter.address(), "--max-running", "32"),
            )
        )
        verifier.address()
        yield Services(
            verifier,
            drafter,
            aggregator,
            verifier_port,
            (metrics_ports[0], metrics_ports[1], metrics_ports[2]),
            aggregator.address(),
            stack,
        )


def request(preset: str = "coupled", max_tokens: int = 40) -> GenerationRequest:
    return GenerationRequest(
        PROMPT,
        preset,
        GenerationParams(max_tokens=max_tokens, seed=4, ignore_eos=True),
        lost_cloud=LostCloud.WAIT,
    )


async def begun(client: AggregatorClient, wanted: GenerationRequest) -> asyncio.Task[Generated]:
    """The generation, once its first token is there."""
    committing = asyncio.Event()

    async def follow() -> Generated:
        answers = client.stream(wanted)
        async for result in answers:
            if result.token_ids:
                committing.set()
                break
        return [result, *[later async for later in answers]][-1]

    task = asyncio.create_task(follow())
    waiting = asyncio.create_task(committing.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
    return task


async def test_answers_are_logged_and_measured_but_not_what_was_said(services: Services) -> None:
    async with AggregatorClient(services.address) as client:
        wanted = replace(request(), stop=("never said",))
        generated = await client.generate(wanted)
    assert len(generated.token_ids) == 40
    for process in (services.verifier, services.drafter, services.aggregator):
        entries = [json.loads(line) for line in process.log().splitlines()]
        mine = [entry for entry in entries if entry.get("session") == generated.session]
        assert mine, process.log()
        assert {entry["preset"] for entry in mine} == {"coupled"}
        for private in (SECRET, "never said", generated.text.strip()):
            assert private not in process.log()
            assert json.dumps(private)[1:-1] not in process.log()


async def test_a_killed_verifier_s_answers_go_on_when_it_is_back(services: Services) -> None:
    """SIGKILL in the middle of an answer of every exact preset; another process takes the port."""
    requests = [  # without a memory, from which the second answers would be there at once
        request(name, max_tokens=60).with_fields(no_memory=True)
        for name, preset in PRESETS.items()
        if not preset.lossy
    ]
    async with AggregatorClient(services.address) as client:
        whole = await asyncio.gather(*(client.generate(wanted) for wanted in requests))
        generating = await asyncio.gather(*(begun(client, wanted) for wanted in requests))
        services.verifier.signal(signal.SIGKILL)
        assert services.verifier.ended() == -signal.SIGKILL
        services.start_verifier()
        services.verifier.address()
        done = await asyncio.gather(*generating)
    assert [generated.token_ids for generated in done] == [one.token_ids for one in whole]
    assert [generated.text for generated in done] == [one.text for one in whole]
    assert all(generated.summary and generated.summary.resumes for generated in done)


async def test_sigterm_drains_each_service_and_ends_it_with_0(services: Services) -> None:
    """From the front to the back, under a request that none of them breaks. Ends the processes."""
    async with AggregatorClient(services.address) as client:
        generating = await begun(client, request(max_tokens=60))
        for process in (services.aggregator, services.drafter):
            process.signal(signal.SIGTERM)
        generated = await generating
    assert len(generated.token_ids) == 60
    services.verifier.signal(signal.SIGTERM)
    for process in (services.aggregator, services.drafter, services.verifier):
        assert await asyncio.to_thread(process.ended) == 0
        events = [json.loads(line)["event"] for line in process.log().splitlines()]
        assert events[-1] == "stopped"
        assert "draining" in events


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(first: signal.Signals) -> None:
    """The request it drains for waits for a cloud that does not exist."""
    nowhere = f"127.0.0.1:{free_port()}"
    metrics = Metrics(new_registry(), "device")
    tokenizer, limits = ScriptedTokenizer(VOCABULARY), DrafterLimits()
    drafter = await started(DrafterServicer(draft_engine(), tokenizer, nowhere, limits, metrics))
    flags = ("--port", "0", "--drafter", drafter.target, "--drain-s", "100")
    with ServiceProcess("tandem.services.aggregator", *flags) as aggregator:
        address = await asyncio.to_thread(aggregator.address)
        async with AggregatorClient(address) as client:
            answers = client.stream(request())
            await anext(answers)
            aggregator.signal(first)
            while "draining" not in aggregator.log():
                await asyncio.sleep(0.01)
            assert aggregator.running
            aggregator.signal(signal.SIGTERM)
            assert await asyncio.to_thread(aggregator.ended) == 130
    await drafter.drain(0.0)


BAD_STARTS = [
    ("verifier", (), {"TANDEM_PORT": "abc"}, "TANDEM_PORT"),
    ("drafter", (), {"TANDEM_VERIFIER": "a:1,b"}, "TANDEM_VERIFIER: must be HOST:PORT"),
    ("aggregator", ("--nonsense", "1"), {}, "--nonsense"),
    ("retriever", ("--decoder", "nowhere"), {}, "--decoder: must be HOST:PORT"),
]
"""One of each service, and of each way to be wrong; the others end in the same place."""


@pytest.mark.parametrize(("name", "flags", "environment", "named"), BAD_STARTS)
def test_bad_settings_end_it_with_one_line_that_names_the_cause(
    name: str, flags: tuple[str, ...], environment: dict[str, str], named: str
) -> None:
    with ServiceProcess(f"tandem.services.{name}", *flags, environment=environment) as process:
        assert named in process.refusal(2)


def test_a_port_in_use_ends_with_one_line() -> None:
    with ServiceProcess("tandem.services.aggregator", "--port", "0", "--http-port", "0") as first:
        port = first.address().rsplit(":", 1)[1]
        for flags in (("--port", port), ("--port", "0", "--metrics-port", port)):
            with ServiceProcess("tandem.services.aggregator", *flags) as second:
                assert f"error: port {port} is in use: " in second.refusal(1)
        with ServiceProcess(
            "tandem.services.aggregator", "--port", "0", "--http-port", port
        ) as third:
            assert third.ended() == 1
            *events, refusal = third.log().splitlines()
            why = f"another process listens on 127.0.0.1:{port} (http)"
            assert refusal == f"error: port {port} is in use: {why}"
            assert [json.loads(line)["event"] for line in events][-1] == "stopped"


@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGTERM, ""), (signal.SIGINT, "interrupted\n")]
)
def test_a_service_that_is_still_loading_can_be_told_to_leave(
    number: signal.Signals, words: str
) -> None:
    """By a handler of its own: without one, the first process of a container is deaf to SIGTERM,
    and Ctrl-C waits for the model."""
    with ServiceProcess("tandem.services.verifier", "--port", "0") as loading:
        until = time.monotonic() + 60
        while not handles(loading.pid, signal.SIGTERM) and time.monotonic() < until:
            time.sleep(0.01)
        loading.signal(number)
        assert loading.ended() in (128 + number, 0)  # 0: it had loaded, and drained
        if loading.ended():
            assert loading.log() == words


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process catches a signal, by the kernel's account."""
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)
