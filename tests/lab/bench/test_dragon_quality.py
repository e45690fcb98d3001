"""The quality bench's mixtures, and how documents are split between the sides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.bench.two_sided.dragon_corpus import QUERY_TOKENS, WINDOW_TOKENS, read_windows
from lab.bench.two_sided.dragon_quality import (
    CONTEXT_DOCUMENT_TOKENS,
    Predictor,
    _joined,
    _methods,
)
from lab.training.demo_pair.corpus import is_held_out
from tandem.testing.scripted import ScriptedEngine, ScriptedTokenizer, scripted_probs
from tandem.two_sided.protocol.mixture import Side, log_mass, side_weights

VOCABULARY = 256


@pytest.fixture
def peps(tmp_path: Path) -> Path:
    held = [f"pep-{number:04}" for number in range(300) if is_held_out(f"pep-{number:04}")][:3]
    path = tmp_path / "peps.jsonl"
    with path.open("w") as file:
        for name in [*held, "pep-0001"]:
            words = " ".join(f"{name} w{number % 37}" for number in range(300))
            file.write(json.dumps({"id": name, "title": name, "text": words}) + "\n")
    assert not is_held_out("pep-0001")
    return path


def test_windows_are_held_out_and_the_better_documents_are_the_cloud_s(peps: Path) -> None:
    windows = read_windows(peps, ScriptedTokenizer(VOCABULARY), 3, seed=1)
    assert len(windows) == 6  # two of each held-out text
    for window in windows:
        assert len(window.token_ids) == WINDOW_TOKENS
        cloud, device = window.of(Side.CLOUD, 3), window.of(Side.DEVICE, 3)
        assert len(cloud) == len(device) == 3
        assert min(one.score for one in cloud) >= max(one.score for one in device)
        assert [one.rank for one in device] == [1, 2, 3]
        assert not window.of(Side.CLOUD, 0)
    assert windows == read_windows(peps, ScriptedTokenizer(VOCABULARY), 3, seed=1)


def test_with_one_model_and_one_weight_two_sides_are_one_pile_of_documents(peps: Path) -> None:
    window = read_windows(peps, ScriptedTokenizer(VOCABULARY), 2, seed=1)[0]
    engine = ScriptedEngine(VOCABULARY, scripted_probs(1, VOCABULARY, order=400))
    predictor = Predictor(engine, window)
    found = dict(_methods(predictor, 2))
    assert found["dragon"].shape == (WINDOW_TOKENS - QUERY_TOKENS,)
    shares = side_weights(
        *(log_mass([one.score for one in window.of(side, 2)]) for side in (Side.DEVICE, Side.CLOUD))
    )
    mixed = shares.device * found["crcg-device"] + shares.cloud * found["crcg-cloud"]
    assert found["dragon"] == pytest.approx(mixed)
    pile = predictor.mixed([*window.of(Side.CLOUD, 2), *window.of(Side.DEVICE, 2)])
    assert found["dragon"] == pytest.approx(pile)
    without = dict(_methods(predictor, 0))
    assert without["dragon"] == pytest.approx(without["context-all"])


def test_one_context_holds_as_many_documents_as_the_paper_s(peps: Path) -> None:
    (window, *_) = read_windows(peps, ScriptedTokenizer(VOCABULARY), 6, seed=1)
    at = Predictor(ScriptedEngine(VOCABULARY, scripted_probs(1, VOCABULARY)), window)
    documents = window.of(Side.CLOUD, 6)
    context = _joined(at, documents)
    assert len(context) == CONTEXT_DOCUMENT_TOKENS
    assert context[-len(documents[0].token_ids) :] == documents[0].token_ids  # the best is last
