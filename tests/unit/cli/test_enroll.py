"""`tandem enroll`: what an edge gets, whom the cloud lets in, and what happens the second time."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from tandem.cli import main
from tandem.commands.keys import add_key
from tandem.net.access import client_access, server_access
from tandem.net.access_keys import parse_keys
from tandem.net.quotas import Quota
from tandem.net.scopes import Caller, Scope
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.drafter.config import DrafterSettings
from tandem.services.retriever.config import RetrieverSettings
from tandem.settings import ServiceSettings, load_settings


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    assert run("certs", "--out", folder).exit_code == 0
    return folder


def enrolled(authority: Path, *arguments: object) -> dict[str, Any]:
    """With the folders of edges where they will be used."""
    edges = authority.parent / "edges"
    outcome = run("enroll", "--authority", authority, "--out", edges, "--json", *arguments)
    assert outcome.exit_code == 0, outcome.output
    answer: dict[str, Any] = json.loads(outcome.stdout)
    return answer


def test_one_command_gives_many_edges_what_their_services_start_with(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges = authority.parent / "edges"
    answer = enrolled(authority, "one", "two", "--at", edges / "one", "--host", "edge.local")
    assert answer["folders"] == {name: str(edges / name) for name in ("one", "two")}
    for line in (edges / "one" / "edge.env").read_text().splitlines():
        monkeypatch.setenv(*line.split("=", 1))
    for model in (DrafterSettings, AggregatorSettings, RetrieverSettings):
        settings: ServiceSettings = load_settings(model, {})
        server, client = server_access(settings), client_access(settings)
        assert server.keys is not None
        assert client.key is not None
        assert server.keys.current().holder(client.key.current()) == "edge"
        shown = client.to_cloud().key
        assert shown is not None
        known = parse_keys((authority / "cloud.keys").read_text())
        assert known.holder(shown.current()) == "one"
        assert server.keys.current().caller(shown.current()) is None, "the cloud could call it"


def test_its_certificate_is_of_the_authority_and_in_its_name(authority: Path) -> None:
    enrolled(authority, "kiosk-7", "--host", "kiosk-7.example.com")
    folder = authority.parent / "edges" / "kiosk-7"
    certificate = x509.load_pem_x509_certificate((folder / "edge.crt").read_bytes())
    certificate.verify_directly_issued_by(
        x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
    )
    assert "kiosk-7" in certificate.subject.rfc4514_string()
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kiosk-7.example.com" in names.get_values_for_type(x509.DNSName)
    for path in folder.iterdir():
        private = path.name in ("edge.key", "edge.call-key", "edge.cloud-key")
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if private else 0o644), path
    assert not (folder / "ca.key").exists()


def test_the_cloud_knows_its_scopes_and_its_quotas(authority: Path) -> None:
    enrolled(authority, "small", "--sessions", 8, "--tokens-per-minute", 60000)
    enrolled(authority, "free")
    callers = {key.caller for key in parse_keys((authority / "cloud.keys").read_text()).keys}
    opened = frozenset({Scope.GENERATE, Scope.VERIFY})
    assert Caller("small", opened, Quota(sessions=8, tokens_per_minute=60000)) in callers
    assert Caller("free", opened) in callers


def test_called_again_it_renews_the_certificate_and_keeps_the_keys(authority: Path) -> None:
    enrolled(authority, "one", "--host", "10.0.0.7")
    folder = authority.parent / "edges" / "one"
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    keys = (authority / "cloud.keys").read_text()
    enrolled(authority, "one")
    second = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name for name in first if first[name] != second[name]} == {"edge.crt", "edge.key"}
    assert (authority / "cloud.keys").read_text() == keys


def test_called_again_it_makes_what_a_full_disk_had_left_out(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled(authority, "one")
    folder = authority.parent / "edges" / "one"
    shown = (folder / "edge.cloud-key").read_text()
    for name in ("edge.keys", "edge.call-key", "edge.env"):
        (folder / name).unlink()
    enrolled(authority, "one", "--at", folder)
    assert (folder / "edge.cloud-key").read_text() == shown
    for line in (folder / "edge.env").read_text().splitlines():
        monkeypatch.setenv(*line.split("=", 1))
    settings = load_settings(DrafterSettings, {})
    server, client = server_access(settings), client_access(settings)
    assert server.keys is not None
    assert client.key is not None
    assert server.keys.current().holder(client.key.current()) == "edge"


def test_an_edge_that_was_revoked_stays_out_and_no_other_takes_its_name(authority: Path) -> None:
    enrolled(authority, "one")
    edges = authority.parent / "edges"
    taken = run("enroll", "one", "--authority", authority, "--out", edges / "else")
    assert (taken.exit_code, "'one' has a key" in taken.stderr) == (2, True)
    assert enrolled(authority, "one", "--revoke") == {"revoked": {"one": 1}}
    known = parse_keys((authority / "cloud.keys").read_text())
    assert known.holder((edges / "one" / "edge.cloud-key").read_text().strip()) is None
    again = run("enroll", "one", "--authority", authority, "--out", edges)
    assert (again.exit_code, "it was revoked" in again.stderr) == (2, True)


ENROLLING = """
import sys
from pathlib import Path
from tandem.commands.keys import add_key
from tandem.net.scopes import Scope
for number in range(40):
    add_key(Path(sys.argv[1]), f"{sys.argv[2]}-{number}", {Scope.VERIFY})
"""


def test_edges_that_are_enrolled_at_once_are_all_let_in(tmp_path: Path) -> None:
    """A file that was read before another process had replaced it lost that one's line."""
    keys = tmp_path / "cloud.keys"
    command = [sys.executable, "-c", ENROLLING, str(keys)]
    running = [subprocess.Popen([*command, name]) for name in ("one", "two", "three")]
    assert [each.wait(120) for each in running] == [0, 0, 0]
    assert len(parse_keys(keys.read_text()).keys) == 120


def test_what_cannot_be_enrolled_is_said_and_changes_nothing(authority: Path) -> None:
    keys, edges = (authority / "cloud.keys").read_text(), authority.parent / "edges"
    bad = run("enroll", "a b", "--authority", authority, "--out", edges)
    assert (bad.exit_code, "must be 1 to 64 letters" in bad.stderr) == (2, True)
    assert (authority / "cloud.keys").read_text() == keys
    assert not edges.exists()
    nowhere = run("enroll", "one", "--authority", authority / "none", "--out", edges)
    assert (nowhere.exit_code, "'tandem certs --out" in nowhere.stderr) == (1, True)


def test_a_power_cut_takes_back_no_key_that_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file holds is on disk before it has its name, and the name before anyone hears of
    it."""
    path, steps = tmp_path / "edge.keys", list[str]()
    fsync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        steps.append("folder" if folder else f"{os.fstat(handle).st_size} bytes")
        fsync(handle)

    def replaced(new: Path, target: Path) -> Path:
        steps.append("replaced")
        return replace(new, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    add_key(path, "edge", {Scope.GENERATE})
    assert steps == [f"{path.stat().st_size} bytes", "replaced", "folder"]
