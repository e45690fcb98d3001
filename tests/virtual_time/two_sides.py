"""Small two-sided answers in virtual time, and what they must come out as."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from typing import Any

import numpy as np

from tandem.core.probs import Array, SamplingParams, Truncation
from tandem.core.processors import NO_PROCESSORS, LogitsProcessor, Processors
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.netem.link_model import LinkPair
from tandem.specdec.liveness import LivenessTimes, LostCloud
from tandem.testing.context_engine import Distribution
from tandem.testing.scripted import scripted_probs
from tandem.testing.simulation.simulated_decoder import LocalProbsOf
from tandem.testing.simulation.two_sided_answer import (
    SimulatedSide,
    TwoSidedAnswer,
    simulate_two_sided,
)
from tandem.testing.simulation.virtual_time import Faults
from tandem.two_sided.protocol.draft_head import aggregate_sent
from tandem.two_sided.protocol.local_drafting import local_draft, local_drafting
from tandem.two_sided.protocol.messages import AggregationRequest
from tandem.two_sided.protocol.mixture import Side, SideDraft, coupled_side, mixture, side_weights
from tandem.two_sided.protocol.placement import PlacementPolicy, placement_policy_for
from tandem.two_sided.protocol.presets import (
    AggregationMode,
    AggregationPreset,
    Placement,
)
from tandem.two_sided.protocol.profiler import SideProfiler
from tests.composed_presets import composed
from tests.virtual_time.cases import link_of

Answer = tuple[int, ...]
LIVENESS = LivenessTimes(ping_after_s=0.2, dead_after_s=0.6, give_up_after_s=15.0)


@dataclass(frozen=True)
class Documents:
    """Both sides' distributions over one vocabulary, and their h."""

    vocabulary_size: int
    device_probs: LocalProbsOf
    cloud_probs: LocalProbsOf
    device_mass: float = 0.4
    cloud_mass: float = 0.0
    reweigh_every: int = 0
    """After so many tokens of an answer the device's h changes, and after so many more again."""
    processed_mass: Callable[[Side, Answer], Any] | None = None
    """h where processors leave a part of each side's mass, after a text."""

    def mass_after(self, side: Side, context: Answer) -> Any:
        if self.processed_mass is not None:
            return self.processed_mass(side, context)
        return self._mass_at(side, len(context))

    def _mass_at(self, side: Side, position: int, start: int = 2) -> float:
        if side is Side.CLOUD or not self.reweigh_every:
            return self.device_mass if side is Side.DEVICE else self.cloud_mass
        stretch = (position - start) // self.reweigh_every
        return self.device_mass + (-1.5, 1.0, 0.0)[stretch % 3]


def documents(
    vocabulary_size: int,
    seed: int = 0,
    sharpness: float = 2.0,
    likeness: float = 0.5,
    **masses: Any,
) -> Documents:
    """Sides whose distributions share `likeness` of themselves."""
    shared, own, other = (
        scripted_probs(3 * seed + index, vocabulary_size, 2, sharpness) for index in range(3)
    )

    def mixed(rest: Distribution) -> LocalProbsOf:
        kept: dict[Answer, Array] = {}

        def probs_of(context: Answer) -> Array:
            recent = context[-2:]
            if recent not in kept:
                probs = likeness * np.asarray(shared(recent))
                kept[recent] = (probs + (1 - likeness) * np.asarray(rest(recent))).astype(
                    np.float32
                )
            return kept[recent]

        return probs_of

    return Documents(vocabulary_size, mixed(own), mixed(other), **masses)


Factors = Callable[[Answer], Array]
"""What processors multiply each token's probability by, after a text."""


def factors_of(
    processors: Processors, vocabulary_size: int, prompt_ids: Answer = (1, 2)
) -> Factors:
    processor = LogitsProcessor(processors, prompt_ids)

    def factors(context: Answer) -> Array:
        zeros = np.zeros(vocabulary_size, dtype=np.float32)
        return np.exp(processor.weighted(zeros, context[len(prompt_ids) :]))

    return factors


def processed(sides: Documents, factors: Factors) -> Documents:
    """Sides that process what they draw from, and whose h say what is left of it."""

    @cache  # both sides and every path through the random choices ask for the same few
    def left(side: Side, context: Answer) -> Array:
        probs_of = sides.device_probs if side is Side.DEVICE else sides.cloud_probs
        found: Array = probs_of(context) * factors(context)
        found.setflags(write=False)
        return found

    def probs(side: Side, context: Answer) -> Array:
        rest = left(side, context)
        normalised: Array = rest / rest.sum()
        return normalised

    def mass(side: Side, context: Answer) -> Any:
        own, rest = sides.mass_after(side, context), left(side, context).sum()
        return own * rest if isinstance(rest, Fraction) else own + float(np.log(rest))

    return Documents(
        sides.vocabulary_size,
        partial(probs, Side.DEVICE),
        partial(probs, Side.CLOUD),
        processed_mass=mass,
    )


def chosen(name: str, **choices: Any) -> AggregationPreset:
    """A named preset with some choices changed; a cut of its distribution fits small
    vocabularies."""
    preset = composed(name)
    if preset.probs.truncation.top_k:
        preset = replace(preset, probs=replace(preset.probs, truncation=Truncation(top_k=3)))
    return replace(preset, **choices)


def request_for(
    preset: AggregationPreset,
    sides: Documents,
    seed: int,
    *,
    temperature: float = 1.0,
    prompt_ids: Answer = (1, 2),
    max_tokens: int = 3,
    ends: frozenset[int] = frozenset(),
    processors: Processors = NO_PROCESSORS,
) -> AggregationRequest:
    preset.validate()
    return AggregationRequest(
        session=seed + 1,
        prompt_ids=prompt_ids,
        vocabulary_hash="scripted",
        vocabulary_size=sides.vocabulary_size,
        sampling=SamplingParams(temperature),
        seed=seed,
        max_tokens=max_tokens,
        preset=preset,
        eos_token_ids=ends,
        processors=processors,
    )


def run_sides(
    request: AggregationRequest,
    sides: Documents,
    *,
    link: LinkPair | None = None,
    faults: Faults | None = None,
    decode_s: tuple[float, float] = (0.03, 0.02),
    lost_cloud: LostCloud = LostCloud.WAIT,
    liveness_times: LivenessTimes = LIVENESS,
    completes_stop: Callable[[int], bool] = lambda token_id: False,
    rng: RandomSource | None = None,
) -> TwoSidedAnswer:
    """One request over the simulator; checks what must hold of every answer."""
    seeded = rng or SeededRandom(request.seed)

    def placement_policy(side: Side) -> tuple[PlacementPolicy | None, SideProfiler | None]:
        placement = request.preset.placement
        if placement is Placement.SCHEDULED:
            return None, None
        return placement_policy_for(placement, seeded), None

    result = simulate_two_sided(
        request,
        SimulatedSide(sides.device_probs, partial(sides.mass_after, Side.DEVICE), decode_s[0]),
        SimulatedSide(sides.cloud_probs, partial(sides.mass_after, Side.CLOUD), decode_s[1]),
        link or link_of(request.seed),
        faults,
        lost_cloud,
        liveness_times,
        placement_policy_for=placement_policy,
        completes_stop=completes_stop,
        rng=rng,
    )
    committed = [token for _, commit in result.commits for token in commit.token_ids]
    assert tuple(committed) == result.token_ids, "something was repeated or lost on the way out"
    assert len(committed) <= request.max_tokens
    return result


def central_answer(request: AggregationRequest, sides: Documents) -> Answer:
    """What one machine with all documents says, token by token, from the same random numbers."""
    context = request.prompt_ids
    for position in range(len(context), len(context) + request.max_tokens):
        token = central_token(request, sides, context, position)
        context = (*context, token)
        if token in request.eos_token_ids:
            break
    return context[len(request.prompt_ids) :]


def central_token(
    request: AggregationRequest, sides: Documents, context: Answer, position: int
) -> int:
    rng = SeededRandom(request.seed)
    weights = side_weights(*(sides.mass_after(side, context) for side in Side))
    device, cloud = sides.device_probs(context), sides.cloud_probs(context)
    if request.sampling.greedy:
        return int(mixture(device, cloud, weights).argmax())
    choices = local_drafting(request.preset, request.sampling).probs
    drafts = {}
    for side, probs in ((Side.DEVICE, device), (Side.CLOUD, cloud)):
        token, sent = local_draft(probs, choices, rng=rng, position=position, side=side)
        drafts[side] = SideDraft(token, probs if sent is None else sent)
    if request.preset.mode is AggregationMode.COIN:
        return drafts[coupled_side(weights, rng, position)].token_id
    decided = aggregate_sent(
        drafts[Side.DEVICE], drafts[Side.CLOUD], weights=weights, rng=rng, position=position
    )
    return decided.token_id


def mixture_probs(sides: Documents, max_tokens: int = 3, prompt_ids: Answer = (1, 2)) -> Any:
    """The exact probability of every answer drawn token by token from the mixture."""
    weights = side_weights(sides.device_mass, sides.cloud_mass)
    probs: dict[Answer, float] = {(): 1.0}
    for _ in range(max_tokens):
        probs = {
            (*answer, token): probability * float(mass)
            for answer, probability in probs.items()
            for token, mass in enumerate(
                mixture(
                    sides.device_probs((*prompt_ids, *answer)),
                    sides.cloud_probs((*prompt_ids, *answer)),
                    weights,
                )
            )
        }
    return probs
