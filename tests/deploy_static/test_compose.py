"""docker-compose.yml against the code, without Docker: settings, networks, ports, targets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tandem.commands.link import link
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.drafter.config import DrafterSettings
from tandem.services.retriever.config import RetrieverSettings
from tandem.services.verifier.config import VerifierSettings
from tandem.settings import ServiceSettings, SettingsError, load_settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy" / "docker-compose.yml"
MODELS: dict[str, type[ServiceSettings]] = {
    "aggregator": AggregatorSettings,
    "drafter": DrafterSettings,
    "retriever": RetrieverSettings,
    "verifier": VerifierSettings,
}
_VARIABLE = re.compile(r"\$\{(\w+)-([^}]*)\}")


def composed() -> dict[str, Any]:
    """With every variable's default."""
    text = _VARIABLE.sub(lambda found: found.group(2), COMPOSE.read_text())
    assert "$" not in text, "a variable without a default, or of another form than ${NAME-default}"
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


SUITE = composed()
SERVICES: dict[str, dict[str, Any]] = SUITE["services"]
OURS = {
    name: service["image"].removeprefix("tandem/").split(":")[0]
    for name, service in SERVICES.items()
    if service["image"].startswith("tandem/") and "entrypoint" not in service
}
"""Services that run a program of services/, and which."""


def image_environment(program: str) -> dict[str, str]:
    """What ENV of the Dockerfile sets for the process."""
    (block,) = re.findall(r"^ENV (.*?[^\\])$", dockerfile(program), re.MULTILINE | re.DOTALL)
    return dict(pair.split("=", 1) for pair in block.replace("\\\n", " ").split())


def dockerfile(program: str) -> str:
    return (ROOT / f"services/{program}/Dockerfile").read_text()


def environment(name: str) -> dict[str, str]:
    own = SERVICES[name]["environment"]
    given = {variable: str(value) for variable, value in own.items() if value is not None}
    return image_environment(OURS[name]) | given


def settings(name: str, monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """As the process would read them."""
    for variable, value in environment(name).items():
        if variable.startswith("TANDEM_"):
            monkeypatch.setenv(variable, value)
    return load_settings(MODELS[OURS[name]], {})


@pytest.mark.parametrize("name", OURS)
def test_a_service_knows_its_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = settings(name, monkeypatch)
    assert read.host == "0.0.0.0"
    assert None not in (read.tls_certificate, read.tls_key, read.tls_ca)
    assert None not in (read.keys_file, read.call_key_file)
    assert read.insecure == (name == "edge-aggregator")  # for its HTTP callers on loopback
    assert read.health_port == 50060
    assert read.metrics_port == 9100
    grace = SERVICES[name]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > read.drain_s + 5


@pytest.mark.parametrize("name", OURS)
def test_a_misspelt_setting_stops_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SERVICES[name], "environment", {"TANDEM_DRIAN_S": "1"})
    with pytest.raises(SettingsError, match="TANDEM_DRIAN_S"):
        settings(name, monkeypatch)


CALLED = {
    "TANDEM_VERIFIER": "verifier",
    "TANDEM_DRAFTER": "drafter",
    "TANDEM_RETRIEVER": "retriever",
    "TANDEM_CLOUD": "aggregator",
    "TANDEM_DECODER": "verifier",
}


@pytest.mark.parametrize("name", OURS)
def test_addresses_lead_to_services(name: str) -> None:
    """Each on a network that the caller is on too, at the port that the service listens on."""
    for variable, program in CALLED.items():
        if variable in SERVICES[name]["environment"]:
            host, port = SERVICES[name]["environment"][variable].split(":")
            shared = set(SERVICES[name]["networks"]) & networks_of(host)
            assert shared, f"{name} cannot reach {host}"
            assert image_environment(OURS.get(host, program))["TANDEM_PORT"] == port


def test_a_side_s_retriever_is_told_of_the_decoder_that_decodes_its_documents() -> None:
    decoders = {name: SERVICES[name]["environment"].get("TANDEM_DECODER") for name in OURS}
    assert (
        decoders["edge-retriever"] == SERVICES["edge-aggregator"]["environment"]["TANDEM_DRAFTER"]
    )
    assert decoders["cloud-retriever"] == decoders["cloud-aggregator"]


def networks_of(host: str) -> set[str]:
    """Those on which `host` is a service's name or alias."""
    found = set()
    for name, service in SERVICES.items():
        attached = service.get("networks", [])
        for network in attached:
            options = attached[network] if isinstance(attached, dict) else {}
            if host in (name, *options.get("aliases", [])):
                found.add(network)
    return found


def test_nothing_but_the_link_joins_edge_and_cloud() -> None:
    on_both = {
        name
        for name, service in SERVICES.items()
        if {"edge", "cloud"} <= set(service.get("networks", []))
    }
    assert on_both == {"link", "prometheus"}  # Prometheus calls both and forwards nothing


def test_the_link_is_started_with_flags_that_it_has() -> None:
    flags = SERVICES["link"]["command"]
    assert isinstance(link, click.Command)
    parsed = link.make_context("link", list(flags)).params
    assert parsed["listen"] == ("0.0.0.0", 50051)
    assert f"{parsed['control']})" in str(SERVICES["link"]["healthcheck"]["test"])
    for (_, heard), (host, port), program in (
        (parsed["listen"], parsed["target"], "verifier"),
        (*parsed["also"][0], "aggregator"),
    ):
        assert "cloud" in networks_of(host)
        assert str(port) == str(heard) == image_environment(program)["TANDEM_PORT"]


def test_only_three_ports_are_published_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"edge-aggregator", "prometheus", "grafana"}
    assert all(
        port.startswith("127.0.0.1:") and port.count(":") == 2
        for ports in published.values()
        for port in ports
    )


def test_every_container_is_confined_and_limited() -> None:
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert name == "grafana" or service["read_only"], name
        assert name == "access" or service["deploy"]["resources"]["limits"].keys() == {
            "cpus",
            "memory",
            "pids",
        }, name


def test_both_sides_are_sealed_but_for_what_publishes_a_port() -> None:
    networks = SUITE["networks"]
    assert networks["edge"]["internal"] is networks["cloud"]["internal"] is True
    outside = {name for name, one in SERVICES.items() if "outside" in one.get("networks", [])}
    assert outside == {name for name, one in SERVICES.items() if "ports" in one}


def env_file() -> str:
    return (ROOT / "deploy" / ".env").read_text()


def test_the_env_file_sets_what_compose_reads() -> None:
    """And says the defaults that hold without it."""
    defaults = dict(_VARIABLE.findall(COMPOSE.read_text()))
    for name, value in re.findall(r"^#? ?([A-Z_]+)=(.*)$", env_file(), re.MULTILINE):
        passed_on = name.startswith("TANDEM_")
        assert name == "COMPOSE_PROFILES" or passed_on or defaults[name] == value, name
