"""The methods that `tandem plan` compares: of one session those in rounds by the papers' models, in
which token ids and single probabilities count no bytes; all others by the model of their preset."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lab.analysis.cost_fsd import fsd
from lab.analysis.cost_models import LinkTimes, Prediction, ar, coupled, dsd, dssd
from lab.analysis.cost_of_preset import CloudDrafting, Sizes, predict
from lab.analysis.cost_tslt import mc_dsd, sparse_probs_bytes, tslt
from tandem.control.conditions import PairTimes
from tandem.core.errors import InvalidArgument
from tandem.specdec.choices import Control
from tandem.specdec.presets import PRESETS, Preset


@dataclass(frozen=True, slots=True)
class Situation:
    """What the flags describe. `coupled_rate`: acceptance under Gumbel coupling; `layer_rate`: of a
    layer of the tree; `window` None: the controller's; `sessions` share one verifier;
    `cloud_draft_s`: a step of a draft model in the cloud, None: a fifth of the edge's."""

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
    sessions: int = 1
    cloud_draft_s: float | None = None


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
    """Return a method of rounds under the rejection rule. `costs`: further arguments of its
    model."""

    def plan(at: Situation) -> Planned:
        rate = at.rate
        length = at.draft_length
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


def _composed(name: str) -> Callable[[Situation], Planned]:
    """Return the preset as a method, with all that it sends, its controller, and the other
    sessions."""

    def plan(at: Situation) -> Planned:
        preset = _preset(name, at)
        rate = at.layer_rate if preset.expansion else at.rate
        rate = at.coupled_rate if preset.drafter_invariant else rate
        drafting = None
        if at.cloud_draft_s is not None:
            drafting = CloudDrafting(at.cloud_draft_s, rate)
        prediction = predict(
            preset,
            at.pair,
            at.link,
            acceptance_rate=rate,
            sizes=Sizes(at.vocabulary_size),
            miss_rate=at.miss_rate,
            sessions=at.sessions,
            cloud_drafting=drafting,
        )
        if preset.drafts_in_cloud:
            return Planned(rate, preset.cloud_draft_length, prediction)
        if not preset.drafts:
            return Planned(None, 0, prediction)
        return Planned(rate, preset.schedule.chunk, prediction)

    return plan


def _preset(name: str, at: Situation) -> Preset:
    preset = PRESETS[name]
    if preset.expansion:
        preset = preset.with_expansion(at.expansion)
    elif preset.drafts and preset.schedule.decode_when_idle:
        if at.window is not None:
            schedule = replace(preset.schedule, window=at.window, chunk=min(at.window, 8))
            preset = replace(preset, schedule=schedule, control=Control.FIXED)
    else:
        preset = preset.with_draft_length(at.draft_length)
    preset.validate()
    return preset


def _alone_or_shared(
    name: str, paper: Callable[[Situation], Planned]
) -> Callable[[Situation], Planned]:
    """Return a method by the paper's model of one session; of several, by the preset's."""
    shared = _composed(name)
    return lambda at: paper(at) if at.sessions == 1 else shared(at)


METHODS: Mapping[str, Callable[[Situation], Planned]] = {
    name: _alone_or_shared(name, paper)
    for name, paper in {
        "ar": lambda at: Planned(None, 0, ar(at.pair)),
        "dsd": _chain(dsd, _whole_probs),
        "dssd": _chain(dssd, _whole_probs),
        "coupled": _coupled,
        "tslt": _chain(tslt, _sparse_probs),
        "mc-dsd": _mc_dsd,
        "fsd": _chain(fsd, lambda at: {"miss_rate": at.miss_rate}),
    }.items()
} | {name: _composed(name) for name in ("picospec", "stream", "cloud-draft")}
"""What a method takes. InvalidArgument names a bad field of the situation."""
