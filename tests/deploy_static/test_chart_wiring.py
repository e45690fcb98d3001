"""The chart against itself and the code: whoever is named is there, and takes what it is given."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tandem.net.channels import is_replicated
from tandem.services.aggregator.config import AggregatorSettings
from tandem.services.drafter.config import DrafterSettings
from tandem.services.retriever.config import RetrieverSettings
from tandem.services.verifier.config import VerifierSettings
from tandem.settings import SECURITY_FIELDS, ServiceSettings, load_settings
from tests.deploy_static.chart import (
    CHART,
    NAMESPACE,
    OLDEST,
    VALUES,
    Manifest,
    component_of,
    container,
    environment,
    of_kind,
    pods,
    ports,
    rendered,
    selects,
    workloads,
)
from tests.deploy_static.series import complaints, exported, recorded
from tests.programs import REPOSITORY, output

CLOUD = {"verifier", "cloud-retriever", "cloud-aggregator"}
EDGE = {"drafter", "edge-retriever", "edge-aggregator"}
MODELS: dict[str, type[ServiceSettings]] = {
    "aggregator": AggregatorSettings,
    "drafter": DrafterSettings,
    "retriever": RetrieverSettings,
    "verifier": VerifierSettings,
}

every_values = pytest.mark.parametrize("values", VALUES)


@every_values
def test_every_service_starts_with_its_environment(
    values: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for component, workload in workloads(values).items():
        given = environment(workload)
        with monkeypatch.context() as patch:
            for name, value in given.items():
                patch.setenv(name, value)
            settings = load_settings(MODELS[component.split("-")[-1]], {})
        assert settings.port == ports(workload)["grpc"]
        assert settings.health_port == ports(workload)["health"]
        assert settings.metrics_port == ports(workload)["metrics"]
        assert settings.host == settings.metrics_host == "0.0.0.0"


@every_values
def test_tls_and_keys_are_mounted_or_insecurity_is_said(values: str) -> None:
    for component, workload in workloads(values).items():
        given = environment(workload)
        mounts = {mount["mountPath"] for mount in container(workload)["volumeMounts"]}
        files = {
            name: given[name]
            for field in SECURITY_FIELDS
            if (name := f"TANDEM_{field.upper()}") in given and field != "insecure"
        }
        insecure = values in ("insecure", "extras")
        assert (given.get("TANDEM_INSECURE") == "true") == insecure
        assert len(files) == (0 if insecure else 5 if component in CLOUD else 6)
        assert {path.rpartition("/")[0] for path in files.values()} <= mounts


def test_each_place_has_secrets_of_its_own_and_certificates_its_services_names() -> None:
    for values in ("gpus", "tls"):
        secrets: dict[str, set[str]] = {"cloud": set(), "edge": set()}
        for component, workload in workloads(values).items():
            volumes = workload["spec"]["template"]["spec"]["volumes"]
            place = "cloud" if component in CLOUD else "edge"
            secrets[place] |= {v["secret"]["secretName"] for v in volumes if "secret" in v}
        assert len(secrets["cloud"]) == len(secrets["edge"]) == 2
        assert not secrets["cloud"] & secrets["edge"]
    for certificate in of_kind(rendered("tls"), "Certificate"):
        place = certificate["metadata"]["name"].rpartition("-")[2]
        served = CLOUD if place == "cloud" else EDGE
        names = {f"{workloads('tls')[c]['metadata']['name']}.{NAMESPACE}.svc" for c in served}
        assert names <= set(certificate["spec"]["dnsNames"])


@every_values
def test_a_pod_is_given_longer_than_its_drain_which_is_longer_than_a_round(values: str) -> None:
    longest_round_s = DrafterSettings.model_fields["dead_after_s"].default
    for workload in workloads(values).values():
        drain_s = float(environment(workload)["TANDEM_DRAIN_S"])
        given_s = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert longest_round_s < drain_s < given_s


@every_values
def test_services_and_budgets_select_the_pods_of_their_component_alone(values: str) -> None:
    labels = {name: label for name, label, _ in pods(values)}
    for manifest in of_kind(rendered(values), "Service", "PodDisruptionBudget"):
        selector = manifest["spec"]["selector"]
        selector = selector.get("matchLabels", selector)
        chosen = [label for label in labels.values() if selects(selector, label)]
        assert [pod["app.kubernetes.io/component"] for pod in chosen] == [component_of(manifest)]


@every_values
def test_every_workload_selects_its_own_pods_and_has_a_service(values: str) -> None:
    services = {m["metadata"]["name"]: m for m in of_kind(rendered(values), "Service")}
    for workload in workloads(values).values():
        template = workload["spec"]["template"]
        assert selects(workload["spec"]["selector"]["matchLabels"], template["metadata"]["labels"])
        service = services[workload["metadata"]["name"]]
        targets = {port["targetPort"]: port["port"] for port in service["spec"]["ports"]}
        assert targets == ports(workload)
        if workload["kind"] == "StatefulSet":
            assert workload["spec"]["serviceName"] == service["metadata"]["name"]


@every_values
def test_addresses_within_the_release_are_services_with_that_port(values: str) -> None:
    services = {
        f"{m['metadata']['name']}.{NAMESPACE}.svc:{port['port']}"
        for m in of_kind(rendered(values), "Service")
        for port in m["spec"]["ports"]
        if port["name"] == "grpc"
    }
    named = [
        value.removeprefix("dns:///")
        for workload in workloads(values).values()
        for value in environment(workload).values()
        if f".{NAMESPACE}.svc:" in value
    ]
    assert set(named) <= services
    assert named


def test_each_side_s_retriever_has_its_decoders_forget_what_it_deletes() -> None:
    """By the name that stands for every replica, all of which are called."""
    both = workloads("gpus")
    device = environment(both["edge-retriever"])["TANDEM_DECODER"]
    assert device == environment(both["edge-aggregator"])["TANDEM_DRAFTER"]
    cloud = environment(both["cloud-retriever"])["TANDEM_DECODER"]
    assert cloud == environment(both["cloud-aggregator"])["TANDEM_DECODER"]
    assert is_replicated(device)
    assert is_replicated(cloud)


def test_an_edge_calls_the_cloud_that_it_is_told_of() -> None:
    drafter, aggregator = (
        environment(workloads("edge")[component]) for component in ("drafter", "edge-aggregator")
    )
    assert drafter["TANDEM_VERIFIER"] == "verifier.example.com:50051"
    assert aggregator["TANDEM_CLOUD"] == "aggregator.example.com:50050"
    assert aggregator["TANDEM_SIDE"] == "device"
    assert environment(workloads("cloud")["cloud-aggregator"])["TANDEM_SIDE"] == "cloud"


@every_values
def test_no_pod_has_more_rights_than_it_needs(values: str) -> None:
    for name, _, spec in pods(values):
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        for each in spec["containers"]:
            security = each["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"]["drop"] == ["ALL"]
            assert each["resources"]["limits"]["memory"], name


@every_values
def test_what_is_written_to_lies_on_a_volume(values: str) -> None:
    for component, workload in workloads(values).items():
        spec = workload["spec"]
        volumes = {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
        volumes |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
        mounts = {m["mountPath"]: m["name"] for m in container(workload)["volumeMounts"]}
        assert set(mounts.values()) <= volumes
        assert "/tmp" in mounts
        written = ("TANDEM_FOLDER", "HF_HOME", "TANDEM_DOCUMENT_KV_FOLDER")
        folders = {environment(workload)[name] for name in written if name in environment(workload)}
        assert folders <= set(mounts)
        assert bool(folders) == (not component.endswith("aggregator"))


@every_values
def test_nothing_may_call_or_be_called_but_what_is_listed(values: str) -> None:
    policies = of_kind(rendered(values), "NetworkPolicy")
    if values == "hpa":  # turned off there
        assert policies == []
        return
    (deny,) = (m for m in policies if "ingress" not in m["spec"] and "egress" not in m["spec"])
    assert deny["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert all(
        selects(deny["spec"]["podSelector"]["matchLabels"], labels) for _, labels, _ in pods(values)
    )
    own = {component_of(m) for m in policies if "app.kubernetes.io/component" in labels_of(m)}
    assert own == set(workloads(values))


def test_only_the_edge_aggregator_reaches_the_devices_documents() -> None:
    for values in ("edge", "insecure", "gpus"):
        (policy,) = (
            m
            for m in of_kind(rendered(values), "NetworkPolicy")
            if labels_of(m).get("app.kubernetes.io/component") == "edge-retriever"
        )
        (rule,) = policy["spec"]["ingress"]
        (peer,) = rule["from"]
        labels = peer["podSelector"]["matchLabels"]
        assert labels["app.kubernetes.io/component"] == "edge-aggregator"
        (way_out,) = policy["spec"]["egress"]  # what is deleted must be forgotten there first
        (peer,) = way_out["to"]
        labels = peer["podSelector"]["matchLabels"]
        assert labels["app.kubernetes.io/component"] == "drafter"


@every_values
def test_a_call_that_leaves_is_let_in_at_the_other_end(values: str) -> None:
    allowed = {"out": set(), "in": set()}  # type: dict[str, set[tuple[str, str, int]]]
    for policy in of_kind(rendered(values), "NetworkPolicy"):
        here = labels_of(policy).get("app.kubernetes.io/component")
        if here is None:
            continue
        listening = ports(workloads(values)[here])
        for rule in policy["spec"]["egress"] or ():
            for there in _peers(rule.get("to", ())):
                allowed["out"] |= {(here, there, port["port"]) for port in rule["ports"]}
        for rule in policy["spec"]["ingress"] or ():
            for there in _peers(rule["from"]):
                allowed["in"] |= {(there, here, listening[p["port"]]) for p in rule["ports"]}
    assert allowed["out"] == allowed["in"]


@pytest.mark.parametrize("values", ["keda", "hpa"])
def test_the_verifier_scales_on_series_that_it_exports(values: str) -> None:
    (scaler,) = of_kind(rendered(values), "ScaledObject", "HorizontalPodAutoscaler")
    verifier = workloads(values)["verifier"]
    assert "replicas" not in verifier["spec"]
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (verifier["kind"], verifier["metadata"]["name"])
    series = exported() | recorded()
    queries = [
        query
        for query in _strings(scaler["spec"])
        if re.search(r"\btandem_\w+", query) and "prometheus" not in query
    ]
    assert len(queries) == (3 if values == "keda" else 2)
    for query in queries:
        assert list(complaints(query, series)) == []


def test_rules_and_dashboards_are_the_ones_of_this_repository() -> None:
    manifests = rendered("keda")
    rules = [m["spec"] for m in of_kind(manifests, "PrometheusRule")]
    folder = REPOSITORY / "deploy" / "prometheus" / "rules"
    assert rules == [yaml.safe_load(file.read_text()) for file in sorted(folder.glob("*.yml"))]
    (boards,) = of_kind(manifests, "ConfigMap")
    files = (REPOSITORY / "deploy" / "dashboards").glob("*.json")
    assert {name: json.loads(text) for name, text in boards["data"].items()} == {
        file.name: json.loads(file.read_text()) for file in files
    }


def test_the_readme_asks_for_certificates_with_the_names_of_the_services() -> None:
    text = (CHART / "README.md").read_text()
    (command,) = re.findall(r"^tandem certs((?:.*\\\n)*.*)$", text, re.MULTILINE)
    asked = set(re.findall(r"--(cloud|edge) (\S+\.svc)", command))
    named = yaml.safe_load_all(
        output(
            *("helm", "template", "tandem", CHART, "--namespace", "tandem"),
            *("--values", VALUES["insecure"], "--kube-version", OLDEST),
        )
    )
    served = {
        ("cloud" if component_of(m) in CLOUD else "edge", f"{m['metadata']['name']}.tandem.svc")
        for m in named
        if m and m["kind"] == "Service"
    }
    assert asked == served


def labels_of(manifest: Manifest) -> dict[str, str]:
    return dict(manifest["metadata"].get("labels", {}))


def _peers(peers: Any) -> set[str]:
    """Components that are named as peers."""
    found = {
        peer.get("podSelector", {}).get("matchLabels", {}).get("app.kubernetes.io/component")
        for peer in peers
    }
    return {name for name in found if name is not None}


def _strings(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            return [text for inner in value.values() for text in _strings(inner)]
        case list():
            return [text for inner in value for text in _strings(inner)]
    return []
