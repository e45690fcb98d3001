"""The distribution of answers through both sides' machines: the mixture's, in fractions and by
chi-squared.

The exact tests walk every path through the random choices once.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tandem.core.probs import Array, Truncation, most_likely
from tandem.core.processors import NO_PROCESSORS, Processors
from tandem.core.randomness import RandomSource
from tandem.netem.link_model import link_from
from tandem.testing.simulation.virtual_time import Faults
from tandem.two_sided.protocol import draft_head
from tandem.two_sided.protocol.mixture import (
    Aggregated,
    SideDraft,
    Weights,
    aggregate,
    mixture,
)
from tandem.two_sided.protocol.presets import (
    AGGREGATION_PRESETS,
    AggregationPreset,
    Draw,
    LocalProbs,
)
from tests.chi_squared import assert_fits
from tests.composed_presets import composed
from tests.exact import fractions, outcome_probs
from tests.long_runs import with_long_cases
from tests.virtual_time.cases import assert_sample, faults_of
from tests.virtual_time.exact_models import NumberPerDecision
from tests.virtual_time.two_sides import (
    Answer,
    Documents,
    Factors,
    chosen,
    documents,
    factors_of,
    mixture_probs,
    processed,
    request_for,
    run_sides,
)

SHIPPED = AGGREGATION_PRESETS
SHARES = Weights(Fraction(1, 4), Fraction(3, 4))
NO_FAULTS = Faults()


def table(weights: dict[int, list[int]]) -> Callable[[Answer], Array]:
    """A distribution that depends on the last token."""
    distributions = {last: fractions(row) for last, row in weights.items()}
    return lambda context: distributions[context[-1]]


FOUR = Documents(
    4,
    table({last: [1, 2, 5, 0] for last in range(4)}),
    table({last: [4, 1, 1, 2] for last in range(4)}),
)
LIKELIEST_OF_FOUR = Documents(
    4,
    table({last: [0, 0, 1, 0] for last in range(4)}),
    table({last: [1, 0, 0, 0] for last in range(4)}),
)
THREE = Documents(
    3,
    table({0: [1, 3, 0], 1: [1, 0, 1], 2: [2, 1, 1]}),
    table({0: [1, 1, 2], 1: [3, 1, 0], 2: [0, 1, 1]}),
)
TWO = Documents(
    3,
    table({0: [1, 3, 0], 1: [1, 0, 0], 2: [3, 1, 0]}),
    table({0: [1, 0, 1], 1: [0, 1, 1], 2: [1, 3, 0]}),
)
TINY = Documents(
    2, table({0: [1, 3], 1: [1, 1], 2: [3, 1]}), table({0: [1, 0], 1: [3, 1], 2: [1, 3]})
)
ROUNDED = Documents(
    2, table({0: [1, 2], 1: [1, 0], 2: [5, 1]}), table({0: [0, 1], 1: [2, 1], 2: [2, 5]})
)
"""float16 holds only some of these: the rest of a distribution is not empty then."""
TINY_AND_ONE = Documents(
    3,
    table({0: [1, 2, 3], 1: [1, 1, 1], 2: [2, 1, 1]}),
    table({0: [1, 0, 1], 1: [1, 1, 1], 2: [1, 1, 4]}),
)
GUMBEL = replace(SHIPPED["dragon"].probs, draw=Draw.GUMBEL)
"""One noise draws the drafts of both sides."""
CASES: dict[str, tuple[AggregationPreset, Documents, int]] = {
    "dragon": (SHIPPED["dragon"], FOUR, 1),
    "dragon, device": (SHIPPED["dragon-device"], FOUR, 1),
    "dragon, cloud": (composed("dragon placement=cloud"), FOUR, 1),
    "dragon, two tokens": (SHIPPED["dragon"], TWO, 2),
    "dragon, device, two tokens": (SHIPPED["dragon-device"], TWO, 2),
    "dragon, rounded": (SHIPPED["dragon"], ROUNDED, 1),
    "dragon, cloud, rounded": (composed("dragon placement=cloud"), ROUNDED, 1),
    "dragon, Gumbel coupling": (chosen("dragon", probs=GUMBEL), FOUR, 1),
    "token-wise, two tokens": (SHIPPED["drdg-tw"], TWO, 2),
    "token-wise, rounded": (SHIPPED["drdg-tw"], ROUNDED, 1),
    "coupled": (SHIPPED["dragon-coupled"], FOUR, 2),
    "coupled, three tokens": (SHIPPED["dragon-coupled"], THREE, 3),
}
"""The presets as they are shipped, but for where it decides, and the override `draw=gumbel`."""
CASES_EVERY_RUN = (
    *("dragon", "dragon, device", "dragon, cloud", "dragon, two tokens", "dragon, rounded"),
    *("dragon, Gumbel coupling", "token-wise, two tokens", "coupled"),
)
"""In `make test`: each rule and side, more than one token, and weights that are rounded."""


@pytest.fixture
def exact_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """LocalMixture of the sides as fractions, in place of what exp of h makes of them."""
    monkeypatch.setattr(
        "tandem.two_sided.protocol.aggregation_rules.side_weights", lambda device, cloud: SHARES
    )


def exact_mixture(sides: Documents, max_tokens: int) -> dict[Answer, Fraction]:
    probs: dict[Answer, Fraction] = {(): Fraction(1)}
    for _ in range(max_tokens):
        probs = {
            (*answer, token): mass * share
            for answer, mass in probs.items()
            for token, share in enumerate(
                mixture(
                    sides.device_probs((1, 2, *answer)), sides.cloud_probs((1, 2, *answer)), SHARES
                )
            )
            if share
        }
    return probs


def probs_through_the_machines(
    preset: AggregationPreset,
    sides: Documents,
    max_tokens: int,
    faults: Faults = NO_FAULTS,
    processors: Processors = NO_PROCESSORS,
) -> dict[Answer, Fraction]:
    def answer(rng: Any) -> Answer:
        request = request_for(preset, sides, 0, max_tokens=max_tokens, processors=processors)
        return run_sides(
            request,
            sides,
            link=link_from(0.05),
            faults=faults,
            rng=NumberPerDecision(rng),
        ).token_ids

    return outcome_probs(answer, once=False)


@pytest.mark.usefixtures("exact_shares")
@pytest.mark.parametrize("case", with_long_cases(CASES, CASES_EVERY_RUN))
def test_the_answers_distribution_is_the_mixture(case: str) -> None:
    preset, sides, max_tokens = CASES[case]
    probs = probs_through_the_machines(preset, sides, max_tokens)
    assert probs == exact_mixture(sides, max_tokens)


def exact_answers(probs_of: Callable[[Answer], Array], max_tokens: int) -> dict[Answer, Fraction]:
    """Of one side alone."""
    probs: dict[Answer, Fraction] = {(): Fraction(1)}
    for _ in range(max_tokens):
        probs = {
            (*answer, token): mass * share
            for answer, mass in probs.items()
            for token, share in enumerate(probs_of((1, 2, *answer)))
            if share
        }
    return probs


@pytest.mark.usefixtures("exact_shares")
def test_one_coin_for_the_answer_has_the_mixture_of_whole_answers() -> None:
    """RAG-Sequence: another distribution than the tokens' mixture, and exactly that one."""
    found = probs_through_the_machines(SHIPPED["drdg-sw"], TWO, 2)
    device, cloud = exact_answers(TWO.device_probs, 2), exact_answers(TWO.cloud_probs, 2)
    assert found == {
        answer: SHARES.device * device.get(answer, 0) + SHARES.cloud * cloud.get(answer, 0)
        for answer in {*device, *cloud}
    }
    assert found != exact_mixture(TWO, 2)


@pytest.mark.usefixtures("exact_shares")
def test_so_it_is_when_the_side_moves_and_the_link_breaks() -> None:
    preset = composed("dragon placement=random")
    probs = probs_through_the_machines(preset, TINY, 2, Faults(resets=(0.09,)))
    assert probs == exact_mixture(TINY, 2)


PROCESSORS = Processors(
    logit_bias=((0, 1.5),), frequency_penalty=1.0, presence_penalty=-0.5, banned_token_ids=(1,)
)
PROCESSED: dict[str, tuple[AggregationPreset, Documents, int]] = {
    **{
        name: (composed(name), TINY_AND_ONE, 1)
        for name in ("dragon", "dragon placement=cloud", "drdg-tw")
    },
    "coupled": (SHIPPED["dragon-coupled"], FOUR, 1),
    "coupled, two tokens": (SHIPPED["dragon-coupled"], TINY_AND_ONE, 2),
}


def exact_factors(sides: Documents) -> Factors:
    """The processors' own arithmetic is in float32; from here on nothing is rounded."""
    factors = factors_of(PROCESSORS, sides.vocabulary_size)
    return lambda context: np.array(
        [Fraction(round(float(each) * 2**10), 2**10) for each in factors(context)], dtype=object
    )


def processed_mixture(sides: Documents, max_tokens: int) -> dict[Answer, Fraction]:
    """By the definition: the mixture of both sides times the factors, normalised."""
    factors = exact_factors(sides)
    probs: dict[Answer, Fraction] = {(): Fraction(1)}
    for _ in range(max_tokens):
        longer: dict[Answer, Fraction] = {}
        for answer, mass in probs.items():
            text = (1, 2, *answer)
            mixed = mixture(sides.device_probs(text), sides.cloud_probs(text), SHARES)
            left = mixed * factors(text)
            longer |= {
                (*answer, token): mass * share / left.sum()
                for token, share in enumerate(left)
                if share
            }
        probs = longer
    return probs


def processed_through_the_machines(
    case: str, weigh: Callable[[Any, Any], Weights], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[Answer, Fraction], dict[Answer, Fraction]]:
    """What comes out, and what should; `weigh` stands in the place of exp of both h."""
    monkeypatch.setattr("tandem.two_sided.protocol.aggregation_rules.side_weights", weigh)
    preset, sides, max_tokens = PROCESSED[case]
    sides = replace(sides, device_mass=SHARES.device, cloud_mass=SHARES.cloud)
    after = processed(sides, exact_factors(sides))
    found = probs_through_the_machines(preset, after, max_tokens, processors=PROCESSORS)
    return found, processed_mixture(sides, max_tokens)


@pytest.mark.parametrize(
    "case", with_long_cases(PROCESSED, ("dragon", "coupled", "coupled, two tokens"))
)
def test_processors_act_on_the_mixture(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def share(device: Fraction, cloud: Fraction) -> Weights:
        return Weights(device / (device + cloud), cloud / (device + cloud))

    found, wanted = processed_through_the_machines(case, share, monkeypatch)
    assert found == wanted
    assert sum(wanted.values()) == 1
    assert not any(1 in answer for answer in wanted)


def test_a_side_that_does_not_tell_what_is_left_fails_the_same_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, wanted = processed_through_the_machines("coupled", lambda *_: SHARES, monkeypatch)
    assert found != wanted


def as_printed(
    device: SideDraft,
    cloud: SideDraft,
    weights: Weights,
    rng: RandomSource,
    position: int,
) -> Aggregated:
    """Algorithm 1 as the paper prints it: a side's own weight in the place of the other's."""
    return aggregate(
        device, cloud, weights=Weights(weights.cloud, weights.device), rng=rng, position=position
    )


@pytest.mark.usefixtures("exact_shares")
@pytest.mark.parametrize("case", ["dragon, device", "dragon, cloud"])
def test_the_printed_weight_fails_the_same_test(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_head, "aggregate", as_printed)
    preset, sides, max_tokens = CASES[case]
    probs = probs_through_the_machines(preset, sides, max_tokens)
    assert probs != exact_mixture(sides, max_tokens)


SAMPLED = [
    *("dragon", "dragon-device", "dragon placement=cloud", "dragon placement=random"),
    *("drdg-tw", "dragon-coupled"),
]


def sample(
    preset: AggregationPreset, sides: Documents, samples: int, max_tokens: int = 3
) -> Counter[Answer]:
    """Answers over links all different; a third of them with cuts, resets and departures."""
    answers: Counter[Answer] = Counter()
    for seed in range(samples):
        faults = faults_of(seed, span_s=0.5) if seed % 3 == 0 else None
        request = request_for(preset, sides, seed, max_tokens=max_tokens)
        answers[run_sides(request, sides, faults=faults).token_ids] += 1
    return answers


@pytest.mark.parametrize("name", with_long_cases(SAMPLED, ("dragon", "dragon-coupled")))
def test_answers_over_faulty_links_are_distributed_as_the_mixture(name: str) -> None:
    sides = documents(3, sharpness=2.5, likeness=0.3)
    assert_sample(sample(composed(name), sides, 305), mixture_probs(sides))


LARGE = documents(200, sharpness=2.0, likeness=0.3)
"""Three times as many tokens as a head has."""


def by_heads(answers: Mapping[Answer, Any]) -> list[Any]:
    """How much of the first tokens lies in no head, in one and in both; each part in four."""
    heads = [
        set(most_likely(probs_of((1, 2)), SHIPPED["dragon"].probs.head).tolist())
        for probs_of in (LARGE.device_probs, LARGE.cloud_probs)
    ]
    cells: Counter[tuple[int, int]] = Counter()
    for (token, *_), share in answers.items():
        cells[sum(token in head for head in heads), token % 4] += share
    return [cells[number, part] for number in range(3) for part in range(4)]


@pytest.mark.parametrize("name", with_long_cases(["dragon", "drdg-tw"], ("dragon",)))
def test_so_they_are_where_the_distributions_are_longer_than_what_is_sent(name: str) -> None:
    answers = sample(composed(name), LARGE, 350, max_tokens=1)
    assert_fits(by_heads(answers), by_heads(mixture_probs(LARGE, 1)))


def test_cut_to_as_many_entries_they_fail_the_same_test() -> None:
    answers = sample(composed("dragon payload=sparse top_k=64"), LARGE, 350, max_tokens=1)
    with pytest.raises(AssertionError, match="chi-squared"):
        assert_fits(by_heads(answers), by_heads(mixture_probs(LARGE, 1)))


@pytest.mark.usefixtures("exact_shares")
@pytest.mark.parametrize("after", [False, True], ids=["before the draw", "after the draw"])
def test_a_cut_after_the_draw_is_lossy(after: bool) -> None:
    """The paper's wire distribution is not the distribution it draws from; cut before the draw, the
    mixture is that of what was cut."""
    probs = LocalProbs(precision="float32", truncation=Truncation(top_k=1), cut_after_draw=after)
    preset = chosen("dragon-lossy", probs=probs)
    assert preset.lossy
    found = probs_through_the_machines(preset, FOUR, 1)
    whole, cut = exact_mixture(FOUR, 1), exact_mixture(LIKELIEST_OF_FOUR, 1)
    assert found != whole
    assert (found == cut) == (not after)
