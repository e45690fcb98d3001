"""`python -m bench.link_process HOST:PORT`: a link emulator before that address, until a signal.

Writes `listening HOST:PORT CONTROL_HOST:PORT`; it starts as an instant link and is steered through
the control socket (`tandem.netem.link_control`).
"""

from __future__ import annotations

import sys

from tandem.netem.link_control import serve_link
from tandem.netem.tcp_emulator import Address


def main(target: str) -> None:
    host, port = target.rsplit(":", 1)
    serve_link(("127.0.0.1", 0), (host, int(port)), control_port=0, on_ready=_announce)


def _announce(address: Address, control: Address | None) -> None:
    assert control is not None, "a control port was asked for"
    print(f"listening {address[0]}:{address[1]} {control[0]}:{control[1]}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
