"""The chart for many edges: an edge on each node, several regions, models that come once, replicas
that come before they are missed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tandem.services.drafter.cloud.listed import clouds_of
from tests.deploy_static.chart import (
    CHART,
    NAMESPACE,
    OLDEST,
    RUNNING,
    VALUES,
    Manifest,
    component_of,
    container,
    environment,
    of_kind,
    ports,
    rendered,
    workloads,
)
from tests.deploy_static.test_chart_reach import set_values
from tests.programs import output

REGIONS = {path.stem: path for path in sorted(CHART.glob("regions/*.yaml"))}


def in_region(region: str, place: str) -> list[Manifest]:
    """A region's cloud, or all its edges."""
    given = ("--values", VALUES[place], "--values", REGIONS[region], "--kube-version", OLDEST)
    text = output("helm", "template", "tandem", CHART, "--namespace", "tandem", *given)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [manifest for manifest in yaml.load_all(text, Loader=loader) if manifest]


@pytest.fixture(scope="module")
def regions() -> dict[str, dict[str, list[Manifest]]]:
    return {
        region: {place: in_region(region, place) for place in ("cloud", "edge")}
        for region in REGIONS
    }


def running(manifests: list[Manifest]) -> dict[str, Manifest]:
    return {component_of(m): m for m in manifests if m["kind"] in RUNNING}


def test_an_edge_knows_the_clouds_of_all_regions_and_begins_with_its_own(
    regions: dict[str, dict[str, list[Manifest]]],
) -> None:
    """By the names that the regions' own load balancers are given."""
    given: dict[str, dict[str, str]] = {}
    for region, of in regions.items():
        given[region] = {
            component_of(m): m["metadata"]["annotations"][
                "external-dns.alpha.kubernetes.io/hostname"
            ]
            for m in of_kind(tuple(of["cloud"]), "Service")
            if m["metadata"]["name"].endswith("-external")
        }
    for region, of in regions.items():
        edges = running(of["edge"])
        known = clouds_of(environment(edges["drafter"])["TANDEM_VERIFIER"])
        assert set(known) == {f"{names['verifier']}:50051" for names in given.values()}
        assert known[0] == f"{given[region]['verifier']}:50051"
        cloud = environment(edges["edge-aggregator"])["TANDEM_CLOUD"]
        assert cloud == f"{given[region]['cloud-aggregator']}:50050"


def test_calls_stay_on_their_node_and_deletions_reach_every_node() -> None:
    of = workloads("nodes")
    services = {m["metadata"]["name"]: m["spec"] for m in of_kind(rendered("nodes"), "Service")}
    called = environment(of["edge-aggregator"])["TANDEM_DRAFTER"]
    assert called == f"demo-tandem-drafter-local.{NAMESPACE}.svc:50052"
    for name in ("demo-tandem-drafter-local", "demo-tandem-edge-aggregator"):
        assert services[name]["internalTrafficPolicy"] == "Local"
    forgets = environment(of["edge-retriever"])["TANDEM_DECODER"]
    assert forgets == f"dns:///demo-tandem-drafter.{NAMESPACE}.svc:50052"
    assert services["demo-tandem-drafter"]["clusterIP"] == "None"
    (certificate,) = of_kind(rendered("nodes"), "Certificate")
    assert called.partition(":")[0] in certificate["spec"]["dnsNames"]


def test_models_come_once_and_pods_ask_no_hub() -> None:
    (job,) = of_kind(rendered("nodes"), "Job")
    pod = job["spec"]["template"]["spec"]
    (loader,) = pod["containers"]
    assert loader["command"][3:] == ["example/small@0123456789abcdef0123456789abcdef01234567"]
    compile(loader["command"][2], "preload", "exec")
    assert {entry["name"] for entry in loader["env"]} == {"HF_HOME", "HF_TOKEN"}
    drafter = workloads("nodes")["drafter"]
    assert environment(drafter)["HF_HUB_OFFLINE"] == "1"
    (claim,) = of_kind(rendered("nodes"), "PersistentVolumeClaim")
    for spec in (pod, drafter["spec"]["template"]["spec"]):
        (hub,) = (volume for volume in spec["volumes"] if volume["name"] == "hub")
        assert hub["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    weights = [int(claim["metadata"]["annotations"]["helm.sh/hook-weight"]), 0]
    assert weights == sorted(weights), "the claim is there before the Job"
    (way_out,) = (
        m["spec"]["egress"]
        for m in of_kind(rendered("nodes"), "NetworkPolicy")
        if m["metadata"]["name"].endswith("-preload")
    )
    assert way_out == [{"ports": [{"port": 443}]}]
    kept = {v["name"]: v for v in drafter["spec"]["template"]["spec"]["volumes"]}
    assert kept["kv"]["hostPath"]["path"] == "/var/lib/tandem/kv"


def test_without_a_prometheus_nobody_is_asked_and_nothing_more_let_out() -> None:
    for more in ("monitoring.prometheus=", "networkPolicy.metricsFrom=null"):
        manifests = set_values("edge", more)
        for manifest in of_kind(tuple(manifests), "NetworkPolicy"):
            for rule in manifest["spec"].get("egress") or ():
                assert {"port": 9090} not in rule["ports"], more
    (drafter,) = (m for m in set_values("edge", "monitoring.prometheus=") if is_drafter(m))
    assert "TANDEM_PROMETHEUS" not in environment(drafter)


def is_drafter(manifest: Manifest) -> bool:
    return manifest["kind"] in RUNNING and component_of(manifest) == "drafter"


def test_a_drafter_begins_with_its_own_link_not_with_the_mean_of_all_edges() -> None:
    """Prometheus knows a pod as ADDRESS:PORT of its metrics. A variable's name is put in only after
    it is there."""
    drafter = workloads("nodes")["drafter"]
    names = [entry["name"] for entry in container(drafter)["env"]]
    assert names.index("POD_IP") < names.index("TANDEM_PROMETHEUS_INSTANCE")
    (address,) = (e for e in container(drafter)["env"] if e["name"] == "POD_IP")
    assert address["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    port = ports(drafter)["metrics"]
    assert environment(drafter)["TANDEM_PROMETHEUS_INSTANCE"] == f"$(POD_IP):{port}"
    assert "TANDEM_PROMETHEUS_INSTANCE" not in environment(workloads("nodes")["edge-aggregator"])


def test_prometheus_predicts_what_the_scaler_asks_for(tmp_path: Path) -> None:
    """A wait that grows by 10 ms a minute from 100 ms is 160 ms after four minutes more."""
    (scaler,) = of_kind(rendered("keda"), "ScaledObject")
    query = scaler["spec"]["triggers"][2]["metadata"]["query"]
    pod = f'side="cloud",namespace="{NAMESPACE}",pod="demo-tandem-verifier-0"'
    series = f"instance:tandem_pass_wait_seconds:mean_rate1m{{{pod}}}"
    case: Any = {
        "rule_files": [],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": series, "values": "0.1+0.01x10"}],
                "promql_expr_test": [
                    {
                        "expr": f"round({query}, 0.001)",
                        "eval_time": "6m",
                        "exp_samples": [{"labels": "{}", "value": 0.18}],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "predicted.yml"
    file.write_text(yaml.safe_dump(case))
    assert "SUCCESS" in output("promtool", "test", "rules", file)
