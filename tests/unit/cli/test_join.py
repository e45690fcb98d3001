"""Where `tandem join` takes its line from."""

from __future__ import annotations

from click.testing import CliRunner

from tandem.commands.join import join
from tandem.core.errors import TandemError
from tandem.net.endpoint import Endpoint
from tandem.net.invitation import Invitation
from tests.services.credentials import EDGE_KEY


def test_a_line_may_come_by_standard_input_where_no_other_user_sees_it() -> None:
    line = Invitation(Endpoint("127.0.0.1", 1), "0f" * 32, EDGE_KEY)
    ended = CliRunner().invoke(join, ["-"], input=f"{line}\n")
    assert isinstance(ended.exception, TandemError)
    assert "127.0.0.1:1 cannot be reached over TLS" in str(ended.exception)
