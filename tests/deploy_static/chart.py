"""The Helm chart as real `helm` renders it, one rendering for each way to use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.programs import REPOSITORY, output

CHART = REPOSITORY / "deploy" / "k8s" / "tandem"
RELEASE = "demo"
NAMESPACE = "tandem-test"
OLDEST = "1.31.0"

VALUES: dict[str, Path] = {
    path.stem.removeprefix("values-"): path
    for path in sorted((*CHART.glob("values-*.yaml"), *CHART.glob("ci/*.yaml")))
}
"""cloud, edge, and those in ci/: both places on one cluster, GPUs, TLS, autoscaling, an edge
on each node."""

Manifest = Mapping[str, Any]
RUNNING = ("StatefulSet", "Deployment", "DaemonSet")


@cache
def rendered(values: str, kubernetes: str = OLDEST) -> tuple[Manifest, ...]:
    """Every manifest, that of `helm test` included."""
    text = output(
        "helm", "template", RELEASE, CHART, "--values", VALUES[values], "--namespace", NAMESPACE,
        "--kube-version", kubernetes,
    )  # fmt: skip
    # The C loader where there is one: dashboards are long.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(manifest for manifest in yaml.load_all(text, Loader=loader) if manifest)


def of_kind(manifests: tuple[Manifest, ...], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def workloads(values: str) -> dict[str, Manifest]:
    """StatefulSets, Deployments and DaemonSets by component."""
    return {component_of(manifest): manifest for manifest in of_kind(rendered(values), *RUNNING)}


def component_of(manifest: Manifest) -> str:
    return str(manifest["metadata"]["labels"]["app.kubernetes.io/component"])


def pods(values: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """(name, labels, pod spec) of every pod that a release makes."""
    for manifest in rendered(values):
        if manifest["kind"] in (*RUNNING, "Job"):
            template = manifest["spec"]["template"]
            yield manifest["metadata"]["name"], template["metadata"]["labels"], template["spec"]
        elif manifest["kind"] == "Pod":
            metadata = manifest["metadata"]
            yield metadata["name"], metadata["labels"], manifest["spec"]


def container(workload: Manifest) -> Mapping[str, Any]:
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def environment(workload: Manifest) -> dict[str, str]:
    """What is not a secret of it."""
    entries = container(workload)["env"]
    names = [entry["name"] for entry in entries]
    assert len(set(names)) == len(names), "a variable is set twice"
    return {entry["name"]: entry["value"] for entry in entries if "value" in entry}


def ports(workload: Manifest) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(workload)["ports"]}


def selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return selector.items() <= labels.items()
