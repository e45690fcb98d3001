"""Small answers from more than two sides in virtual time, and what they must come out as."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lab.simulation.simulated_decoder import LocalProbsOf
from lab.simulation.two_sided_answer import SimulatedSide, TwoSidedAnswer, simulate_two_sided
from lab.simulation.virtual_time import Faults
from tandem.core.randomness import RandomSource, SeededRandom
from tandem.netem.link_model import LinkPair
from tandem.specdec.liveness import LivenessTimes, LostCloud
from tandem.testing.scripted import scripted_probs
from tandem.two_sided.many_sides import coupled_number, mixture_of, shares_of
from tandem.two_sided.protocol.local_drafting import local_draft, local_drafting
from tandem.two_sided.protocol.messages import AggregationRequest
from tandem.two_sided.protocol.mixture import Side
from tests.virtual_time.cases import link_of
from tests.virtual_time.two_sides import LIVENESS, Answer, Factors, documents


@dataclass(frozen=True)
class ManySides:
    """Each side's distribution over one vocabulary and its h after a text."""

    vocabulary_size: int
    probs: tuple[LocalProbsOf, ...]
    mass_after: Callable[[int, Answer], Any]


def many_sides(
    vocabulary_size: int, masses: Sequence[float], likeness: float = 0.5, reweigh_every: int = 0
) -> ManySides:
    """As many as there are `masses`, whose distributions share `likeness` of themselves."""
    shared = documents(vocabulary_size, 2, sharpness=3.0).device_probs

    def mixed(number: int) -> LocalProbsOf:
        own = scripted_probs(100 + number, vocabulary_size, 2, 3.0)

        def probs_of(context: Answer) -> Any:
            rest = np.asarray(own(context[-2:]))
            return (likeness * shared(context) + (1 - likeness) * rest).astype(np.float32)

        return probs_of

    def mass_after(number: int, context: Answer) -> float:
        stretch = (len(context) - 2) // reweigh_every if reweigh_every else 0
        return masses[number] + (0.0, 1.5, -1.0)[(stretch + number * bool(stretch)) % 3]

    return ManySides(vocabulary_size, tuple(map(mixed, range(len(masses)))), mass_after)


def processed_sides(sides: ManySides, factors: Factors) -> ManySides:
    """Sides that process what they draw from, and whose h say what is left of it."""

    def probs(number: int, context: Answer) -> Any:
        left = sides.probs[number](context) * factors(context)
        return left / left.sum()

    def mass(number: int, context: Answer) -> float:
        left = (sides.probs[number](context) * factors(context)).sum()
        return float(sides.mass_after(number, context) + np.log(left))

    each = tuple(partial(probs, number) for number in range(len(sides.probs)))
    return ManySides(sides.vocabulary_size, each, mass)


def run_many(
    request: AggregationRequest,
    sides: ManySides,
    *,
    links: Sequence[LinkPair] = (),
    faults: Faults | None = None,
    lost_cloud: LostCloud = LostCloud.WAIT,
    liveness_times: LivenessTimes = LIVENESS,
    rng: RandomSource | None = None,
) -> TwoSidedAnswer:
    """One request over the simulator; the further a side, the slower it decodes."""
    count = len(sides.probs)
    links = links or [link_of(request.seed + number) for number in range(1, count)]
    device, cloud, *others = (
        SimulatedSide(sides.probs[number], partial(sides.mass_after, number), 0.02 + number / 200)
        for number in range(count)
    )
    result = simulate_two_sided(
        *(request, device, cloud, links[0], faults, lost_cloud, liveness_times),
        rng=rng,
        others=list(zip(others, links[1:], strict=True)),
    )
    committed = [token for _, commit in result.commits for token in commit.token_ids]
    assert tuple(committed) == result.token_ids, "something was repeated or lost on the way out"
    return result


def central_text(request: AggregationRequest, sides: ManySides) -> Answer:
    """What one machine with all documents says, token by token, from the same random numbers."""
    rng, context = SeededRandom(request.seed), request.prompt_ids
    choices = local_drafting(request.preset, request.sampling).probs
    while len(context) < len(request.prompt_ids) + request.max_tokens:
        numbers, position = range(len(sides.probs)), len(context)
        shares = shares_of([sides.mass_after(number, context) for number in numbers])
        if request.sampling.greedy:
            mixed = mixture_of([probs(context) for probs in sides.probs], shares)
            context = (*context, int(mixed.argmax()))
            continue
        owner = coupled_number(shares, rng, position)
        probs = sides.probs[owner](context)
        side = Side(min(owner, Side.CLOUD))
        context = (*context, local_draft(probs, choices, rng=rng, position=position, side=side)[0])
    return context[len(request.prompt_ids) :]
