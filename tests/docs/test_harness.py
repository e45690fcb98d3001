"""The checks of the documentation notice what they are there to notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks_of, commands_of
from tests.docs.flags import complaints


def block(text: str) -> Block:
    return Block(Path("page.md"), 1, "bash", text, None)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tandem generate --no-such-flag", "--no-such-flag"),
        ("tandem no-such-command", "no-such-command"),
        ("tandem serve verifier --no-such-setting 1", "--no-such-setting"),
        ("tandem serve no-such-service", "no such service"),
        ("tandem bench prompts --no-such-flag", "--no-such-flag"),
        ("make no-such-target", "no-such-target"),
        ("make bench NO_SUCH_VARIABLE=1", "NO_SUCH_VARIABLE"),
        ("helm template deploy/no-such-chart", "deploy/no-such-chart"),
        ("docker build --file=services/none/Dockerfile .", "services/none/Dockerfile"),
        ("cd deploy && tandem up --no-such-flag", "--no-such-flag"),
    ],
)
def test_what_does_not_exist_is_named(text: str, named: str) -> None:
    found = [problem for command in commands_of(block(text)) for problem in complaints(command)]
    assert len(found) == 1
    assert named in found[0]


def test_commands_are_taken_apart() -> None:
    text = "# a comment\nA=1 tandem up --rag  # another\nmake run \\\n  BENCH=x; for x in a; do ls"
    text += "; done"
    words = [command.words for command in commands_of(block(text))]
    assert words == [("tandem", "up", "--rag"), ("make", "run", "BENCH=x"), ("ls",)]


def test_a_marker_counts_right_before_its_block_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = "<!-- not run: needs a cluster -->"
    page = f"{marker}\n```bash\nls\n```\n\n```bash\nls\n```\n{marker}\n\ntext\n```sh\nls\n```\n"
    (tmp_path / "page.md").write_text(page)
    monkeypatch.setattr("tests.docs.blocks.REPOSITORY", tmp_path)
    reasons = [found.reason for found in blocks_of(Path("page.md"))]
    assert reasons == ["needs a cluster", None, None]
