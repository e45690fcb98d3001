"""What a verifier makes for other machines, and when it does."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tandem.commands.invite import with_invitation
from tandem.commands.keys import revoke
from tandem.net.access import server_access
from tandem.net.invitation import parse_invitation, sha256_of
from tandem.net.scopes import Scope
from tandem.services.verifier.config import VerifierSettings
from tandem.settings import SettingsError, load_settings, parse_flags

OPEN = ["--host", "0.0.0.0"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "tandem" / "verifier"


def test_certificates_that_were_demanded_of_callers_stay_demanded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a variable or a file; the service then says which files it needs for that."""
    file = tmp_path / "verifier.toml"
    file.write_text("client_certificates = true\n")
    by_file = [*OPEN, "--config", str(file)]
    assert with_invitation(by_file) == by_file
    monkeypatch.setenv("TANDEM_CLIENT_CERTIFICATES", "true")
    assert with_invitation(OPEN) == OPEN
    assert not folder.exists()
    with pytest.raises(SettingsError, match="TANDEM_TLS_CERTIFICATE: must be set, with TANDEM_TLS"):
        server_access(load_settings(VerifierSettings, parse_flags(VerifierSettings, OPEN)))
    monkeypatch.setenv("TANDEM_CLIENT_CERTIFICATES", "false")
    assert with_invitation(OPEN)[-1] == "--client-certificates=false"


def test_the_line_names_certificate_and_key_of_the_service_and_stays_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = with_invitation(["--host", "192.0.2.7", "--port", "50951"])
    told = capsys.readouterr()
    line = (folder / "join").read_text().strip()
    invitation = parse_invitation(line)
    assert str(invitation.endpoint) == "192.0.2.7:50951"
    assert invitation.sha256 == sha256_of((folder / "verifier.crt").read_text())
    # No terminal: what is printed may be kept in a log.
    assert invitation.key not in told.err
    assert str(folder / "join") in told.err
    for name in ("join", "joined.key", "verifier.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name

    access = server_access(load_settings(VerifierSettings, parse_flags(VerifierSettings, flags)))
    assert access.identity is not None
    assert access.keys is not None
    caller = access.keys.current().caller(invitation.key)
    assert caller is not None
    assert (caller.holder, caller.scopes) == ("joined", frozenset({Scope.VERIFY}))

    with_invitation(["--host", "192.0.2.7", "--port", "50951"])
    assert (folder / "join").read_text().strip() == line


def test_a_line_whose_key_was_revoked_is_not_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_invitation(OPEN)
    revoke(folder / "verifier.keys", "joined")
    capsys.readouterr()
    with_invitation(OPEN)
    told = capsys.readouterr().err
    assert "nobody is invited" in told
    assert "tandem join" not in told
