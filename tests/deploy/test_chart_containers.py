"""Every workload of the chart starts as a container: with the environment, files, user and
read-only root that Kubernetes would give it. Secrets are made by the README's commands. Without a
region they are started by tests/process/test_chart_starts.py, outside of images."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from docker.models.containers import Container

from tests.deploy.composed import ROOT, TAG, Composed
from tests.deploy_static.chart import (
    CHART,
    OLDEST,
    RUNNING,
    Manifest,
    component_of,
    container,
    environment,
)
from tests.process.test_chart_starts import secrets
from tests.programs import output

__all__ = ["secrets"]
pytestmark = pytest.mark.timeout(1800)  # the first test waits for images
STARTS_WITHIN_S = 240.0
IMAGES = {program: f"tandem/{program}:{TAG}" for program in ("verifier", "drafter", "aggregator")}
IMAGES |= {"retriever": f"tandem/retriever:{TAG}-minilm"}


def rendered_with(place: str, *more: str) -> dict[str, Manifest]:
    files = (f"values-{place}.yaml", *more)
    flags = [word for file in files for word in ("--values", str(CHART / file))]
    text = output("helm", "template", "tandem", CHART, "--kube-version", OLDEST, *flags)
    manifests = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    return {component_of(m): m for m in manifests if m["kind"] in RUNNING}


def mounts(workload: Manifest, place: Path) -> dict[str, dict[str, str]]:
    """Secrets as the kubelet shows them to the pod's group, and the models."""
    found = {str(ROOT / "models"): {"bind": "/models", "mode": "ro"}}
    for mount in container(workload)["volumeMounts"]:
        if mount["mountPath"].startswith("/etc/tandem/"):
            folder = place / mount["name"]
            folder.chmod(0o755)
            for file in folder.iterdir():
                file.chmod(0o444)
            found[str(folder)] = {"bind": mount["mountPath"], "mode": "ro"}
    return found


def written(workload: Manifest, user: int) -> dict[str, str]:
    """Folders on volumes, which belong to the pod's group."""
    paths = {mount["mountPath"] for mount in container(workload)["volumeMounts"]}
    kept = {path for path in paths if not path.startswith(("/etc/", "/models"))}
    return dict.fromkeys(kept, f"mode=0770,uid={user},gid={user}")


def start(composed: Composed, workload: Manifest, place: Path) -> Container:
    pod: Mapping[str, Any] = workload["spec"]["template"]["spec"]
    own, security = container(workload), pod["securityContext"]
    rights = own["securityContext"]
    assert rights["allowPrivilegeEscalation"] is False
    return composed.docker.containers.run(
        IMAGES[own["name"]],
        detach=True,
        environment=environment(workload),
        user=f"{security['runAsUser']}:{security['runAsGroup']}",
        read_only=rights["readOnlyRootFilesystem"],
        cap_drop=rights["capabilities"]["drop"],
        security_opt=["no-new-privileges:true"],
        tmpfs=written(workload, security["runAsUser"]),
        volumes=mounts(workload, place),
        network_mode="none",
        labels={"tandem-test": "chart"},
    )


@pytest.mark.parametrize(
    ("place", "more"),
    [("cloud", ("regions/eu.yaml",)), ("edge", ("regions/eu.yaml",))],
    ids=["cloud of a region", "edge of a region"],
)
def test_every_workload_starts_as_a_container(
    composed: Composed, secrets: Path, place: str, more: tuple[str, ...]
) -> None:
    workloads = rendered_with(place, *more)
    assert len(workloads) == 3
    started: dict[str, Container] = {}
    try:
        for component, workload in workloads.items():
            started[component] = start(composed, workload, secrets / place)
        for component, running in started.items():
            wait_until_listening(component, running)
            code, said = running.exec_run(["python", "-m", "tandem.net.probe"])
            assert code == 0, (component, said)
    finally:
        for running in started.values():
            running.remove(force=True, v=True)


def wait_until_listening(component: str, running: Container) -> None:
    deadline_s = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline_s:
        log: Any = running.logs()
        wrote = bytes(log).decode(errors="replace")
        if "listening " in wrote:
            return
        running.reload()
        assert running.status == "running", (component, wrote[-2000:])
        time.sleep(0.2)
    raise AssertionError(f"{component}: does not listen: {wrote[-2000:]}")
