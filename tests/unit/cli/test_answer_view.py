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


def test_the_text_is_the_same_on_a_terminal() -> None:
    screen = Screen(ROWS, COLUMNS)
    text, status = Terminal(screen), Terminal(screen)
    with AnswerView(text, status) as view:
        grow(view, list(STORY))
    assert text.getvalue() == STORY + "\n"


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


def test_the_status_fits_the_line_and_tells_of_a_lost_cloud() -> None:
    screen = Screen(ROWS, 200)
    result = Generated(preset="coupled", text="x", token_ids=[1, 2], unverified=[1], ttft_s=0.5)
    with AnswerView(Terminal(screen), Terminal(screen)) as view:
        view.update(result)
    status = Terminal(Screen(ROWS, COLUMNS))
    with AnswerView(io.StringIO(), status) as view:
        view.update(result)
    shown = status.getvalue().partition("\x1b[2m")[2].partition("\x1b[0m")[0]
    assert len(shown) < COLUMNS


def test_a_dumb_terminal_gets_no_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    status = Terminal(Screen(ROWS, COLUMNS))
    with AnswerView(io.StringIO(), status) as view:
        grow(view, ["a", "b"])
    assert status.getvalue() == ""


def sourced(texts: list[str], sources: list[str], text: str | None = None) -> Generated:
    ids = list(range(len(sources)))
    whole = "".join(texts) if text is None else text
    return Generated(text=whole, token_ids=ids, token_sources=sources, token_texts=texts)


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (
            sourced(["a", "b", " c", "\n"], ["draft", "draft", "target", "edge"]),
            "\x1b[32mab\x1b[0m\x1b[4;33m c\x1b[0m\x1b[4;31m\n\x1b[0m",
        ),
        # Text is held back: the token's rest has its colour later.
        (sourced(["abc", "d"], ["device", "cloud"], "ab"), "\x1b[36mab\x1b[0m"),
        # More text than the tokens spell, and tokens of which nobody says what they spell.
        (sourced(["a"], ["draft"], "a!"), "\x1b[32ma\x1b[0m!"),
        (sourced([], ["draft"], "a"), "a"),
    ],
)
def test_a_terminal_shows_who_made_each_token(result: Generated, shown: str) -> None:
    text = Terminal(Screen(ROWS, COLUMNS))
    with AnswerView(text, io.StringIO()) as view:
        assert view.wants_token_texts
        view.update(result)
        assert text.getvalue() == shown


def test_what_was_held_back_has_its_tokens_colour() -> None:
    text = Terminal(Screen(ROWS, COLUMNS))
    result = sourced(["abc", "d"], ["device", "cloud"], "ab")
    with AnswerView(text, io.StringIO()) as view:
        view.update(result)
        result.text = "abcd"
        view.update(result)
    assert text.getvalue() == "\x1b[36mab\x1b[0m\x1b[36mc\x1b[0m\x1b[4;35md\x1b[0m\n"


def test_the_legend_follows_the_answer() -> None:
    screen = Screen(ROWS, 100)
    with AnswerView(Terminal(screen), Terminal(screen)) as view:
        view.update(sourced(["a", "b", "c"], ["draft", "draft", "target"]))
    assert screen.text() == "abc\naccepted draft 2  target's own token 1"


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_some_terminals_get_no_colours(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    text = Terminal(Screen(ROWS, COLUMNS))
    with AnswerView(text, text) as view:
        assert not view.wants_token_texts
        view.update(sourced(["a"], ["draft"]))
    assert "\x1b[32m" not in text.getvalue()


def test_an_answer_that_ends_its_line_gets_no_empty_one() -> None:
    text = io.StringIO()
    with AnswerView(text, io.StringIO()) as view:
        grow(view, ["done\n"])
    assert text.getvalue() == "done\n"
