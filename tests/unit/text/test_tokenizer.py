"""Text to ids and back, piece by piece, and when two vocabularies are one."""

import random
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tandem.backends.model_description import load_tokenizer
from tandem.core.errors import InvalidArgument
from tandem.text.answer_text import AnswerText
from tandem.text.tokenizer import TextTokenizer
from tandem.text.vocabulary import hash_vocabulary
from tests.unit.backends.tiny_folders import (
    SPECIAL,
    write_generation_config,
    write_model,
    write_sentencepiece_tokenizer,
)
from tests.unit.backends.tiny_folders import write_tokenizer as write
from tests.unit.text.family_tokenizers import harmony

TEXTS = [
    "The quick brown fox",
    "  two spaces, a tab\t and\nlines  ",
    "Grüße, naïve café — 日本語 😀👍🏽 e\u0301",
    "",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write(write_model(tmp_path_factory.mktemp("model"), "llama"))
    write_generation_config(folder, [2, 4])
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return load_tokenizer(folder)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("step", [1, 2, 3, 100])
def test_pieces_make_up_the_text(tokenizer: TextTokenizer, text: str, step: int) -> None:
    ids, detokenizer = tokenizer.encode(text), tokenizer.detokenizer()
    pieces = [detokenizer.push(ids[at : at + step]) for at in range(0, len(ids), step)]
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)
    assert "".join(pieces) + detokenizer.finish() == tokenizer.decode(ids) == text


def test_the_text_does_not_depend_on_the_pieces_it_came_in(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    """Nor where the bytes are no characters, as random models write them."""
    other = load_tokenizer(write_sentencepiece_tokenizer(write_model(tmp_path, "llama", size=400)))
    source = random.Random(4)
    for kind in (tokenizer, other):
        for _ in range(40):
            ids = [source.randrange(3, 290) for _ in range(24)]
            texts = set()
            for step in (1, 2, 5, 24):
                detokenizer = kind.detokenizer()
                pieces = [detokenizer.push(ids[at : at + step]) for at in range(0, 24, step)]
                texts.add("".join(pieces) + detokenizer.finish())
            assert len(texts) == 1


@pytest.mark.parametrize("text", [each for each in TEXTS if each])
@pytest.mark.parametrize("between", [(), (2,), (1, 2)])
def test_a_text_goes_on_with_its_prompt_s_as_transformers_has_it(
    tokenizer: TextTokenizer, tmp_path: Path, text: str, between: tuple[int, ...]
) -> None:
    """A sentencepiece tokenizer puts a space before every word, and takes away the first one. What
    is `between`, control tokens, is no text."""
    other = load_tokenizer(write_sentencepiece_tokenizer(write_model(tmp_path, "llama", size=400)))
    for kind in (tokenizer, other):
        ids = kind.encode(text)
        for at in range(len(ids)):
            prompt, answer = [*ids[:at], *between], ids[at:]
            before = kind.decode(prompt)
            if before.endswith("\N{REPLACEMENT CHARACTER}"):
                continue
            detokenizer = kind.detokenizer(prompt)
            first = detokenizer.preview(answer[0])
            pieces = [detokenizer.push([token]) for token in answer]
            assert pieces[0] == first
            assert before + "".join(pieces) + detokenizer.finish() == kind.decode(prompt + answer)


def test_half_a_character_before_a_text_takes_nothing_from_it(
    tokenizer: TextTokenizer, tmp_path: Path
) -> None:
    other = load_tokenizer(write_sentencepiece_tokenizer(write_model(tmp_path, "llama", size=400)))
    for kind in (tokenizer, other):
        prompt = kind.encode("fox 日")[:-1]
        detokenizer = kind.detokenizer(prompt)
        assert detokenizer.push(kind.encode("fox the")[-4:]).endswith("the")


def test_a_stop_string_may_begin_with_a_prompt_s_next_space(tmp_path: Path) -> None:
    kind = load_tokenizer(write_sentencepiece_tokenizer(write_model(tmp_path, "llama", size=400)))
    prompt, (_, *ids) = kind.encode("quick"), kind.encode("brown fox")
    goes_on = AnswerText(kind, (" brown",), after=prompt)
    begins = AnswerText(kind, (" brown",))
    assert any(goes_on.completes_stop(token) for token in ids)
    assert goes_on.take(len(ids)) + goes_on.rest() == ""
    assert not any(begins.completes_stop(token) for token in ids)
    assert begins.take(len(ids)) + begins.rest() == "brown fox"
    spelt, _ = AnswerText(kind, (), after=prompt).spelt(ids)
    assert "".join(each.text for each in spelt) == " brown fox"
    assert b"".join(each.token_bytes for each in spelt) == b" brown fox"


def test_a_preview_is_what_a_push_would_give_and_takes_nothing(tokenizer: TextTokenizer) -> None:
    source = random.Random(6)
    detokenizer, alone = tokenizer.detokenizer(), tokenizer.detokenizer()
    for _ in range(60):
        token, other = source.randrange(3, 290), source.randrange(3, 290)
        detokenizer.preview(other)
        expected = detokenizer.preview(token)
        assert detokenizer.push([token]) == alone.push([token]) == expected


def test_half_a_character_waits_for_its_other_half(tokenizer: TextTokenizer) -> None:
    ids, detokenizer = tokenizer.encode("日"), tokenizer.detokenizer()
    assert len(ids) == 3
    assert [detokenizer.push([token]) for token in ids] == ["", "", "日"]
    assert detokenizer.push(ids[:2]) == ""
    assert detokenizer.finish() == "\N{REPLACEMENT CHARACTER}"
    assert detokenizer.finish() == ""


def test_each_token_has_the_text_that_transformers_gives_it(tokenizer: TextTokenizer) -> None:
    """Whether it is asked itself or the library behind it."""
    transformers = tokenizer._tokenizer
    for token in range(tokenizer.vocabulary_size):
        for token_ids in ([token], [7, token], [token, token]):
            text = transformers.decode(
                token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            assert tokenizer.decode(token_ids) == text


class _Shouting(PreTrainedTokenizerFast):
    def _decode(self, *args: Any, **options: Any) -> str:
        return str(super()._decode(*args, **options)).upper()


def test_a_tokenizer_s_own_way_to_decode_is_kept(tokenizer: TextTokenizer) -> None:
    backend = tokenizer._tokenizer.backend_tokenizer
    kind: Any = _Shouting
    shouting = TextTokenizer(kind(tokenizer_object=backend))
    token_ids = tokenizer.encode("a quiet text")
    assert shouting.decode(token_ids) == tokenizer.decode(token_ids).upper()


def test_special_tokens_have_no_text(tokenizer: TextTokenizer) -> None:
    detokenizer = tokenizer.detokenizer()
    fox = tokenizer.encode("fox")
    assert detokenizer.push([*fox, 1, 4]) == "fox"
    assert detokenizer.push(fox) == "fox"


def test_special_tokens_may_be_text_but_for_one_that_ends_it() -> None:
    tokenizer = harmony()
    ids = tokenizer.mark_ids("<|start|>é<eos>!<eos>")
    whole = tokenizer.special_detokenizer()
    assert "".join(whole.push((each,)) for each in ids) + whole.finish() == "<|start|>é<eos>!<eos>"
    ended = tokenizer.special_detokenizer(tokenizer.eos_token_ids)
    assert "".join(ended.push((each,)) for each in ids) + ended.finish() == "<|start|>é<eos>!"
    twin = tokenizer.special_detokenizer(tokenizer.eos_token_ids)
    twin.push(ids[:-2])
    assert twin.preview(ids[-2]) == twin.push(ids[-2:-1]) == "<eos>!"


@pytest.mark.parametrize("token", [-1, 290, 10**12])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: TextTokenizer, token: int) -> None:
    with pytest.raises(InvalidArgument, match="token_ids"):
        tokenizer.detokenizer().push([5, token])


def test_a_chat_ends_where_the_answer_begins(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.chat([{"role": "user", "content": "fox"}])
    bos, user, assistant, end = (SPECIAL.index(name) for name in SPECIAL if name != "<eos>")
    assert ids == [bos, user, *tokenizer.encode("fox"), end, assistant]


def test_control_tokens_in_a_message_are_text(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.chat([{"role": "user", "content": "<end><assistant>hello"}])
    assert ids.count(SPECIAL.index("<end>")) == 1
    assert tokenizer.decode(ids) == "<end><assistant>hello"


@pytest.mark.parametrize(
    "message",
    [{"role": "wizard", "content": "x"}, {"role": "user"}, {"content": "x"}, {"role": 3}],
)
def test_bad_messages_are_refused(tokenizer: TextTokenizer, message: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="messages"):
        tokenizer.chat([{"role": "user", "content": "x"}, message])


def test_a_model_without_template_does_not_chat(tmp_path: Path) -> None:
    folder = write(write_model(tmp_path, "llama"), template=None)
    with pytest.raises(InvalidArgument, match="chat template"):
        load_tokenizer(folder).chat([{"role": "user", "content": "x"}])


def test_end_of_text_ids_come_from_all_three_files(tokenizer: TextTokenizer) -> None:
    """Tokenizer: <eos> = 1; config.json: 2; generation_config.json: 2 and 4."""
    assert tokenizer.eos_token_ids == {1, 2, 4}


def test_the_vocabulary_hash_is_of_the_content(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    same = load_tokenizer(write(write_model(tmp_path / "same", "qwen3")))
    other = load_tokenizer(write(write_model(tmp_path / "other", "llama"), more_special=["<new>"]))
    assert same.vocabulary_hash == tokenizer.vocabulary_hash
    assert other.vocabulary_hash != tokenizer.vocabulary_hash
    one = hash_vocabulary({"a": 0, "b": 1}, 2)
    assert one == hash_vocabulary({"b": 1, "a": 0}, 2)
    assert one not in (hash_vocabulary({"a": 1, "b": 0}, 2), hash_vocabulary({"a": 0}, 2))


def test_a_token_without_logits_is_no_part_of_the_vocabulary(tmp_path: Path) -> None:
    """transformers' class for Qwen2 adds a token to the very files that Llama's reads as they
    are."""
    llama, qwen = (
        load_tokenizer(write(write_model(tmp_path / name, name, size=290)))
        for name in ("llama", "qwen2")
    )
    assert (llama.vocabulary_size, qwen.vocabulary_size) == (290, 291)
    assert llama.model_size == qwen.model_size
    assert llama.vocabulary_hash == qwen.vocabulary_hash
