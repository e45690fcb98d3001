"""HTTP over TLS: the certificate that is shown, its renewal, and files that cannot be used."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner, Result

from tandem.cli import main
from tandem.commands.authority import new_authority
from tandem.net.access_keys import key_line
from tandem.net.scopes import Scope
from tandem.net.tls import TlsFiles
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.aggregator.http import http_certificate, serve_http
from tandem.settings import SettingsError
from tandem.telemetry.logging import configure_logging
from tests.gateway.http_suite import TIMEOUT_S, chat_body
from tests.services.scripted_suite import scripted_suite
from tests.services.secured_services import OTHER_KEY, VALID, Credentials


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    return Credentials(tmp_path)


def settings_of(files: TlsFiles, **more: object) -> AggregatorSettings:
    given = {"http_port": 0, "insecure": True, **more}
    return AggregatorSettings.model_validate(
        {"http_tls_certificate": files.certificate, "http_tls_key": files.key, **given}
    )


@asynccontextmanager
async def served(settings: AggregatorSettings) -> AsyncIterator[str]:
    """With its address."""
    async with (
        scripted_suite(settings=settings) as suite,
        serve_http(settings, suite.front_metrics, suite.front) as words,
    ):
        yield words.removeprefix("http ")


def caller(url: str, authorities: Path, key: str = "none") -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=url,
        verify=ssl.create_default_context(cafile=authorities),
        headers={"Authorization": f"Bearer {key}"},
        timeout=TIMEOUT_S,
    )


async def test_answers_come_over_tls_to_those_who_know_the_authority(
    credentials: Credentials,
) -> None:
    keys = credentials.write("http-keys", key_line("app", OTHER_KEY, {Scope.GENERATE}).encode())
    settings = settings_of(credentials.issue("web"), http_keys_file=keys)
    stranger = credentials.write("other.crt", new_authority("other", VALID).certificate)
    async with served(settings) as url:
        assert url.startswith("https://127.0.0.1:")
        async with caller(url, credentials.folder / "ca.crt", OTHER_KEY) as http:
            answer = await http.post(
                "/v1/chat/completions", json=chat_body(max_tokens=4, ignore_eos=True)
            )
            assert answer.json()["usage"]["completion_tokens"] == 4
        async with caller(url, credentials.folder / "ca.crt") as http:
            assert (await http.get("/v1/models")).status_code == 401
        async with caller(url, stranger) as http:
            with pytest.raises(httpx2.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await http.get("/healthz")
        async with httpx2.AsyncClient() as plain:
            with pytest.raises(httpx2.HTTPError):
                await plain.get(url.replace("https", "http") + "/healthz")


async def test_a_renewed_certificate_is_shown_from_the_next_connection_on(
    credentials: Credentials,
) -> None:
    files = credentials.issue("web")
    authorities = credentials.folder / "ca.crt"
    async with served(settings_of(files)) as url, caller(url, authorities) as standing:
        assert (await standing.get("/healthz")).status_code == 200
        other = new_authority("other", VALID)
        new_authorities = credentials.write("new-ca.crt", other.certificate)
        credentials.issue("web", authority=other)
        assert (await standing.get("/healthz")).status_code == 200, "its connection stands"
        async with caller(url, new_authorities) as fresh:
            assert (await fresh.get("/healthz")).status_code == 200
        credentials.write("web.crt", b"torn")
        async with caller(url, new_authorities) as fresh:
            assert (await fresh.get("/healthz")).status_code == 200, "what was good stays"


async def test_a_door_that_is_left_by_an_error_leaves_no_task() -> None:
    settings = AggregatorSettings(http_port=0, insecure=True)
    async with scripted_suite(settings=settings) as suite:
        with pytest.raises(ZeroDivisionError):
            async with serve_http(settings, suite.front_metrics, suite.front):
                raise ZeroDivisionError
        await asyncio.sleep(0)
        left = [str(task.get_coro()) for task in asyncio.all_tasks()]
        assert not [name for name in left if "_stop_listening" in name]


def test_files_that_cannot_be_used_stop_the_start_and_are_named(
    credentials: Credentials, tmp_path: Path
) -> None:
    good, other = credentials.issue("web"), credentials.issue("other")
    text = credentials.write("text", b"a letter")
    none = tmp_path / "none"
    for files, why in (
        (replace(good, key=other.key), "HTTP_TLS_KEY: .*is not the private key of"),
        (replace(good, certificate=text), "HTTP_TLS_CERTIFICATE: .*must be PEM"),
        (replace(good, certificate=none), "HTTP_TLS_CERTIFICATE: .*none: cannot be read"),
        (replace(good, key=none), "HTTP_TLS_KEY: .*none: cannot be read"),
    ):
        with pytest.raises(SettingsError, match=f"TANDEM_{why}"):
            http_certificate(settings_of(files))
    for missing in ("http_tls_certificate", "http_tls_key"):
        settings = settings_of(good).model_copy(update={missing: None})
        with pytest.raises(
            SettingsError, match=f"TANDEM_{missing.upper()}: must be set together with"
        ):
            http_certificate(settings)
    assert http_certificate(AggregatorSettings()) is None


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({}, True),
        ({"http_host": "127.0.0.1"}, False),
        ({"insecure": True}, False),
        ({"tls": True}, False),
    ],
)
async def test_keys_in_plain_text_beyond_this_machine_are_warned_of(
    credentials: Credentials,
    changes: dict[str, object],
    warned: bool,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = credentials.write("http-keys", key_line("app", OTHER_KEY, {Scope.GENERATE}).encode())
    given = {"http_host": "0.0.0.0", "http_keys_file": keys, "insecure": False, **changes}
    files = credentials.issue("web")
    settings = settings_of(files, **{k: v for k, v in given.items() if k != "tls"})
    if "tls" not in changes:
        settings = settings.model_copy(update={"http_tls_certificate": None, "http_tls_key": None})
    configure_logging("warning")
    async with served(settings):
        assert ("unencrypted" in capsys.readouterr().err) == warned


async def test_chat_asks_over_tls(credentials: Credentials, tmp_path: Path) -> None:
    async with served(settings_of(credentials.issue("web"))) as url:

        async def chat(*arguments: object) -> Result:
            seeded = ("--seed", "1")  # another draw may end the answer sooner
            words = ["chat", "--json", "--max-tokens", "4", *seeded, *map(str, arguments)]
            return await asyncio.to_thread(CliRunner().invoke, main, words, input="hello\n")

        answered = await chat("--endpoint", url, "--ca", credentials.folder / "ca.crt")
        assert answered.exit_code == 0, answered.stderr
        assert json.loads(answered.stdout)["tokens"] == 4
        for flags, words in (
            (("--endpoint", url), "set its authority with --ca"),
            (("--endpoint", url, "--ca", tmp_path / "none"), "must be PEM certificates"),
            (("--endpoint", "http://127.0.0.1:1", "--ca", "ca.crt"), "does not use TLS"),
        ):
            refused = await chat(*flags)
            assert refused.exit_code in (1, 2)
            assert words in refused.stderr
            assert refused.stderr.count("\n") == 1
