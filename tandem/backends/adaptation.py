"""Adapting a draft model while it is used: what an engine offers for it, without the library that
computes it.

An adapter is a vector of low-rank weights beside the model's own, which never change, or added to
a copy of them. A session begins with an adapter, or with none, and keeps it to its end: what it
drafts from one distribution must be judged by that distribution. Invariants: `use` takes a session
that holds no token yet; sessions with different adapters may run at the same time, and none sees
another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tandem.backends.interface import Engine, Session, never
from tandem.backends.wrapped_engine import WrappedSession
from tandem.core.errors import InvalidArgument

Weights = NDArray[np.float32]
"""The weights of an adapter, one after the other, [n]; the engine's `layout` says what each is."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownProbs:
    """What is known of the target distribution at a token: `probs` [n] of the tokens `ids` [n].
    Where a draft was rejected there, `draft_probs` [n] is what it was drawn from; otherwise 0."""

    ids: NDArray[np.int32]
    probs: NDArray[np.float32]
    draft_probs: NDArray[np.float32]

    @property
    def rest(self) -> NDArray[np.float32]:
        """The distribution that the token in the place of the draft was drawn from, as far as it is
        known: norm(max(0, target - draft))."""
        rest = np.maximum(self.probs - self.draft_probs, 0)
        mass = rest.sum()
        return rest / mass if mass > 0 else self.probs


@dataclass(frozen=True, slots=True, eq=False)
class JudgedText:
    """A text whose tokens from index `first` on, at least 1, are the target's.

    `temperature` is the one they were sampled at. `seed`: of the Gumbel noise that they were drawn
    with, and a draft would be; None where they were drawn otherwise. `position`: where its first
    token stood in the whole text. `known_probs`: by the index of a token, what is known of the
    target distribution there."""

    token_ids: NDArray[np.int32]
    first: int
    temperature: float
    seed: int | None = None
    position: int = 0
    known_probs: Mapping[int, KnownProbs] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def has_all_probs(self) -> bool:
        """Whether the target told its distribution at each of its tokens, not only where it
        rejected a draft."""
        known = self.known_probs.values()
        return len(known) == self.judged > 0 and not any(each.draft_probs.any() for each in known)

    @property
    def judged(self) -> int:
        """How many of its tokens are the target's."""
        return len(self.token_ids) - self.first

    def part(self, start: int, end: int, context: int = 1) -> JudgedText:
        """Return tokens `start`…`end` - 1, of which the first `context` are not asked for."""
        first = max(self.first - start, context)
        probs = {
            index - start: known
            for index, known in self.known_probs.items()
            if start + first <= index < end
        }
        return replace(
            self,
            token_ids=self.token_ids[start:end],
            first=first,
            position=self.position + start,
            known_probs=probs,
        )


@dataclass(frozen=True, slots=True)
class Overlap:
    """Expected acceptance of drafts for one text: `accepted` of `tokens` tokens."""

    accepted: float
    tokens: int


class AdapterTrainer(Protocol):
    """An adapter in training; on the engine thread."""

    def step(self, text: JudgedText, cancelled: Callable[[], bool] = never) -> float:
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
    def most_tokens(self) -> int:
        """Most tokens of a text that is trained on or judged."""

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

    def overlap(
        self, adapter: object | None, text: JudgedText, cancelled: Callable[[], bool] = never
    ) -> Overlap:
        """Return the expected acceptance with an adapter, or without any. At temperature 0 a draft
        is accepted if the likeliest token is the target's; with Gumbel noise, unless the text
        `has_all_probs`, if the token that the same noise takes is. Otherwise, by the tokens whose
        target distribution is known, it is the overlap of both distributions, and where none is
        known the probability of the target's token. Raises ForwardCancelled as
        `AdapterTrainer.step` does."""


@runtime_checkable
class Adapting(Protocol):
    """An engine that may have adapters; None where its model cannot have any."""

    @property
    def adaptation(self) -> Adaptation | None: ...


def adaptation_of(engine: Engine) -> Adaptation | None:
    """Return the adapters of an engine's model, where it can have any."""
    return engine.adaptation if isinstance(engine, Adapting) else None


def innermost(session: Session) -> Session:
    """Return the model's own session of one that other engines have wrapped."""
    while isinstance(session, WrappedSession):
        session = session.inner
    if session.length:
        raise InvalidArgument("session", "an adapter is chosen before the first token")
    return session
