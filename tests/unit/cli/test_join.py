"""Where `tandem join` takes its line from."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tandem.cli import main
from tandem.net.endpoint import Endpoint
from tandem.net.invitation import Invitation
from tests.services.secured_services import EDGE_KEY

LINE = str(Invitation(Endpoint("127.0.0.1", 1), "0f" * 32, EDGE_KEY))
CALLED = "127.0.0.1:1 cannot be reached over TLS"


@pytest.mark.parametrize(
    ("arguments", "typed"), [(["-"], f"{LINE}\n"), ([], f"{LINE}\n"), ([LINE], "")]
)
def test_a_line_comes_by_standard_input_or_as_an_argument(arguments: list[str], typed: str) -> None:
    """By the first no other user of the machine sees it."""
    ended = CliRunner().invoke(main, ["join", *arguments], input=typed)
    assert ended.exit_code == 1
    assert CALLED in ended.stderr


def test_on_a_terminal_the_line_is_asked_for_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tandem.commands.join.sys", Terminal)
    ended = CliRunner().invoke(main, ["join"], input=f"{LINE}\n")
    assert "line of the verifier (not shown): " in ended.stderr
    assert CALLED in ended.stderr
    assert EDGE_KEY not in ended.output


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "Is a directory"),
        (b"\xff\xfe", "is no text"),
        (b"", "must be HOST:PORT#sha256:HEX:KEY"),
        (LINE.encode() + b"\n" + LINE.encode(), "must be HOST:PORT#sha256:HEX:KEY"),
    ],
)
def test_a_file_without_a_line_is_bad_usage_and_shows_no_key(
    content: bytes | None, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "join"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    ended = CliRunner().invoke(main, ["join", str(file)])
    assert ended.exit_code == 2
    assert why in ended.stderr
    assert EDGE_KEY not in ended.stderr


class Terminal:
    """The part of `sys` that the command reads, at a terminal."""

    class stdin:  # noqa: N801  # the name in `sys`
        @staticmethod
        def isatty() -> bool:
            return True
