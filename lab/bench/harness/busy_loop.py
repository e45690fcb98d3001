"""Load from beside: processes that do nothing but take the processors.

`python -m lab.bench.harness.busy_loop` is one of them; with seconds as its argument it rests and
works in turn for so long, and begins again with a rest at each SIGUSR1. Invariant: they end with
the context, or with this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from lab.bench.harness.models import ROOT
from lab.bench.harness.suite import clean_environment
from lab.machine import pin, usable_cores

LOOK_S = 0.01
"""How often one that rests looks whether it should go on."""


@contextmanager
def busy_loops(count: int, *, pulse_s: float | None = None) -> Iterator[list[int]]:
    """Start `count` processes that keep a core busy, on whichever cores the system likes, and yield
    their ids; they end with the context.

    Args:
        count: number of processes.
        pulse_s: seconds that they rest, and then work, in turn; None: they never rest."""
    command = (sys.executable, "-P", "-m", "tandem.suite.supervised", str(os.getpid()), __name__)
    pulse = () if pulse_s is None else (str(pulse_s),)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            process = subprocess.Popen(
                (*command, *pulse), cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE
            )
            processes.append(process)
            pin(process.pid, usable_cores())
        for process in processes:  # a signal before it is awaited would end it
            assert process.stdout is not None
            process.stdout.readline()
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


def rest_first(process_ids: Sequence[int]) -> None:
    """Make loops that rest in turn begin with a rest, all at once."""
    for process_id in process_ids:
        os.kill(process_id, signal.SIGUSR1)


def _work_in_turns(pulse_s: float) -> NoReturn:
    began_s = time.monotonic()

    def begin(signal_number: int, frame: object) -> None:
        nonlocal began_s
        began_s = time.monotonic()

    signal.signal(signal.SIGUSR1, begin)
    print("begun", flush=True)
    while True:
        if (time.monotonic() - began_s) // pulse_s % 2 == 0:
            time.sleep(LOOK_S)


def _work() -> NoReturn:
    print("begun", flush=True)
    while True:
        pass


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _work_in_turns(float(sys.argv[1]))
    else:
        _work()
