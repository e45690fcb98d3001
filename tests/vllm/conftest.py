"""A real vLLM server on this machine's CPUs. It has an environment of its own, whose Python the
variable VLLM_PYTHON names; without it these tests are skipped."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest

from tandem.demo import demo_folder

TARGET = str(demo_folder("demo-target"))
DRAFT = str(demo_folder("demo-draft"))
NAME = "demo"
PYTHON = os.environ.get("VLLM_PYTHON")
START_S = 600.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(1500))  # vLLM alone takes long to import
            if PYTHON is None:
                item.add_marker(pytest.mark.skip(reason="needs vLLM's server: make test-vllm"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def vllm_server(model: str, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Serve a model, as its users do, while the context is open."""
    assert PYTHON is not None
    variables = {
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "2",
    }
    told = [
        *("--model", model, "--served-model-name", NAME, "--dtype", "float32"),
        *("--max-model-len", "1024", "--block-size", "32"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    program = [PYTHON, "-P", "-m", "vllm.entrypoints.openai.api_server", *told]
    # Not in the checkout, of which vLLM needs nothing.
    with (
        log.open("ab") as output,
        subprocess.Popen(
            program,
            cwd=log.parent,
            env={**os.environ, **variables, "PYTHONPATH": ""},
            stdout=output,
            stderr=output,
            start_new_session=True,
        ) as process,
    ):
        try:
            wait_for(port, process, log)
            yield process
        finally:
            stop(process)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    ends_s = time.monotonic() + START_S
    while time.monotonic() < ends_s:
        assert process.poll() is None, log.read_text(errors="replace")[-4000:]
        try:
            if httpx2.get(f"http://127.0.0.1:{port}/health", timeout=5.0).status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.5)
    raise AssertionError(f"it did not start: {log.read_text(errors='replace')[-4000:]}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill a server with the engine that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    process.wait(30)


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of the demo target."""
    port = free_port()
    with vllm_server(TARGET, port, tmp_path_factory.mktemp("vllm") / "log"):
        yield f"http://127.0.0.1:{port}"
