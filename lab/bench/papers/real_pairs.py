"""Pairs that are downloaded: SmolLM2-135M with its draft model and exits, and Qwen2.5-Coder.

Their distributions are computed as the services compute them, at temperature 1 unless a sampling is
given. What is not there is None: `make real-pair` and `make large-pair` bring it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.bench.harness.models import ROOT, Models
from lab.bench.harness.report import counted
from lab.bench.harness.texts import prompts
from lab.bench.papers.testbed import Testbed
from tandem.backends.factory import load_model
from tandem.backends.interface import Engine, ForwardRequest
from tandem.backends.model_source import LoadedModel, ModelChoice
from tandem.backends.torch.loading import find_exits
from tandem.core.probs import (
    SamplingParams,
    Truncation,
    batch_probs_from_logits,
    truncate,
)
from tandem.testing.simulation.model_pair import SimulatedPair, simulated_pair

SMOLLM2 = ROOT / "models" / "real" / "smollm2"
LARGE = ROOT / "models" / "large"
SMOLLM2_NAME = "SmolLM2-135M"
QWEN_NAME = "Qwen2.5-Coder-1.5B"
PAIRS = {
    SMOLLM2_NAME: Models(
        draft=str(SMOLLM2.with_name("smollm2-draft")), target=str(SMOLLM2), draft_dtype="int8"
    ),
    QWEN_NAME: Models(
        draft=str(LARGE / "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
        target=str(LARGE / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
    ),
}
"""By the name of the target."""
TOP_K = 10
ANSWERS = 12
QUICK_ANSWERS = 2
TOKENS = 64
QUICK_TOKENS = 8


def real_pair() -> Models | None:
    """Return SmolLM2-135M-Instruct and the draft model for it; None before `make real-pair`."""
    there = SMOLLM2.is_dir() and SMOLLM2.with_name("smollm2-draft").is_dir()
    return PAIRS[SMOLLM2_NAME] if there else None


def exits_pair() -> Models | None:
    """Return SmolLM2 where it has exits. Its draft model is not int8, which rounds a pass over
    several branches otherwise than one over one, and so would draw other drafts ahead."""
    real = real_pair()
    if real is None or find_exits(real.target, "auto") is None:
        return None
    return replace(real, draft_dtype="float32")


def shared_distributions(
    testbed: Testbed, models: Models, sampling: SamplingParams
) -> SimulatedPair:
    """Return both models as functions of a context, loaded once for all tables of a seed."""

    def load() -> SimulatedPair:
        draft, target = _loaded(models, exits="auto")
        return simulated_pair(draft.engine, target.engine, sampling)

    return testbed.once(("distributions", models, sampling), load)


def _loaded(models: Models, exits: str = "none") -> tuple[LoadedModel, LoadedModel]:
    draft = ModelChoice(models.draft, dtype=models.draft_dtype, drafts=True)
    target = ModelChoice(models.target, dtype=models.target_dtype, exits=exits)
    return load_model(draft), load_model(target)


@dataclass(frozen=True, slots=True)
class Drawn:
    """An answer that the target drew with top-k 10: its tokens, and after each text before one of
    them both models' whole distributions [tokens, vocabulary]."""

    token_ids: tuple[int, ...]
    target: NDArray[np.float32]
    draft: NDArray[np.float32]


def drawn_answers(testbed: Testbed, name: str) -> Sequence[Drawn]:
    """Return answers of the pair of this name to held-out prompts, sources in turn, drawn once for
    all tables; none where it is not there."""
    return testbed.once(("drawn", name), lambda: _drawn_answers(testbed, PAIRS[name]))


def _drawn_answers(testbed: Testbed, models: Models) -> list[Drawn]:
    if not all(Path(one).exists() for one in (models.draft, models.target)):
        return []
    draft, target = _loaded(models)
    assert target.tokenizer is not None, "these models have one"
    count, tokens = (QUICK_ANSWERS, QUICK_TOKENS) if testbed.quick else (ANSWERS, TOKENS)
    drawn = []
    for number, prompt in enumerate(counted(prompts(count), lambda prompt: "an answer drawn")):
        prompt_ids = tuple(target.tokenizer.encode(prompt))
        source = np.random.default_rng((testbed.seed, number))
        token_ids, probs = _draw(target.engine, prompt_ids, tokens, source)
        drawn.append(Drawn(token_ids, probs, _along(draft.engine, prompt_ids, token_ids)))
    return drawn


def _draw(
    engine: Engine, prompt_ids: tuple[int, ...], tokens: int, source: np.random.Generator
) -> tuple[tuple[int, ...], NDArray[np.float32]]:
    drawn: list[int] = []
    distributions = []
    session = engine.open(len(prompt_ids) + tokens)
    fed = prompt_ids
    while len(drawn) < tokens:
        (logits,) = engine.forward([ForwardRequest(session, fed, 1)])
        distributions += list(batch_probs_from_logits(logits, SamplingParams()))
        chances = truncate(distributions[-1], Truncation(top_k=TOP_K)).astype(np.float64)
        drawn.append(int(source.choice(len(chances), p=chances / chances.sum())))
        fed = (drawn[-1],)
    session.close()
    return tuple(drawn), np.stack(distributions)


def _along(
    engine: Engine, prompt_ids: tuple[int, ...], token_ids: tuple[int, ...]
) -> NDArray[np.float32]:
    fed = (*prompt_ids, *token_ids[:-1])
    session = engine.open(len(fed))
    (logits,) = engine.forward([ForwardRequest(session, fed, len(token_ids))])
    session.close()
    return batch_probs_from_logits(logits, SamplingParams())
