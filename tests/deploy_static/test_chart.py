"""The chart by itself: helm has nothing to complain of, Kubernetes would take what it renders."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema_rs import Draft202012Validator, Registry

from tandem import __version__
from tests.deploy_static.chart import CHART, OLDEST, VALUES, Manifest, rendered
from tests.long_runs import LONG
from tests.programs import run

NEWEST = "the newest that there are schemas of"

# Of operators, whose schemas are not among Kubernetes' own.
UNKNOWN = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"),
    ("monitoring.coreos.com/v1", "PrometheusRule"),
    ("keda.sh/v1alpha1", "ScaledObject"),
    ("cert-manager.io/v1", "Certificate"),
}

every_values = pytest.mark.parametrize("values", VALUES)


def test_the_chart_is_of_this_version_of_the_suite() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


@every_values
def test_helm_lint_is_strictly_content(values: str) -> None:
    done = run("helm", "lint", "--strict", CHART, "--values", VALUES[values])
    assert "1 chart(s) linted, 0 chart(s) failed" in done.stdout, done.stdout


EVERY_KIND = ("nodes", "keda", "hpa", "tls")
"""Between them they render each kind of object that the chart has."""


@pytest.mark.parametrize(
    ("values", "version"),
    [
        *((values, OLDEST) for values in VALUES),
        *(
            pytest.param(values, NEWEST, marks=[] if values in EVERY_KIND else [LONG])
            for values in VALUES
        ),
    ],
)
def test_every_manifest_fits_its_schema(values: str, version: str) -> None:
    version = newest() if version == NEWEST else version
    for manifest in rendered(values, version):
        kind = (manifest["apiVersion"], manifest["kind"])
        if kind not in UNKNOWN:
            assert list(_misfits(manifest, version)) == [], manifest["metadata"]["name"]


def test_a_manifest_that_does_not_fit_is_seen() -> None:
    for path, wrong in ((("spec", "replicsa"), 1), (("spec", "replicas"), "one")):
        manifest: Any = deepcopy(next(m for m in rendered("edge") if m["kind"] == "Deployment"))
        manifest[path[0]][path[1]] = wrong
        assert len(list(_misfits(manifest, OLDEST))) == 1


def test_what_is_allowed_to_be_unknown_is_rendered_somewhere() -> None:
    kinds = {(m["apiVersion"], m["kind"]) for values in VALUES for m in rendered(values)}
    assert kinds >= UNKNOWN


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("verifier.replica=2", "replica is not allowed"),
        ("verifier.settings.port=1", "verifier.settings"),
        ("verifier.autoscaling.kind=magic", "verifier.autoscaling.kind"),
        ("edge.verifier=somewhere", "edge.verifier"),
        ("ports.health=70000", "ports.health"),
        ("logLevel=loud", "logLevel"),
        ("security.insecure=maybe", "security.insecure"),
        ("cloud.enabled=false", "edge.verifier: must name the verifier"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(setting: str, complaint: str) -> None:
    values = ("--values", VALUES["insecure"], "--kube-version", OLDEST)
    done = run("helm", "template", "demo", CHART, *values, "--set", setting)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_an_edge_reaches_every_verifier_that_it_is_told_of() -> None:
    several = "edge.verifier=eu.example.com:50051\\,dns:///us.example.com:443"
    own = ("--set", "cloud.enabled=false", "--set", "edge.cloudNetworks={10.0.0.0/8}")
    values = ("--values", VALUES["insecure"], "--kube-version", OLDEST, *own, "--set", several)
    done = run("helm", "template", "demo", CHART, *values)
    assert done.returncode == 0, done.stderr
    assert 'value: "eu.example.com:50051,dns:///us.example.com:443"' in done.stdout
    policies = done.stdout.split("cidr: ")[1:]
    assert any("{port: 50051}" in each and "{port: 443}" in each for each in policies)


def test_without_certificates_nothing_is_installed_unless_told_insecure() -> None:
    done = run("helm", "template", "demo", CHART, "--kube-version", OLDEST)
    assert done.returncode != 0
    assert "security.cloud.tlsSecret: must be set" in done.stderr


def _misfits(manifest: Manifest, version: str) -> Iterator[str]:
    group, _, api = str(manifest["apiVersion"]).rpartition("/")
    # rbac.authorization.k8s.io/v1 is filed under rbac-v1; a schema that is missing is an error.
    stem = "-".join(filter(None, (manifest["kind"].lower(), group.split(".")[0], api)))
    for error in _validator(stem, version).iter_errors(manifest):
        yield f"{error.instance_path}: {error.message}"


@cache
def _validator(stem: str, version: str) -> Draft202012Validator:
    return Draft202012Validator(_schema(stem, version), registry=_base(version))


@cache
def _base(version: str) -> Registry:
    definitions = _schema("_definitions", version)
    return Registry([(definitions["$id"], definitions)])


def _schema(stem: str, version: str) -> dict[str, Any]:
    text = (_schemas() / f"v{version}-local-strict" / f"{stem}.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def newest() -> str:
    """The newest version of Kubernetes with schemas."""
    folders = [path.name for path in _schemas().glob("v*-local-strict")]
    versions = [name.removeprefix("v").removesuffix("-local-strict") for name in folders]
    return max(versions, key=lambda version: tuple(map(int, version.split("."))))


@cache
def _schemas() -> Path:
    """Where Kubernetes' schemas are. The package that brings them is not imported: that takes
    seconds, for grammars of formats that it makes no use of."""
    package = find_spec("kubernetes_validate")
    assert package is not None
    assert package.submodule_search_locations is not None
    return Path(package.submodule_search_locations[0]) / "kubernetes-json-schema"
