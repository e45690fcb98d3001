"""The methods that `tandem plan` compares, by the papers' cost models and ours. As in the papers,
token ids and single probabilities count no bytes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tandem.analysis.cost_fsd import fsd
from tandem.analysis.cost_models import LinkTimes, Prediction, ar, coupled, dsd, dssd
from tandem.analysis.cost_picospec import picospec
from tandem.analysis.cost_tslt import mc_dsd, sparse_probs_bytes, tslt
from tandem.analysis.cost_window import shortest_window, streaming
from tandem.core.errors import InvalidArgument
from tandem.specdec.scheduling import PairTimes


@dataclass(frozen=True, slots=True)
class Situation:
    """What the flags describe. `coupled_rate`: acceptance under Gumbel coupling; `layer_rate`: of a
    layer of the tree; `window` None: the shortest that keeps the edge drafting."""

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


def _chain(
    model: Callable[..., Prediction],
    costs: Callable[[Situation], Mapping[str, float]] = lambda at: {},
) -> Callable[[Situation], Planned]:
    """A method of rounds under the rejection rule; `costs`: further arguments of its model."""

    def plan(at: Situation) -> Planned:
        rate, length = at.rate, at.draft_length
        prediction = model(at.pair, at.link, acceptance_rate=rate, draft_length=length, **costs(at))
        return Planned(rate, length, prediction)

    return plan


def _whole_probs(at: Situation) -> Mapping[str, float]:
    return {"vocabulary_size": at.vocabulary_size, "precision_bytes": at.precision_bytes}


def _sparse_probs(at: Situation) -> Mapping[str, float]:
    if at.vocabulary_size < 1:
        raise InvalidArgument("vocabulary_size", f"must be at least 1, is {at.vocabulary_size}")
    kept = min(at.kept, at.vocabulary_size)
    return {"probs_bytes": sparse_probs_bytes(kept, at.vocabulary_size, at.precision_bytes)}


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
        **_sparse_probs(at),
    )
    return Planned(at.layer_rate, len(at.expansion), prediction)


def _stream(at: Situation) -> Planned:
    """Gumbel coupling, drafts sent one by one, the cloud decoding when idle."""
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
    "ar": lambda at: Planned(None, 0, ar(at.pair)),
    "dsd": _chain(dsd, _whole_probs),
    "dssd": _chain(dssd, _whole_probs),
    "coupled": _coupled,
    "tslt": _chain(tslt, _sparse_probs),
    "mc-dsd": _mc_dsd,
    "picospec": _chain(picospec),
    "fsd": _chain(fsd, lambda at: {"miss_rate": at.miss_rate}),
    "stream": _stream,
}
"""What a method takes. InvalidArgument names a bad field of the situation."""
