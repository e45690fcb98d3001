"""A deterministic model without weights: a context decides the distribution after it. For tests,
demonstrations and simulation; `tandem.testing.loading` loads them by the name `scripted`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.backends.interface import ForwardRequest, Logits, never
from tandem.backends.model_source import LoadedModel, ModelChoice
from tandem.core.errors import InvalidArgument
from tandem.testing.context_engine import ContextEngine, Distribution
from tandem.text.chat_rendering import NO_VARIABLES

_DISTRIBUTIONS_KEPT = 1024

VOCABULARY_SIZE = 256
SCRIPTED_LAYERS = 8
SHARPNESS = 40.0
"""Nats over which log-probabilities spread: leaves a handful of likely tokens."""


def load(choice: ModelChoice) -> LoadedModel:
    """Load a model for the factory: one of a `scripted_pair`; `source` is SEED or SEED:NOISE
    (default 0.3)."""
    seed, _, noise = choice.source.partition(":")
    try:
        pair = scripted_pair(float(noise or 0.3), int(seed))
    except ValueError:
        why = f"{choice.source!r} is not SEED or SEED:NOISE, as 1:0.3"
        raise InvalidArgument("model", why) from None
    tokenizer = ScriptedTokenizer(VOCABULARY_SIZE)
    if choice.first_layers:
        layers = ScriptedLayers(VOCABULARY_SIZE)
        return LoadedModel(layers, tokenizer, lambda: f"scripted layers:{choice.source}")
    return LoadedModel(pair[not choice.drafts], tokenizer, lambda: f"scripted:{choice.source}")


def scripted_pair(noise: float, seed: int = 1) -> tuple[ScriptedEngine, ScriptedEngine]:
    """Draft and target over bytes. The draft's distribution is the target's with `noise` (0…1) of
    an unrelated one mixed in, so that the rejection rule accepts about 1 - noise. InvalidArgument
    names `noise`."""
    target = scripted_probs(2 * seed, VOCABULARY_SIZE, sharpness=SHARPNESS)
    other = scripted_probs(2 * seed + 1, VOCABULARY_SIZE, sharpness=SHARPNESS)
    draft = noisy_probs(target, other, noise)
    return (
        ScriptedEngine(VOCABULARY_SIZE, draft, copies=True),
        ScriptedEngine(VOCABULARY_SIZE, target, copies=True),
    )


class ScriptedEngine(ContextEngine):
    """Its vocabulary is only a size, so two of one size fit each other."""

    def __init__(
        self,
        vocabulary_size: int,
        probs: Distribution,
        *,
        context_length: int = 4096,
        eos_token_ids: frozenset[int] = frozenset(),
        model_name: str = "scripted",
        kv_bytes_per_token: int = 1,
        exit_distributions: Sequence[Distribution] = (),
        copies: bool = False,
    ) -> None:
        """Set up the engine. The options are those of ContextEngine."""
        super().__init__(
            vocabulary_size,
            probs,
            model_name=model_name,
            vocabulary_hash=hashlib.sha256(f"scripted:{vocabulary_size}".encode()).hexdigest(),
            context_length=context_length,
            eos_token_ids=eos_token_ids,
            kv_bytes_per_token=kv_bytes_per_token,
            exit_distributions=exit_distributions,
            copies=copies,
        )
        self.capabilities = replace(self.capabilities, splits=True)
        self.layer_count = SCRIPTED_LAYERS
        self.hidden_size = 1

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        """Compute the logits of a batch. A hidden state is the number of its token, and hidden
        states that come in are believed: wrong ones give another text."""
        return super().forward([_as_told(request) for request in batch], cancelled)


class ScriptedLayers(ScriptedEngine):
    """The first layers of a scripted model: hidden states are the numbers of the tokens."""

    def __init__(self, vocabulary_size: int, context_length: int = 4096) -> None:
        uniform = np.full(vocabulary_size, 1 / vocabulary_size)
        super().__init__(vocabulary_size, lambda _: uniform, context_length=context_length)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        super().forward([replace(request, logits_to_keep=0) for request in batch], cancelled)
        kept = [request.token_ids[-request.logits_to_keep :] for request in batch]
        return [np.array(token_ids, dtype=np.float32)[:, None] for token_ids in kept]


def _as_told(request: ForwardRequest) -> ForwardRequest:
    if request.hidden is None or request.hidden.shape != (len(request.token_ids), 1):
        return request
    return replace(request, token_ids=tuple(int(state) for state in request.hidden[:, 0]))


def scripted_probs(
    seed: int, vocabulary_size: int, order: int = 2, sharpness: float = 8.0
) -> Distribution:
    """Return a function with a fixed pseudo-random distribution for every context, decided by its
    last `order` tokens. The log-probabilities spread evenly over `sharpness` nats: 0 gives the
    uniform distribution, large values almost one-hot distributions."""

    @lru_cache(maxsize=_DISTRIBUTIONS_KEPT)
    def probs_after(recent: tuple[int, ...]) -> NDArray[np.float64]:
        weights = np.exp(sharpness * (_uniforms(seed, recent, vocabulary_size) - 1.0))
        probs: NDArray[np.float64] = weights / weights.sum()
        probs.setflags(write=False)
        return probs

    return lambda context: probs_after(tuple(context[max(0, len(context) - order) :]))


def noisy_probs(
    target_probs: Distribution, noise_probs: Distribution, noise: float
) -> Distribution:
    """Return a draft model's distribution: (1 - noise) · target + noise · unrelated distribution.
    The expected acceptance rate of the rejection rule is at least 1 - noise."""
    if not 0.0 <= noise <= 1.0:
        raise InvalidArgument("noise", f"{noise} is outside 0..1")

    def probs(context: tuple[int, ...]) -> NDArray[np.float64]:
        target = np.asarray(target_probs(context))
        other = np.asarray(noise_probs(context))
        mixed: NDArray[np.float64] = (1.0 - noise) * target + noise * other
        return mixed

    return probs


def _uniforms(seed: int, recent: tuple[int, ...], count: int) -> NDArray[np.float64]:
    """Return `count` numbers in [0, 1) from a hash of the seed and the tokens."""
    key = hashlib.blake2b(repr((seed, recent)).encode(), digest_size=8).digest()
    with np.errstate(over="ignore"):
        state = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = state + np.uint64(int.from_bytes(key, "little"))
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
    return (state >> np.uint64(11)).astype(np.float64) / float(1 << 53)


class ScriptedTokenizer:
    """Ids are code points modulo the vocabulary; the text of id 7 is "<7>"."""

    def __init__(self, vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size

    def encode(self, text: str) -> list[int]:
        return [ord(character) % self._vocabulary_size for character in text]

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        images: int = 0,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> list[int]:
        return self.encode("".join(message["content"] for message in messages))

    def detokenizer(self, after: Sequence[int] = ()) -> ScriptedText:
        return ScriptedText()


class ScriptedText:
    """Every id is a whole word at once."""

    def push(self, token_ids: Sequence[int]) -> str:
        return "".join(f"<{token_id}>" for token_id in token_ids)

    def preview(self, token_id: int) -> str:
        return self.push((token_id,))

    def finish(self) -> str:
        return ""
