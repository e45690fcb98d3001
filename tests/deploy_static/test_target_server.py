"""A verifier whose target another server computes, in the chart and in Compose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.deploy_static.chart import container, environment, rendered, workloads

WAY = "target-server"


def test_the_pod_asks_for_no_gpu_and_has_the_server_s_key_and_authority() -> None:
    workload = workloads(WAY)["verifier"]
    pod = container(workload)
    assert not any("gpu" in name for name in pod["resources"]["limits"])
    told = environment(workload)
    assert told["TANDEM_TARGET_URL"] == "https://vllm.models.svc:8443"
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["volumeMounts"]}
    for variable in ("TANDEM_TARGET_KEY_FILE", "TANDEM_TARGET_CA"):
        assert mounts[str(Path(told[variable]).parent)] == "target"
    volumes = {volume["name"]: volume for volume in workload["spec"]["template"]["spec"]["volumes"]}
    assert volumes["target"]["secret"]["secretName"] == "vllm-access"


def test_it_may_call_that_server_and_nothing_else_more() -> None:
    def egress(values: str) -> list[Any]:
        (policy,) = (
            each
            for each in rendered(values)
            if each["kind"] == "NetworkPolicy" and each["metadata"]["name"].endswith("-verifier")
        )
        rules: list[Any] = policy["spec"]["egress"] or []
        return rules

    models = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "models"}}}
    assert egress(WAY) == [{"ports": [{"port": 8443}], "to": [models]}]
