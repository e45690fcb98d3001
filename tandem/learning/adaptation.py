"""Adapting a draft model while it is used: what training and drafting need of it, without the
library that computes it.

An adapter is a vector of low-rank weights beside the model's own, which never change, or added to
a copy of them. A session begins with an adapter, or with none, and keeps it to its end: what it
drafts from one distribution must be judged by that distribution. Invariants: `use` takes a session
that holds no token yet; sessions with different adapters may run at the same time, and none sees
another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.backends.interface import Engine, Session, never
from tandem.learning.evaluation import Score
from tandem.learning.examples import Example

Weights = NDArray[np.float32]
"""The weights of an adapter, one after the other, [n]; `layout` says what each is."""


class AdapterTrainer(Protocol):
    """An adapter in training; on the engine thread."""

    def step(self, text: Example, cancelled: Callable[[], bool] = never) -> float:
        """Learn from a text and return the mean loss of its tokens. `cancelled` is asked before
        each layer, on the way back as well; on True ForwardCancelled is raised, and nothing has
        changed."""

    def weights(self) -> Weights:
        """Return the adapter as it is now: a mean over the last updates."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what `Adaptation.trainer` needs to go on from here."""


class Adaptation(Protocol):
    """The adapters of one draft model. On the engine thread, where nothing else is said."""

    @property
    def layout(self) -> str:
        """What the weights of an adapter mean; those of another layout do not fit."""

    @property
    def size(self) -> int:
        """Number of weights of an adapter."""

    @property
    def max_tokens(self) -> int:
        """Most tokens of a text that is trained on or scored."""

    def place(self, weights: Weights) -> object:
        """Return the adapter as passes use it; on any thread. Raises InvalidArgument("adapter") for
        weights that do not fit."""

    def merge(self, adapter: object) -> None:
        """Have sessions that begin to use what `place` returned take no longer for their steps than
        without an adapter, by a copy of the model's weights with the adapter in them, where these
        are small enough and exact enough. One adapter has such a copy: the last. On any thread, one
        at a time."""

    def use(self, session: Session, adapter: object) -> None:
        """Have a session that holds nothing yet use what `place` returned. Raises
        InvalidArgument("session") for one that holds tokens."""

    def trainer(self, weights: Weights | None, state: Mapping[str, NDArray[Any]]) -> AdapterTrainer:
        """Return the training of an adapter that begins as `weights` (None: as one that changes
        nothing), or goes on from a `state`, which may be empty. Raises InvalidArgument("adapter")
        for what does not fit."""

    def score(
        self, adapter: object | None, text: Example, cancelled: Callable[[], bool] = never
    ) -> Score:
        """Return the expected acceptance with an adapter, or without any. At temperature 0 a draft
        is accepted if the likeliest token is the target's; with Gumbel noise, unless the text
        `has_all_probs`, if the token that the same noise takes is. Otherwise, by the tokens whose
        target distribution is known, it is the overlap of both distributions, and where none is
        known the probability of the target's token. Raises ForwardCancelled as
        `AdapterTrainer.step` does."""


def adaptation_of(engine: Engine) -> Adaptation | None:
    """Return the adapters of a draft engine's model; None where it cannot have any."""
    # A wrapper that translates has another vocabulary: what is learned would be of other tokens.
    while (inner := getattr(engine, "inner", None)) is not None:
        if inner.vocabulary_hash != engine.vocabulary_hash:
            return None
        engine = inner
    if getattr(engine, "trainable", None) is None:
        return None
    from tandem.learning.torch.low_rank import low_rank_adaptation  # where torch is there

    return low_rank_adaptation(engine)
