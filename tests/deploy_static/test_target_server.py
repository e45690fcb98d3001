"""A verifier whose target another server computes, in the chart and in Compose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.services.verifier.config import VerifierSettings, server_choice
from tandem.settings import load_settings
from tests.deploy_static import test_compose
from tests.deploy_static.chart import CHART, OLDEST, container, environment, rendered, workloads
from tests.programs import run

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


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["verifier.gpu.enabled=true"], "gpu.enabled must be false"),
        (["verifier.target.secret="], "needs verifier.target.secret"),
        (["verifier.target.url=vllm:8000"], "verifier.target.url"),
        (["verifier.settings.target_url=http://vllm:8000"], "verifier.settings"),
    ],
)
def test_what_cannot_be_is_refused(settings: list[str], complaint: str) -> None:
    values = [each for one in settings for each in ("--set", one)]
    where = ("--values", CHART / f"ci/{WAY}.yaml", "--kube-version", OLDEST)
    done = run("helm", "template", "demo", CHART, *where, *values)
    assert done.returncode != 0
    assert complaint in done.stderr


def test_compose_passes_the_server_on_with_its_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    service = test_compose.SERVICES["verifier"]
    given = service["environment"]
    assert {name for name in given if name.startswith("TANDEM_TARGET_")} == {
        *("TANDEM_TARGET_URL", "TANDEM_TARGET_KEY_FILE", "TANDEM_TARGET_CA"),
    }
    sources = dict(
        reversed(mount.removesuffix(":ro").split(":"))
        for mount in service["volumes"]
        if ":/target/" in mount
    )
    assert sources[given["TANDEM_TARGET_KEY_FILE"]] == "/dev/null"
    key = tmp_path / "key"
    key.write_text("secret\n")
    monkeypatch.setenv("TANDEM_TARGET_URL", "http://host.docker.internal:8000")
    for content, sent in ((key, "secret"), (Path("/dev/null"), "")):
        monkeypatch.setenv("TANDEM_TARGET_KEY_FILE", str(content))
        read = load_settings(VerifierSettings, {})
        assert isinstance(read, VerifierSettings)
        choice = server_choice(read)
        assert choice is not None
        assert (choice.url, choice.key) == ("http://host.docker.internal:8000", sent)
