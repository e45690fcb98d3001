"""Questions and passages that are embedded differently, by the prompts in their model's folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tandem.index.document_index import open_index
from tandem.index.embedding import Embedder, load_embedder
from tandem.index.records import Document, FolderMismatch
from tests.unit.index.tiny_bert import make_bert


def loaded(folder: Path) -> Embedder:
    embedder = load_embedder(str(folder))
    assert embedder is not None
    return embedder


def test_the_prompts_in_a_model_s_folder_are_put_before_texts(tmp_path: Path) -> None:
    """As E5's folder has them; texts that are neither question nor passage stay as they are."""
    plain = loaded(make_bert(tmp_path / "plain" / "model"))
    prompts = {"query": "query: ", "passage": "passage: "}
    e5 = loaded(make_bert(tmp_path / "e5" / "model", prompts=prompts))
    assert np.array_equal(e5.embed(["heron"]), plain.embed(["passage: heron"]))
    assert np.array_equal(e5.embed_questions(["heron"]), plain.embed(["query: heron"]))
    assert np.array_equal(e5.embed_tokens([[7]]), plain.embed(["heron"]))
    assert not np.allclose(e5.embed(["heron"]), e5.embed_questions(["heron"]), atol=1e-3)
    assert plain.embed_questions(["heron"]) == pytest.approx(plain.embed(["heron"]))


def test_what_passages_were_embedded_with_cannot_change_in_an_index(tmp_path: Path) -> None:
    """Else questions would be compared with vectors that mean something else."""
    model, place = make_bert(tmp_path / "model"), tmp_path / "index"
    settings = model / "config_sentence_transformers.json"
    index = open_index(place, str(model))
    index.add([Document("heron.md", "a heron")])
    index.close()
    settings.write_text(json.dumps({"prompts": {"passage": "passage: "}}))
    with pytest.raises(FolderMismatch, match="use the same embedding"):
        open_index(place, str(model))
    settings.write_text(json.dumps({"prompts": {"query": "query: "}}))
    index = open_index(place, str(model))
    assert [hit.document_id for hit in index.search("heron")] == ["heron.md"]
    index.close()
