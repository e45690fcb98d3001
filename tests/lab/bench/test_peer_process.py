"""Programs that are compared with Tandem leave nothing behind."""

from __future__ import annotations

import time
from pathlib import Path

from lab.bench.harness.peer_process import running_worker


def test_what_a_worker_started_ends_with_it() -> None:
    with running_worker("tests.lab.bench.worker_with_child", [], threads=1) as worker:
        child = int(worker.answer({})["pid"])
        assert _runs(child)
    deadline_s = time.monotonic() + 10
    while _runs(child) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    """Whether there is a process of that number; not one that has ended and was not waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
