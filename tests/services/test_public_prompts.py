"""Which tokens of a prompt are an operator's public system prompt, and which are a caller's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tandem.backends.model_description import load_tokenizer
from tandem.core.prompt import Turn
from tandem.demo import demo_folder
from tandem.net.reloaded import BadFile
from tandem.services.drafter.public_prompts import (
    MOST_PROMPTS,
    PublicPrompts,
    load_public_prompts,
    read_public_prompts,
    rendered_by,
)
from tandem.settings import SettingsError, load_settings
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.drafter.__main__ import build
from tandem.testing.settings import PacedDrafterSettings
from tandem.text import Tokenizer
from tandem.text.tool_prompt import conversation_ids

SYSTEM = "You answer questions about the shop. Be kind, and never promise a refund."
OTHER = "You translate what you are given."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(demo_folder("demo-draft"))


@pytest.fixture(scope="module")
def public(tokenizer: Tokenizer) -> PublicPrompts:
    return rendered_by(tokenizer, [OTHER, SYSTEM])


def ids(tokenizer: Tokenizer, *turns: tuple[str, str]) -> list[int]:
    return conversation_ids(tokenizer, [Turn(*turn) for turn in turns])


@pytest.mark.parametrize("words", ["hello", "0", "A", " padded", SYSTEM])
def test_what_is_public_ends_where_the_caller_s_words_begin(
    tokenizer: Tokenizer, public: PublicPrompts, words: str
) -> None:
    prompt = ids(tokenizer, ("system", SYSTEM), ("user", words))
    count = public.tokens_in(prompt)
    without_words = ids(tokenizer, ("system", SYSTEM), ("user", ""))
    end = tokenizer.detokenizer()
    assert SYSTEM in end.push(prompt[:count]) + end.finish()
    assert list(prompt[:count]) == without_words[:count]


def test_no_more_is_public_than_is_the_same(tokenizer: Tokenizer, public: PublicPrompts) -> None:
    whole = public.tokens_in(ids(tokenizer, ("system", SYSTEM), ("user", "hello")))
    longer = ids(tokenizer, ("system", SYSTEM + " The code is 1234."), ("user", "hello"))
    assert 0 < public.tokens_in(longer) <= whole
    unknown = public.tokens_in(ids(tokenizer, ("system", "Speak as a pirate."), ("user", "x")))
    begins_with_you = public.tokens_in(ids(tokenizer, ("user", SYSTEM)))
    assert max(unknown, begins_with_you) < 4, "the template's own beginning"
    assert public.tokens_in(()) == 0
    assert PublicPrompts().tokens_in(longer) == 0


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("not json", "must be a JSON list of texts"),
        ('{"a": "b"}', "must be a JSON list of texts"),
        ('["a", 1]', "must be a JSON list of texts"),
        ('["a", ""]', "none of them empty"),
        (json.dumps(["a"] * (MOST_PROMPTS + 1)), f"at most {MOST_PROMPTS}"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "public.json"
    path.write_text(content)
    with pytest.raises(BadFile, match=why):
        read_public_prompts(path)


def test_a_prompt_that_the_template_takes_no_system_s_turn_of_is_refused(tmp_path: Path) -> None:
    class Refusing:
        def chat(self, messages: Any, images: int, variables: Any) -> list[int]:
            from tandem.core.errors import InvalidArgument

            raise InvalidArgument("messages", "this model has no chat template; send a prompt")

    path, refusing = tmp_path / "public.json", Refusing()
    path.write_text(json.dumps([SYSTEM]))
    tokenizer: Any = refusing
    with pytest.raises(BadFile, match="cannot be a system's turn: this model has no chat template"):
        load_public_prompts(path, tokenizer)


async def test_a_bad_file_stops_the_start_and_the_variable_is_named(tmp_path: Path) -> None:
    path = tmp_path / "public.json"
    path.write_text("[1]")
    asked = {"public_prompts_file": path, "insecure": True, "engine": "scripted", "model": "1"}
    settings = load_settings(PacedDrafterSettings, asked)
    with pytest.raises(SettingsError, match=r"TANDEM_PUBLIC_PROMPTS_FILE: .*public\.json: must be"):
        build(settings, Metrics(new_registry(), "device"))
