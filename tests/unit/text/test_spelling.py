"""What each token spells: characters that make up the text, bytes that make up its UTF-8."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tandem.backends.model_description import load_tokenizer
from tandem.demo import demo_folder
from tandem.testing.scripted import ScriptedTokenizer
from tandem.text import Tokenizer
from tandem.text.spelling import Spelling
from tests.unit.backends.tiny_folders import write_model, write_sentencepiece_tokenizer

TEXTS = [
    "The quick brown fox",
    "👍🏽👨‍👩‍👧‍👦 family 🇩🇪",
    "Grüße, naïve café — 日本語 e\u0301 \N{REPLACEMENT CHARACTER} x",
    "  two spaces, a tab\t and\nlines  ",
]


@pytest.fixture(scope="module", params=["byte level", "sentencepiece"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    if request.param == "byte level":
        return load_tokenizer(demo_folder("demo-target"))
    folder: Path = write_model(tmp_path_factory.mktemp("model"), "llama", size=400)
    return load_tokenizer(write_sentencepiece_tokenizer(folder))


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_make_up_the_utf8_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text)
    spelling = Spelling(tokenizer)
    spelt, _ = spelling.spelt(token_ids)
    whole = "".join(each.text for each in spelt) + spelling.finish()
    assert b"".join(each.token_bytes for each in spelt) == whole.encode()


def test_a_part_of_a_character_has_its_own_bytes() -> None:
    tokenizer = load_tokenizer(demo_folder("demo-target"))
    emoji = "👨‍👩‍👧‍👦"
    token_ids = tokenizer.encode_piece(emoji)
    spelt, _ = Spelling(tokenizer).spelt(token_ids)
    assert len(token_ids) > len(emoji), "characters are cut into tokens"
    assert all(each.token_bytes for each in spelt)
    assert [each.token_bytes for each in spelt] == [
        tokenizer.vocabulary().pieces[token_id] for token_id in token_ids
    ]


def test_a_preview_is_what_the_token_would_spell_there(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("Grüße 👍🏽 日本")
    spelling = Spelling(tokenizer)
    spelt, others = spelling.spelt(token_ids, [[token_id, 5, token_id] for token_id in token_ids])
    for each, (first, _, last) in zip(spelt, others, strict=True):
        assert first == last == each


def test_what_is_no_utf8_has_the_bytes_of_its_tokens() -> None:
    """As random models write it: the text has replacement characters, the bytes do not."""
    tokenizer = load_tokenizer(demo_folder("demo-target"))
    pieces = tokenizer.vocabulary().pieces
    source = random.Random(4)
    for _ in range(40):
        token_ids = [source.choice(range(3, 300)) for _ in range(24)]
        spelt, _ = Spelling(tokenizer).spelt(token_ids)
        assert b"".join(each.token_bytes for each in spelt) == b"".join(
            pieces.get(token_id, b"") for token_id in token_ids
        )


def test_control_tokens_spell_nothing() -> None:
    tokenizer = load_tokenizer(demo_folder("demo-target"))
    end = min(tokenizer.eos_token_ids)
    spelt, _ = Spelling(tokenizer).spelt([end, *tokenizer.encode("a"), end])
    assert (spelt[0].text, spelt[0].token_bytes) == ("", b"")
    assert (spelt[-1].text, spelt[-1].token_bytes) == ("", b"")


def test_a_tokenizer_that_knows_no_bytes_has_those_of_the_text() -> None:
    spelt, _ = Spelling(ScriptedTokenizer(64)).spelt([7, 9])
    assert [(each.text, each.token_bytes) for each in spelt] == [("<7>", b"<7>"), ("<9>", b"<9>")]
