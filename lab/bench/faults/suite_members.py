"""All services of a suite with an emulated link between its sides, as members of a fleet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from lab.bench.faults.fail_points import Switches
from lab.bench.faults.fleet import HOST, Fleet, Member, dialled_ports, flags_of
from lab.bench.harness.suite import SuiteFailed
from tandem.api.access import client_access
from tandem.net.access import ClientAccess
from tandem.net.retriever_client import RetrieverClient, Upload
from tandem.netem.link_model import LinkSettings
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.testing.mains import module_of

SERVICES = (
    *("verifier", "drafter", "aggregator"),
    *("cloud-aggregator", "device-retriever", "cloud-retriever"),
)
RTT_S = 0.02

Flags = Mapping[str, Mapping[str, object]]
NO_SWITCHES: Mapping[str, Switches] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WholeSuite:
    """A running suite; `http` and `metrics` are ports, the latter by service."""

    fleet: Fleet
    link: TcpLinkEmulator
    http: int
    metrics: Mapping[str, int]

    def address(self, service: str) -> str:
        return f"{HOST}:{self.fleet.ports[service]}"


@asynccontextmanager
async def whole_suite(
    place: Path,
    more: Flags,
    certificates: Path | None = None,
    switches: Mapping[str, Switches] = NO_SWITCHES,
) -> AsyncIterator[WholeSuite]:
    """Run all services of a suite, with a few documents at each side, while the context is open.
    `more` are further settings of some services. With `certificates`, a folder of `tandem certs`,
    all of them have TLS and keys; those with `switches` run under fail-points."""
    free_ports = dialled_ports(2 * len(SERVICES) + 1)
    ports = dict(zip(SERVICES, free_ports, strict=False))
    metrics = dict(zip(SERVICES, free_ports[len(SERVICES) :], strict=False))
    settings = LinkSettings(delay_s=RTT_S / 2)
    async with AsyncExitStack() as stack:
        way, other = (
            ((HOST, 0), (HOST, ports[service])) for service in ("verifier", "cloud-aggregator")
        )
        link = TcpLinkEmulator(*way, settings, settings, further=(other,))
        await stack.enter_async_context(link)
        verifier, cloud = (f"{HOST}:{port}" for _, port in link.addresses)
        flags = _flags(place, ports, verifier, cloud)
        flags["aggregator"]["http-port"] = free_ports[-1]
        members = {}
        for name, service_flags in flags.items():
            service_flags |= {
                "port": ports[name],
                "metrics-port": metrics[name],
                **more.get(name, {}),
            }
            service_flags |= (
                {"insecure": "true"}
                if certificates is None
                else secured(certificates, side_of(name))
            )
            module = module_of(name.rpartition("-")[2])
            members[name] = Member(module, flags_of(service_flags), switches.get(name))
        fleet = await stack.enter_async_context(Fleet(members, place, ports))
        suite = WholeSuite(fleet, link, free_ports[-1], metrics)
        await _fill(suite, certificates)
        yield suite


def side_of(service: str) -> str:
    return "cloud" if service == "verifier" or service.startswith("cloud-") else "edge"


def secured(certificates: Path, side: str) -> dict[str, object]:
    """Return the settings of TLS and keys for a service of the "edge" or the "cloud"."""
    files = {"tls-ca": "ca.crt", "tls-certificate": f"{side}.crt", "tls-key": f"{side}.key"}
    files |= {"keys-file": f"{side}.keys", "call-key-file": f"{side}.call-key"}
    if side == "edge":
        files["cloud-key-file"] = "edge.cloud-key"
    return {flag: certificates / file for flag, file in files.items()}


@cache
def access_with(certificates: Path | None, side: str, key: str = "") -> ClientAccess | None:
    """Return what a caller of that side shows: its certificate, and the key in the file `key`, or
    its side's own. Each is made once and kept, since gRPC 1.85 forgets credentials on a thread of
    its own, which needs the interpreter's lock: a channel that is closed in that moment waits for
    the thread, with the lock, for ever."""
    if certificates is None:
        return None
    return client_access(
        HOST,
        tls_ca=certificates / "ca.crt",
        tls_certificate=certificates / f"{side}.crt",
        tls_key=certificates / f"{side}.key",
        call_key_file=certificates / (key or f"{side}.call-key"),
        insecure=False,
    )


def _flags(
    place: Path, ports: Mapping[str, int], verifier: str, cloud: str
) -> dict[str, dict[str, object]]:
    at = {name: f"{HOST}:{port}" for name, port in ports.items()}
    flags: dict[str, dict[str, object]] = {
        "verifier": {},
        "drafter": {"verifier": verifier},
        "aggregator": {
            "drafter": at["drafter"],
            "retriever": at["device-retriever"],
            "cloud": cloud,
        },
        "cloud-aggregator": {
            "side": "cloud",
            "decoder": at["verifier"],
            "retriever": at["cloud-retriever"],
        },
    }
    for side, decoder in (("device", "drafter"), ("cloud", "verifier")):
        flags[f"{side}-retriever"] = {
            "role": side,
            "folder": place / f"{side}-index",
            "embedding": "lexical",
            "decoder": at[decoder],
        }
    return flags


async def _fill(suite: WholeSuite, certificates: Path | None) -> None:
    for side in ("device", "cloud"):
        uploads = [
            Upload(f"{side}{number}", f"A list of {side} things, number {number}.".encode())
            for number in range(4)
        ]
        access = access_with(certificates, side_of(f"{side}-retriever"))
        async with RetrieverClient(suite.address(f"{side}-retriever"), access) as client:
            async for answer in client.ingest(uploads):
                if answer.reason:
                    raise SuiteFailed(f"{answer.document_id} was refused: {answer.reason}")
