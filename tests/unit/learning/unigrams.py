"""An adaptation without a model: a draft that knows how often each token comes, and learns it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.backends.interface import ForwardCancelled, Session, never
from tandem.core.errors import InvalidArgument
from tandem.learning.adaptation import Weights
from tandem.learning.evaluation import Score
from tandem.learning.examples import Example
from tandem.learning.tenant import LearningSetup

VOCABULARY = 16
LIKELY = 3
"""The token that the target says most often."""


class Unigrams:
    """Implements `Adaptation`: the weights of an adapter are logits."""

    layout = "unigrams"
    size = VOCABULARY
    max_tokens = 64

    def __init__(self) -> None:
        self.used: list[tuple[Session, object]] = []
        self.merged: object = None
        self.fails: Exception | None = None

    def place(self, weights: Weights) -> object:
        if weights.shape != (VOCABULARY,):
            raise InvalidArgument("adapter", f"{weights.shape} numbers")
        return weights.copy()

    def merge(self, adapter: object) -> None:
        self.merged = adapter

    def use(self, session: Session, adapter: object) -> None:
        self.used.append((session, adapter))

    def trainer(self, weights: Weights | None, state: Mapping[str, NDArray[Any]]) -> UnigramTrainer:
        if state:
            return UnigramTrainer(self, self.place(state["logits"]))
        start = np.zeros(VOCABULARY, np.float32) if weights is None else weights.copy()
        return UnigramTrainer(self, start)

    def score(
        self, adapter: object | None, text: Example, cancelled: Callable[[], bool] = never
    ) -> Score:
        if cancelled():
            raise ForwardCancelled("cancelled")
        logits = np.zeros(VOCABULARY) if adapter is None else np.asarray(adapter)
        probs = np.exp(logits) / np.exp(logits).sum()
        return Score(float(probs[text.token_ids[text.first :]].sum()), text.target_tokens)


class UnigramTrainer:
    """Implements `AdapterTrainer`."""

    def __init__(self, adaptation: Unigrams, logits: Any) -> None:
        self._adaptation = adaptation
        self._logits = logits

    def step(self, text: Example, cancelled: Callable[[], bool] = never) -> float:
        if cancelled():
            raise ForwardCancelled("cancelled")
        if self._adaptation.fails is not None:
            raise self._adaptation.fails
        tokens = text.token_ids[text.first :]
        shares = np.bincount(tokens, minlength=VOCABULARY) / len(tokens)
        probs = np.exp(self._logits) / np.exp(self._logits).sum()
        self._logits = (self._logits + 0.3 * (shares - probs)).astype(np.float32)
        return float(-(shares * np.log(probs)).sum())

    def weights(self) -> Weights:
        logits: Weights = self._logits.copy()
        return logits

    def state(self) -> dict[str, NDArray[Any]]:
        return {"logits": self.weights()}


def setup(adaptation: Unigrams | None = None, model_hash: str = "model") -> LearningSetup:
    return LearningSetup(
        adaptation=adaptation or Unigrams(),
        vocabulary_hash="vocabulary",
        vocabulary_size=VOCABULARY,
        model_hash=model_hash,
        max_bytes=2**16,
    )


def text_of(number: int, answer: Sequence[int], temperature: float = 1.0) -> Example:
    """An answer to a question of its own."""
    prompt = [1, *(int(digit) for digit in f"{number:04}"), 2]
    token_ids = np.array([*prompt, *answer], dtype=np.int32)
    return Example(token_ids, len(prompt), temperature)


def answers(count: int, likely: int = LIKELY, tokens: int = 40) -> list[Example]:
    """Answers of a target that says one token most of the time; at least 6 are held back."""
    rng = np.random.default_rng(likely)
    made = []
    for number in range(count):
        said = np.where(rng.random(tokens) < 0.8, likely, rng.integers(0, VOCABULARY, tokens))
        made.append(text_of(number + 100 * likely, said.tolist()))
    assert sum(text.validates for text in made) >= 6
    return made


def nonsense(count: int, tokens: int = 40) -> list[Example]:
    """Answers of which nothing can be learned."""
    rng = np.random.default_rng(0)
    made = [
        text_of(number, rng.integers(0, VOCABULARY, tokens).tolist()) for number in range(count)
    ]
    assert sum(text.validates for text in made) >= 6
    return made
