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
def test_a_large_model_may_load_for_a_quarter_of_an_hour(name: str) -> None:
    assert int(SERVICES[name]["healthcheck"]["start_period"].removesuffix("s")) >= 900


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


def test_one_service_builds_an_image_and_the_others_take_it() -> None:
    """With two builders of an image each `up --build` after an `up` recreated every container."""
    builders: dict[str, list[str]] = {}
    for name, service in SERVICES.items():
        if service["image"].startswith("tandem/"):
            found = builders.setdefault(service["image"], [])
            if "build" in service:
                found.append(name)
                program = service["image"].removeprefix("tandem/").split(":")[0]
                assert service["build"]["dockerfile"] == f"services/{program}/Dockerfile"
                assert service.get("pull_policy") in (None, "missing")
            else:
                assert service["pull_policy"] == "never", name
    assert all(len(names) == 1 for names in builders.values()), builders


def test_both_sides_are_sealed_but_for_what_publishes_a_port() -> None:
    networks = SUITE["networks"]
    assert networks["edge"]["internal"] is networks["cloud"]["internal"] is True
    outside = {name for name, one in SERVICES.items() if "outside" in one.get("networks", [])}
    assert outside == {name for name, one in SERVICES.items() if "ports" in one}


def test_prometheus_scrapes_every_service_once() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    targets = {
        static["labels"]["service"]: target
        for job in config["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
        if "labels" in static
    }
    others = {"verifier-gpu", "drafter-llamacpp"}
    assert set(targets) == set(OURS) - others  # called as what they replace
    for name, target in targets.items():
        host, port = target.split(":")
        assert networks_of(host) & set(SERVICES[name]["networks"])
        assert port == SERVICES[name]["environment"]["TANDEM_METRICS_PORT"]


def test_profiles_give_one_verifier_and_prometheus_unless_told_otherwise() -> None:
    def started(*profiles: str) -> set[str]:
        return {
            name
            for name, service in SERVICES.items()
            if not service.get("profiles") or set(service["profiles"]) & set(profiles)
        }

    (default,) = re.findall(r"^COMPOSE_PROFILES=(.*)$", env_file(), re.MULTILINE)
    seen = {"prometheus", "grafana"}
    optional = {"verifier", "verifier-gpu", "drafter", "drafter-llamacpp", *seen}
    assert started(*default.split(",")) & optional == {"verifier", "drafter", *seen}
    assert started("gpu") & optional == {"verifier-gpu", "drafter", *seen}
    assert started("no-observability") & optional == {"verifier", "drafter"}
    assert started("gpu-no-observability") & optional == {"verifier-gpu", "drafter"}
    assert started("edge-llamacpp") & optional == {"verifier", "drafter-llamacpp"}
    assert started("edge-llamacpp", "observability") & optional == {
        *("verifier", "drafter-llamacpp"),
        *seen,
    }


def env_file() -> str:
    return (ROOT / "deploy" / ".env").read_text()


def test_the_env_file_sets_what_compose_reads() -> None:
    """And says the defaults that hold without it."""
    defaults = dict(_VARIABLE.findall(COMPOSE.read_text()))
    for name, value in re.findall(r"^#? ?([A-Z_]+)=(.*)$", env_file(), re.MULTILINE):
        passed_on = name.startswith("TANDEM_")
        assert name == "COMPOSE_PROFILES" or passed_on or defaults[name] == value, name


@pytest.mark.parametrize("program", MODELS)
def test_every_image_can_export_traces(program: str) -> None:
    installed = re.findall(r'install\.py", "dependencies", (.*)\]', dockerfile(program))
    assert installed
    assert all('"tracing"' in extras for extras in installed)


@pytest.mark.parametrize("program", MODELS)
def test_dockerfiles_share_their_stages_to_the_letter(program: str) -> None:
    """So a builder that works on all of them does each stage once."""
    text = dockerfile(program)
    for shared in (
        'FROM ${BUILD_IMAGE} AS project\nCOPY . /build\nRUN ["python",'
        ' "/build/deploy/images/install.py", "project"]\n',
        "COPY pyproject.toml constraints.txt requirements.lock deploy/images/install.py"
        " /build/\n"
        'RUN ["python", "/build/install.py", "dependencies"',
        "COPY --from=dependencies /opt/tandem /opt/tandem\n"
        "COPY --from=project /opt/tandem /opt/tandem\n",
        "USER 10001:10001\n",
    ):
        assert shared in text


def test_retrievers_search_by_embeddings_without_torch_as_nobody_sets_anything() -> None:
    """Both take the one image, and whatever embedding model is in it."""
    embedding = SERVICES["cloud-retriever"]["build"]["args"]["EMBEDDING"]
    for side in ("cloud-retriever", "edge-retriever"):
        assert SERVICES[side]["image"] == f"tandem/retriever:local-{embedding}"
        assert SERVICES[side]["environment"]["TANDEM_EMBEDDING"] == "auto"
    pattern = rf"AS dependencies-{embedding}\nCOPY .*\nRUN \[(.*)\]"
    (installed,) = re.findall(pattern, dockerfile("retriever"))
    assert {'"dense"', '"minilm"'} <= set(installed.split(", "))
    assert not {'"engine"', '"rag"'} & set(installed.split(", "))
