"""From a bare clone: README and the first hour, block by block, and whether each shows what its
page says that it does."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from tests.docs.blocks import Block
from tests.newcomer.conftest import HOPED_S, MAKE_RUN
from tests.newcomer.newcomer import TIMEOUT_S, Newcomer, Shown, blocks_to_follow

pytestmark = pytest.mark.timeout(TIMEOUT_S)

PAGES = ("README.md", "docs/first-hour.md")
BLOCKS = [block for page in PAGES for block in blocks_to_follow(page)]


def an_answer(shown: Shown) -> None:
    """The text on standard output; the model and the figures on standard error."""
    assert len(shown.out.split()) >= 8
    assert "model: real/SmolLM2-135M-Instruct.Q4_1 (the only chat model here" in shown.err
    assert "tokens/s" in shown.err
    assert not [line for line in shown.out.splitlines() if line.startswith("model: ")]


def three_answers_and_what_is_next(shown: Shown) -> None:
    assert shown.out.count("Question: ") == 3
    assert shown.out.count("tokens/s") == 3
    assert "the large model alone: the same text" in shown.out
    for said in ("Next:", "tandem chat", "http://127.0.0.1:8000/", "tandem compare"):
        assert said in shown.out


def a_verdict(shown: Shown) -> None:
    """The last line says whether drafts paid, after both speeds and whether the texts agree."""
    last = shown.out.splitlines()[-1]
    assert "times as fast" in last
    assert "the texts " in shown.out
    assert shown.err.count("turn ") >= 2


def a_healthy_installation_and_an_answer(shown: Shown) -> None:
    assert not [line for line in shown.out.splitlines() if line.startswith("bad")]
    an_answer(shown)


def a_suite(shown: Shown) -> None:
    """Where the page is, how to ask, and what is kept."""
    for said in ("in a browser: http://", "ask: tandem generate", "keeps: ", "on disk"):
        assert said in shown.out


def answers_by_http(shown: Shown) -> None:
    """After the command's text, a line of JSON for each call of curl."""
    models, chat = (json.loads(line) for line in shown.out.splitlines() if line.startswith("{"))
    assert models["data"][0]["id"]
    assert chat["choices"][0]["message"]["content"].strip()


def some_text(shown: Shown) -> None:
    assert shown.out.strip()


def a_note_that_was_found(shown: Shown) -> None:
    assert "heron-releases" in shown.out


PROMISES: dict[str, Callable[[Shown], None]] = {
    "make run ": three_answers_and_what_is_next,
    "cd tandem\nmake run": three_answers_and_what_is_next,
    'tandem generate "Why is the sky blue?"': an_answer,
    "tandem compare": a_verdict,
    "tandem up --rtt-ms": a_suite,
    "tandem.embedded()": some_text,
    "tandem doctor": a_healthy_installation_and_an_answer,
    "curl": answers_by_http,
    "generate --rag": some_text,
    "tandem search": a_note_that_was_found,
}
"""What a block is known by, and what it must show."""


def promised_by(block: Block) -> Callable[[Shown], None]:
    (promise,) = [promise for words, promise in PROMISES.items() if words in block.text]
    return promise


def test_every_block_has_a_promise_and_every_promise_a_block() -> None:
    assert {promised_by(block) for block in BLOCKS} == {*PROMISES.values()}


def test_one_command_installs_answers_and_says_what_is_next(cloner: Newcomer, made: Shown) -> None:
    three_answers_and_what_is_next(made)
    assert "installing Tandem with llama.cpp" in made.out
    assert "WARNING" not in made.out + made.err
    assert not [*(cloner.folder / ".venv").rglob("torch/__init__.py")]
    changed = subprocess.run(
        ("git", "status", "--porcelain"), cwd=cloner.folder, capture_output=True, check=True
    )
    assert changed.stdout == b"", "all that it makes is ignored"
    assert made.seconds < 5 * HOPED_S[MAKE_RUN], "ten minutes would be another product"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_block_shows_what_its_page_says(block: Block, cloner: Newcomer, made: Shown) -> None:
    promised_by(block)(cloner.follow(block))
    if block.text.startswith("tandem up"):
        assert "<html" in cloner.page()


def test_what_was_not_asked_for_is_not_kept(cloner: Newcomer, made: Shown) -> None:
    """After all of that, once the suite was left by Ctrl-C."""
    cloner.leave()
    assert cloner.texts_kept() == []
