"""One of each service behind TLS and keys, and any RPC of theirs as bytes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc

from tandem.commands.authority import Issued, Validity, issue, new_authority
from tandem.index.document_index import open_index
from tandem.net.access import ClientAccess, ServerAccess
from tandem.net.access_keys import KEY_BYTES, key_line, new_key
from tandem.net.auth import known_keys, own_key
from tandem.net.channels import open_channel
from tandem.net.lifecycle import RunningService, Service
from tandem.net.scopes import Scope
from tandem.net.status import details_of
from tandem.net.tls import TlsFiles, TlsIdentity
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.services.retriever.servicer import RetrieverLimits, RetrieverServicer
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.scripted import ScriptedTokenizer
from tests.services.scripted_suite import (
    MESSAGE_BYTES,
    VOCABULARY,
    draft_engine,
    target_engine,
)

TIMEOUT_S = 30.0
NOWHERE = "127.0.0.1:1"


@asynccontextmanager
async def secured_services(
    folder: Path, access: ServerAccess, health_port: int | None = None
) -> AsyncIterator[dict[str, RunningService]]:
    """By name; none of them has anything behind it that it could call."""
    device, cloud = Metrics(new_registry(), "device"), Metrics(new_registry(), "cloud")
    settings = AggregatorSettings(drafter=NOWHERE)
    index = open_index(folder / "documents", "lexical")
    tokenizer = ScriptedTokenizer(VOCABULARY)
    services: dict[str, Service] = {
        "verifier": VerifierServicer(target_engine(), VerifierLimits(), cloud),
        "drafter": DrafterServicer(draft_engine(), tokenizer, NOWHERE, DrafterLimits(), device),
        "aggregator": AggregatorServicer(settings, Metrics(new_registry(), "device")),
        "retriever": RetrieverServicer(
            index, "device", (), RetrieverLimits(), Metrics(new_registry(), "device")
        ),
    }
    async with AsyncExitStack() as stack:
        running = {}
        for name, service in services.items():
            running[name] = RunningService(
                service, "127.0.0.1", 0, MESSAGE_BYTES, access, health_port
            )
            await running[name].start()
            stack.push_async_callback(running[name].drain, 0.0)
        yield running


async def ending(target: str, method: str, access: ClientAccess | None) -> tuple[str, str]:
    """(status, details) of a call of `method`, "/package.Service/Rpc", with one empty message."""
    while True:
        ended = await _ending(target, method, access)
        # grpc.aio loses the status of a stream that ends while it is being written to (grpc issue
        # 36066); the same call tells it another time.
        if ended != ("INTERNAL", "Internal error from Core"):
            return ended


async def _ending(target: str, method: str, access: ClientAccess | None) -> tuple[str, str]:
    async with open_channel(target, MESSAGE_BYTES, access) as channel:
        # On the wire all kinds of calls look like this.
        call: Any = channel.stream_stream(method)(timeout=TIMEOUT_S)
        try:
            await call.write(b"")
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code().name, details_of(error)
        return (await call.code()).name, await call.details() or ""


NOW = datetime.now(UTC)
VALID = Validity(NOW - timedelta(hours=1), NOW + timedelta(days=1))
EXPIRED = Validity(NOW - timedelta(days=2), NOW - timedelta(days=1))
LOOPBACK = ("localhost", "127.0.0.1", "::1")
EDGE_KEY, OTHER_KEY, STRANGE_KEY = (new_key(bytes([byte]) * KEY_BYTES) for byte in (1, 2, 3))


class Credentials:
    """`files` of an identity by its name; `keys` is what the services accept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._changes = 0
        self.authority = new_authority("test", VALID)
        self.write("ca.crt", self.authority.certificate)
        self.keys = self.write("keys", key_line("edge", EDGE_KEY, frozenset(Scope)).encode())

    def write(self, name: str, content: bytes) -> Path:
        """As a tool that rotates does: whole, in one step."""
        path = self.folder / name
        new = self.folder / f".{name}.new"
        new.write_bytes(content)
        # Two changes within one tick of the file system's clock must look like two.
        self._changes += 1
        os.utime(new, ns=(self._changes, self._changes))
        new.replace(path)
        return path

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = LOOPBACK,
        validity: Validity = VALID,
        authority: Issued | None = None,
    ) -> TlsFiles:
        """Files of a fresh certificate called `name`, in the place of an older one."""
        issued = issue(authority or self.authority, name, hosts, validity)
        return TlsFiles(
            self.write(f"{name}.crt", issued.certificate),
            self.write(f"{name}.key", issued.key),
            self.folder / "ca.crt",
        )

    def server(self, files: TlsFiles | None = None) -> ServerAccess:
        identity = TlsIdentity(files or self.issue("server"))
        return ServerAccess(identity, known_keys(self.keys), reflection=True)

    def client(self, files: TlsFiles | None = None, key: str | None = EDGE_KEY) -> ClientAccess:
        identity = TlsIdentity(files or self.issue("client"))
        if key is None:
            return ClientAccess(identity)
        return ClientAccess(identity, own_key(self.write(f"key-{key[-4:]}", key.encode())))
