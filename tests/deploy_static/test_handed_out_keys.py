"""Whom each side lets in, as Compose and the chart hand out keys: its own callers, for no more than
they do. Services of one side never see a key of the other side's own services."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tandem.cli import main
from tandem.net.access_keys import hash_key, parse_keys
from tandem.net.scopes import Scope
from tests.deploy_static.chart import CHART
from tests.deploy_static.test_compose import OURS, SERVICES

IMAGES = Path(__file__).resolve().parents[2] / "deploy" / "images"
CLOUD_S_OWN = {Scope.DECODE, Scope.DOCUMENTS_READ, Scope.DOCUMENTS_WRITE}
LET_IN = {
    "edge": {("edge", frozenset({Scope.GENERATE, *CLOUD_S_OWN}))},
    "cloud": {
        ("edge", frozenset({Scope.GENERATE, Scope.VERIFY})),
        ("cloud", frozenset(CLOUD_S_OWN)),
    },
}


def known_in(path: Path) -> set[tuple[str, frozenset[Scope]]]:
    return {(key.caller.holder, key.caller.scopes) for key in parse_keys(path.read_text()).keys}


@pytest.fixture
def handed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What Compose's one-shot service leaves in the volumes; its commands run in this process."""
    program = runpy.run_path(str(IMAGES / "hand_out.py"))
    places: dict[str, Any] = program["main"].__globals__
    places |= {"OUT": tmp_path, "AUTHORITY": tmp_path / "authority"}

    def run(command: list[str], check: bool) -> Any:
        outcome = CliRunner().invoke(main, command[4:])
        assert outcome.exit_code == 0, outcome.output
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(places["subprocess"], "run", run)
    for side in ("authority", "edge", "cloud", "grafana"):
        (tmp_path / side).mkdir()
    assert program["main"](["--edge=drafter", "--cloud=the-verifier"]) == 0
    assert program["main"](["--edge=drafter", "--cloud=the-verifier"]) == 0
    return tmp_path


def test_compose_gives_each_side_the_keys_of_its_own_callers(handed_out: Path) -> None:
    for side, let_in in LET_IN.items():
        assert known_in(handed_out / side / "keys") == let_in
    assert known_in(handed_out / "edge" / "http-keys") == {("http", frozenset({Scope.GENERATE}))}
    files = {side: {path.name for path in (handed_out / side).iterdir()} for side in LET_IN}
    shared = {"ca.crt", "tls.crt", "tls.key", "keys", "call-key"}
    assert files == {"cloud": shared, "edge": shared | {"cloud-key", "http-key", "http-keys"}}


def test_grafana_s_password_is_drawn_once_and_known_to_nobody(handed_out: Path) -> None:
    """It was admin."""
    password = handed_out / "grafana" / "password"
    assert len(password.read_text()) >= 24
    assert password.read_text() == (handed_out / "authority" / "grafana-password").read_text()
    assert password.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in password.parent.iterdir()] == ["password"]
    grafana = SERVICES["grafana"]
    assert grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/access/password"
    assert "grafana-access:/access:ro" in grafana["volumes"]
    assert "admin" not in grafana["environment"].values()


@pytest.mark.parametrize(
    ("environment", "refused"),
    [
        ({}, False),
        ({"BIND_ADDRESS": "127.0.0.1"}, False),
        ({"BIND_ADDRESS": "[::1]"}, False),
        ({"BIND_ADDRESS": "0.0.0.0"}, True),
        ({"BIND_ADDRESS": ""}, True),
        ({"BIND_ADDRESS": "192.0.2.7", "HTTP_OPEN": ""}, True),
        ({"BIND_ADDRESS": "0.0.0.0", "HTTP_OPEN": "true"}, False),
        ({"BIND_ADDRESS": "0.0.0.0", "TANDEM_HTTP_KEYS_FILE": "/access/http-keys"}, False),
    ],
)
def test_an_address_that_others_reach_needs_keys_or_a_word(
    environment: dict[str, str], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = runpy.run_path(str(IMAGES / "hand_out.py"))
    for name in ("BIND_ADDRESS", "HTTP_OPEN", "TANDEM_HTTP_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert bool(program["open_to_strangers"](environment)) is refused
    if refused:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert program["main"]([]) == 2
    assert set(environment) <= set(SERVICES["access"]["environment"])


def test_a_side_s_own_key_opens_nothing_at_the_other(handed_out: Path) -> None:
    for side, other in (("edge", "cloud"), ("cloud", "edge")):
        own = (handed_out / side / "call-key").read_text().strip()
        assert hash_key(own) in (handed_out / side / "keys").read_text()
        assert hash_key(own) not in (handed_out / other / "keys").read_text()
    to_cloud = (handed_out / "edge" / "cloud-key").read_text().strip()
    assert parse_keys((handed_out / "edge" / "keys").read_text()).caller(to_cloud) is None


@pytest.mark.parametrize("name", OURS)
def test_a_composed_service_sees_its_own_side_s_files_alone(name: str) -> None:
    mounted = [volume for volume in SERVICES[name]["volumes"] if "access" in volume]
    side = "cloud" if name.startswith(("cloud", "verifier")) else "edge"
    assert mounted == [f"{side}-access:/access:ro"]
    shown = SERVICES[name]["environment"].get("TANDEM_CLOUD_KEY_FILE")
    calls_cloud = name in ("drafter", "drafter-llamacpp", "edge-aggregator")
    assert shown == ("/access/cloud-key" if calls_cloud else None)


def test_the_chart_s_secrets_hold_each_place_s_own_keys(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    for command in (("certs", "--out", certs), ("keys", "you", "--file", certs / "http-keys")):
        assert CliRunner().invoke(main, [str(word) for word in command]).exit_code == 0
    for place, let_in in LET_IN.items():
        files = secret_files(place)
        assert known_in(certs / files["keys"]) == let_in
        own = {"keys", "call-key"} | ({"cloud-key", "http-keys"} if place == "edge" else set())
        assert files.keys() == own


def secret_files(place: str) -> dict[str, str]:
    """The keys secret of `place` as the chart's README has it made: names and files in certs/."""
    text = (CHART / "README.md").read_text().partition("secret generic tandem-$place-keys")[2]
    files: dict[str, str] = {}
    for line in text.partition("done")[0].splitlines():
        if "$place = edge" not in line or place == "edge":
            found = re.findall(r"--from-file=(?:([\w-]+)=)?certs/([\w.$-]+)", line)
            files |= {name or path: path.replace("$place", place) for name, path in found}
    return files
