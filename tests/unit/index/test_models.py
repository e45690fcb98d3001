"""The packaged MiniLM, and a cross-encoder made from a configuration."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from tandem.core.errors import InvalidArgument
from tandem.index.document_index import TextEmbedding
from tandem.index.embedding import MINILM, Embedder, _packaged, load_embedder
from tandem.index.reranking import load_reranker


@cache
def minilm() -> Embedder:
    embedder = load_embedder(MINILM)
    assert embedder is not None
    return embedder


def test_minilm_puts_like_beside_like_and_ignores_padding() -> None:
    embedder = minilm()
    assert embedder.dimension == 384
    texts = ["A cat sleeps on the sofa.", "A kitten naps on a couch.", "Interest rates rose."]
    vectors = embedder.embed(texts)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    products = vectors @ vectors.T
    # The model's own card: these two are alike, the third is not.
    assert products[0, 1] > 0.5 > 0.2 > products[0, 2]
    assert embedder.embed(texts[:1])[0] == pytest.approx(vectors[0], abs=1e-5)
    assert embedder.embed(["word " * 2000]).shape == (1, 384)
    assert list(embedder.count_tokens(["cat", "incomprehensibilities"])) == [1, 6]
    assert embedder.embed([]).shape == (0, 384)


def embedded(texts: Sequence[str] | Sequence[Sequence[int]], most_tokens: int = 0) -> Any:
    embedding = TextEmbedding(texts, minilm(), most_tokens)
    while embedding.step():
        pass
    return embedding


def test_a_long_text_is_the_mean_of_its_windows_weighted_by_their_tokens() -> None:
    embedder = minilm()
    assert embedder.max_tokens == 254
    text = " ".join(f"heron {number} stands in the reeds" for number in range(80))
    (ids,) = embedder.token_ids([text])
    assert len(ids) > 2 * 254
    windows = [ids[begin : begin + 254] for begin in range(0, len(ids), 254)]
    mean = sum(len(each) * embedder.embed_tokens([each])[0] for each in windows)
    whole = embedded(["short", text])
    assert whole.windows == [1, len(windows)]
    assert whole.tokens == [1, len(ids)]
    assert whole.vectors[1] == pytest.approx(mean / np.linalg.norm(mean), abs=1e-5)
    assert np.linalg.norm(whole.vectors, axis=1) == pytest.approx(1, abs=1e-5)


def test_threads_that_embed_at_once_get_what_each_gets_alone() -> None:
    """Only tokens are made one call at a time: the tokenizer's padding is set by each."""
    embedder = minilm()
    batches = [["word " * length, "a"][: 1 + length % 2] for length in range(1, 60, 5)]
    alone = [embedder.embed(batch) for batch in batches]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(embedder.embed, batches))
    for one, other in zip(alone, together, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("modules.json", None, "modules.json: cannot be read"),
        ("modules.json", [{"type": "x.Transformer"}, {"type": "x.Dense"}], "modules"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_max_tokens": True},
            "is not supported; use mean or cls",
        ),
        ("model.safetensors", None, "cannot be loaded"),
    ],
)
def test_a_model_that_is_not_understood_is_refused(
    tmp_path: Path, name: str, content: object, why: str
) -> None:
    packaged = _packaged()
    assert packaged is not None
    folder = tmp_path / "model"
    shutil.copytree(packaged, folder, ignore=shutil.ignore_patterns("model.safetensors"))
    if content is None:
        (folder / name).unlink(missing_ok=True)
    else:
        (folder / name).write_text(json.dumps(content))
    with pytest.raises(InvalidArgument, match=why) as caught:
        load_embedder(str(folder))
    assert caught.value.field == "embedding"


def make_cross_encoder(folder: Path, labels: int) -> None:
    torch.manual_seed(5)
    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "dog"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]"
    ).save_pretrained(folder)
    config: Any = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    config.num_labels = labels
    BertForSequenceClassification(config).save_pretrained(folder)


def test_a_cross_encoder_scores_each_pair_by_itself(tmp_path: Path) -> None:
    make_cross_encoder(tmp_path, labels=1)
    reranker = load_reranker(str(tmp_path))
    scores = reranker.score("cat", ["dog", "cat cat cat", "dog " * 500])
    assert len(set(scores)) == 3
    assert reranker.score("cat", ["cat cat cat"]) == pytest.approx([scores[1]], abs=1e-5)
    assert reranker.score("cat", []) == []
