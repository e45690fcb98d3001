"""`python -m lab.bench.harness.link_process HOST:PORT`: a link emulator in front of that address.

Runs until a signal. Writes `listening HOST:PORT CONTROL_HOST:PORT`. It starts as an instant link;
the control socket (`tandem.netem.link_control`) changes it.
"""

from __future__ import annotations

import sys

from tandem.netem.link_control import run_link, serve_link
from tandem.netem.tcp_emulator import Address


def main(target: str) -> None:
    host, port = target.rsplit(":", 1)
    serve_link(run_link(("127.0.0.1", 0), (host, int(port)), control_port=0, on_ready=_announce))


def _announce(address: Address, control: Address | None) -> None:
    assert control is not None, "a control port was asked for"
    print(f"listening {address[0]}:{address[1]} {control[0]}:{control[1]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
