"""The parts of `bench document-kv` that its figures rest on."""

from __future__ import annotations

import pytest

from lab.bench.two_sided.document_kv import documents_of
from tandem.core.errors import InvalidArgument
from tandem.testing.scripted import ScriptedTokenizer
from tandem.two_sided.decoding.document_decoder import SEPARATOR

TOKENIZER = ScriptedTokenizer(300)


def test_documents_have_exactly_the_tokens_that_a_decoder_reads() -> None:
    texts = documents_of(TOKENIZER, 40, 5, seed=1)
    assert [len(TOKENIZER.encode(text + SEPARATOR)) for text in texts] == [40] * 5
    assert len(set(texts)) == 5
    assert texts == documents_of(TOKENIZER, 40, 5, seed=1)
    assert texts != documents_of(TOKENIZER, 40, 5, seed=2)


def test_too_little_text_is_named() -> None:
    with pytest.raises(InvalidArgument, match="target: too little held-out text for 5 of 1000000"):
        documents_of(TOKENIZER, 10**6, 5, seed=1)
