"""Certificates and keys for docker-compose: makes or renews them and gives each side its own part.

    python hand_out.py --edge HOST… --cloud HOST…     (the flags of `tandem certs`)

Invariant: the authority's key stays in /access/authority; a side gets its own certificate and key,
and of the other nothing but what it is checked by. Files are replaced whole, the private key before
its certificate, so a service that looks in between keeps what it has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ACCESS = Path("/access")
AUTHORITY = ACCESS / "authority"


def main(flags: list[str]) -> int:
    command = [sys.executable, "-m", "tandem.cli", "certs", "--out", str(AUTHORITY), *flags]
    if (status := subprocess.run(command, check=False).returncode) != 0:
        return status
    for side in ("edge", "cloud"):
        hand_out(side, ACCESS / side)
    return 0


def hand_out(side: str, folder: Path) -> None:
    """The files of `side`, under the names that every service is told."""
    names = {
        "ca.crt": "ca.crt",
        "keys": "keys",
        f"{side}.call-key": "call-key",
        f"{side}.key": "tls.key",
        f"{side}.crt": "tls.crt",
    }
    for source, name in names.items():
        unfinished = folder / f".{name}.new"
        shutil.copy(AUTHORITY / source, unfinished)  # with its mode
        os.replace(unfinished, folder / name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
