"""`python -m tandem.suite.supervised PARENT MODULE ARGUMENTS`: run a module as a child.

Like `python -m MODULE ARGUMENTS`, but on Linux it gets SIGTERM when the process PARENT ends,
however it ends. Standard library only.
"""

import ctypes
import os
import runpy
import signal
import sys

from tandem.suite.process_end import leave

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, module, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):  # it ended before the kernel was told
            sys.exit(1)
    try:
        run_module(module, arguments)
    except SystemExit as ended:
        leave(ended)
    leave(SystemExit(0))


def run_module(module: str, arguments: list[str]) -> None:
    """Run a module like `python -m module arguments`; raises the module's SystemExit, if any."""
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
