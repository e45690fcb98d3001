"""The forward pass of a BERT encoder in numpy, float32: what MiniLM, BGE, E5 and GTE models of that
architecture compute, and no more.

Nothing is padded: the tokens of all texts go through each matrix together, and attention is of each
text by itself. So a text's states do not depend, but for rounding, on what it shares a call with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]

GELU_BLOCK = 2**15
"""Elements that GELU works on at a time: they and what it needs besides stay in a core's cache."""

# Abramowitz and Stegun, 7.1.26: 1 - erf(x) for x >= 0 to 1.5e-7.
_ERF_SLOPE = np.float32(0.3275911)
_ERF_TERMS = tuple(
    np.float32(term) for term in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Matrices are [out, in], as stored; `joint` are query, key and value, one above the other."""

    joint: Matrix
    joint_bias: Matrix
    attended: Matrix
    attended_bias: Matrix
    attended_norm: tuple[Matrix, Matrix]
    up: Matrix
    up_bias: Matrix
    down: Matrix
    down_bias: Matrix
    down_norm: tuple[Matrix, Matrix]


class BertEncoder:
    """Hidden states of token ids. Safe to call from several threads: nothing is kept of a call."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Matrix]) -> None:
        """Set up the encoder from `config` and `weights` as transformers stores them. Raises
        KeyError for a weight or a field that is missing, ValueError for weights of other sizes than
        the configuration's."""
        prefix = "" if "embeddings.word_embeddings.weight" in weights else "bert."
        names = {name.removeprefix(prefix): name for name in weights}

        def weight(name: str) -> Matrix:
            return np.ascontiguousarray(weights[names[name]], np.float32)

        def norm(name: str) -> tuple[Matrix, Matrix]:
            return weight(f"{name}.weight"), weight(f"{name}.bias")

        self.hidden_size = int(config["hidden_size"])
        self._heads = int(config["num_attention_heads"])
        self._epsilon = np.float32(config["layer_norm_eps"])
        self._words = weight("embeddings.word_embeddings.weight")
        # Every token is of the first type.
        types = weight("embeddings.token_type_embeddings.weight")
        self._places = weight("embeddings.position_embeddings.weight") + types[0]
        self._first_norm = norm("embeddings.LayerNorm")
        self._layers = [
            _layer(f"encoder.layer.{number}", weight, norm)
            for number in range(int(config["num_hidden_layers"]))
        ]
        if self._words.shape != (int(config["vocab_size"]), self.hidden_size):
            raise ValueError(f"word embeddings are {self._words.shape}")

    @property
    def longest(self) -> int:
        """Most tokens of a text."""
        return len(self._places)

    def states(self, texts: Sequence[Sequence[int]]) -> list[Matrix]:
        """Return the last hidden states (tokens, hidden_size) of each text; a text has at least one
        token, and `longest` at most."""
        ends = np.cumsum([0, *map(len, texts)]).tolist()
        tokens = np.concatenate([np.asarray(text, np.int64) for text in texts])
        places = np.concatenate([np.arange(len(text)) for text in texts])
        states = self._words[tokens] + self._places[places]
        self._normalize(states, self._first_norm)
        for layer in self._layers:
            joint = states @ layer.joint.T
            joint += layer.joint_bias
            attended = _attended(joint, ends, self._heads) @ layer.attended.T
            attended += layer.attended_bias
            states += attended
            self._normalize(states, layer.attended_norm)
            inner = states @ layer.up.T
            inner += layer.up_bias
            apply_gelu(inner)
            outer = inner @ layer.down.T
            outer += layer.down_bias
            states += outer
            self._normalize(states, layer.down_norm)
        return [states[begin:end] for begin, end in pairwise(ends)]

    def _normalize(self, states: Matrix, norm: tuple[Matrix, Matrix]) -> None:
        """Apply layer normalization to `states`, in place."""
        scale, shift = norm
        states -= states.mean(-1, keepdims=True)
        variance = np.einsum("ij,ij->i", states, states)[:, None] / np.float32(states.shape[-1])
        states /= np.sqrt(variance + self._epsilon)
        states *= scale
        states += shift


def _layer(place: str, weight: Any, norm: Any) -> _Layer:
    parts = [f"{place}.attention.self.{part}" for part in ("query", "key", "value")]
    return _Layer(
        joint=np.concatenate([weight(f"{part}.weight") for part in parts]),
        joint_bias=np.concatenate([weight(f"{part}.bias") for part in parts]),
        attended=weight(f"{place}.attention.output.dense.weight"),
        attended_bias=weight(f"{place}.attention.output.dense.bias"),
        attended_norm=norm(f"{place}.attention.output.LayerNorm"),
        up=weight(f"{place}.intermediate.dense.weight"),
        up_bias=weight(f"{place}.intermediate.dense.bias"),
        down=weight(f"{place}.output.dense.weight"),
        down_bias=weight(f"{place}.output.dense.bias"),
        down_norm=norm(f"{place}.output.LayerNorm"),
    )


def _attended(joint: Matrix, ends: Sequence[int], heads: int) -> Matrix:
    """Return the multi-head attention of each text to itself. `joint` is [tokens, 3 * hidden]; its
    queries are scaled in place."""
    hidden = joint.shape[1] // 3
    size = hidden // heads
    joint[:, :hidden] *= np.float32(1 / math.sqrt(size))
    attended = np.empty((len(joint), hidden), np.float32)
    for begin, end in pairwise(ends):
        count = end - begin
        parts = joint[begin:end].reshape(count, 3, heads, size).transpose(1, 2, 0, 3)
        queries, keys, values = parts  # [heads, tokens, size] each
        scores = queries @ keys.transpose(0, 2, 1)
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        attended[begin:end] = (scores @ values).transpose(1, 0, 2).reshape(count, hidden)
    return attended


def apply_gelu(values: Matrix) -> None:
    """Apply GELU in place: x · Φ(x), where Φ is the normal distribution's, to within 1.5e-7 · |x|.
    `values` must be contiguous."""
    flat = values.reshape(-1)
    for begin in range(0, flat.size, GELU_BLOCK):
        block = flat[begin : begin + GELU_BLOCK]
        size = np.abs(block)
        size *= np.float32(math.sqrt(0.5))
        step = np.float32(1) / (np.float32(1) + _ERF_SLOPE * size)
        tail = _ERF_TERMS[0] * step
        for term in _ERF_TERMS[1:]:
            tail += term
            tail *= step
        np.multiply(size, size, out=size)
        np.negative(size, out=size)
        tail *= np.exp(size, out=size)
        tail *= np.float32(0.5)
        np.subtract(np.float32(1), tail, out=tail, where=block >= 0)
        block *= tail
