"""Children of a process whose threads call into gRPC."""

from __future__ import annotations

import os
import signal
import sys

from tandem.net.process import run_loop
from tandem.suite.child_process import Spawned


def test_a_child_runs_no_handlers_of_forks() -> None:
    """gRPC's crash in the child, one time in sixteen."""
    forks: list[int] = []
    os.register_at_fork(before=lambda: forks.append(1))

    async def spoke() -> tuple[bytes, int]:
        child = await Spawned.start([sys.executable, "-c", "print('listening')"], os.environ)
        return await (await child.output()).readline(), await child.wait()

    assert run_loop(spoke()) == (b"listening\n", 0)
    assert forks == []


def test_how_a_child_ended_is_known_and_a_signal_after_that_is_for_nobody() -> None:
    async def ended() -> tuple[int | None, int, int | None]:
        child = await Spawned.start(["sleep", "60"], os.environ)
        before = child.returncode
        child.send_signal(signal.SIGKILL)
        status = await child.wait()
        child.send_signal(signal.SIGKILL)
        return before, status, child.returncode

    assert run_loop(ended()) == (None, -signal.SIGKILL, -signal.SIGKILL)
