"""What surrounds the chart: the table of its values, examples, scripts for real clusters."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import yaml

from tests.deploy_static.chart import CHART, OLDEST
from tests.programs import REPOSITORY, output
from tools.chart_values import chart_values

K8S = REPOSITORY / "deploy" / "k8s"
COMPONENTS = {"verifier", "cloudRetriever", "cloudAggregator", "drafter", "edgeRetriever"}


def test_every_value_of_the_file_is_in_the_table() -> None:
    written = yaml.safe_load((CHART / "values.yaml").read_text())
    named = {value.name.partition(".")[0] for value in chart_values()}
    assert named == set(written)
    assert named > COMPONENTS


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
