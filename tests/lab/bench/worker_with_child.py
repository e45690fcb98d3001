"""A worker of `running_worker` that starts a process which does not end when asked to.

`worker_with_child THREADS`; it answers each line with the process's number.
"""

from __future__ import annotations

import json
import subprocess
import sys

CHILD = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
time.sleep(60)
"""


def main() -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # from here on it ignores the signal
        print("ready", flush=True)
        for _ in sys.stdin:
            print(json.dumps({"pid": child.pid}), flush=True)


if __name__ == "__main__":
    main()
