"""What a person sees while an answer grows, and what a pipe gets."""

from __future__ import annotations

import io

import pytest

from tandem.commands.answer_view import AnswerView
from tandem.generation.client import Generated
from tests.unit.cli.screen import Screen, Terminal

COLUMNS = 40
ROWS = 6
STORY = (
    "Once upon a time there was a link so slow that every word had to wait for the one before.\n\n"
    "Then someone drafted the words ahead,\nand the link had only to nod.\nThe end"
)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("TERM", "xterm")


def grow(view: AnswerView, pieces: list[str]) -> None:
    result = Generated(preset="coupled", ttft_s=0.01)
    for piece in pieces:
        result.text += piece
        result.token_ids.append(1)
        view.update(result)


def wrapped(text: str) -> str:
    """As a terminal shows it: lines broken at its width, wherever that falls."""
    rows: list[str] = []
    for line in text.split("\n"):
        rows += [line[at : at + COLUMNS].rstrip() for at in range(0, max(1, len(line)), COLUMNS)]
    return "\n".join(rows)


def test_a_pipe_gets_the_text_and_nothing_else() -> None:
    text, status = io.StringIO(), io.StringIO()
    with AnswerView(text, status) as view:
        grow(view, list(STORY))
    assert text.getvalue() == STORY + "\n"
    assert status.getvalue() == ""


@pytest.mark.parametrize("lead", ["", "Question: who?\nAnswer: "])
@pytest.mark.parametrize("size", [1, 3, 11, 50])
def test_the_status_stands_below_the_text_and_is_gone_at_the_end(size: int, lead: str) -> None:
    screen = Screen(ROWS, COLUMNS)
    drawn = 0
    result = Generated(preset="coupled", ttft_s=0.01)
    with AnswerView(Terminal(screen), Terminal(screen), lead) as view:
        for at in range(0, len(STORY), size):
            result.text += STORY[at : at + size]
            result.token_ids.append(1)
            view.update(result)
            above, _, last = screen.text().rpartition("\n")
            if last.startswith(f"coupled | {len(result.token_ids)} tokens | "):
                drawn += 1
            else:  # only where the line is just full
                above = screen.text()
                assert len(above.split("\n")[-1]) == COLUMNS
            assert above.rstrip() == wrapped(lead + result.text).rstrip()
    assert drawn >= 0.9 * len(result.token_ids) - 1
    assert screen.text() == wrapped(lead + STORY)
