"""Small models, links and faults for whole conversations in virtual time, and their exact
distributions."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from tandem.core.acceptance import residual
from tandem.core.probs import NO_TRUNCATION, Array, SamplingParams, Truncation, probs_from_logits
from tandem.core.randomness import Purpose, RandomSource
from tandem.netem.link_model import LinkPair, link_from
from tandem.specdec.choices import Schedule
from tandem.specdec.events import EdgeRequest
from tandem.specdec.liveness import LivenessTimes, LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.context_engine import Distribution
from tandem.testing.scripted import noisy_probs, scripted_probs
from tandem.testing.simulation.model_times import ModelTimes
from tandem.testing.simulation.simulated_drafts import ProbsOf
from tandem.testing.simulation.simulator import SimulationResult, simulate
from tandem.testing.simulation.virtual_time import Faults
from tests.chi_squared import assert_fits

TokenIds = tuple[int, ...]
LIVENESS = LivenessTimes(ping_after_s=0.2, dead_after_s=0.6, give_up_after_s=15.0)
SMALLEST_VOCABULARY = 3
_ORDER = 2


@dataclass(frozen=True)
class ModelPair:
    """A draft and a target model over one vocabulary, after some sampling settings."""

    vocabulary_size: int
    draft_probs: ProbsOf
    target_probs: ProbsOf
    sampling: SamplingParams
    exit_distributions: tuple[ProbsOf, ...] = ()


def model_pair(
    vocabulary_size: int,
    *,
    noise: float = 0.6,
    sharpness: float = 2.0,
    sampling: SamplingParams | None = None,
    seed: int = 0,
) -> ModelPair:
    """A target model of random distributions, and a draft model that is it with `noise` mixed
    in."""
    sampling = sampling or SamplingParams()
    target = scripted_probs(3 * seed, vocabulary_size, _ORDER, sharpness)
    other = scripted_probs(3 * seed + 1, vocabulary_size, _ORDER, sharpness)
    return ModelPair(
        vocabulary_size,
        _sampled(noisy_probs(target, other, noise), sampling),
        _sampled(target, sampling),
        sampling,
    )


def with_exits(models: ModelPair, noises: Sequence[float] = (0.8, 0.4, 0.0)) -> ModelPair:
    """A pair whose target has early exits, each wrong in its own way: the target's distribution
    with that much of a turned one mixed in."""

    def exit_probs(turn: int, noise: float) -> ProbsOf:
        def probs_of(context: TokenIds) -> Array:
            probs = models.target_probs(context)
            mixed: Array = np.float32(1 - noise) * probs + np.float32(noise) * np.roll(probs, turn)
            return mixed

        return probs_of

    distributions = (exit_probs(index + 1, noise) for index, noise in enumerate(noises))
    return replace(models, exit_distributions=tuple(distributions))


def opposed_pair() -> ModelPair:
    """A draft model that misjudges its target, over three tokens: most drafts are rejected, and
    what replaces them lies in the head and in the tail of the target distribution."""

    def probs_of(weights: tuple[float, ...]) -> ProbsOf:
        distributions = [
            np.roll(np.array(weights, dtype=np.float32), last) for last in range(len(weights))
        ]
        return lambda context: distributions[context[-1]]

    return ModelPair(3, probs_of((0.1, 0.1, 0.8)), probs_of((0.5, 0.3, 0.2)), SamplingParams())


def _sampled(probs: Distribution, sampling: SamplingParams) -> ProbsOf:
    kept: dict[TokenIds, Array] = {}

    def probs_of(context: TokenIds) -> Array:
        recent = context[-_ORDER:]
        if recent not in kept:
            kept[recent] = probs_from_logits(np.log(np.asarray(probs(recent))), sampling)
        return kept[recent]

    return probs_of


def preset(name: str, draft_length: int | None = None, **choices: Any) -> Preset:
    """A named preset with some choices changed, of which none is left to the time that things take;
    a cut of its own fits the smallest vocabulary."""
    changed = PRESETS[name]
    if changed.truncation.top_k > SMALLEST_VOCABULARY:
        changed = replace(changed, truncation=Truncation(top_k=SMALLEST_VOCABULARY - 1))
    changed = replace(changed, **choices)
    return changed if draft_length is None else changed.with_draft_length(draft_length)


def tree(expansion: TokenIds, name: str = "mc-dsd", **choices: Any) -> Preset:
    """A named preset over trees of that expansion, and not truncated unless `choices` say so."""
    composed = replace(PRESETS[name], truncation=NO_TRUNCATION).with_expansion(expansion)
    composed = replace(composed, **choices)
    composed.validate()
    return composed


def scheduled(name: str, schedule: Schedule, **choices: Any) -> Preset:
    """A named preset's rules under another schedule, if that is a valid composition."""
    composed = replace(PRESETS[name], schedule=schedule, **choices)
    composed.validate()
    return composed


def link_of(seed: int) -> LinkPair:
    """A link like no other: none to a quarter of a second long, jittering, wide or narrow."""
    source = random.Random(f"link {seed}")
    rtt_s = source.choice((0.0, 0.01, 0.06, 0.25))
    mbps = source.choice((None, 1.0, 20.0))
    return link_from(rtt_s, mbps, source.choice((0.0, 0.2, 0.9)) * rtt_s, seed)


def faults_of(seed: int, span_s: float) -> Faults:
    """Random cuts, shorter and longer than a dead cloud is waited for, resets and departures."""
    source = random.Random(f"faults {seed}")
    ends = [0.0]
    for _ in range(source.randint(0, 2)):
        start = ends[-1] + source.uniform(0, span_s)
        length_s = source.choice((source.uniform(0.02, 0.5), source.uniform(0.65, 1.6)))
        ends += [start, start + length_s]
    cuts = tuple(pair for pair in list(pairwise(ends[1:]))[::2])
    resets = tuple(source.uniform(0, span_s) for _ in range(source.randint(0, 2)))
    departures = tuple(source.uniform(0, span_s) for _ in range(source.randint(0, 2)))
    return Faults(cuts, resets, departures)


def run(
    chosen: Preset,
    models: ModelPair,
    seed: int,
    *,
    prompt_ids: TokenIds = (1, 2),
    max_tokens: int = 3,
    ends: frozenset[int] = frozenset(),
    ignore_eos: bool = False,
    link: LinkPair | None = None,
    times: ModelTimes | None = None,
    faults: Faults | None = None,
    lost_cloud: LostCloud = LostCloud.WAIT,
    liveness_times: LivenessTimes = LIVENESS,
    completes_stop: Callable[[int], bool] = lambda token_id: False,
) -> SimulationResult:
    """One request over the simulator; checks what must hold of every answer."""
    request = EdgeRequest(
        session=seed + 1,
        prompt_ids=prompt_ids,
        vocabulary_hash="scripted",
        vocabulary_size=models.vocabulary_size,
        params=GenerationParams(
            sampling=models.sampling, seed=seed, max_tokens=max_tokens, ignore_eos=ignore_eos
        ),
        preset=chosen,
        eos_token_ids=ends,
    )
    result = simulate(
        request,
        models.draft_probs,
        models.target_probs,
        link or link_of(seed),
        times,
        faults,
        lost_cloud,
        liveness_times,
        completes_stop=completes_stop,
        exit_distributions=models.exit_distributions,
    )
    committed = [token for _, commit in result.commits for token in commit.token_ids]
    assert tuple(committed) == result.token_ids, "something was repeated or lost on the way out"
    assert result.stats.tokens == len(committed)
    assert len(committed) <= max_tokens
    return result


def payload_probs(
    models: ModelPair,
    max_tokens: int = 3,
    prompt_ids: TokenIds = (1, 2),
    ends: frozenset[int] = frozenset(),
) -> dict[TokenIds, float]:
    """The exact probability of every answer of the target model alone."""
    open_answers: dict[TokenIds, float] = {(): 1.0}
    probs: dict[TokenIds, float] = {}
    for _ in range(max_tokens):
        longer: dict[TokenIds, float] = {}
        for answer, probability in open_answers.items():
            next_probs = models.target_probs((*prompt_ids, *answer))
            for token in next_probs.nonzero()[0].tolist():
                kept = probs if token in ends else longer
                kept[(*answer, token)] = probability * float(next_probs[token])
        open_answers = longer
    return probs | open_answers


def assert_sample(answers: Counter[TokenIds], probs: Mapping[TokenIds, float]) -> None:
    """Chi-squared test of answers against their distribution, wrong once in 10^4; rare answers are
    counted as one."""
    assert set(answers) <= set(probs), "an answer of probability zero"
    total = answers.total() / sum(probs.values())
    common = [answer for answer in probs if probs[answer] * total >= 5]
    rare = [answer for answer in probs if probs[answer] * total < 5]
    observed = [answers[answer] for answer in common]
    expected = [probs[answer] for answer in common]
    if sum(probs[answer] for answer in rare) * total >= 5:
        observed.append(sum(answers[answer] for answer in rare))
        expected.append(sum(probs[answer] for answer in rare))
    else:  # too few even together: the largest cell takes them
        largest = int(np.argmax(expected))
        observed[largest] += sum(answers[answer] for answer in rare)
        expected[largest] += sum(probs[answer] for answer in rare)
    assert_fits(observed, expected, deviations=3.719)


def recovered_afresh(
    answer: object,
    target: Array,
    *,
    draft_probs: Array,
    need: Any,
    rng: RandomSource,
    position: int,
) -> int:
    """Draw the recovered token anew from the full distribution: wrong once it is known that the
    sparse payload does not have it."""
    return rng.categorical(residual(target, draft_probs), position, Purpose.RECOVER, need.draw)
