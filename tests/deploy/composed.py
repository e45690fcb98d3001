"""The suite as `docker compose` runs it, driven from outside: compose's own command for what it
does, Docker's API for single containers and for faults.

Images are built from what `.ci/docker/images.sh` makes, so nothing is pulled; the environment may
name others (BASE_IMAGE, BUILD_IMAGE, PROMETHEUS_IMAGE).
"""

from __future__ import annotations

import calendar
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "tandem-test"
TAG = "test"
UP_TIMEOUT_S = 300
LOGGED_WITHIN_S = 120.0
SERVICES = (
    "edge-aggregator",
    "drafter",
    "link",
    "verifier",
    "edge-retriever",
    "cloud-retriever",
    "cloud-aggregator",
)
"""Those that a request or a search goes through."""

ENVIRONMENT: Mapping[str, str] = {
    "BASE_IMAGE": "tandem-ci/python:3.11",
    "BUILD_IMAGE": "tandem-ci/build:3.11",
    "PROMETHEUS_IMAGE": "tandem-ci/prometheus:debian",
    **os.environ,
    "DOCKER_BUILDKIT": "1",
    "COMPOSE_PROFILES": "cpu,observability",
    "TAG": TAG,
    "HTTP_PORT": "0",
    "PROMETHEUS_PORT": "0",
    "LINK_RTT_MS": "60",
    "LINK_JITTER_MS": "3",
    "LINK_MBPS": "50",
    "MAX_RUNNING": "20",
    "TANDEM_CLOUD_DRAFT": "/models/demo-draft",
}
"""Free ports, so a suite that runs beside is left alone; a round trip that lasts beside faults."""


class Composed:
    """One compose project, and Docker's API."""

    def __init__(self, project: str = PROJECT, **variables: str) -> None:
        """`variables` are set for Compose, in the place of the usual ones."""
        self.docker = docker.from_env(timeout=60)
        self._project, self._variables = project, variables

    def compose(self, *arguments: str, **variables: str) -> str:
        """What it wrote. AssertionError, with the end of what it wrote, where it fails."""
        files = ("deploy/docker-compose.yml", "tests/deploy/compose.yml")
        flags = (f"--file={file}" for file in files)
        given = {**self._variables, **variables}
        return _docker("compose", "-p", self._project, *flags, *arguments, **given)

    def build_image(self, service: str, image: str, **arguments: str) -> None:
        """From the service's Dockerfile alone, with further build arguments."""
        for name in ("BASE_IMAGE", "BUILD_IMAGE"):
            arguments[name] = ENVIRONMENT[name]
        given = (f"--build-arg={name}={value}" for name, value in arguments.items())
        _docker("build", f"--tag={image}", f"--file=services/{service}/Dockerfile", *given, ".")

    def build(self) -> None:
        """Every image of the tests; those that are as they were take seconds."""
        self.compose("build")
        self.compose("build", "drafter-llamacpp", COMPOSE_PROFILES="edge-llamacpp")

    def up(self, **variables: str) -> None:
        """Return when every service is healthy. `variables` are set for Compose."""
        waiting = ("--wait", f"--wait-timeout={UP_TIMEOUT_S}")
        try:
            self.compose("up", "--no-build", *waiting, **variables)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def down(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout=3")

    def logs(self, *services: str) -> str:
        return self.compose("logs", "--no-color", "--tail=40", *services)

    def container(self, service: str) -> Container:
        """The one that Compose started. Its images carry the first two labels as well, and so does
        every container that anybody runs from them.
        """
        (found,) = self.docker.containers.list(
            all=True,
            filters={
                "label": [
                    f"com.docker.compose.project={self._project}",
                    f"com.docker.compose.service={service}",
                    "com.docker.compose.oneoff=False",
                ]
            },
        )
        return found

    def addresses(self, service: str) -> list[str]:
        """On each of its networks."""
        networks = self.container(service).attrs["NetworkSettings"]["Networks"]
        return [network["IPAddress"] for network in networks.values()]

    def health(self, service: str) -> str:
        return str(self.container(service).attrs["State"]["Health"]["Status"])

    def address(self, service: str, port: int) -> str:
        """Where a published port is, on this machine."""
        ports: Any = self.container(service).ports
        (place,) = ports[f"{port}/tcp"]
        return f"{place['HostIp']}:{place['HostPort']}"

    def run(self, service: str, *command: str) -> str:
        """What `command` wrote inside a running container; AssertionError where it fails."""
        code, wrote = self.container(service).exec_run(list(command))
        assert isinstance(wrote, bytes)
        text = wrote.decode(errors="replace")
        assert code == 0, f"{command} in {service}: exit code {code}: {text[-3000:]}"
        return text

    def ingest(self, service: str, folder: Path) -> None:
        """Documents of a folder of this machine, as the README does it."""
        mounted = ("run", "--rm", "--no-deps", "-T", "-v", f"{folder}:/documents:ro")
        called = ("ingest", "--endpoint", f"{service}:50053", "/documents")
        self.compose(*mounted, "--entrypoint", "tandem", service, *called)

    def search(self, service: str, query: str) -> list[dict[str, Any]]:
        """What the service's retriever finds, the best first."""
        command = ("search", "--endpoint", f"{service}:50053", "--json", query)
        ran = ("run", "--rm", "--no-deps", "-T", "--entrypoint", "tandem", service, *command)
        wrote = self.compose(*ran).splitlines()
        hits: list[dict[str, Any]] = json.loads(wrote[-1])["hits"]
        return hits

    def wait_until_listening(self, service: str, since_s: float) -> float:
        """When, by `time.time()`, it said that it listens, after `since_s`."""
        return self.wait_until_logged(service, " listening ", since_s)

    def wait_until_logged(self, service: str, words: str, since_s: float = 1.0) -> float:
        """When, by `time.time()`, it first wrote a line with `words`, after `since_s`."""
        deadline_s = time.monotonic() + LOGGED_WITHIN_S
        while time.monotonic() < deadline_s:
            log: Any = self.container(service).logs(since=since_s, timestamps=True)
            for line in bytes(log).decode(errors="replace").splitlines():
                if words in line:
                    return _seconds(line.split(" ", 1)[0])
            time.sleep(0.05)
        raise AssertionError(f"{service} does not write {words!r}: {self.logs(service)}")

    # --- faults; each returns the time, by `time.time()`, at which its cause had ended ---------

    def kill(self, service: str) -> float:
        """SIGKILL, as the kernel sends it to a process that is out of memory; Docker's restart
        policy starts it again. (A kill through Docker's API would count as a wish to stop.)"""
        container = self.container(service)
        pid, killed_s = container.attrs["State"]["Pid"], time.time()
        self.docker.containers.run(
            f"tandem/aggregator:{TAG}",
            ["-c", f"import os; os.kill({pid}, 9)"],
            entrypoint="python",
            user="0",
            pid_mode="host",
            remove=True,
        )
        return self.wait_until_listening(service, killed_s)

    def restart(self, service: str) -> float:
        """SIGTERM, drain, and a new start, as in a rolling update."""
        stopped_s = time.time()
        self.container(service).restart(timeout=20)
        return self.wait_until_listening(service, stopped_s)

    def pause(self, service: str, duration_s: float) -> float:
        container = self.container(service)
        container.pause()
        time.sleep(duration_s)
        container.unpause()
        return time.time()

    def cut(self, duration_s: float) -> float:
        """Nothing passes the link; connections stay open, as over a dead radio."""
        with self.link_cut():
            time.sleep(duration_s)
        return time.time()

    @contextmanager
    def link_cut(self) -> Iterator[None]:
        self.steer_link("cut")
        try:
            yield
        finally:
            self.steer_link("restore")

    def steer_link(self, operation: str) -> None:
        """Through the link's own control socket, which is on loopback inside its container."""
        line = json.dumps({"op": operation})
        code = (
            "import socket; link = socket.create_connection(('127.0.0.1', 50059), 5);"
            f"link.sendall(b'{line}\\n'); print(link.makefile().readline())"
        )
        assert json.loads(self.run("link", "python", "-c", code))["ok"]


def _docker(*arguments: str, **variables: str) -> str:
    finished = subprocess.run(
        ["docker", *arguments],
        cwd=ROOT,
        env={**ENVIRONMENT, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, f"{' '.join(arguments)}: {finished.stdout[-6000:]}"
    return finished.stdout


def _seconds(stamp: str) -> float:
    """Docker's time stamp, as 2026-01-02T03:04:05.123456789Z."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    parsed = time.strptime(whole, "%Y-%m-%dT%H:%M:%S")
    return calendar.timegm(parsed) + float(f"0.{fraction or 0}")


if __name__ == "__main__":
    Composed().build()
