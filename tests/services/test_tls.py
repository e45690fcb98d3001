"""Who gets in: certificates and keys, good and bad, on every service and every route; and a service
that is known by one certificate."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FileDescriptor

import tandem_api
from tandem.commands.authority import new_authority, self_signed
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.net.access import ClientAccess, ServerAccess
from tandem.net.auth import known_keys, own_key
from tandem.net.connection import Connection
from tandem.net.status import Rejected
from tandem.net.tls import PINNED_NAME, PinnedService, TlsFiles, TlsIdentity
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.servicer import AggregatorServicer
from tandem.services.drafter.servicer import DrafterLimits
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.liveness import LivenessTimes
from tandem.telemetry.metrics import Metrics, new_registry
from tests.services.scripted_suite import (
    MESSAGE_BYTES,
    scripted_suite,
    serving,
    target_engine,
)
from tests.services.secured_services import (
    EDGE_KEY,
    EXPIRED,
    LOOPBACK,
    STRANGE_KEY,
    VALID,
    Credentials,
    ending,
    secured_services,
)

ROOT = Path(__file__).resolve().parents[2]
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
NOT_ACCEPTED = "shows no certificate, an expired one or one of another authority"


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return Credentials(tmp_path)


def methods() -> Mapping[str, list[str]]:
    """Every RPC of every service that the protocol files describe, by the service's full name."""
    found: dict[str, list[str]] = {}
    for module in pkgutil.walk_packages(tandem_api.__path__, "tandem_api."):
        if module.name.endswith("_pb2"):
            file: FileDescriptor = import_module(module.name).DESCRIPTOR
            for service in file.services_by_name.values():
                found[service.full_name] = [
                    f"/{service.full_name}/{rpc.name}" for rpc in service.methods
                ]
    return found


def describe(service: Any) -> str:
    """The RPC that every service has, and that a caller with access is answered."""
    return f"/{service.full_name}/Describe"


def served(services: Mapping[str, Any]) -> set[str]:
    """The routes that the services add to a server."""
    routes: set[str] = set()

    class Recorder:
        def add_generic_rpc_handlers(self, handlers: Any) -> None:
            pass

        def add_registered_method_handlers(self, service: str, methods: Mapping[str, Any]) -> None:
            routes.update(f"/{service}/{method}" for method in methods)

    for running in services.values():
        before = len(routes)
        running.service.register(Recorder())
        assert len(routes) > before
    return routes


async def test_certificates_that_do_not_fit_are_refused_on_every_service(
    credentials: Credentials, tmp_path: Path
) -> None:
    strangers = new_authority("strangers", VALID)
    own = credentials.issue("client")
    strange_ca = credentials.write("strange.crt", strangers.certificate)
    foreign = credentials.issue("foreign", authority=strangers)
    expired = credentials.issue("old", validity=EXPIRED)
    other_ca = type(own)(own.certificate, own.key, strange_ca)
    callers = {
        "a server of another authority": (other_ca, "TANDEM_TLS_CA does not hold"),
        "a caller of another authority": (foreign, NOT_ACCEPTED),
        "an expired caller": (expired, NOT_ACCEPTED),
    }
    async with secured_services(tmp_path, credentials.server()) as services:
        for name, running in services.items():
            route = describe(running.service)
            for case, (files, words) in callers.items():
                status, details = await ending(running.target, route, credentials.client(files))
                assert (status, words in details) == ("UNAVAILABLE", True), (name, case, details)
            for nothing in (None, ClientAccess(_WithoutCertificate(credentials))):  # type: ignore[arg-type]
                status, details = await ending(running.target, route, nothing)
                assert (status, NOT_ACCEPTED in details) == ("UNAVAILABLE", True), (name, details)


class _WithoutCertificate:
    """A caller that knows the authority and has nothing to show."""

    called = ""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = grpc.ssl_channel_credentials(credentials.authority.certificate)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        return self._credentials


@pytest.mark.parametrize(
    ("hosts", "expired", "words"),
    [
        (("verifier.example.com",), False, "does not name the address it was called by"),
        (LOOPBACK, True, "the server's certificate has expired"),
    ],
)
async def test_a_server_s_bad_certificate_is_refused_by_its_caller(
    credentials: Credentials, tmp_path: Path, hosts: tuple[str, ...], expired: bool, words: str
) -> None:
    files = credentials.issue("server", hosts, EXPIRED if expired else VALID)
    own = credentials.client()
    async with secured_services(tmp_path, credentials.server(files)) as services:
        for running in services.values():
            status, details = await ending(running.target, describe(running.service), own)
            assert status == "UNAVAILABLE"
            assert words in details


async def test_a_connection_says_why_it_is_silent(credentials: Credentials, tmp_path: Path) -> None:
    """For calls that wait for a connection, and so never hear it."""
    foreign = credentials.issue("foreign", authority=new_authority("strangers", VALID))
    async with secured_services(tmp_path, credentials.server()) as services:
        target = services["aggregator"].target
        for files, words in ((foreign, NOT_ACCEPTED), (credentials.issue("client"), "")):
            connection = Connection(target, MESSAGE_BYTES, credentials.client(files))
            why = await connection.why_silent()
            assert words in why
            assert bool(words) == bool(why)
            await connection.close()


async def test_a_caller_with_tls_is_told_that_the_server_has_none(
    credentials: Credentials,
) -> None:
    metrics = Metrics(new_registry(), "cloud")
    servicer = VerifierServicer(target_engine(), VerifierLimits(), metrics)
    async with serving(servicer, access=ServerAccess()) as running:
        route = describe(running.service)
        status, details = await ending(running.target, route, credentials.client())
        assert (status, "does not speak TLS" in details) == ("UNAVAILABLE", True), details
        assert (await ending(running.target, route, None))[0] == "OK"
        assert (await ending(running.target, REFLECTION, None))[0] == "UNIMPLEMENTED"


@pytest.mark.parametrize(
    ("key", "files", "words"),
    [
        (
            STRANGE_KEY,
            "client",
            'the key is unknown"; check this service',
        ),
        (None, "foreign", NOT_ACCEPTED),
    ],
)
async def test_a_request_says_why_the_drafter_is_not_served(
    credentials: Credentials, key: str | None, files: str, words: str
) -> None:
    """The caller, whose own key is good, is not blamed for the drafter's."""
    authority = None if files == "client" else new_authority("strangers", VALID)
    access = credentials.client(credentials.issue(files, authority=authority), key)
    guarded = credentials.server()
    async with scripted_suite(
        drafter_limits=DrafterLimits(liveness=LivenessTimes(0.05, 0.1, 0.2)),
        access=lambda service: guarded if service == "verifier" else None,
        shown=lambda caller: access if caller == "drafter" else None,
    ) as suite:
        with pytest.raises(Rejected) as refusal:
            await suite.client.generate(GenerationRequest("a", "coupled"), 60)
        described = await suite.client.describe()
    assert refusal.value.code is grpc.StatusCode.UNAVAILABLE
    assert words in str(refusal.value)
    assert words.partition(";")[0] in described.cloud_error


async def test_a_request_says_why_the_aggregator_is_not_served(
    credentials: Credentials, tmp_path: Path
) -> None:
    async with secured_services(tmp_path, credentials.server()) as services:
        settings = AggregatorSettings(drafter=services["drafter"].target)
        metrics = Metrics(new_registry(), "device")
        servicer = AggregatorServicer(settings, metrics, credentials.client(key=STRANGE_KEY))
        async with serving(servicer) as front, AggregatorClient(front.target) as client:
            for asked in (client.generate(GenerationRequest("a"), 60), client.describe()):
                with pytest.raises(
                    Rejected, match="check this service's TANDEM_CALL_KEY_FILE"
                ) as refusal:
                    await asked
                assert refusal.value.code is grpc.StatusCode.UNAVAILABLE


DESCRIBE = "/tandem_api.verifier.v1.VerifierService/Describe"


def made(credentials: Credentials, name: str) -> TlsFiles:
    issued = self_signed(name, [PINNED_NAME], VALID)
    return TlsFiles(
        credentials.write(f"{name}.crt", issued.certificate),
        credentials.write(f"{name}.key", issued.key),
        None,
    )


def knowing(certificate: Path, key: Path) -> ClientAccess:
    """Of a drafter, for its verifier."""
    own = ClientAccess(cloud=PinnedService(certificate), cloud_key=own_key(key))
    return own.to_cloud()


async def test_certificate_and_key_must_both_be_known(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path)
    files, other = made(credentials, "verifier"), made(credentials, "between")
    key = credentials.write("key", EDGE_KEY.encode())
    wrong = credentials.write("wrong", STRANGE_KEY.encode())
    access = ServerAccess(TlsIdentity(files), known_keys(credentials.keys))
    async with secured_services(tmp_path, access) as services:
        target = services["verifier"].target
        status, _ = await ending(target, DESCRIBE, knowing(files.certificate, key))
        assert status == "OK"
        status, _ = await ending(target, DESCRIBE, knowing(files.certificate, wrong))
        assert status == "UNAUTHENTICATED"
        status, _ = await ending(target, DESCRIBE, ClientAccess(PinnedService(files.certificate)))
        assert status == "UNAUTHENTICATED", "no key"
        # Who is in between has a certificate of the same name.
        status, _ = await ending(target, DESCRIBE, knowing(other.certificate, key))
        assert status == "UNAVAILABLE"
        status, _ = await ending(target, DESCRIBE, None)
        assert status == "UNAVAILABLE", "no TLS"
        status, _ = await ending(target, DESCRIBE, credentials.client())
        assert status == "UNAVAILABLE", "an authority that did not sign it"
