"""Who reaches what the chart installs: addresses outside the cluster, names, HTTP, claims."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import yaml

from tests.deploy_static.chart import (
    CHART,
    NAMESPACE,
    OLDEST,
    VALUES,
    Manifest,
    component_of,
    environment,
    of_kind,
    ports,
    rendered,
    workloads,
)
from tests.programs import output, run
from tools.chart_schema import SCHEMA, to_json, with_settings

EVERYBODY = [{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"ipBlock": {"cidr": "::/0"}}]


def set_values(values: str, *settings: str) -> list[Manifest]:
    """The manifests of one file of values with some of them changed."""
    flags = [word for setting in settings for word in ("--set", setting)]
    given = ("--values", VALUES[values], "--kube-version", OLDEST)
    text = output("helm", "template", "demo", CHART, *given, *flags)
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def callers(manifests: Iterable[Manifest], component: str, port: str) -> list[Any]:
    """The peers that may call this port of a component, other components aside."""
    (policy,) = (
        m
        for m in manifests
        if m["kind"] == "NetworkPolicy"
        and m["metadata"]["labels"].get("app.kubernetes.io/component") == component
    )
    return [
        peer
        for rule in policy["spec"]["ingress"] or ()
        if {"port": port} in rule["ports"]
        for peer in rule["from"]
        if "app.kubernetes.io/component" not in str(peer)
    ]


def test_settings_are_checked_by_name_and_the_names_are_todays() -> None:
    schema = json.loads(SCHEMA.read_text())
    assert SCHEMA.read_text() == to_json(with_settings(schema)), "run python -m tools.chart_schema"
    given = ("--values", VALUES["insecure"], "--kube-version", OLDEST)
    for setting in ("verifier.settings.max_sesions=2", "edgeRetriever.settings.max_running=2"):
        done = run("helm", "template", "demo", CHART, *given, "--set", setting)
        assert done.returncode != 0
        assert setting.split(".")[2].split("=")[0] in done.stderr


def test_the_documented_edge_serves_http_with_keys_or_not_at_all() -> None:
    given = environment(workloads("edge")["edge-aggregator"])
    assert given["TANDEM_HTTP_KEYS_FILE"] == "/etc/tandem/keys/http-keys"
    without = next(
        m
        for m in set_values("edge", "security.edge.httpKeys=false")
        if m["kind"] == "Deployment" and component_of(m) == "edge-aggregator"
    )
    assert environment(without)["TANDEM_HTTP"] == "false"
    assert "http" not in ports(without)
    flags = (
        "--set",
        "security.edge.httpKeys=false",
        "--set",
        "edgeAggregator.ingress.enabled=true",
    )
    given_flags = ("--values", VALUES["edge"], "--kube-version", OLDEST, *flags)
    done = run("helm", "template", "demo", CHART, *given_flags)
    assert done.returncode != 0
    assert "needs security.edge.httpKeys" in done.stderr


def test_addresses_outside_of_the_cluster_are_let_in_by_the_network_policies() -> None:
    opened = set_values("cloud", "cloud.allowFrom=null")
    for component in ("verifier", "cloud-aggregator"):
        assert callers(opened, component, "grpc") == EVERYBODY
    closed = set_values(
        *("cloud", "cloud.allowFrom=null", "verifier.external.enabled=false"),
        "cloudAggregator.external.enabled=false",
    )
    assert callers(closed, "verifier", "grpc") == []
    assert {"namespaceSelector": {}} in callers(rendered("tls"), "edge-aggregator", "http")
    external = set_values("edge", "edgeAggregator.external.enabled=true")
    assert callers(external, "edge-aggregator", "http")[-2:] == EVERYBODY
    assert EVERYBODY[0] not in callers(external, "edge-aggregator", "grpc")


def test_keda_asks_for_this_release_alone() -> None:
    (scaler,) = of_kind(rendered("keda"), "ScaledObject")
    for trigger in scaler["spec"]["triggers"]:
        assert 'pod=~"demo-tandem-verifier-[0-9]+"' in trigger["metadata"]["query"]


def test_the_autoscaler_of_kubernetes_too() -> None:
    (scaler,) = of_kind(rendered("hpa"), "HorizontalPodAutoscaler")
    for metric in scaler["spec"]["metrics"]:
        labels = metric["external"]["metric"]["selector"]["matchLabels"]
        assert labels == {"side": "cloud", "namespace": NAMESPACE, "release": "demo"}
