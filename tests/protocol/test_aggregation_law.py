"""The law of answers through both sides' machines: the mixture's, in fractions and by chi-squared.

The exact tests walk every path through the random choices once.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from tandem.core.aggregation import Aggregated, SideDraft, Weights, aggregate, mixture
from tandem.core.chance import Chance
from tandem.core.laws import Array
from tandem.core.truncation import Truncation
from tandem.netem.link_model import link_from
from tandem.netem.simulator import Faults
from tandem.policy.aggregation_presets import (
    AggregationPreset,
    Draw,
    LawPayload,
    LocalLaw,
    Placement,
)
from tests.exact import fractions, outcome_law
from tests.protocol.cases import assert_sample, faults_of
from tests.protocol.test_exact_law import NumberPerDecision
from tests.protocol.two_sides import (
    Answer,
    Documents,
    chosen,
    documents,
    mixture_law,
    request_for,
    run_sides,
    whole_laws,
)

SHARES = Weights(Fraction(1, 4), Fraction(3, 4))
NO_FAULTS = Faults()


def table(weights: dict[int, list[int]]) -> Callable[[Answer], Array]:
    """A law that depends on the last token."""
    laws = {last: fractions(row) for last, row in weights.items()}
    return lambda context: laws[context[-1]]


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
    table({0: [1, 0, 1], 1: [0, 1, 1], 2: [1, 2, 0]}),
)
TINY = Documents(
    2, table({0: [1, 3], 1: [1, 1], 2: [2, 1]}), table({0: [1, 0], 1: [1, 2], 2: [1, 3]})
)
EXACT_LAW = LocalLaw(payload=LawPayload.FULL, precision="float32")
EXACT_CHOICES = {"law": EXACT_LAW}
CASES: dict[str, tuple[AggregationPreset, Documents, int]] = {
    "dragon, device": (chosen("dragon-device", **EXACT_CHOICES), FOUR, 1),
    "dragon, cloud": (chosen("dragon-cloud", **EXACT_CHOICES), FOUR, 1),
    "dragon, two tokens": (chosen("dragon-device", **EXACT_CHOICES), TWO, 2),
    "dragon, shared noise": (
        chosen("dragon-device", law=replace(EXACT_LAW, draw=Draw.SHARED_NOISE)),
        FOUR,
        1,
    ),
    "token-wise, two tokens": (chosen("drdg-tw", **EXACT_CHOICES), TWO, 2),
    "coupled": (chosen("dragon-coupled"), FOUR, 2),
    "coupled, three tokens": (chosen("dragon-coupled"), THREE, 3),
}


@pytest.fixture
def exact_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of the sides as fractions, in place of what exp of h makes of them."""
    monkeypatch.setattr("tandem.protocol.agreements.side_weights", lambda device, cloud: SHARES)


def exact_mixture(sides: Documents, max_tokens: int) -> dict[Answer, Fraction]:
    law: dict[Answer, Fraction] = {(): Fraction(1)}
    for _ in range(max_tokens):
        law = {
            (*answer, token): mass * share
            for answer, mass in law.items()
            for token, share in enumerate(
                mixture(sides.device_law((1, 2, *answer)), sides.cloud_law((1, 2, *answer)), SHARES)
            )
            if share
        }
    return law


def law_through_the_machines(
    preset: AggregationPreset, sides: Documents, max_tokens: int, faults: Faults = NO_FAULTS
) -> dict[Answer, Fraction]:
    def answer(chance: Any) -> Answer:
        request = request_for(preset, sides, 0, max_tokens=max_tokens)
        return run_sides(
            request,
            sides,
            link=link_from(0.05),
            faults=faults,
            chance=NumberPerDecision(chance),
        ).token_ids

    return outcome_law(answer, once=False)


@pytest.mark.usefixtures("exact_shares")
@pytest.mark.parametrize("case", CASES)
def test_the_answers_law_is_the_mixture(case: str) -> None:
    preset, sides, max_tokens = CASES[case]
    law = law_through_the_machines(preset, sides, max_tokens)
    assert law == exact_mixture(sides, max_tokens)


@pytest.mark.usefixtures("exact_shares")
def test_so_it_is_when_the_side_moves_and_the_link_breaks() -> None:
    preset = chosen("dragon-random", **EXACT_CHOICES)
    law = law_through_the_machines(preset, TINY, 2, Faults(resets=(0.09,)))
    assert law == exact_mixture(TINY, 2)


def as_printed(
    device: SideDraft, cloud: SideDraft, weights: Weights, chance: Chance, position: int
) -> Aggregated:
    """Algorithm 1 as the paper prints it: a side's own weight in the place of the other's."""
    return aggregate(device, cloud, Weights(weights.cloud, weights.device), chance, position)


@pytest.mark.usefixtures("exact_shares")
@pytest.mark.parametrize("case", ["dragon, device", "dragon, cloud"])
def test_the_printed_weight_fails_the_same_test(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.protocol.agreements.aggregate", as_printed)
    preset, sides, max_tokens = CASES[case]
    law = law_through_the_machines(preset, sides, max_tokens)
    assert law != exact_mixture(sides, max_tokens)


SAMPLED: dict[str, AggregationPreset] = {
    "dragon-random": whole_laws(chosen("dragon-random")),
    "dragon-random, float16": chosen("dragon-random"),
    "dragon-cloud": whole_laws(chosen("dragon-cloud", ahead=2)),
    "drdg-tw": whole_laws(chosen("drdg-tw", placement=Placement.RANDOM)),
    "dragon-shared-noise": whole_laws(chosen("dragon-shared-noise", placement=Placement.RANDOM)),
    "dragon-coupled": chosen("dragon-coupled"),
}


def sample(preset: AggregationPreset, sides: Documents, samples: int) -> Counter[Answer]:
    """Answers over links all different; a third of them with cuts, resets and departures."""
    answers: Counter[Answer] = Counter()
    for seed in range(samples):
        faults = faults_of(seed, span_s=0.5) if seed % 3 == 0 else None
        request = request_for(preset, sides, seed)
        answers[run_sides(request, sides, faults=faults).token_ids] += 1
    return answers


@pytest.mark.parametrize("name", SAMPLED)
def test_answers_over_faulty_links_are_distributed_as_the_mixture(name: str) -> None:
    sides = documents(3, sharpness=2.5, likeness=0.3)
    assert_sample(sample(SAMPLED[name], sides, 360), mixture_law(sides))


@pytest.mark.usefixtures("exact_shares")
@pytest.mark.parametrize("after", [False, True], ids=["before the draw", "after the draw"])
def test_a_cut_after_the_draw_is_lossy(after: bool) -> None:
    """The paper's wire law is not the law it draws from; cut before the draw, the mixture is that
    of what was cut."""
    law = LocalLaw(precision="float32", truncation=Truncation(top_k=1), cut_after_draw=after)
    preset = chosen("dragon-lossy", law=law)
    assert preset.lossy == after
    found = law_through_the_machines(preset, FOUR, 1)
    whole, cut = exact_mixture(FOUR, 1), exact_mixture(LIKELIEST_OF_FOUR, 1)
    assert found != whole
    assert (found == cut) == (not after)
