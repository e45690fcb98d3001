"""`tandem certs` and `tandem keys`: what they leave in a folder, again and again."""

from __future__ import annotations

import json
import os
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cryptography import x509

from tandem.cli import main
from tandem.commands.keys import add_key
from tandem.net.access import client_access, server_access
from tandem.net.access_keys import parse_keys
from tandem.net.reloaded import MOST_BYTES
from tandem.net.scopes import Caller, Scope
from tandem.settings import ServiceSettings

SIDES = ("edge", "cloud")
EDGE_AT_CLOUD = Caller("edge", frozenset({Scope.GENERATE, Scope.VERIFY}))
FILES = {
    *("ca.crt", "ca.key", "edge.cloud-key"),
    *(
        f"{side}.{kind}"
        for side in ("edge", "cloud")
        for kind in ("crt", "key", "call-key", "keys")
    ),
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def made(folder: Path, *arguments: str) -> dict[str, Any]:
    outcome = run("certs", "--out", folder, "--json", *arguments)
    assert outcome.exit_code == 0, outcome.output
    answer: dict[str, Any] = json.loads(outcome.stdout)
    return answer


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names_in(path: Path) -> set[str]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def test_the_files_are_all_that_both_sides_need(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    answer = made(folder, "--cloud", "cloud.example.com", "--cloud", "10.0.0.7", "--days", "30")
    assert {Path(path).name for path in answer["files"]} == FILES == set(contents(folder))
    left = datetime.fromisoformat(answer["expires"]) - datetime.now(UTC)
    assert 29 <= left.days <= 30
    assert names_in(folder / "cloud.crt") >= {"cloud.example.com", "10.0.0.7", "127.0.0.1"}
    assert names_in(folder / "edge.crt") == {"localhost", "127.0.0.1", "::1"}
    for side in ("edge", "cloud"):
        settings = ServiceSettings(
            tls_certificate=folder / f"{side}.crt",
            tls_key=folder / f"{side}.key",
            tls_ca=folder / "ca.crt",
            keys_file=folder / f"{side}.keys",
            call_key_file=folder / f"{side}.call-key",
            cloud_key_file=folder / "edge.cloud-key",
        )
        server, client = server_access(settings), client_access(settings)
        assert server.keys is not None
        assert client.key is not None
        known = server.keys.current()
        assert known.holder(client.key.current()) == side
        shown_to_cloud = client.to_cloud().key
        assert shown_to_cloud is not None
        opened = known.caller(shown_to_cloud.current())
        assert opened == (EDGE_AT_CLOUD if side == "cloud" else None)


def test_each_side_lets_in_its_own_callers_with_the_least_scopes(tmp_path: Path) -> None:
    """Before, one file let every key in everywhere, for everything."""
    made(tmp_path)
    known = {side: parse_keys((tmp_path / f"{side}.keys").read_text()) for side in SIDES}
    own = {Scope.DECODE, Scope.DOCUMENTS_READ, Scope.DOCUMENTS_WRITE}
    assert [key.caller for key in known["edge"].keys] == [
        Caller("edge", frozenset({Scope.GENERATE, *own}))
    ]
    cloud = Caller("cloud", frozenset(own))
    assert [key.caller for key in known["cloud"].keys] == [EDGE_AT_CLOUD, cloud]
    shown = {path.name: path.read_text().strip() for path in tmp_path.glob("*-key")}
    opened = {name: [side for side in SIDES if known[side].holder(shown[name])] for name in shown}
    assert opened == {
        "edge.call-key": ["edge"],
        "edge.cloud-key": ["cloud"],
        "cloud.call-key": ["cloud"],
    }


def test_what_is_private_is_readable_to_its_owner_alone(tmp_path: Path) -> None:
    made(tmp_path)
    for path in tmp_path.iterdir():
        private = path.suffix in (".key", ".call-key", ".cloud-key")
        assert stat.S_IMODE(path.stat().st_mode) == (0o600 if private else 0o644), path


def test_called_again_it_renews_certificates_and_nothing_else(tmp_path: Path) -> None:
    made(tmp_path)
    first = contents(tmp_path)
    made(tmp_path)
    second = contents(tmp_path)
    changed = {name for name in FILES if first[name] != second[name]}
    assert changed == {"edge.crt", "edge.key", "cloud.crt", "cloud.key"}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "edge.crt", tmp_path / "edge.key")


def test_a_key_that_was_revoked_stays_so(tmp_path: Path) -> None:
    made(tmp_path)
    assert run("keys", "cloud", "--revoke", "--file", tmp_path / "cloud.keys").exit_code == 0
    made(tmp_path)
    assert "cloud sha256" not in (tmp_path / "cloud.keys").read_text()


@pytest.mark.parametrize(
    ("broken", "content", "words"),
    [
        ("ca.key", None, "ca.key is missing beside"),
        ("ca.crt", b"nonsense", "is not a PEM certificate"),
        ("ca.key", b"nonsense", "authority: is not a PEM certificate with its key"),
    ],
)
def test_a_broken_authority_is_not_replaced(
    tmp_path: Path, broken: str, content: bytes | None, words: str
) -> None:
    made(tmp_path)
    (tmp_path / broken).unlink()
    if content is not None:
        (tmp_path / broken).write_bytes(content)
    before = contents(tmp_path)
    outcome = run("certs", "--out", tmp_path)
    assert outcome.exit_code in (1, 2)
    assert words in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert contents(tmp_path) == before


@pytest.mark.parametrize("host", ["", "a b", "https://a", "ä.example"])
def test_a_host_that_cannot_stand_in_a_certificate_is_named(tmp_path: Path, host: str) -> None:
    outcome = run("certs", "--out", tmp_path / "new", "--edge", host)
    assert outcome.exit_code == 2
    assert "is neither a DNS name nor an IP address" in outcome.stderr


def test_a_key_is_shown_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# who may call\n")
    old = run("keys", "laptop", "--file", path).stdout.strip()
    new = json.loads(run("keys", "laptop", "--file", path, "--json").stdout)["key"]
    other = run("keys", "bench", "--file", path, "--out", tmp_path / "bench.key")
    ring = parse_keys(path.read_text())
    shown = (tmp_path / "bench.key").read_text().strip()
    assert [ring.holder(key) for key in (old, new, shown)] == ["laptop", "laptop", "bench"]
    assert path.read_text().startswith("# who may call\n")
    assert not any(key in path.read_text() + other.output for key in (old, new, shown))
    assert stat.S_IMODE((tmp_path / "bench.key").stat().st_mode) == 0o600
    outcome = run("keys", "laptop", "--revoke", "--file", path)
    assert outcome.stdout == "Revoked 2 keys of laptop.\n"
    ring = parse_keys(path.read_text())
    assert [ring.holder(key) for key in (old, new, shown)] == [None, None, "bench"]


def test_what_cannot_be_done_to_keys_is_said(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("nonsense\n")
    cases = [
        (("laptop", "--file", path), f"--file: {path}: line 1 must be HOLDER sha256:HEX scopes="),
        (("a b", "--file", tmp_path / "new"), "holder: must be 1 to 64"),
        (("a", "--revoke", "--file", tmp_path / "new"), "has no key in"),
        (("a", "--revoke", "--out", path, "--file", path), "--out: cannot be combined"),
        (("a", "--scope", "all", "--file", tmp_path / "new"), "'--scope': 'all' is not one of"),
    ]
    for arguments, words in cases:
        outcome = run("keys", *arguments)
        assert outcome.exit_code == 2, outcome.output
        assert words in outcome.stderr
    assert path.read_text() == "nonsense\n"
    assert not (tmp_path / "new").exists()


def test_certificates_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "certs"
    outcome = run("certs", "--out", out)
    assert outcome.exit_code == 1
    assert outcome.stderr == f"error: {out}: cannot be written: Not a directory\n"


def test_nobody_is_let_in_with_a_key_that_could_not_be_handed_out(tmp_path: Path) -> None:
    path, out = tmp_path / "keys", tmp_path / "nowhere" / "app.key"
    outcome = run("keys", "app", "--file", path, "--out", out)
    assert outcome.exit_code == 1
    assert outcome.stderr == f"error: {out}: cannot be written: No such file or directory\n"
    assert not path.exists()
    before = tmp_path / "app.key"
    before.write_text("earlier\n")
    path.write_text("nonsense\n")
    assert run("keys", "app", "--file", path, "--out", before).exit_code == 2
    assert before.read_text() == "earlier\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["app.key", "keys"]


def test_a_key_gets_the_scopes_that_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    scopes = ("--scope", "documents:write", "--scope", "documents:read")
    key = run("keys", "app", "--file", path, *scopes).stdout.strip()
    plain = run("keys", "other", "--file", path).stdout.strip()
    ring = parse_keys(path.read_text())
    both = frozenset({Scope.DOCUMENTS_READ, Scope.DOCUMENTS_WRITE})
    assert ring.caller(key) == Caller("app", both)
    assert ring.caller(plain) == Caller("other", frozenset({Scope.GENERATE}))


def test_a_new_key_goes_to_the_edge_s_services_unless_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that no service reads would let nobody in."""
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "certs")
    key = run("keys", "laptop").stdout.strip()
    ring = parse_keys((tmp_path / "certs" / "edge.keys").read_text())
    assert ring.caller(key) == Caller("laptop", frozenset({Scope.GENERATE}))


def test_a_file_of_keys_keeps_its_mode_and_stays_a_link(tmp_path: Path) -> None:
    """Written anew with a mode of its own, it would be open to all, or shut to its service."""
    (tmp_path / "kept").mkdir()
    path, link = tmp_path / "kept" / "keys", tmp_path / "keys"
    link.symlink_to(path)
    run("keys", "laptop", "--file", link)
    path.chmod(0o600)
    before = path.stat()
    for arguments in (
        ("other",),
        ("other", "--scope", "verify"),
        ("laptop", "--revoke"),
    ):
        assert run("keys", *arguments, "--file", link).exit_code == 0
        after = path.stat()
        assert stat.S_IMODE(after.st_mode) == 0o600
        assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert link.is_symlink()
    assert [each.caller.holder for each in parse_keys(path.read_text()).keys] == ["other"] * 2
    assert [each.name for each in path.parent.iterdir()] == ["keys"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_of_keys_stays_its_service_s_when_root_changes_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    run("keys", "laptop", "--file", path)
    os.chown(path, 1234, 4321)
    path.chmod(0o640)
    assert run("keys", "laptop", "--revoke", "--file", path).exit_code == 0
    after = path.stat()
    assert (after.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == (1234, 4321, 0o640)


def test_a_file_of_keys_that_services_could_not_use_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    run("keys", "laptop", "--file", path)
    whole = path.read_text()
    for malformed in ("bench sha256:12 scopes=verify", f"bench sha256:{'0' * 64} scopes=al"):
        path.write_text(f"{whole}{malformed}\n")
        for arguments in (("laptop", "--revoke"), ("app",)):
            outcome = run("keys", *arguments, "--file", path)
            assert outcome.exit_code == 2
            assert "line 2" in outcome.stderr
            assert "nothing was changed" in outcome.stderr
        assert path.read_text() == f"{whole}{malformed}\n"
    full = f"# {'x' * (MOST_BYTES - len(whole) - 10)}\n{whole}"
    path.write_text(full)
    outcome = run("keys", "app", "--file", path)
    assert outcome.exit_code == 2
    assert f"the maximum is {MOST_BYTES}; nothing was changed" in outcome.stderr
    assert path.read_text() == full


def test_a_file_of_keys_is_on_disk_before_it_takes_the_old_one_s_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File, then name, then folder: after a power cut there is the old one or the new one."""
    path, happened = tmp_path / "keys", []
    fsync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        happened.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def replaced(self: Path, target: Path) -> Path:
        happened.append(f"{self.parent == target.parent and target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    add_key(path, "laptop", {Scope.VERIFY})
    assert happened == ["file", "keys", "folder"]
