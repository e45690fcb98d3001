"""How far a split target's distributions are from the whole one's, by the precision that its hidden
states travel in."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lab.bench.harness.report import Row, make_row
from lab.bench.speculation.demo_pair import distributions_along
from tandem.backends.interface import Engine, ForwardRequest
from tandem.backends.torch.loading import load_engine
from tandem.core.codecs import Precision, hidden_from_bytes, hidden_to_bytes
from tandem.core.probs import Array, SamplingParams, batch_probs_from_logits
from tandem.specdec.presets import PRESETS

PRECISIONS: tuple[Precision, ...] = ("float32", "float16")
COLUMNS = ("precision", "layers", "positions", "bias_mean", "bias_largest", "other_argmax", "bytes")
"""`other_argmax`: the share of positions whose likeliest token is another one; `bytes`: of a
token's hidden state."""


@dataclass(slots=True)
class Sums:
    """Sums of one precision, over positions."""

    positions: int = 0
    bias: float = 0.0
    largest: float = 0.0
    other: int = 0
    size: int = 0

    def add(self, whole: Array, split: Array, size: int) -> None:
        """Add the distributions [n, V] of n positions by both targets, and the bytes of their
        hidden states."""
        apart = np.abs(whole.astype(np.float64) - split).sum(axis=1) / 2
        self.positions += len(whole)
        self.bias += float(apart.sum())
        self.largest = max(self.largest, float(apart.max()))
        self.other += int((whole.argmax(axis=1) != split.argmax(axis=1)).sum())
        self.size += size


@dataclass(slots=True)
class SplitTarget:
    """A target cut as the preset `split` cuts it."""

    source: str
    target: Engine
    layers: int = PRESETS["split"].split_layers
    sums: dict[Precision, Sums] = field(default_factory=lambda: {one: Sums() for one in PRECISIONS})
    _first: Engine = field(init=False)

    def __post_init__(self) -> None:
        self._first = load_engine(self.source, first_layers=self.layers)

    def add(self, token_ids: list[int]) -> None:
        """Add all positions of one text but the last."""
        whole = distributions_along(self.target, token_ids)
        fed = tuple(token_ids[:-1])
        states = _passed(self._first, fed)
        for precision, sums in self.sums.items():
            raw = hidden_to_bytes(states, precision)
            arrived = hidden_from_bytes(raw, states.shape[1], precision, "states")
            logits = _passed(self.target, fed, arrived, self.layers)
            sums.add(whole, batch_probs_from_logits(logits, SamplingParams()), len(raw))

    def rows(self, seed: int) -> list[Row]:
        """Return one row for each precision."""
        return [
            make_row(
                precision=precision,
                seed=seed,
                layers=self.layers,
                positions=sums.positions,
                bias_mean=sums.bias / sums.positions,
                bias_largest=sums.largest,
                other_argmax=sums.other / sums.positions,
                bytes=sums.size / sums.positions,
            )
            for precision, sums in self.sums.items()
        ]


def _passed(
    engine: Engine, fed: tuple[int, ...], hidden: Array | None = None, first_layer: int = 0
) -> Array:
    """Return the output of a pass over a text, with a row for each of its tokens."""
    session = engine.open(len(fed))
    try:
        request = ForwardRequest(
            session, fed, logits_to_keep=len(fed), hidden=hidden, first_layer=first_layer
        )
        (answer,) = engine.forward([request])
        return np.array(answer)
    finally:
        session.close()
