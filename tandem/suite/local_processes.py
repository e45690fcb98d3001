"""The whole suite as processes of this machine, with an emulated link between the two sides.
Invariant: no child outlives the context, however it ends. Children stop in the order of a request's
path (aggregators, drafter, verifier, retrievers): each drains while what it needs still serves."""

import asyncio
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tandem.backends.model_source import ModelChoice, is_gguf
from tandem.core.errors import TandemError
from tandem.generation.client import AggregatorClient
from tandem.index.extraction import Refusal
from tandem.net.status import Rejected
from tandem.netem.link_control import LinkControl
from tandem.netem.link_model import LinkShape
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.drafter.config import DrafterSettings
from tandem.services.retriever.config import RetrieverSettings
from tandem.services.verifier.config import VerifierSettings
from tandem.settings import SECURITY_FIELDS, ServiceSettings, variable_of
from tandem.suite.child_process import ChildProcess
from tandem.suite.suite_documents import (
    SIDES,
    SuiteDocuments,
    document_flags,
    fill,
    kept_kv_flags,
)
from tandem.two_sided.interface import default_fits_path
from tandem_api.common.v1.generation_pb2 import DescribeResponse

HOST = "127.0.0.1"
START_TIMEOUT_S = 1800.0
"""A large model is read from a slow disk for minutes. A service that ends is noticed at once."""
STOP_MARGIN_S = 5.0
DESCRIBE_TIMEOUT_S = 10.0
POLL_S = 0.1

PORTS = ("verifier", "drafter", "http", "cloud-aggregator", "device-retriever", "cloud-retriever")
"""Chosen before anything listens, as the services name each other's."""

SETTINGS: Mapping[str, type[ServiceSettings]] = {
    "verifier": VerifierSettings,
    "drafter": DrafterSettings,
    "aggregator": AggregatorSettings,
    "retriever": RetrieverSettings,
}


@dataclass(frozen=True, slots=True)
class RemoteCloud:
    """A verifier on another machine: the one certificate that it may show, and the file with the
    key that it accepts."""

    address: str
    certificate: Path
    key_file: Path


@dataclass(frozen=True, slots=True)
class LocalSuiteSettings:
    """Settings of a local suite. `port` is the aggregator's and `http_port` its HTTP API's, 0 for a
    free one; `metrics_port` the aggregator's too, and the other services have the next ones, 0 for
    none. `pin` keeps the two sides on different cores. Open requests may take `drain_s` at the end.
    With `documents` there are a retriever at each side and an aggregator in the cloud."""

    draft: ModelChoice
    target: ModelChoice
    port: int = 0
    http_port: int = 0
    metrics_port: int = 0
    link: LinkShape | None = None
    link_seed: int = 0
    pin: bool = False
    verbose: bool = False
    drain_s: float = 10.0
    documents: SuiteDocuments | None = None
    verifiers: int = 1
    """Alike, behind one link."""
    cloud_draft: ModelChoice | None = None
    """The draft model of the verifiers themselves."""
    generation_config: str = "auto"
    """Sampling settings of HTTP requests that name none: the aggregator's setting."""
    remembers: bool = False
    """Whether the drafter remembers texts, to draft from."""
    cloud: RemoteCloud | None = None
    """A verifier to call instead of starting one; of `target` the tokenizer alone is then used."""


class LocalSuite:
    """The services, and the link if there is one; use as an asynchronous context manager."""

    def __init__(self, settings: LocalSuiteSettings) -> None:
        self.settings = settings
        self.children: dict[str, ChildProcess] = {}
        self.emulator: TcpLinkEmulator | None = None
        self.control: LinkControl | None = None
        self.logs: Path | None = None
        self.documents: dict[str, int] = {}
        self.refused: list[Refusal] = []
        self.described: DescribeResponse | None = None
        """What the aggregator says of both models, once it can answer."""
        self.http = ""
        self._temporary: Path | None = None
        self._stack = AsyncExitStack()

    @property
    def endpoint(self) -> str:
        """The address of the aggregator."""
        return self.children["aggregator"].address

    async def __aenter__(self) -> Self:
        """Start the services, and return once they can answer. Raises ChildDied, or TandemError
        after START_TIMEOUT_S."""
        async with AsyncExitStack() as stack:
            if self.settings.documents is not None:
                self.settings.documents.check()
            stack.push_async_exit(self._discard_logs)
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-index-"))
            self._temporary = Path(temporary)
            stack.push_async_callback(self._stop)
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    await self._start(stack, self._temporary)
                    await self._healthy()
            except TimeoutError:
                why = f"the services did not start within {START_TIMEOUT_S:g} s"
                raise TandemError(f"{why}; logs: {self.logs}") from None
            except Rejected as error:
                why = f"the aggregator refused: {error.code.name} {error}"
                raise TandemError(f"{why}; logs: {self.logs}") from error
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *reason: Any) -> None:
        await self._stack.__aexit__(*reason)

    async def died(self) -> None:
        """Wait until a child ends; then raise ChildDied."""
        waits = [asyncio.create_task(child.died()) for child in self.children.values()]
        async with cancelled_after(waits):
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                if wait.done():
                    wait.result()

    def kill(self) -> None:
        """End every child at once, where nothing else will be done: no file is left either."""
        for child in self.children.values():
            child.kill()
        for folder in (self._temporary, self.logs):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    async def _start(self, stack: AsyncExitStack, temporary: Path) -> None:
        """Start all services at once: loading two models then takes as long as loading the
        larger."""
        settings = self.settings
        if not settings.verbose:
            self.logs = Path(tempfile.mkdtemp(prefix="tandem-up-"))
        flags = await self._flags(stack, temporary)
        if self.emulator is not None:
            self.control = await stack.enter_async_context(LinkControl(self.emulator))
        for name, values in flags.items():
            self.children[name] = await self._start_child(name, values)
        if settings.pin:
            self._pin()
        waits = [asyncio.create_task(child.listening()) for child in self.children.values()]
        async with cancelled_after(waits):
            await asyncio.gather(*waits)
        if settings.documents is not None:
            addresses = {side: self.children[f"{side}-retriever"].address for side in SIDES}
            filled = await fill(settings.documents, addresses)
            self.documents, self.refused = filled.counts, filled.refused

    async def _flags(self, stack: AsyncExitStack, temporary: Path) -> dict[str, dict[str, object]]:
        """Return the flags of each service; opens the emulated link."""
        settings = self.settings
        free = stack.enter_context(reserved_ports(len(PORTS) + settings.verifiers - 1))
        ports = dict(zip(PORTS, free, strict=False))
        remote = settings.cloud
        clouds = () if remote is not None else (ports["verifier"], *free[len(PORTS) :])
        with_documents = () if settings.documents is None else (ports["cloud-aggregator"],)
        place_of = await self._through_link(stack, [*clouds, *with_documents])
        http_port = settings.http_port or ports["http"]
        self.http = f"http://{HOST}:{http_port}"
        flags: dict[str, dict[str, object]] = {
            "aggregator": {
                "port": settings.port,
                "http-port": http_port,
                "drafter": f"{HOST}:{ports['drafter']}",
                "generation-config": settings.generation_config,
            },
            "drafter": {
                "port": ports["drafter"],
                "verifier": ",".join(place_of[port] for port in clouds),
                **_model_flags(settings.draft),
                **tokenizer_flag(settings.draft, settings.target),
                **({} if settings.remembers else {"memory-tokens": 0}),
            },
        }
        if remote is not None:
            flags["drafter"] |= {
                "verifier": remote.address,
                "cloud-certificate": remote.certificate,
                "cloud-key-file": remote.key_file,
            }
        for number, port in enumerate(clouds, start=1):
            name = "verifier" if number == 1 else f"{number}-verifier"
            target = _model_flags(settings.target)
            flags[name] = {"port": port, **target, "exits": settings.target.exits}
            if settings.target.server is not None:  # its key is in the environment
                flags[name]["target-url"] = settings.target.server.url
            if settings.target.batch_invariant:
                flags[name]["batch-invariant"] = "true"
            flags[name] |= cloud_draft_flags(settings.cloud_draft)
        if settings.documents is not None:
            cloud = place_of[ports["cloud-aggregator"]]
            retriever = f"{HOST}:{ports['device-retriever']}"
            flags["aggregator"] |= {"retriever": retriever, "cloud": cloud}
            flags["aggregator"]["http-documents"] = "true"
            flags |= document_flags(settings.documents, ports, temporary)
            for name, service_flags in kept_kv_flags(settings.documents).items():
                flags[name] |= service_flags
            if (profile := default_fits_path()).exists():  # by `tandem doctor --profile`
                for name in ("aggregator", "cloud-aggregator"):
                    flags[name]["profile-file"] = profile
        for number, service_flags in enumerate(flags.values()):
            service_flags["metrics-port"] = settings.metrics_port and settings.metrics_port + number
        return flags

    async def _start_child(self, name: str, flags: Mapping[str, object]) -> ChildProcess:
        """Start a child. `name` is the service, after the side or number if there are two of it."""
        service = name.rpartition("-")[2]
        arguments = ["--insecure", f"--drain-s={self.settings.drain_s}"]  # loopback alone
        arguments += [f"--{flag}={value}" for flag, value in flags.items()]
        log = None if self.logs is None else self.logs / f"{name}.log"
        return await ChildProcess.start(
            service, arguments, child_environment(service), log=log, name=name
        )

    async def _through_link(self, stack: AsyncExitStack, ports: Sequence[int]) -> dict[int, str]:
        """Return where the device finds what listens on each of the cloud's ports: behind one link,
        as one radio carries every connection of a device."""
        settings = self.settings
        if (link := settings.link) is None:
            return {port: f"{HOST}:{port}" for port in ports}
        (listen, target), *further = (((HOST, 0), (HOST, port)) for port in ports)
        emulator = TcpLinkEmulator(
            listen,
            target,
            link.up,
            link.down,
            further=further,
            seed=settings.link_seed,
        )
        self.emulator = await stack.enter_async_context(emulator)
        places = zip(ports, emulator.addresses, strict=True)
        return {port: f"{HOST}:{listening}" for port, (_, listening) in places}

    async def _healthy(self) -> None:
        """Wait until the aggregator has reached the drafter, and the drafter the verifier."""
        async with AggregatorClient(self.endpoint) as client:
            watch = asyncio.create_task(self.died())
            async with cancelled_after([watch]):
                while (described := await _reached_cloud(client)) is None:
                    await asyncio.wait((watch,), timeout=POLL_S)
                    if watch.done():
                        watch.result()
                self.described = described

    def _pin(self) -> None:
        """Pin the cloud to one core and the edge to another. Raises TandemError if there are not
        two."""
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        if len(cores) < 2:
            raise TandemError("--pin needs two cores and Linux; leave it out")
        edge = {"aggregator", "drafter", "device-retriever"}
        for name, child in self.children.items():
            child.pin(cores[1] if name in edge else cores[0])

    async def _stop(self) -> None:
        """Stop the services, aggregators first."""
        for name in sorted(self.children, key=lambda name: "aggregator" not in name):
            await self.children[name].stop(self.settings.drain_s + STOP_MARGIN_S)

    async def _discard_logs(self, kind: type[BaseException] | None, *_: object) -> None:
        """Remove the logs; after a failure they stay, to show its cause."""
        failed = kind is not None and issubclass(kind, Exception)
        if self.logs is not None and not failed:
            shutil.rmtree(self.logs, ignore_errors=True)


def child_environment(name: str) -> dict[str, str]:
    """Return this process's environment without the other services' settings, and without
    certificates and keys, none of which loopback needs."""
    variables = {variable_of(field) for field in {*SETTINGS[name].model_fields} - SECURITY_FIELDS}
    others = {
        variable_of(field) for model in SETTINGS.values() for field in model.model_fields
    } - variables
    kept = {key: text for key, text in os.environ.items() if key.upper() not in others}
    return kept | {"OMP_NUM_THREADS": "1", "GRPC_VERBOSITY": "NONE", "PYTHONUNBUFFERED": "1"}


@asynccontextmanager
async def cancelled_after(tasks: Sequence[asyncio.Task[Any]]) -> AsyncIterator[None]:
    """Cancel the tasks when the context closes, and wait for them."""
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _reached_cloud(client: AggregatorClient) -> DescribeResponse | None:
    """Return what the aggregator says, once that is of the cloud, too."""
    try:
        described = await client.describe(DESCRIBE_TIMEOUT_S)
    except Rejected as error:
        if error.code.name in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
            return None
        raise
    return described if described.HasField("target") else None


def _model_flags(choice: ModelChoice) -> dict[str, object]:
    flags: dict[str, object] = {
        "model": choice.source,
        "engine": choice.engine,
        "device": choice.device,
        "dtype": choice.dtype,
        "threads": choice.threads,
    }
    return flags if choice.revision is None else flags | {"revision": choice.revision}


def cloud_draft_flags(choice: ModelChoice | None) -> dict[str, object]:
    """Return the flags of a verifier that drafts itself."""
    if choice is None:
        return {}
    at = "" if choice.revision is None else f"@{choice.revision}"
    return {
        "cloud-draft": f"{choice.source}{at}",
        "cloud-draft-engine": choice.engine,
        "cloud-draft-device": choice.device,
        "cloud-draft-dtype": choice.dtype,
    }


def tokenizer_flag(draft: ModelChoice, target: ModelChoice) -> dict[str, object]:
    """Return the flag for the target's tokenizer, for a drafter whose model has another. The
    target's folder may have no tokenizer, as prompts can be token ids; a GGUF file has one."""
    if target.revision is not None:
        return {"target-tokenizer": f"{target.source}@{target.revision}"}
    place = Path(target.source)
    if draft.source == target.source:
        return {}
    if not is_gguf(target.source) and not any(place.glob("tokenizer*")):
        return {}
    return {"target-tokenizer": place}


@contextmanager
def reserved_ports(count: int) -> Iterator[list[int]]:
    """Find `count` ports for services that start meanwhile. On Linux nobody else gets one of them:
    a connection of another program may have it before its service listens."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # servers set it too
        ports = [each.getsockname()[1] for each in sockets]
        if sys.platform != "linux":
            stack.close()
        yield ports
