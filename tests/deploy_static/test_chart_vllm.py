"""A verifier on vLLM in the chart: over the GPUs of a node, and of several by Ray."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import yaml

from tandem.services.verifier.config import VerifierSettings
from tandem.settings import load_settings
from tests.deploy_static.chart import CHART, OLDEST, container, environment, workloads
from tests.programs import REPOSITORY, output, run

IMAGE = (REPOSITORY / "deploy/verifier-vllm/Dockerfile").read_text()
TWO_NODES = ("verifier.vllm.nodes=2", "verifier.vllm.pipelineParallel=2")


@cache
def manifests(*settings: str) -> tuple[Any, ...]:
    values = [each for one in settings for each in ("--set", one)]
    where = ("--values", CHART / "ci/vllm.yaml", "--kube-version", OLDEST)
    text = output("helm", "template", "demo", CHART, *where, *values)
    return tuple(each for each in yaml.safe_load_all(text) if each)


def test_a_pod_has_a_gpu_for_each_worker_and_tells_the_verifier() -> None:
    workload = workloads("vllm")["verifier"]
    assert workload["kind"] == "StatefulSet"
    pod, told = container(workload), environment(workload)
    assert pod["image"].startswith("tandem/verifier-vllm:")
    assert pod["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert told["TANDEM_ENGINE"] == "vllm"
    assert (told["TANDEM_TENSOR_PARALLEL"], told["TANDEM_EXECUTOR"]) == ("4", "mp")
    assert (told["TANDEM_DEVICE"], told["TANDEM_DTYPE"]) == ("cuda", "bfloat16")


def test_what_the_image_writes_to_is_mounted() -> None:
    """The root file system is read-only; what is compiled must be allowed to run."""
    mounts = {
        each["mountPath"] for each in container(workloads("vllm")["verifier"])["volumeMounts"]
    }
    (made,) = re.findall(r"install --directory .* (/.*)$", IMAGE, re.MULTILINE)
    assert {*made.split(), "/tmp", "/dev/shm"} <= mounts


def test_a_replica_over_two_nodes_is_a_group_whose_leader_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = manifests(*TWO_NODES)
    (group,) = (each for each in found if each["kind"] == "LeaderWorkerSet")
    template = group["spec"]["leaderWorkerTemplate"]
    assert (template["size"], template["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    leader, worker = template["leaderTemplate"], template["workerTemplate"]
    gpus = [
        container_of(each)["resources"]["limits"]["nvidia.com/gpu"] for each in (leader, worker)
    ]
    assert gpus == [4, 4]
    for entry in container_of(leader)["env"]:
        if entry["name"].startswith("TANDEM_"):
            monkeypatch.setenv(entry["name"], entry["value"])
    read = load_settings(VerifierSettings, {})
    assert (read.engine, read.executor) == ("vllm", "ray")
    assert (read.tensor_parallel, read.pipeline_parallel) == (4, 2)
    (service,) = (
        each
        for each in found
        if each["kind"] == "Service" and each["metadata"]["name"] == "demo-tandem-verifier"
    )
    selector = service["spec"]["selector"].items()
    assert selector <= leader["metadata"]["labels"].items()
    assert not selector <= worker["metadata"]["labels"].items()
    assert "ray start --head" in container_of(leader)["args"][0]
    assert "$LWS_LEADER_ADDRESS:6379" in container_of(worker)["args"][0]


def test_pods_that_serve_nobody_have_no_secrets_and_no_probes() -> None:
    (group,) = (each for each in manifests(*TWO_NODES) if each["kind"] == "LeaderWorkerSet")
    worker = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    assert not any("secret" in volume for volume in worker["spec"]["volumes"])
    own = container_of(worker)
    assert not {"ports", "readinessProbe", "livenessProbe", "startupProbe"} & own.keys()
    volumes = {volume["name"] for volume in worker["spec"]["volumes"]}
    assert {mount["name"] for mount in own["volumeMounts"]} == volumes


def test_pods_of_a_group_reach_one_another_and_nobody_else() -> None:
    (policy,) = (
        each
        for each in manifests(*TWO_NODES)
        if each["kind"] == "NetworkPolicy" and each["metadata"]["name"].endswith("-group")
    )
    spec = policy["spec"]
    (peer,) = spec["ingress"][0]["from"]
    assert spec["ingress"] == [{"from": [{"podSelector": spec["podSelector"]}]}]
    assert spec["egress"] == [{"to": [peer]}]
    components = spec["podSelector"]["matchExpressions"][-1]["values"]
    assert components == ["verifier", "verifier-worker"]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["verifier.gpu.enabled=false"], "needs verifier.gpu.enabled"),
        (["verifier.vllm.nodes=3"], "must divide"),
        ([*TWO_NODES, "verifier.autoscaling.kind=keda"], "only where verifier.vllm.nodes is 1"),
        (["verifier.vllm.tensorParalel=2"], "tensorParalel is not allowed"),
    ],
)
def test_what_cannot_be_is_refused(settings: list[str], complaint: str) -> None:
    values = [each for one in settings for each in ("--set", one)]
    where = ("--values", CHART / "ci/vllm.yaml", "--kube-version", OLDEST)
    done = run("helm", "template", "demo", CHART, *where, *values)
    assert done.returncode != 0
    assert complaint in done.stderr


def container_of(template: Any) -> Any:
    (only,) = template["spec"]["containers"]
    return only
