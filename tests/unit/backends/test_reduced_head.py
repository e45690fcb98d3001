"""A draft whose head is for some tokens alone: those as ever, and no others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import tandem
from tandem.backends.interface import ForwardRequest
from tandem.backends.model_source import HEAD_TOKENS
from tandem.backends.torch.loading import load_engine
from tandem.core.errors import InvalidArgument
from tandem.demo import demo_folder
from tests.long_runs import LONG
from tests.programs import REPOSITORY
from tests.unit.backends.tiny_folders import write_model

KEPT = (1, 5, 8, 30)
REAL = REPOSITORY / "models/real/smollm2"
REAL_DRAFT = REPOSITORY / "models/real/smollm2-draft"
TOKENS = 24


def named(folder: Path, tokens: object) -> Path:
    (folder / HEAD_TOKENS).write_text(json.dumps(tokens))
    return folder


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_draft_proposes_the_named_tokens_alone(dtype: str, tmp_path: Path) -> None:
    folder = named(write_model(tmp_path, "llama"), KEPT)
    found = []
    for drafts in (True, False):
        engine = load_engine(folder, drafts=drafts, dtype=dtype)
        (logits,) = engine.forward([ForwardRequest(engine.open(3), (3, 4, 5), 3)])
        found.append(logits)
    reduced, whole = found
    assert np.isneginf(np.delete(reduced, KEPT, axis=1)).all()
    assert np.allclose(reduced[:, KEPT], whole[:, KEPT], atol=1e-2 if dtype == "int8" else 1e-5)
    assert np.isfinite(whole).all()


@pytest.mark.parametrize("tokens", [[], "all", [1.5], [True], [-1], [1_000_000], {"1": 2}])
def test_a_list_that_is_none_is_refused(tokens: object, tmp_path: Path) -> None:
    folder = named(write_model(tmp_path, "llama"), tokens)
    with pytest.raises(InvalidArgument, match=HEAD_TOKENS):
        load_engine(folder, drafts=True)
    assert load_engine(folder).vocabulary_size


def check_texts(
    target: Path, draft: Path, dtype: str, prompts: tuple[str, ...], presets: tuple[str, ...]
) -> None:
    """Of a pair, by preset, against the target alone."""
    with tandem.embedded(draft=draft, target=target, dtype_draft=dtype) as suite:
        for prompt in prompts:
            texts = {
                preset: suite.generate(prompt, max_tokens=TOKENS, temperature=0, preset=preset)
                for preset in ("ar", *presets)
            }
            found = {preset: answer.token_ids for preset, answer in texts.items()}
            assert set(found.values()) == {found["ar"]}, found
            assert any(answer.figures.accepted for answer in texts.values())


def test_texts_stay_the_targets(tmp_path: Path) -> None:
    """Much of what the target says is no token of this draft's head."""
    draft = Path(shutil.copytree(demo_folder("demo-draft"), tmp_path / "draft"))
    named(draft, [token for token in range(4096) if token % 3])
    check_texts(
        demo_folder("demo-target"), draft, "float32", ("A list is",), ("coupled", "dssd", "stream")
    )


@LONG  # loads both real models; the same test above has the demonstration's
def test_the_real_pairs_text_is_the_targets() -> None:
    if not REAL_DRAFT.exists():
        pytest.skip("needs the weights: make real-pair")
    check_texts(REAL, REAL_DRAFT, "int8", ("The capital of France is",), ("dssd",))
