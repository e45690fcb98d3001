"""Who may do what: every RPC, by every holder, on every port of all four services, as served."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from tandem.commands.check_suite import suite_checks
from tandem.net.access_keys import KEY_BYTES, key_line, new_key
from tandem.net.channels import open_channel
from tandem.net.scopes import ANYONE, OPEN, SCOPE_OF, Caller, Scope, current_caller
from tandem.telemetry.endpoint import serve_metrics
from tandem.telemetry.metrics import new_registry
from tests.services.scripted_suite import MESSAGE_BYTES
from tests.services.secured_services import (
    EDGE_KEY,
    STRANGE_KEY,
    Credentials,
    ending,
    secured_services,
)
from tests.services.test_tls import ROOT, methods, served

KEYS = {scope: new_key(bytes([65 + number]) * KEY_BYTES) for number, scope in enumerate(Scope)}
HOLDERS: dict[str, tuple[str | None, frozenset[Scope]]] = {
    **{scope.value: (key, frozenset({scope})) for scope, key in KEYS.items()},
    "all": (EDGE_KEY, frozenset(Scope)),
    "no key": (None, frozenset()),
    "wrong key": (STRANGE_KEY, frozenset()),
}
UNKNOWN = ("/tandem_api.verifier.v1.VerifierService/Nothing", "/a/b", "")
REFUSALS = {"UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED"}
TIMEOUT_S = 30.0


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    found = Credentials(tmp_path)
    lines = [key_line(scope.name.lower(), key, {scope}) for scope, key in KEYS.items()]
    found.write("keys", "\n".join([*lines, key_line("edge", EDGE_KEY, frozenset(Scope))]).encode())
    return found


def every_rpc() -> set[str]:
    """As the protocol files describe them, and those that every port of gRPC may have."""
    found = {rpc for service in methods().values() for rpc in service}
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        for service in file.services_by_name.values():
            found |= {f"/{service.full_name}/{rpc.name}" for rpc in service.methods}
    return found


def test_every_rpc_has_its_row_in_the_table_and_nothing_else_has() -> None:
    assert set(SCOPE_OF) == every_rpc()
    assert {rpc for rpc, scope in SCOPE_OF.items() if scope is OPEN} == {
        f"/grpc.health.v1.Health/{name}" for name in ("Check", "Watch")
    }


def test_the_documented_table_is_this_one() -> None:
    text = (ROOT / "docs" / "reference" / "security.md").read_text()
    rows = dict(re.findall(r"^\| `([\w:]+)` \| (.+) \|$", text, re.MULTILINE))
    for rpc, scope in SCOPE_OF.items():
        name = rpc.rpartition("/")[2]
        if scope is not OPEN and "reflection" not in rpc:
            assert f"`{name}`" in rows[scope], rpc
    documented = {name for scope in Scope for name in re.findall(r"`([A-Z]\w+)`", rows[scope])}
    assert documented <= {rpc.rpartition("/")[2] for rpc in SCOPE_OF}


def expected(rpc: str, holder: str, here: set[str]) -> set[str]:
    """The statuses with which a guarded port may end a call; `here` is what it serves."""
    key, scopes = HOLDERS[holder]
    if rpc in SCOPE_OF and SCOPE_OF[rpc] is OPEN:
        return {"OK"}
    if key in (None, STRANGE_KEY):
        return {"UNAUTHENTICATED"}
    if rpc not in SCOPE_OF:
        return {"UNIMPLEMENTED"}
    if SCOPE_OF[rpc] not in scopes:
        return {"PERMISSION_DENIED"}
    return {"served"} if rpc in here else {"UNIMPLEMENTED"}


async def test_every_rpc_by_every_holder_on_every_main_port(
    credentials: Credentials, tmp_path: Path
) -> None:
    """Before, any key opened everything: that of an edge imported and forgot documents."""
    rpcs = sorted({*SCOPE_OF, *UNKNOWN})
    common = {rpc for rpc in SCOPE_OF if "reflection" in rpc}
    files = credentials.issue("client")
    async with secured_services(tmp_path, credentials.server()) as services:
        for name, running in services.items():
            here = served({name: running}) | common
            assert here <= set(SCOPE_OF), "a service has an RPC that no file describes"
            for holder, (key, _) in HOLDERS.items():
                access = credentials.client(files, key)
                async with open_channel(running.target, MESSAGE_BYTES, access) as channel:
                    for rpc, status in await statuses(channel, rpcs):
                        found = status if status in {"OK", *REFUSALS} else "served"
                        wanted = expected(rpc, holder, here)
                        if "served" in wanted:
                            wanted.add("OK")
                        assert found in wanted, (name, holder, rpc, status)


async def test_every_rpc_by_every_holder_on_the_ports_without_keys(
    credentials: Credentials, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The health port has health and nothing else; the metrics port has no RPC."""
    rpcs = sorted({*SCOPE_OF, *UNKNOWN})
    access = credentials.server()
    async with (
        secured_services(tmp_path, access, health_port=0) as services,
        AsyncExitStack() as stack,
    ):
        metrics = stack.enter_context(serve_metrics(new_registry(), "127.0.0.1", 0))
        ports = {name: running.health_target for name, running in services.items()}
        for name, target in (*ports.items(), ("metrics", f"127.0.0.1:{metrics.port}")):
            caplog.clear()
            async with grpc.aio.insecure_channel(target) as channel:
                for key, _ in HOLDERS.values():
                    shown = () if key is None else (("authorization", f"Bearer {key}"),)
                    for rpc, status in await statuses(channel, rpcs, shown):
                        open_here = name != "metrics" and SCOPE_OF.get(rpc, 0) is OPEN
                        if open_here:
                            assert status == "OK", (name, rpc)
                        else:
                            refused = "UNAVAILABLE" if name == "metrics" else "UNIMPLEMENTED"
                            assert status == refused, (name, rpc)
            assert not [entry for entry in caplog.records if entry.exc_info]


async def statuses(
    channel: grpc.aio.Channel, rpcs: Iterable[str], shown: Any = ()
) -> list[tuple[str, str]]:
    """How a call of each with one empty message ends."""
    listed = list(rpcs)
    turn = asyncio.Semaphore(4)  # the health port takes few calls at once

    async def one(rpc: str) -> tuple[str, str]:
        async with turn:
            return rpc, await _status(channel, rpc, shown)

    return list(await asyncio.gather(*map(one, listed)))


async def _status(channel: grpc.aio.Channel, rpc: str, shown: Any) -> str:
    while True:
        call: Any = channel.stream_stream(rpc)(timeout=TIMEOUT_S, metadata=shown)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(b"")
            await call.done_writing()
            if await call.read() is not grpc.aio.EOF:
                call.cancel()
                return "OK"  # some answer, which a stream may follow up for ever
        status, details = await call.code(), await call.details()
        if details != "Internal error from Core":  # a status that was lost: grpc issue 36066
            return str(status.name)


async def test_a_refusal_names_the_scope_that_is_missing(
    credentials: Credentials, tmp_path: Path
) -> None:
    own = credentials.client(key=KEYS[Scope.VERIFY])
    async with secured_services(tmp_path, credentials.server()) as services:
        for name in ("ForgetDocuments", "ImportDocuments"):
            route = f"/tandem_api.decoding.v1.DecodingService/{name}"
            ended = await ending(services["verifier"].target, route, own)
            why = "needs the scope 'documents:write', which the key of 'verify' does not have"
            assert ended == ("PERMISSION_DENIED", f"{name} {why}")


async def test_a_method_that_the_table_does_not_list_never_runs(credentials: Credentials) -> None:
    """Whatever a server has registered, and whatever the key."""
    ran: list[Caller] = []

    async def run(request: bytes, context: Any) -> bytes:
        ran.append(current_caller())
        return b""

    access = credentials.server()
    assert access.identity is not None
    server = grpc.aio.server(interceptors=access.interceptors())
    rows: dict[str, Any] = {"Nothing": grpc.unary_unary_rpc_method_handler(run)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", rows),))
    verify: dict[str, Any] = {"Verify": grpc.unary_unary_rpc_method_handler(run)}
    name = "tandem_api.verifier.v1.VerifierService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, verify),))
    port = server.add_secure_port("127.0.0.1:0", access.identity.server_credentials())
    await server.start()
    own = credentials.client(key=EDGE_KEY)
    assert (await ending(f"127.0.0.1:{port}", "/a.B/Nothing", own))[0] == "UNIMPLEMENTED"
    assert not ran
    # What does run knows its caller.
    assert (await ending(f"127.0.0.1:{port}", f"/{name}/Verify", own))[0] == "OK"
    assert ran == [Caller("edge", frozenset(Scope))]
    assert current_caller() == ANYONE
    await server.stop(None)


WAITING = {
    "verifier": ("VerifierService/Verify", "DecodingService/Decode"),
    "drafter": (
        "DrafterService/Generate",
        "DecodingService/Decode",
        "DecodingService/ImportDocuments",
    ),
    "aggregator": ("AggregatorService/Generate",),
    "retriever": ("RetrieverService/Ingest",),
}
"""Streams that wait for their caller's first message."""


async def test_streams_end_soon_after_their_key_is_revoked(
    credentials: Credentials, tmp_path: Path
) -> None:
    """They went on to their end before, which a stream that is kept alive never comes to."""
    access = replace(credentials.server(), recheck_s=0.05)
    lines = (tmp_path / "keys").read_text().splitlines()
    async with secured_services(tmp_path, access) as services, AsyncExitStack() as stack:
        calls: dict[str, Any] = {}
        for name, running in services.items():
            calls |= await begun(stack, credentials, EDGE_KEY, running.target, WAITING[name])
        assert len(calls) == 7
        verifier = services["verifier"].target
        other = await begun(stack, credentials, KEYS[Scope.VERIFY], verifier, ("/Verify",))
        (kept,) = other.values()
        credentials.write("keys", "\n".join(lines[:-1]).encode())
        for name, call in calls.items():
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED, name
            assert await call.details() == "ended: the key is unknown", name
        assert not kept.done()
        # A key that loses a scope loses the streams that need it.
        changed = [line.replace("scopes=verify", "scopes=decode") for line in lines[:-1]]
        credentials.write("keys", "\n".join(changed).encode())
        assert await kept.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "needs the scope 'verify'" in await kept.details()


async def begun(
    stack: AsyncExitStack, credentials: Credentials, key: str, target: str, rpcs: tuple[str, ...]
) -> dict[str, Any]:
    """Calls that the service at `target` has taken, and that have sent nothing yet."""
    access = credentials.client(key=key)
    channel = await stack.enter_async_context(open_channel(target, MESSAGE_BYTES, access))
    calls: dict[str, Any] = {
        f"{target} {rpc}": channel.stream_stream(rpc)(timeout=TIMEOUT_S)
        for rpc in SCOPE_OF
        if rpc.endswith(rpcs)
    }
    await asyncio.gather(*(call.wait_for_connection() for call in calls.values()))
    # A later call is answered: those before it have begun.
    assert await _status(channel, "/grpc.health.v1.Health/Check", ()) == "OK"
    return calls


async def test_doctor_says_which_scope_a_key_lacks(
    credentials: Credentials, tmp_path: Path
) -> None:
    own = credentials.client(key=KEYS[Scope.DOCUMENTS_READ])
    async with secured_services(tmp_path, credentials.server()) as services:
        (check,) = await asyncio.to_thread(suite_checks, services["aggregator"].target, own)
    assert not check.ok
    assert "PERMISSION_DENIED" in check.found
    assert "Describe needs the scope 'generate'" in check.found
    assert "--call-key-file" in check.todo
