"""Every service starts with what the chart's documented values give it: environment and files.

Not only its settings: the process itself, up to the line that says it serves. The pod's folders
are folders of the test, ports are free ones, and certificates are made by the README's commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.cli import main
from tests.deploy_static.chart import Manifest, component_of, environment, workloads
from tests.deploy_static.test_handed_out_keys import secret_files
from tests.process.service_process import ROOT, ServiceProcess

PORTS = ("TANDEM_PORT", "TANDEM_HEALTH_PORT", "TANDEM_METRICS_PORT", "TANDEM_HTTP_PORT")


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`PLACE/tls` and `PLACE/keys` as the secrets that the chart's README has made."""
    folder = tmp_path_factory.mktemp("secrets")
    certs = folder / "certs"
    for command in (("certs", "--out", certs), ("keys", "you", "--file", certs / "http-keys")):
        assert CliRunner().invoke(main, [str(word) for word in command]).exit_code == 0
    for place in ("cloud", "edge"):
        files = {
            "tls": {"tls.crt": f"{place}.crt", "tls.key": f"{place}.key", "ca.crt": "ca.crt"},
            "keys": secret_files(place),
        }
        for secret, contents in files.items():
            (folder / place / secret).mkdir(parents=True)
            for name, source in contents.items():
                (folder / place / secret / name).write_bytes((certs / source).read_bytes())
    return folder


def given(workload: Manifest, place: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """The rendered environment, with the pod's folders and ports in their places here."""
    for name, value in environment(workload).items():
        if name in PORTS:
            value = "0"
        elif value == "0.0.0.0":
            value = "127.0.0.1"
        elif value.startswith("/etc/tandem/"):
            value = value.replace("/etc/tandem", str(place))
        elif value.startswith("/models/"):
            value = value.replace("/models", str(ROOT / "models"))
        elif value.startswith("/"):
            value = str(folder / value.strip("/"))
        yield name, value


@pytest.mark.parametrize("values", ["cloud", "edge"])
def test_each_service_starts_as_the_chart_starts_it(
    values: str, secrets: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        started = {}
        for workload in workloads(values).values():
            component = component_of(workload)
            (tmp_path / component).mkdir()
            started[component] = stack.enter_context(
                ServiceProcess(
                    f"tandem.services.{component.split('-')[-1]}",
                    environment=dict(given(workload, secrets / values, tmp_path / component)),
                    secured=True,
                )
            )
        for process in started.values():
            assert process.address().startswith("127.0.0.1:")
        assert len(started) == 3
