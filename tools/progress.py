"""Runs a command with one line of progress: `python tools/progress.py WORDS COMMAND …`, for make.

The line has the words, the seconds so far and what the command wrote last. A terminal gets it
rewritten each second, anything else every ten. All that the command wrote is shown where it fails,
whose status is this program's. Ctrl-C ends both, and a line says so. Imports the standard library
only: there is no environment yet.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

_TERMINAL_S = 1.0
_PIPE_S = 10.0
_INTERRUPTED = 130


def main(words: str, command: Sequence[str]) -> int:
    """Run the command, and return its status."""
    began_s = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        written: list[str] = []
        reader = threading.Thread(target=_read, args=(process, written))
        reader.start()
        every_s = _TERMINAL_S if sys.stdout.isatty() else _PIPE_S
        try:
            while True:
                _show(words, time.monotonic() - began_s, written)
                reader.join(every_s)
                if not reader.is_alive():
                    break
        except KeyboardInterrupt:
            process.terminate()  # not yet told where only this process got the signal
            _end(f"{words}: interrupted; the same command goes on")
            return _INTERRUPTED
    _end(f"{words}: {time.monotonic() - began_s:.0f} s")
    if process.returncode:
        print("\n".join(written), file=sys.stderr)
    return process.returncode


def _read(process: subprocess.Popen[str], written: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if (said := line.strip()) and not said.startswith("WARNING"):
            written.append(said)


def _show(words: str, seconds: float, written: Sequence[str]) -> None:
    line = f"{words}: {seconds:.0f} s  {written[-1] if written else ''}"
    line = line[: shutil.get_terminal_size().columns - 1].rstrip()
    if sys.stdout.isatty():
        print(f"\r\x1b[K{line}", end="", flush=True)
    else:
        print(line, flush=True)


def _end(line: str) -> None:
    print(f"\r\x1b[K{line}" if sys.stdout.isatty() else line, flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1], sys.argv[2:]))
