"""The methods that `tandem plan` compares: the papers' cost models and ours, of one situation.

As in the papers, token ids and single probabilities weigh nothing. Must not import torch or grpc.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tandem.core.errors import InvalidArgument
from tandem.policy.cost_fsd import fsd
from tandem.policy.cost_models import LinkTimes, PairTimes, Prediction, ar, coupled, dsd, dssd
from tandem.policy.cost_picospec import picospec
from tandem.policy.cost_tslt import mc_dsd, sparse_law_bytes, tslt
from tandem.policy.cost_window import shortest_window, streaming


@dataclass(frozen=True, slots=True)
class Situation:
    """What the flags describe. Times in seconds, rates within [0, 1].

    `coupled_rate`: acceptance under shared noise. `layer_rate`: that a layer of the tree has a
    candidate that stands. `window` None: the shortest that keeps the edge drafting.
    """

    pair: PairTimes
    link: LinkTimes
    rate: float
    coupled_rate: float
    layer_rate: float
    draft_length: int
    vocabulary_size: int
    precision_bytes: float
    miss_rate: float
    kept: int
    expansion: tuple[int, ...]
    window: int | None


@dataclass(frozen=True, slots=True)
class Planned:
    """A method's prediction, and the acceptance rate and draft length it counts with."""

    acceptance_rate: float | None
    draft_length: int
    prediction: Prediction


def planned(method: str, situation: Situation) -> Planned:
    """What a method takes. InvalidArgument names a bad field of the situation."""
    return METHODS[method](situation)


def _ar(at: Situation) -> Planned:
    return Planned(None, 0, ar(at.pair))


def _chain(
    model: Callable[..., Prediction],
    costs: Callable[[Situation], Mapping[str, float]] = lambda at: {},
) -> Callable[[Situation], Planned]:
    """A method of rounds under the rejection rule; `costs`: what else its model asks for."""

    def plan(at: Situation) -> Planned:
        prediction = model(
            at.pair,
            at.link,
            acceptance_rate=at.rate,
            draft_length=at.draft_length,
            **costs(at),
        )
        return Planned(at.rate, at.draft_length, prediction)

    return plan


def _whole_law(at: Situation) -> Mapping[str, float]:
    return {"vocabulary_size": at.vocabulary_size, "precision_bytes": at.precision_bytes}


def _sparse_law(at: Situation) -> Mapping[str, float]:
    if at.vocabulary_size < 1:
        raise InvalidArgument("vocabulary_size", f"must be at least 1, is {at.vocabulary_size}")
    kept = min(at.kept, at.vocabulary_size)
    return {"law_bytes": sparse_law_bytes(kept, at.vocabulary_size, at.precision_bytes)}


def _misses(at: Situation) -> Mapping[str, float]:
    return {"miss_rate": at.miss_rate}


def _coupled(at: Situation) -> Planned:
    prediction = coupled(
        at.pair, at.link, acceptance_rate=at.coupled_rate, draft_length=at.draft_length
    )
    return Planned(at.coupled_rate, at.draft_length, prediction)


def _mc_dsd(at: Situation) -> Planned:
    prediction = mc_dsd(
        at.pair,
        at.link,
        layer_acceptance_rate=at.layer_rate,
        expansion=at.expansion,
        **_sparse_law(at),
    )
    return Planned(at.layer_rate, len(at.expansion), prediction)


def _stream(at: Situation) -> Planned:
    """Shared noise, drafts sent one by one, the cloud decoding when idle."""
    shortest = shortest_window(at.pair, at.link, chunk=1)
    prediction = streaming(
        at.pair,
        at.link,
        acceptance_rate=at.coupled_rate,
        window=shortest if at.window is None else at.window,
        chunk=1,
        decode_when_idle=True,
    )
    return Planned(at.coupled_rate, 1, prediction)


METHODS: Mapping[str, Callable[[Situation], Planned]] = {
    "ar": _ar,
    "dsd": _chain(dsd, _whole_law),
    "dssd": _chain(dssd, _whole_law),
    "coupled": _coupled,
    "tslt": _chain(tslt, _sparse_law),
    "mc-dsd": _mc_dsd,
    "picospec": _chain(picospec),
    "fsd": _chain(fsd, _misses),
    "stream": _stream,
}
