"""Certificates and keys that change under running services: nothing that runs is dropped."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from tandem.commands.authority import Issued, Validity, issue, new_authority
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.net.access import ClientAccess
from tandem.net.access_keys import key_line
from tandem.net.keys_file import UNREADABLE_S, KeysFile
from tandem.net.lifecycle import RunningService
from tandem.net.scopes import Scope
from tandem.net.tls import TlsFiles, TlsIdentity
from tandem.specdec.messages import GenerationParams
from tandem.testing.paced import PacedEngine
from tests.services.scripted_suite import (
    begun,
    health_of,
    scripted_suite,
    target_engine,
)
from tests.services.secured_services import (
    EDGE_KEY,
    EXPIRED,
    LOOPBACK,
    NOW,
    OTHER_KEY,
    VALID,
    Credentials,
    ending,
    secured_services,
)

TOKENS = 60
CALLERS = ("drafter", "aggregator", "client")


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return Credentials(tmp_path)


@dataclass(frozen=True, slots=True)
class Secured:
    """A suite whose services and caller all share one authority; each has its own certificate."""

    verifier: RunningService
    aggregator: RunningService
    client: AggregatorClient
    caller: ClientAccess

    async def begun(self, preset: str) -> asyncio.Task[Generated]:
        """An answer under way."""
        return await begun(self.client, request(preset))


@asynccontextmanager
async def secured_suite(credentials: Credentials) -> AsyncIterator[Secured]:
    """Paced, so that what changes in the middle of an answer does."""
    target = PacedEngine(target_engine(), 4e-3, 0.0)
    access = credentials.server()
    shown = {name: credentials.client(credentials.issue(name)) for name in CALLERS}
    async with scripted_suite(
        target=target, access=lambda service: access, shown=shown.__getitem__
    ) as suite:
        yield Secured(suite.verifier, suite.aggregator, suite.client, shown["client"])


def request(preset: str = "coupled") -> GenerationRequest:
    return GenerationRequest(
        "rotate", preset, GenerationParams(max_tokens=TOKENS, ignore_eos=True, seed=3)
    )


def undisturbed(generated: Generated) -> bool:
    summary = generated.summary
    return summary is not None and not summary.resumes and not summary.links_lost


async def shown_by(running: RunningService, files: TlsFiles) -> str:
    """The certificate that a server shows to a new connection, PEM."""
    context = ssl.create_default_context(cafile=files.authorities)
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", running.port, ssl=context)
    secured: ssl.SSLObject = writer.get_extra_info("ssl_object")
    shown = secured.getpeercert(binary_form=True)
    writer.close()
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown)


async def test_new_certificates_are_used_and_streams_go_on(credentials: Credentials) -> None:
    """Renewed on every service and at the caller, while answers of two presets are under way."""
    async with secured_suite(credentials) as suite:
        alone = [await suite.client.generate(request(name)) for name in ("coupled", "dssd")]
        generating = [await suite.begun(name) for name in ("coupled", "dssd")]
        own = credentials.issue("client")
        first = await shown_by(suite.verifier, own)
        renewed = [credentials.issue(name) for name in ("server", "drafter", "aggregator")]
        for running in (suite.verifier, suite.aggregator):
            shown = await shown_by(running, own)
            assert shown == renewed[0].certificate.read_text() != first
        done = [await generation for generation in generating]
        assert all(undisturbed(generated) for generated in done)
        assert [generated.token_ids for generated in done] == [one.token_ids for one in alone]
        assert undisturbed(await suite.client.generate(request()))


def test_how_long_a_certificate_is_valid_follows_its_file(credentials: Credentials) -> None:
    days = Validity(NOW - timedelta(hours=1), NOW + timedelta(days=30))
    for validity, left_days in ((VALID, 1), (days, 30), (EXPIRED, 0), (days, 30)):
        files = credentials.issue("server", validity=validity)
        if left_days == 1:
            identity = TlsIdentity(files)
        assert identity.valid_for_s() == pytest.approx(left_days * 86400, abs=3600)
    later = Validity(NOW + timedelta(days=1), NOW + timedelta(days=2))
    credentials.issue("server", validity=later)
    assert identity.valid_for_s() == 0


async def test_an_authority_is_replaced_without_dropping_a_stream(credentials: Credentials) -> None:
    """Trust both, reissue, trust the new one alone: the usual three steps."""
    successor = new_authority("successor", VALID)
    both = credentials.authority.certificate + successor.certificate
    old = credentials.issue("old")
    async with secured_suite(credentials) as suite:
        credentials.write("ca.crt", both)
        generation = await suite.begun("coupled")
        for name in ("server", "drafter", "aggregator", "client"):
            credentials.issue(name, authority=successor)
        assert undisturbed(await suite.client.generate(request()))
        credentials.write("ca.crt", successor.certificate)
        assert undisturbed(await generation)
        describe = f"/{suite.verifier.service.full_name}/Describe"
        assert (await ending(suite.verifier.target, describe, suite.caller))[0] == "OK"
        stale = ClientAccess(credentials.client(old).identity)
        assert (await ending(suite.verifier.target, describe, stale))[0] == "UNAVAILABLE"
        # The caller's channel stands; the services take fresh ones between them.
        assert undisturbed(await suite.client.generate(request()))


async def test_keys_come_and_go_without_dropping_a_stream(credentials: Credentials) -> None:
    async with secured_suite(credentials) as suite:
        other = credentials.client(key=OTHER_KEY)
        describe = f"/{suite.verifier.service.full_name}/Describe"
        target = suite.verifier.target
        assert (await ending(target, describe, other))[0] == "UNAUTHENTICATED"
        lines = [
            key_line("edge", EDGE_KEY, frozenset(Scope)),
            key_line("other", OTHER_KEY, frozenset(Scope)),
        ]
        credentials.write("keys", "\n".join(lines).encode())
        assert (await ending(target, describe, other))[0] == "OK"
        generation = await suite.begun("coupled")
        credentials.write("keys", lines[1].encode())
        assert (await ending(target, describe, suite.caller))[0] == "UNAUTHENTICATED"
        assert undisturbed(await generation)
        # All processes here read the same file of what to show: the new key is shown from now on.
        credentials.write(f"key-{EDGE_KEY[-4:]}", OTHER_KEY.encode())
        assert undisturbed(await suite.client.generate(request()))


async def test_files_that_became_bad_change_nothing(credentials: Credentials) -> None:
    async with secured_suite(credentials) as suite:
        own = credentials.issue("client")
        first = await shown_by(suite.verifier, own)
        for name in ("server.crt", "ca.crt"):
            credentials.write(name, b"nonsense")
        credentials.keys.unlink()
        (credentials.folder / "server.key").unlink()
        credentials.write("ca.crt", credentials.authority.certificate)  # for this test's own use
        assert await shown_by(suite.verifier, own) == first
        assert undisturbed(await suite.client.generate(request()))
        whole: Issued = issue(credentials.authority, "server", LOOPBACK, VALID)
        credentials.write("server.key", whole.key)
        assert await shown_by(suite.verifier, own) == first  # the certificate does not fit yet
        credentials.write("server.crt", whole.certificate)
        assert await shown_by(suite.verifier, own) == whole.certificate.decode()


async def test_a_service_whose_keys_stay_unreadable_says_that_it_serves_nobody(
    credentials: Credentials, tmp_path: Path
) -> None:
    """Streams and calls end, and health says so; a malformed line leaves it as it is."""
    now_s = time.monotonic()
    keys = KeysFile(credentials.keys, lambda: now_s)
    access = replace(credentials.server(), keys=keys)
    caller = credentials.client()
    async with secured_services(tmp_path, access, health_port=0) as services:
        verifier = services["verifier"]
        describe = f"/{verifier.service.full_name}/Describe"
        line = key_line("edge", EDGE_KEY, frozenset(Scope))
        credentials.write("keys", f"malformed\n{line}\n".encode())
        assert (await ending(verifier.target, describe, caller))[0] == "OK"
        assert keys.state().malformed_lines == (1,)
        credentials.keys.unlink()
        assert (await ending(verifier.target, describe, caller))[0] == "OK"
        assert await health_of(verifier.health_target) == "SERVING"
        now_s += UNREADABLE_S
        assert (await ending(verifier.target, describe, caller))[0] == "UNAUTHENTICATED"
        await until_health(verifier, "NOT_SERVING")
        credentials.write("keys", line.encode())
        await until_health(verifier, "SERVING")
        assert (await ending(verifier.target, describe, caller))[0] == "OK"


async def until_health(running: RunningService, status: str) -> None:
    async with asyncio.timeout(30):
        while await health_of(running.health_target) != status:
            await asyncio.sleep(0.01)
