"""The chart beside the images and the compose file: the same images, ports, folders and names."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.deploy_static.chart import CHART, container, environment, ports, workloads
from tests.programs import REPOSITORY

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
PROGRAMS = ("aggregator", "drafter", "retriever", "verifier")


def dockerfile(program: str) -> str:
    return (REPOSITORY / "services" / program / "Dockerfile").read_text()


def image_environment(program: str) -> dict[str, str]:
    last_stage = dockerfile(program).rpartition("\nFROM ")[2]
    return dict(re.findall(r"(\w+)=(\S+)", re.sub(r"ARG .*", "", last_stage)))


@pytest.mark.parametrize("component", workloads("insecure"))
def test_a_pod_listens_and_writes_where_its_image_says(component: str) -> None:
    program = component.split("-")[-1]
    workload = workloads("insecure")[component]
    image, pod = image_environment(program), environment(workload)
    exposed = re.findall(r"^EXPOSE (.*)$", dockerfile(program), re.MULTILINE)
    assert {str(ports(workload)[name]) for name in ("grpc", "health")} <= set(exposed[0].split())
    for name in ("TANDEM_PORT", "TANDEM_HEALTH_PORT"):
        assert pod[name] == image[name]
    mounts = {mount["mountPath"] for mount in container(workload)["volumeMounts"]}
    made = re.findall(r"^COPY .* /opt/empty (/\w+)$", dockerfile(program), re.MULTILINE)
    assert bool(made) == (program != "aggregator")  # it writes nothing that outlives it
    assert set(made) <= mounts
    for name in ("TANDEM_FOLDER", "HF_HOME"):
        assert pod.get(name) == image.get(name)
    assert pod.get("TANDEM_DOCUMENT_KV_FOLDER", "/kv") == "/kv"


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_pod_runs_as_the_user_that_owns_the_images_folders(program: str) -> None:
    (user,) = re.findall(r"^USER (\d+):(\d+)$", dockerfile(program), re.MULTILINE)
    security = VALUES["podSecurityContext"]
    given = (security["runAsUser"], security["runAsGroup"])
    assert tuple(map(int, user)) == given
    assert security["fsGroup"] == security["runAsGroup"]
