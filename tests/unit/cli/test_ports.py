"""What `tandem up` says before it starts anything."""

from __future__ import annotations

import socket

import pytest
from click.testing import CliRunner

from tandem.cli import main


@pytest.mark.parametrize("flag", ["--port", "--http-port", "--metrics-port"])
def test_a_port_in_use_is_said_in_the_first_words(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["up", "--demo", "--port", "0", flag, str(port)]
        ended = CliRunner().invoke(main, arguments, prog_name="tandem")
    assert ended.exit_code == 1
    *_, error = ended.stderr.splitlines()
    assert error.startswith(f"error: port {port} is in use: another process listens on 127.0.0.1:")
    assert error.endswith(f"choose another by {flag}, 0 for any")
