"""`tandem` as real processes."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tandem_api.verifier.v1 import verifier_pb2, verifier_pb2_grpc

TANDEM = str(Path(sys.executable).with_name("tandem"))
TESTING = (sys.executable, "-P", "-m", "tandem.testing")
"""The same with drafters and verifiers that know scripted models, and passes of a declared time."""
TIMEOUT_S = 300.0
"""For anything; on a quiet machine a suite starts in seconds."""

HEED_CTRL_C = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
Process = subprocess.Popen[str]


def tandem(
    *arguments: str, cwd: Path | None = None, command: Sequence[str] = (TANDEM,)
) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=cwd
    )


@contextmanager
def started(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = (TANDEM,),
) -> Iterator[Process]:
    """A process that is killed at the end, with more in its environment. It heeds Ctrl-C, which a
    shell has background jobs and their children ignore; not by a preexec_fn, since gRPC's threads
    do not survive a fork."""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", HEED_CTRL_C, *command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class Up:
    """A running `tandem up --json` and what it said when it was ready."""

    def __init__(self, process: Process, places: dict[str, Any]) -> None:
        self.process = process
        self.endpoint: str = places["endpoint"]
        self.verifier: str = places["verifier"]
        self.pids: dict[str, int] = places["pids"]
        self.logs = Path(places["logs"])
        self.places = places

    def kv_bytes(self) -> int:
        """Held by the verifier now."""
        with grpc.insecure_channel(self.verifier) as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)
            return stub.Describe(verifier_pb2.DescribeRequest(), timeout=30).kv_bytes_in_use

    def wait_until_freed(self) -> None:
        """Until the verifier holds no keys and values any more."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.kv_bytes():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def generate(self, *arguments: str) -> dict[str, Any]:
        ended = tandem("generate", "--endpoint", self.endpoint, "--json", *arguments)
        assert (ended.returncode, ended.stderr) == (0, "")
        answer: dict[str, Any] = json.loads(ended.stdout)
        return answer


@contextmanager
def running_up(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    command: Sequence[str] = (TANDEM,),
) -> Iterator[Up]:
    """`tandem up` on free ports, once it is ready; ended gently if it still runs."""
    up = ("up", "--json", "--port", "0")
    with started(*up, *arguments, environment=environment, command=command) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready, process.communicate()[1]
        yield Up(process, json.loads(ready))
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(TIMEOUT_S)


def first_character(process: Process) -> str:
    """The first that it writes; its output is read without buffering ahead."""
    assert process.stdout is not None
    return os.read(process.stdout.fileno(), 1).decode(errors="replace")


def wait_for_end(pid: int) -> None:
    """Of a process that need not be a child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], TIMEOUT_S)[0], f"process {pid} still runs"
    finally:
        os.close(handle)


def consecutive_free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on."""
    for first in range(20_000, 30_000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def gauge(port: int, name: str) -> float:
    """A metric without regard to its labels, from a metrics endpoint of this machine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    (value,) = [line.split()[-1] for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    return float(value)
