"""Questions and passages that are embedded differently."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.index.document_index import open_index
from tandem.index.embedding import Embedder, load_embedder
from tandem.index.records import Document, FolderMismatch
from tandem.index.text_roles import TextRoles
from tests.unit.index.tiny_bert import make_bert


def loaded(folder: Path, roles: TextRoles | None = None) -> Embedder:
    embedder = load_embedder(str(folder), roles=roles or TextRoles())
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


def test_settings_replace_the_model_s_own_prompts(tmp_path: Path) -> None:
    folder = make_bert(tmp_path / "e5", prompts={"query": "query: ", "document": "passage: "})
    none = loaded(folder, TextRoles(question_prefix="", passage_prefix=""))
    other = loaded(folder, TextRoles(question_prefix="a : "))
    assert np.array_equal(other.embed_questions(["heron"]), none.embed(["a : heron"]))
    assert np.array_equal(other.embed(["heron"]), none.embed(["passage: heron"]))


def test_questions_may_have_an_encoder_of_their_own(tmp_path: Path) -> None:
    """As DPR has."""
    passages = make_bert(tmp_path / "passages", seed=1)
    questions = make_bert(tmp_path / "questions", seed=2)
    dual = loaded(passages, TextRoles(question_model=str(questions)))
    assert np.array_equal(dual.embed(["heron"]), loaded(passages).embed(["heron"]))
    assert np.array_equal(dual.embed_questions(["heron"]), loaded(questions).embed(["heron"]))


def test_what_passages_were_embedded_with_cannot_change_in_an_index(tmp_path: Path) -> None:
    """Else questions would be compared with vectors that mean something else."""
    model = str(make_bert(tmp_path / "model-a"))
    other = str(make_bert(tmp_path / "model-b", seed=2))
    place = tmp_path / "index"
    index = open_index(place, model)
    index.add([Document("heron.md", "a heron")])
    index.close()
    for roles in (TextRoles(passage_prefix="passage: "), TextRoles(question_model=other)):
        with pytest.raises(FolderMismatch, match="use the same embedding"):
            open_index(place, model, roles=roles)
    index = open_index(place, model, roles=TextRoles(question_prefix="query: "))
    assert [hit.document_id for hit in index.search("heron")] == ["heron.md"]
    index.close()


def test_encoders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    passages = str(make_bert(tmp_path / "passages"))
    wider = str(make_bert(tmp_path / "wider", size=36))
    for model, question_model, why in (
        (passages, wider, "36 numbers a vector, passages have 24"),
        (passages, "nowhere", "'nowhere' is not a folder"),
        ("lexical", passages, "needs an embedding model beside it"),
    ):
        with pytest.raises(InvalidArgument, match=why) as refused:
            load_embedder(model, roles=TextRoles(question_model=question_model))
        assert refused.value.field == "question_embedding"
