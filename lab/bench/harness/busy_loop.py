"""Load from beside: processes that do nothing but take the processors.

`python -m lab.bench.harness.busy_loop` is one of them. Invariant: they end with the context, or
with this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from lab.bench.harness.suite import ROOT, clean_environment
from lab.machine import pin, usable_cores


@contextmanager
def busy_loops(count: int) -> Iterator[list[int]]:
    """So many processes, which the system puts on whichever core it likes; their ids."""
    command = (sys.executable, "-P", "-m", "tandem.suite.supervised", str(os.getpid()))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            process = subprocess.Popen((*command, __name__), cwd=ROOT, env=clean_environment())
            processes.append(process)
            pin(process.pid, usable_cores())
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


if __name__ == "__main__":
    while True:
        pass
