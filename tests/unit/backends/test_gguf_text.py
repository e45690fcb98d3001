"""The text of a GGUF file's tokens, without llama.cpp: which space is the text's own."""

from __future__ import annotations

from typing import cast

from tandem.backends.llamacpp.gguf_tokenizer import GgufText, GgufTokenizer


class Words:
    """A sentencepiece tokenizer's vocabulary: a control token, and words with their spaces."""

    vocabulary_size = 4
    drops_first_space = True

    def piece(self, token: int) -> bytes:
        return (b"", b" of", b" the", b" model")[token]


def text_after(*after: int) -> GgufText:
    return GgufText(cast(GgufTokenizer, Words()), after=after)


def test_a_text_begins_without_a_space_and_goes_on_with_one() -> None:
    assert text_after().push([2, 3]) == "the model"
    assert text_after(0).push([2, 3]) == "the model", "a control token is no text"
    assert text_after(2, 1).push([2, 3]) == " the model"
    assert text_after(1, 0).push([2, 3]) == " the model"
    goes_on = text_after(1)
    assert goes_on.preview(2) == goes_on.push([2]) == " the"
