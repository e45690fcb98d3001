"""Edges and verifiers as real processes: each edge a drafter and an aggregator that serves HTTP,
each verifier behind a link of its own. Models are scripted, and paced by declared times."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from lab.bench.faults.fleet import HOST, START_S, Fleet, Member, dialled_ports, flags_of
from lab.bench.faults.suite_members import access_with, secured
from lab.bench.harness.suite import Pacing, SuiteFailed
from tandem.generation.client import AggregatorClient
from tandem.net.status import Rejected
from tandem.netem.link_model import LinkSettings
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.testing.mains import module_of

ROOM = 256
"""For sessions and requests: the load decides how many there are, not a service's limit."""
POLL_S = 0.1
SCRIPTED = "scripted"


@dataclass(frozen=True, slots=True)
class FleetShape:
    """How many of each, and their declared times; `noise` of the draft model (0 none, 1 all)."""

    pacing: Pacing
    edges: int = 1
    verifiers: int = 2
    rtt_s: float = 0.02
    noise: float = 0.3
    running: int = ROOM
    """Requests that an aggregator serves at once."""
    keeps_prefixes: bool = True
    """The fleet's simulator knows of none that are kept."""
    cloud_draft: bool = False
    """Whether each verifier has the draft model, too."""
    replicas: bool = False
    """Whether the edges know the verifiers by one name, over which gRPC spreads their calls. Else
    by a list: all calls go to its first one that is healthy."""

    def dilated(self, factor: float) -> FleetShape:
        """Return this shape with all times multiplied by `factor`."""
        pacing = self.pacing
        times = (pacing.draft_s, pacing.verify_first_s, pacing.verify_further_s)
        slow = Pacing(*(seconds * factor for seconds in times))
        return replace(self, pacing=slow, rtt_s=self.rtt_s * factor)


def verifier_options(shape: FleetShape) -> dict[str, object]:
    """Return the settings of a verifier: its scripted model, and the times of its passes and of its
    draft steps. A draft step does not wait for a pass, as if the draft model had an accelerator to
    itself."""
    pacing = shape.pacing
    options: dict[str, object] = {
        "pace_first_s": pacing.verify_first_s,
        "pace_further_s": pacing.verify_further_s,
        "pace_batch_s": pacing.verify_further_s,
    }
    if shape.cloud_draft:
        options |= {
            "cloud_draft": _model(shape)["model"],
            "cloud_draft_engine": SCRIPTED,
            "pace_cloud_draft_s": pacing.cloud_draft_s,
        }
    return _model(shape) | options


def _model(shape: FleetShape) -> dict[str, object]:
    """Return the settings that all services with a model share."""
    kept = {} if shape.keeps_prefixes else {"prefix_kv_bytes": 0}
    return {"engine": SCRIPTED, "model": f"1:{shape.noise:g}", "max_sessions": ROOM, **kept}


@dataclass(frozen=True, slots=True)
class FleetSuite:
    """A running one. `http` and `metrics` are ports of the edges' aggregators and drafters."""

    fleet: Fleet
    links: tuple[TcpLinkEmulator, ...]
    http: tuple[int, ...]
    metrics: tuple[int, ...]
    certificates: Path | None
    listed: int
    """Names by which the edges know verifiers."""

    async def all_known(self) -> None:
        """Wait until every edge lists every verifier as serving. Raises SuiteFailed for a process
        that has ended, or an edge that does not list them in `START_S`."""
        access = access_with(self.certificates, "edge")
        edges = [name for name in self.fleet.members if name.endswith("aggregator")]
        name = ""
        try:
            async with asyncio.timeout(START_S):
                for name in edges:
                    address = f"{HOST}:{self.fleet.ports[name]}"
                    async with AggregatorClient(address, access=access) as client:
                        while not await _knows_all(client, self.listed):
                            self.fleet.check_alive()
                            await asyncio.sleep(POLL_S)
        except TimeoutError:
            why = f"does not know all {self.listed} verifiers after {START_S:g} s"
            raise SuiteFailed(f"{name} {why}") from None

    async def restart(self, name: str) -> None:
        """Stop a service, start it again, and wait until every edge knows every verifier."""
        await self.fleet.stop(name)
        await self.fleet.start(name)
        await self.all_known()

    def moves(self, reason: str) -> float:
        return self._sum("tandem_cloud_moves_total", reason=reason)

    def _sum(self, name: str, **labels: str) -> float:
        total = 0.0
        for port in self.metrics:
            with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=30) as answer:
                page = answer.read().decode()
            for family in text_string_to_metric_families(page):
                for sample in family.samples:
                    if sample.name == name and labels.items() <= sample.labels.items():
                        total += sample.value
        return total


@asynccontextmanager
async def fleet_suite(
    place: Path, shape: FleetShape, certificates: Path | None = None
) -> AsyncIterator[FleetSuite]:
    """Run edges and verifiers while the context is open; every edge knows every verifier from the
    start. With `certificates`, a folder of `tandem certs`, all services have TLS, and HTTP callers
    need keys of its file `edge.keys`."""
    ports = iter(dialled_ports(shape.verifiers + 4 * shape.edges))
    members = dict[str, Member]()
    port_of = dict[str, int]()
    link = LinkSettings(delay_s=shape.rtt_s / 2)

    def add(name: str, service: str, **flags: object) -> None:
        port_of[name] = next(ports)
        side = "cloud" if service == "verifier" else "edge"
        access = {"insecure": "true"} if certificates is None else secured(certificates, side)
        options = {name.replace("_", "-"): value for name, value in flags.items()}
        settings = {"port": port_of[name], **options, **access}
        members[name] = Member(module_of(service), flags_of(settings))

    model, cloud = _model(shape), verifier_options(shape)
    async with AsyncExitStack() as stack:
        links = []
        for number in range(shape.verifiers):
            add(f"{number}-verifier", "verifier", **cloud)
            target = (HOST, port_of[f"{number}-verifier"])
            emulator = TcpLinkEmulator((HOST, 0), target, link, link, seed=number)
            links.append(await stack.enter_async_context(emulator))
        clouds = ",".join(f"{HOST}:{way.address[1]}" for way in links)
        if shape.replicas:
            clouds = f"ipv4:{clouds}"
        http = []
        metrics = []
        for number in range(shape.edges):
            http.append(next(ports))
            metrics.append(next(ports))
            options = {"verifier": clouds, "metrics_port": metrics[-1], "memory_tokens": 0}
            options |= {"pace_first_s": shape.pacing.draft_s}
            add(f"{number}-drafter", "drafter", **model, **options)
            options = {"drafter": f"{HOST}:{port_of[f'{number}-drafter']}", "http_port": http[-1]}
            options |= {"max_running": shape.running, "max_waiting": ROOM}
            if certificates is not None:
                options["http_keys_file"] = certificates / "edge.keys"
            add(f"{number}-aggregator", "aggregator", **options)
        fleet = await stack.enter_async_context(Fleet(members, place, port_of))
        listed = 1 if shape.replicas else len(links)
        suite = FleetSuite(fleet, tuple(links), tuple(http), tuple(metrics), certificates, listed)
        await suite.all_known()
        yield suite


async def _knows_all(client: AggregatorClient, verifiers: int) -> bool:
    """Return whether an edge knows this many verifiers. A single one is not listed: the edge then
    describes its target."""
    try:
        description = await client.describe()
    except Rejected:
        return False
    if verifiers == 1:
        return description.HasField("target")
    return sum(cloud.serving for cloud in description.clouds) == verifiers
