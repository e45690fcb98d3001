"""The end of a process of ours, once it has closed what it opened.

Invariant: it ends without the interpreter's own end. That waits for threads and frees objects whose
native code waits for its threads in turn: gRPC's has hung there, after all work was done. And what
the kernel frees anyway takes the interpreter most of a second where torch was loaded. Standard
library only.
"""

import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave(ended: SystemExit) -> NoReturn:
    """End the process with the exit code that `ended` has, once what was written is out. Words in
    the place of a code go to standard error, as the interpreter has it."""
    code = ended.code
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more, or the disk is full, which was said
            stream.flush()
    os._exit(code or 0)
