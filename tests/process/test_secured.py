"""Services as an operator secures them: `tandem certs`, processes with TLS and keys, commands."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tandem.cli import main
from tandem.net.process import run_service
from tests.process.service_process import ROOT, ServiceProcess, free_port
from tests.services.scripted_suite import health_of

SERVICES = sorted(path.parent.name for path in ROOT.glob("tandem/services/*/__main__.py"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def flags_of(folder: Path, side: str) -> list[str]:
    """What a caller of that side has."""
    files = {
        "tls-ca": "ca.crt",
        "tls-certificate": f"{side}.crt",
        "tls-key": f"{side}.key",
        "call-key-file": f"{side}.call-key",
    }
    return [word for name, file in files.items() for word in (f"--{name}", str(folder / file))]


def test_a_secured_retriever_serves_callers_that_are_known(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    assert run("certs", "--out", certs).exit_code == 0
    health_port = free_port()
    (tmp_path / "notes.md").write_text("Quokkas smile.\n")
    fixed = ("--port", "0", "--embedding", "lexical", "--folder", str(tmp_path / "index"))
    more = (*flags_of(certs, "edge"), "--keys-file", str(certs / "edge.keys"))
    metrics_port = free_port()
    probed = ("--health-port", str(health_port), "--metrics-port", str(metrics_port))
    with ServiceProcess(
        "tandem.services.retriever", *fixed, *more, *probed, secured=True
    ) as process:
        address = process.address()
        known = ("--endpoint", address, *flags_of(certs, "edge"))
        assert run("ingest", tmp_path / "notes.md", *known).exit_code == 0
        found = run("search", "quokkas", "--json", *known)
        assert found.exit_code == 0, found.stderr
        assert len(json.loads(found.stdout)["hits"]) == 1
        assert run("search", "quokkas", "--rerank", *known).exit_code == 2
        refusals = [
            (("--endpoint", address), "if the server demands TLS"),
            ((*known[:-2],), "authorization: Bearer KEY"),
            ((*known[:-2], "--call-key-file", certs / "ca.crt"), "must hold one key"),
        ]
        for flags, words in refusals:
            refused = run("search", "quokkas", *flags)
            assert refused.exit_code in (1, 2)
            assert words in refused.stderr
            assert refused.stderr.count("\n") == 1
        assert asyncio.run(health_of(f"127.0.0.1:{health_port}")) == "SERVING"
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
            assert b'tandem_tls_certificate_valid_seconds{side="device"} 7.7' in answer.read()
        # A key that is taken back is refused by the next call, without a restart.
        assert run("keys", "edge", "--revoke", "--file", certs / "edge.keys").exit_code == 0
        assert "the key is unknown" in run("search", "quokkas", *known).stderr
        process.signal(signal.SIGTERM)
        assert process.ended() == 0
        assert (certs / "edge.call-key").read_text().strip() not in process.log()
        entries = [json.loads(line) for line in process.log().splitlines()]
        (refused_search,) = [entry for entry in entries if entry["event"] == "rpc refused"]
        assert refused_search["caller"] == "edge"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("name", SERVICES)
def test_a_service_that_is_told_nothing_does_not_start(
    name: str, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each as its process begins: with its own settings and nothing built yet."""
    settings = import_module(f"tandem.services.{name}.config")
    model = getattr(settings, f"{name.capitalize()}Settings")
    build = import_module(f"tandem.services.{name}.__main__").build
    with pytest.raises(SystemExit) as ended:
        run_service(model, build, "cloud", ["--port", "0", "--host", host])
    message = capsys.readouterr().err
    assert ended.value.code == 2
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    if not (name == "retriever" and host == "0.0.0.0"):  # which asks for its networks first
        assert message.startswith("error: TANDEM_TLS_CERTIFICATE: must be set")
        assert "TANDEM_INSECURE=true" in message


def test_a_command_calls_beyond_this_machine_over_tls_or_is_told_not_to(tmp_path: Path) -> None:
    beyond = ("search", "quokkas", "--endpoint", "192.0.2.1:50053")
    refused = run(*beyond)
    assert refused.exit_code == 2
    assert "--tls-ca: is required to call another machine; set insecure" in refused.stderr
    half = run(*beyond, "--tls-ca", tmp_path / "nowhere")
    assert "--tls-certificate: is required" in half.stderr
    files = flags_of(tmp_path / "nowhere", "edge")
    assert "ca.crt: cannot be read" in run(*beyond, *files).stderr
    plain = run(*beyond, "--insecure", "--timeout", "0.001")
    assert plain.exit_code == 1
