"""What surrounds the chart: the table of its values, examples, scripts for real clusters."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy_static.chart import CHART, OLDEST, VALUES, component_of
from tests.programs import REPOSITORY, output
from tools.chart_values import chart_values

K8S = REPOSITORY / "deploy" / "k8s"
EXAMPLES = K8S / "examples"
COMPONENTS = {"verifier", "cloudRetriever", "cloudAggregator", "drafter", "edgeRetriever"}


@pytest.fixture(scope="module")
def released() -> list[dict[str, Any]]:
    """A release called tandem in the namespace tandem, as the examples have it."""
    given = ("--values", VALUES["insecure"], "--kube-version", OLDEST)
    text = output("helm", "template", "tandem", CHART, "--namespace", "tandem", *given)
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


def test_every_value_is_explained() -> None:
    values = chart_values()
    assert len(values) > 150
    assert [value.name for value in values if not value.comment] == []
    assert len({value.name for value in values}) == len(values)
    found = {value.name: value for value in values}
    assert found["drafter.persistence.sizes.hub"].default == "10Gi"
    assert found["edgeRetriever.extraEnv"].comment == found["verifier.extraEnv"].comment


def test_every_value_of_the_file_is_in_the_table() -> None:
    written = yaml.safe_load((CHART / "values.yaml").read_text())
    named = {value.name.partition(".")[0] for value in chart_values()}
    assert named == set(written)
    assert named > COMPONENTS


def test_routes_of_the_gateway_lead_to_services_with_that_port(
    released: list[dict[str, Any]],
) -> None:
    services = {
        (m["metadata"]["name"], port["port"])
        for m in released
        if m["kind"] == "Service"
        for port in m["spec"]["ports"]
    } | {("tandem-edge-aggregator", 8000)}
    gateway, *routes = yaml.safe_load_all((EXAMPLES / "gateway.yaml").read_text())
    listeners = {each["name"]: each for each in gateway["spec"]["listeners"]}
    for route in routes:
        (parent,) = route["spec"]["parentRefs"]
        assert parent["name"] == gateway["metadata"]["name"]
        listener = listeners[parent["sectionName"]]
        assert {"kind": route["kind"]} in listener["allowedRoutes"]["kinds"]
        (host,) = route["spec"]["hostnames"]
        assert host.endswith(listener["hostname"].removeprefix("*"))
        for rule in route["spec"]["rules"]:
            for to in rule["backendRefs"]:
                assert (to["name"], to["port"]) in services
    # Callers show a certificate, which whoever ended their TLS would keep from the service.
    assert listeners["cloud"]["tls"]["mode"] == "Passthrough"


def test_a_backup_is_of_a_claim_that_there_is(released: list[dict[str, Any]]) -> None:
    snapshot, restored = yaml.safe_load_all((EXAMPLES / "backup.yaml").read_text())
    claims = {
        f"{claim['metadata']['name']}-{m['metadata']['name']}-0": claim["spec"]
        for m in released
        if m["kind"] == "StatefulSet" and component_of(m).endswith("retriever")
        for claim in m["spec"]["volumeClaimTemplates"]
    }
    name = snapshot["spec"]["source"]["persistentVolumeClaimName"]
    assert restored["metadata"]["name"] == name
    assert restored["spec"]["accessModes"] == claims[name]["accessModes"]
    assert restored["spec"]["resources"] == claims[name]["resources"]
    assert restored["spec"]["dataSource"]["name"] == snapshot["metadata"]["name"]
    docs = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    assert re.findall(r"kubectl patch pvc (\S+)", docs) == [name]
    (deleted,) = re.findall(r"kubectl delete statefulset (\S+)", docs)
    assert deleted in {m["metadata"]["name"] for m in released if m["kind"] == "StatefulSet"}


def run(script: str, folder: Path, *arguments: str, fails: str = "") -> tuple[int, list[str], str]:
    """Exit code, calls in their order, output; with programs that note how they are called. One
    whose call contains `fails` fails."""
    noted = folder / "calls"
    programs = ("kind", "kubectl", "helm", "docker", "k3s", "curl", "tandem")
    for program in programs:
        path = folder / program
        path.write_text(
            "#!/bin/bash\n"
            f'line="{program} $*"; echo "$line" >>{noted}\n'
            f'[ -n "{fails}" ] && [[ "$line" == *"{fails}"* ]] && exit 1\n'
            f'[ {program} = curl ] && echo \'{{"choices": [{{"finish_reason": "stop"}}]}}\'\n'
            f"[ {program} = k3s ] && cat >/dev/null\n"
            f'[ "{program} $1" = "helm package" ] && touch "$4/tandem-0.1.0.tgz"\n'
            "exit 0\n"
        )
        path.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    environment |= {"TANDEM": "tandem", "TMPDIR": str(folder)}
    done = subprocess.run(
        [str(K8S / script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, noted.read_text().splitlines(), done.stdout + done.stderr


def positions(calls: list[str], *beginnings: str) -> list[int]:
    return [next(n for n, call in enumerate(calls) if call.startswith(b)) for b in beginnings]


def test_the_chart_is_tried_in_a_cluster_that_goes_again(tmp_path: Path) -> None:
    code, calls, wrote = run("try.sh", tmp_path)
    assert code == 0, wrote
    order = positions(
        *(
            calls,
            "kind create",
            "docker build",
            "kind load",
            "tandem certs",
            "kubectl create secret",
        ),
        *("helm install", "helm test", "curl", "helm upgrade", "helm rollback", "kind delete"),
    )
    assert order == sorted(order)
    images = {word for call in calls if call.startswith("kind load") for word in call.split()}
    assert {"tandem/verifier:0.1.0", "tandem/aggregator:0.1.0"} <= images
    assert not list(tmp_path.glob("tmp*")), "keys are left behind"


def test_certificates_and_secrets_of_the_trial_are_those_that_the_chart_asks_for(
    tmp_path: Path,
) -> None:
    _, calls, _ = run("try.sh", tmp_path)
    (install,) = (call for call in calls if call.startswith("helm install"))
    secrets = set(re.findall(r"Secret=(\S+)", install))
    assert secrets == set(re.findall(r"secret generic (\S+)", "\n".join(calls)))
    flags = re.findall(r"--set (\S+)", install)
    given = [word for flag in flags for word in ("--set", flag)]
    text = output(
        *("helm", "template", "tandem-try", CHART, "--namespace", "tandem"),
        *("--kube-version", OLDEST, *given),
    )
    services = {
        f"{m['metadata']['name']}.tandem.svc"
        for m in yaml.safe_load_all(text)
        if m and m["kind"] == "Service"
    }
    (certs,) = (call for call in calls if call.startswith("tandem certs"))
    assert set(re.findall(r"\S+\.svc", certs)) == services
    (forward,) = (call for call in calls if "port-forward" in call)
    (name,) = re.findall(r"service/(\S+)", forward)
    assert f"{name}.tandem.svc" in services


def test_a_trial_that_fails_says_so_and_leaves_no_cluster(tmp_path: Path) -> None:
    code, calls, _ = run("try.sh", tmp_path, fails="helm test")
    assert code == 1
    assert "kubectl logs" in " ".join(calls)
    assert calls[-1] == "kind delete cluster --name tandem-try"
    code, calls, _ = run("try.sh", tmp_path, "current", fails="helm test")
    assert code == 1
    assert calls[-1] == "helm uninstall tandem-try --namespace tandem"


def test_the_chart_is_checked_before_it_is_pushed(tmp_path: Path) -> None:
    code, calls, wrote = run("publish.sh", tmp_path, "registry.example.com/charts")
    assert code == 0, wrote
    order = positions(calls, "helm lint", "helm package", "helm push")
    assert order == sorted(order)
    assert calls[-1].endswith("oci://registry.example.com/charts")
    (tmp_path / "calls").unlink()
    code, calls, _ = run("publish.sh", tmp_path, "registry.example.com/charts", fails="helm lint")
    assert (code, len(calls)) == (1, 1)


def test_the_workflow_runs_scripts_and_targets_that_there_are() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "kubernetes.yml").read_text())
    commands = [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    makefile = (REPOSITORY / "Makefile").read_text()
    for command in commands:
        for script in re.findall(r"deploy/k8s/\w+\.sh", command):
            assert os.access(REPOSITORY / script, os.X_OK)
        for target in command.removeprefix("make ").split() if command.startswith("make ") else ():
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert any("try.sh" in command for command in commands)
    assert any("publish.sh" in command for command in commands)
