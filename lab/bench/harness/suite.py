"""The services as processes, each pinned to its core, with an emulated link between them if wanted.

Invariant: everything started is stopped when the context ends. The edge's processes share one core
and the cloud's has another, as on two machines, unless all are to share all cores.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.bench.harness.models import ROOT, Models, Pacing
from lab.machine import pin, pinned, usable_cores
from tandem.backends.model_source import is_gguf
from tandem.core.errors import TandemError
from tandem.net.status import Rejected
from tandem.suite.child_process import module_of
from tandem.suite.local_processes import reserved_ports
from tandem.testing import mains

START_S = 180.0
STOP_S = 10.0
STUCK_AFTER_S = 20.0
"""A pass on a machine that others use may stand still for longer than services expect."""


class SuiteFailed(TandemError):
    """A process of the suite did not start."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Addresses and processes of a running suite; `link` only when one was asked for."""

    aggregator: str
    edge: tuple[PinnedProcess, ...]
    cloud: tuple[PinnedProcess, ...]
    edge_cores: tuple[int, ...]
    """A caller of one of several suites has to go there for its turn."""
    link: LinkController | None = None
    drafter_metrics: str = ""
    """HOST:PORT of the drafter's metrics."""

    def cpu_s(self) -> tuple[float, float]:
        """Return the processor seconds that the edge's and the cloud's processes have used so
        far."""
        edge_s = sum(process.cpu_s() for process in self.edge)
        cloud_s = sum(process.cpu_s() for process in self.cloud)
        return edge_s, cloud_s


@contextmanager
def running_suite(
    models: Models,
    pacing: Pacing | None = None,
    with_link: bool = False,
    shares_cores: bool = False,
    target_threads: int | None = None,
    keeps_prefixes: bool = True,
    drafter_options: Sequence[str] = (),
    cloud_draft: bool = False,
    verifier_options: Sequence[str] = (),
    aggregator_options: Sequence[str] = (),
) -> Iterator[Suite]:
    """Run a verifier (behind a link emulator if wanted), a drafter and an aggregator on free ports
    while the context is open.

    The calling process joins the edge's core. `shares_cores`: both sides have all cores, since the
    one side waits while the other computes. `target_threads`: threads of the target; by default as
    many as the cloud has cores; 0: as its engine sees fit. Without `keeps_prefixes` a prompt is
    computed anew each time. `cloud_draft`: the verifier has the pair's draft model, too.
    `drafter_options` and so on: further flags of a service. Raises SuiteFailed, with the last line
    that the process wrote, when one does not start or ends by itself.
    """
    cores = usable_cores()
    edge_cores, cloud_cores = (cores, cores) if shares_cores else (cores[:1], cores[-1:])
    if target_threads is None:
        target_threads = len(cloud_cores)
    kept = () if keeps_prefixes else ("--prefix-kv-bytes", "0")
    main = module_of if pacing is None else mains.module_of
    with ExitStack() as stack:

        def start(name: str, cores: Sequence[int], *flags: str) -> PinnedProcess:
            return stack.enter_context(PinnedProcess(name, flags, *cores))

        verifier_flags = (
            *_flags(models.target, pacing, "verify"),
            *("--engine", models.target_engine),
            *("--dtype", models.target_dtype),
            *_device(models.target, models.device),
            *("--threads", str(target_threads)),
            *(cloud_draft_flags(models, pacing) if cloud_draft else ()),
            *kept,
            *verifier_options,
        )
        verifier = start(main("verifier"), cloud_cores, *verifier_flags)
        link = None
        cloud_address = verifier.address
        if with_link:
            emulator = start("lab.bench.harness.link_process", cloud_cores, cloud_address)
            link, cloud_address = LinkController(emulator.words[2]), emulator.address
        (metrics_port,) = stack.enter_context(reserved_ports(1))
        drafter_flags = (
            *_flags(models.draft, pacing, "draft"),
            *("--verifier", cloud_address),
            *("--engine", models.draft_engine),
            *("--dtype", models.draft_dtype),
            *_device(models.draft, models.device),
            *("--metrics-port", str(metrics_port)),
            *("--memory-tokens", "0"),  # answers asked for again would be drafted from themselves
            *kept,
            *drafter_options,
        )
        drafter = start(main("drafter"), edge_cores, *drafter_flags)
        aggregator = start(
            "tandem.services.aggregator",
            edge_cores,
            *(*COMMON, "--drafter", drafter.address, "--http", "false"),
            *aggregator_options,
        )
        stack.enter_context(pinned(*edge_cores))
        try:
            yield Suite(
                aggregator=aggregator.address,
                edge=(aggregator, drafter),
                cloud=(verifier,),
                edge_cores=edge_cores,
                link=link,
                drafter_metrics=f"127.0.0.1:{metrics_port}",
            )
        except Rejected as error:
            for process in (verifier, drafter, aggregator):
                process.check_alive(error)
            raise


COMMON = ("--insecure", "--port", "0", "--log-level", "warning")


def cloud_draft_flags(models: Models, pacing: Pacing | None = None) -> tuple[str, ...]:
    """Return the flags that give a verifier the pair's draft model, as the edge has it, so that it
    drafts as well. With `pacing`, a draft step takes the time that is declared for one in the
    cloud."""
    device = () if is_gguf(models.draft) else ("--cloud-draft-device", models.device)
    pace = () if pacing is None else ("--pace-cloud-draft-s", str(pacing.cloud_draft_s))
    return (
        *("--cloud-draft", models.draft),
        *("--cloud-draft-engine", models.draft_engine),
        *("--cloud-draft-dtype", models.draft_dtype),
        *device,
        *pace,
    )


def _device(model: str, device: str) -> tuple[str, ...]:
    return () if is_gguf(model) else ("--device", device)


def _flags(model: str, pacing: Pacing | None, side: str) -> tuple[str, ...]:
    flags = (*COMMON, "--model", model, "--stuck-after-s", str(STUCK_AFTER_S))
    if pacing is None:
        return flags
    first_s = pacing.draft_s if side == "draft" else pacing.verify_first_s
    further_s = 0.0 if side == "draft" else pacing.verify_further_s
    pace = ("--pace-first-s", str(first_s), "--pace-further-s", str(further_s))
    return (*flags, *pace, "--pace-batch-s", str(further_s))


class PinnedProcess:
    """`python -m module flags` on its cores, ready once it has said `listening HOST:PORT …`."""

    def __init__(self, module: str, flags: Sequence[str], *cores: int) -> None:
        self.words: list[str] = []
        self._module = module
        self._stderr = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            # Should this process be killed, the kernel stops its children.
            [
                *(sys.executable, "-P", "-m", "tandem.suite.supervised", str(os.getpid())),
                *(module, *flags),
            ],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            cwd=ROOT,
            env=clean_environment(),
        )
        pin(self._process.pid, cores)  # its threads, which come later, inherit it

    @property
    def address(self) -> str:
        return self.words[1]

    def __enter__(self) -> PinnedProcess:
        deadline = threading.Timer(START_S, self._process.kill)
        deadline.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        deadline.cancel()
        if not line.startswith("listening "):
            raise SuiteFailed(f"{self._module} did not start: {self._stop()}")
        self.words = line.split()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stop()

    def check_alive(self, error: Exception) -> None:
        """Raise SuiteFailed, caused by `error`, when the process has ended by itself."""
        status = self._process.poll()
        if status is not None:
            why = f"{self._module} ended with {status}: {self._stop()}"
            raise SuiteFailed(why) from error

    def _stop(self) -> str:
        """End the process, and return the last line that it wrote to standard error; empty if it
        was ended before."""
        if self._stderr.closed:
            return ""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._stderr, self._process:
            self._stderr.seek(0)
            return (self._stderr.read().strip().splitlines() or ["no message"])[-1]

    def cpu_s(self) -> float:
        return cpu_s(self._process.pid)


def cpu_s(pid: int) -> float:
    """Return the user and system seconds of a process so far; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    user, system = text.rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class LinkController:
    """Changes a running link emulator through its control socket."""

    def __init__(self, address: str) -> None:
        self._address = address

    def set(self, rtt_s: float, mbps: float | None) -> None:
        """Use this round trip and bandwidth each way from now on. Raises SuiteFailed if refused."""
        self._ask({"op": "set", "rtt_s": rtt_s, "mbps": mbps})

    def cut(self) -> None:
        """Let nothing through from now on; connections stay open."""
        self._ask({"op": "cut"})

    def restore(self) -> None:
        """Let everything through again, beginning with what was held back."""
        self._ask({"op": "restore"})

    def _ask(self, request: dict[str, object]) -> None:
        host, port = self._address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=5.0) as connection:
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(connection.makefile().readline())
        if not answer["ok"]:
            raise SuiteFailed(f"the link emulator refused {request}: {answer['error']}")


def clean_environment(threads: int = 1) -> dict[str, str]:
    """Return the caller's environment without service settings, and with `threads` threads of
    arithmetic."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("TANDEM_")}
    return kept | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
