"""The distribution of short answers through both machines, in fractions: equal to the target's, not
nearly.

Every path through the random choices is walked once, so nothing here is a sample.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from tandem.core.probs import Truncation
from tandem.specdec.choices import (
    Acceptance,
    CloudDrafts,
    Predraft,
    RejectionPayload,
    Schedule,
    Uplink,
)
from tandem.specdec.presets import Preset
from tests.exact import ExactRandom, outcome_probs
from tests.long_runs import LONG, with_long_cases
from tests.virtual_time.cases import ModelPair, TokenIds, preset, recovered_afresh, scheduled, tree
from tests.virtual_time.exact_models import MODELS, NumberPerDecision, exact_payload_probs
from tests.virtual_time.lockstep import Lockstep, Pace

METHODS: dict[str, tuple[Preset, int]] = {
    "dsd, 1": (preset("dsd", 1), 3),
    "dsd, 2": (preset("dsd", 2), 3),
    "dsd, 2, four tokens": (preset("dsd", 2), 4),
    "dsd, 3": (preset("dsd", 3), 3),
    "dsd, 2, sure ones": (preset("dsd", 2, confidence_threshold=0.75), 3),
    "dssd, 3, sure ones": (preset("dssd", 3, payload_top=3, confidence_threshold=0.6), 3),
    "dssd-full, 2": (preset("dssd-full", 2), 3),
    "dssd, M 3": (preset("dssd", 2, payload_top=3), 3),
    "dssd, M 0, R 0": (preset("dssd", 2, payload_top=0, payload_tail_draws=0), 2),
    "dssd, M 0, R 1": (preset("dssd", 1, payload_top=0, payload_tail_draws=1), 2),
    "dssd, M 1, R 0": (preset("dssd", 2, payload_top=1, payload_tail_draws=0), 2),
    "dssd, M 1, R 2": (preset("dssd", 1, payload_top=1, payload_tail_draws=2), 2),
    "tslt, 2, K 1": (preset("tslt", 2, truncation=Truncation(top_k=1)), 3),
    "tslt, 2, K 2": (preset("tslt", 2, truncation=Truncation(top_k=2)), 3),
    "tslt, 3, P 0.8": (preset("tslt", 3, truncation=Truncation(top_p=0.8)), 3),
    "dssd, K 1": (
        preset("dssd", 1, payload_top=1, payload_tail_draws=1, truncation=Truncation(top_k=1)),
        2,
    ),
    "pipelined": (scheduled("dsd", Schedule(2, 1, bonus=False)), 3),
    "pipelined, chunks of two": (scheduled("dsd", Schedule(4, 2, bonus=False)), 3),
    "picospec": (preset("picospec", 1, payload_top=1, payload_tail_draws=1), 2),
    "picospec, distribution up": (
        preset(
            "picospec",
            2,
            uplink=Uplink.FULL_DISTRIBUTIONS,
            rejection_payload=RejectionPayload.TOKEN,
        ),
        3,
    ),
    "picospec, whole chunks": (
        scheduled("picospec", Schedule(4, 2, bonus=False, token_by_token=True), payload_top=3),
        3,
    ),
    "picospec, prepared": (
        scheduled(
            "picospec-preverify",
            Schedule(4, 2, bonus=False, token_by_token=True, prepare_on_arrival=True),
            payload_top=3,
        ),
        3,
    ),
    "picospec, prepared, chunks of three": (
        scheduled(
            "picospec-preverify",
            Schedule(3, 3, bonus=False, token_by_token=True, prepare_on_arrival=True),
            payload_top=3,
        ),
        3,
    ),
    "picospec, one chunk": (
        scheduled(
            "picospec", Schedule(2, 2, True, bonus=False, token_by_token=True), payload_top=3
        ),
        3,
    ),
    "predraft": (preset("dsd", 1, predraft=Predraft.LIKELY_OUTCOMES), 2),
    "predraft, pipelined": (
        scheduled("dsd", Schedule(2, 1, bonus=False), predraft=Predraft.LIKELY_OUTCOMES),
        2,
    ),
    "predraft, pipelined, three tokens": (
        scheduled("dsd", Schedule(2, 1, bonus=False), predraft=Predraft.LIKELY_OUTCOMES),
        3,
    ),
    "cloud drafts, 1": (preset("cloud-draft", 1, acceptance=Acceptance.REJECTION), 4),
    "cloud drafts, 2": (preset("cloud-draft", 2, acceptance=Acceptance.REJECTION), 4),
    "cloud drafts, 3": (preset("cloud-draft", 3, acceptance=Acceptance.REJECTION), 3),
    "cloud lookup": (
        preset("cloud-draft", 3, acceptance=Acceptance.REJECTION, cloud_drafts=CloudDrafts.LOOKUP),
        4,
    ),
}
EVERY_RUN = (
    *("dsd, 1", "dsd, 2", "dsd, 2, sure ones", "dssd-full, 2", "dssd, M 3", "dssd, M 0, R 0"),
    *("dssd, M 1, R 0", "dssd, K 1", "tslt, 2, K 1", "tslt, 2, K 2", "tslt, 3, P 0.8"),
    *("pipelined, chunks of two", "picospec, prepared", "predraft", "predraft, pipelined"),
    *("cloud drafts, 3", "cloud lookup"),
)
"""In `make test`: each rule, payload and kind of schedule, where the paths are few."""
PREDICTED_EVERY_RUN = (
    *("dsd, 2", "dsd, 2, sure ones", "dssd-full, 2", "dssd, M 3", "dssd, M 1, R 0", "tslt, 2, K 2"),
    *("picospec, prepared", "predraft", "predraft, pipelined", "cloud drafts, 3", "cloud lookup"),
)
"""The same with the answer predicted: a prediction takes the place of drafts, and lengths of these
matter less."""
EARLY_EXITS: dict[str, Any] = {"predraft": Predraft.EARLY_EXITS, "exits": 2}
WITH_EARLY_EXITS: dict[str, tuple[Preset, int]] = {
    "dsd, 1": (preset("dsd", 1, **EARLY_EXITS), 3),
    "dssd-full, 1": (preset("dssd-full", 1, **EARLY_EXITS), 3),
    "dssd, M 1, R 1": (preset("dssd", 1, payload_top=1, payload_tail_draws=1, **EARLY_EXITS), 2),
    "pipelined": (scheduled("dsd", Schedule(2, 1, bonus=False), **EARLY_EXITS), 2),
}
TREES: dict[str, tuple[Preset, int]] = {
    "2": (tree((2,)), 3),
    "2, with replacement": (tree((2,), with_replacement=True), 3),
    "3": (tree((3,)), 2),
    "1, 1": (tree((1, 1)), 3),
    "2, 1": (tree((2, 1)), 2),
    "1, 2": (tree((1, 2)), 2),
    "1, 2, with replacement": (tree((1, 2), with_replacement=True), 2),
    "2, 2, K 2": (tree((2, 2), truncation=Truncation(top_k=2)), 2),
    "2, 2, K 2, with replacement": (
        tree((2, 2), truncation=Truncation(top_k=2), with_replacement=True),
        2,
    ),
    "2, 2, K 2, three tokens": (tree((2, 2), truncation=Truncation(top_k=2)), 3),
    "1, 2, 1, K 2": (tree((1, 2, 1), truncation=Truncation(top_k=2)), 3),
    "2, 1, P 0.8": (tree((2, 1), truncation=Truncation(top_p=0.8)), 2),
    "2, 1, full distributions": (tree((2, 1), uplink=Uplink.FULL_DISTRIBUTIONS), 2),
}
PACED = {
    name: METHODS[name][0]
    for name in (
        *(
            "pipelined",
            "pipelined, chunks of two",
            "picospec, distribution up",
            "picospec, prepared",
        ),
        *("picospec, one chunk", "predraft, pipelined"),
    )
}
"""Where drafts are sent before earlier ones are judged."""
PACES = [
    Pace(),
    Pace(judge=3),
    Pace(draft=3, judge=4, cloud_draft=2),
    Pace(up=3, down=2),
    Pace(draft=3, down=4),
]
ENDS = frozenset({0})


def probs_through_the_machines(
    chosen: Preset,
    max_tokens: int,
    pace: Pace,
    ends: frozenset[int] = frozenset(),
    models: ModelPair = MODELS,
    predicted: TokenIds | None = None,
    remembered: Sequence[TokenIds] = (),
) -> dict[TokenIds, Fraction]:
    def answer(rng: ExactRandom) -> TokenIds:
        return Lockstep(
            chosen,
            models,
            max_tokens=max_tokens,
            ends=ends,
            pace=pace,
            rng=NumberPerDecision(rng),
            predicted=predicted,
            remembered=remembered,
        ).run()

    return outcome_probs(answer, once=False)


@pytest.mark.parametrize("method", with_long_cases(METHODS, EVERY_RUN))
def test_the_answers_distribution_is_the_targets(method: str) -> None:
    chosen, max_tokens = METHODS[method]
    probs = probs_through_the_machines(chosen, max_tokens, Pace())
    assert probs == exact_payload_probs(max_tokens, frozenset())


TOP_K_BIAS = {1: Fraction(1, 4), 2: Fraction(0), 3: Fraction(0)}
"""By K: the part of the residual outside the target's top K; the lab's `top_k_bias` of MODELS."""
CUT_BIAS = {1: Fraction(3, 128), 2: Fraction(11, 256), 3: Fraction(0)}
"""By K: what a draft distribution cut to its top K after sampling changes; the lab's
`after_sampling_bias` of MODELS."""


def total_variation(chosen: Preset) -> Fraction:
    """Between the first token of an answer to (1, 2) and the target's distribution."""
    probs = probs_through_the_machines(chosen, 1, Pace())
    target = MODELS.target_probs((1, 2))
    difference = [abs(probs.get((token,), Fraction(0)) - target[token]) for token in range(3)]
    return sum(difference, Fraction(0)) / 2


@pytest.mark.parametrize(("top", "bias"), TOP_K_BIAS.items())
def test_the_top_k_answer_is_off_by_its_bias(top: int, bias: Fraction) -> None:
    """PicoSpec's answer is lossy; here the residual lies in the top two."""
    assert total_variation(preset("picospec-top-k", 1, payload_top=top)) == bias


@pytest.mark.parametrize(("top", "bias"), CUT_BIAS.items())
def test_an_answer_cut_after_sampling_is_off_by_its_bias(top: int, bias: Fraction) -> None:
    """`tslt-after` is lossy where it cuts; the same cut before sampling is exact."""
    cut = Truncation(top_k=top)
    assert total_variation(preset("tslt-after", 1, truncation=cut)) == bias
    assert total_variation(preset("tslt", 1, truncation=cut)) == 0


@pytest.mark.parametrize(
    "method", with_long_cases(WITH_EARLY_EXITS, ("dsd, 1", "dssd-full, 1", "pipelined"))
)
def test_early_verdicts_leave_the_distribution_as_it_is(method: str) -> None:
    """Judged with the numbers of the final verdict, and drafted ahead for before it comes."""
    chosen, max_tokens = WITH_EARLY_EXITS[method]
    models = replace(MODELS, exit_distributions=(MODELS.draft_probs, MODELS.target_probs))
    probs = probs_through_the_machines(chosen, max_tokens, Pace(judge=4), models=models)
    assert probs == exact_payload_probs(max_tokens, frozenset())


@pytest.mark.parametrize(
    "shape",
    with_long_cases(
        TREES,
        (
            *("3", "2, 1", "1, 2", "1, 2, with replacement", "2, 2, K 2", "2, 1, P 0.8"),
            "2, 1, full distributions",
        ),
    ),
)
def test_so_it_is_with_token_trees(shape: str) -> None:
    chosen, max_tokens = TREES[shape]
    probs = probs_through_the_machines(chosen, max_tokens, Pace())
    assert probs == exact_payload_probs(max_tokens, frozenset())


def test_so_it_is_where_a_branch_ends_the_text() -> None:
    probs = probs_through_the_machines(tree((2, 1)), 3, Pace(), ENDS)
    assert probs == exact_payload_probs(3, ENDS)


@pytest.mark.parametrize(
    ("method", "numbers"),
    [
        *((method, (number % 5,)) for number, method in enumerate(PACED)),
        *(pytest.param(method, range(len(PACES)), marks=LONG) for method in PACED),
    ],
)
def test_so_it_is_at_any_pace(method: str, numbers: Sequence[int]) -> None:
    """However late drafts and verdicts are, and wherever the text may end. `make test` has a pace
    of each method, and each pace with a method at least."""
    for pace in [PACES[number] for number in numbers]:
        probs = probs_through_the_machines(PACED[method], 3, pace, ENDS)
        assert probs == exact_payload_probs(3, ENDS), pace


PREDICTED: list[TokenIds] = [(1, 0, 2), (2, 2, 1, 0), (0,)]


@pytest.mark.parametrize(
    ("method", "predicted"),
    [
        *(
            pytest.param(
                name, PREDICTED[number % 3], marks=[] if name in PREDICTED_EVERY_RUN else [LONG]
            )
            for number, name in enumerate(METHODS)
        ),
        *(
            pytest.param(name, each, marks=LONG)
            for name in ("dsd, 1", "dsd, 3", "dssd, M 3")
            for each in PREDICTED
        ),
    ],
)
def test_so_it_is_where_the_caller_predicts_the_answer(method: str, predicted: TokenIds) -> None:
    """Whatever he predicts, and wherever the answer departs from it and comes back."""
    chosen, max_tokens = METHODS[method]
    probs = probs_through_the_machines(chosen, max_tokens, Pace(), predicted=predicted)
    assert probs == exact_payload_probs(max_tokens, frozenset())


@pytest.mark.parametrize(
    "method",
    with_long_cases(PACED, ("pipelined, chunks of two", "picospec, prepared")),
)
def test_so_it_is_at_any_pace_with_a_prediction(method: str) -> None:
    for number, pace in enumerate(PACES[::2]):
        predicted = PREDICTED[number % 2]
        probs = probs_through_the_machines(PACED[method], 3, pace, predicted=predicted)
        assert probs == exact_payload_probs(3, frozenset()), pace


REMEMBERED: list[TokenIds] = [(1, 2, 0, 2, 1, 0), (1, 2, 1, 0, 2, 0), (1, 2, 2, 0, 0, 1)]
"""One of them goes on after any first token."""


@pytest.mark.parametrize(
    "method",
    with_long_cases(
        [
            *("dsd, 2", "dsd, 3", "dsd, 2, sure ones", "dssd, M 3", "dssd, M 1, R 0"),
            *("dssd-full, 2", "tslt, 2, K 2", "pipelined, chunks of two", "picospec, whole chunks"),
            "predraft",
        ],
        (
            *("dsd, 2", "dssd, M 3", "dssd, M 1, R 0", "dssd-full, 2", "tslt, 2, K 2"),
            *("pipelined, chunks of two", "predraft"),
        ),
    ),
)
def test_so_it_is_where_drafts_are_from_earlier_texts(method: str) -> None:
    chosen, max_tokens = METHODS[method]
    probs = probs_through_the_machines(chosen, max_tokens, Pace(), remembered=REMEMBERED)
    assert probs == exact_payload_probs(max_tokens, frozenset())


@pytest.mark.parametrize("method", ["pipelined", "picospec, one chunk"])
def test_so_it_is_at_any_pace_with_earlier_texts(method: str) -> None:
    for pace in PACES[1:4:2]:
        probs = probs_through_the_machines(PACED[method], 3, pace, remembered=REMEMBERED)
        assert probs == exact_payload_probs(3, frozenset()), pace


@pytest.mark.parametrize("method", ["cloud lookup", "cloud drafts, 2"])
def test_so_it_is_where_the_cloud_drafts_from_earlier_texts(method: str) -> None:
    chosen, max_tokens = METHODS[method]
    chosen = replace(chosen, recalls=True)
    judged = 0

    def answer(rng: ExactRandom) -> TokenIds:
        nonlocal judged
        machines = Lockstep(
            chosen,
            MODELS,
            max_tokens=max_tokens,
            rng=NumberPerDecision(rng),
            remembered_in_cloud=REMEMBERED,
        )
        token_ids = machines.run()
        assert machines.cloud is not None
        judged += machines.cloud.proposed_memory_tokens
        return token_ids

    probs = outcome_probs(answer, once=False)
    assert probs == exact_payload_probs(max_tokens, frozenset())
    assert judged > 0


DIVIDED: list[TokenIds] = [*REMEMBERED, (1, 2, 0, 1, 0), (1, 2, 1, 1, 2), (1, 2, 2, 1, 0)]
"""They go on in two ways after any first token."""


@pytest.mark.parametrize(
    ("shape", "texts"),
    [
        pytest.param("2, 1", REMEMBERED, marks=LONG),
        ("1, 2, with replacement", REMEMBERED),
        pytest.param("2, 2, K 2, three tokens", REMEMBERED, marks=LONG),
        ("2, 1", DIVIDED),
        pytest.param("1, 2, with replacement", DIVIDED, marks=LONG),
    ],
)
def test_so_it_is_where_earlier_texts_are_branches_of_a_tree(
    shape: str, texts: list[TokenIds]
) -> None:
    """Or all of it, where they reach as deep."""
    chosen, max_tokens = TREES[shape]
    probs = probs_through_the_machines(chosen, max_tokens, Pace(), remembered=texts)
    assert probs == exact_payload_probs(max_tokens, frozenset())


def test_drawing_afresh_with_the_full_distribution_would_be_biased(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it is known that the sparse payload does not have the token."""

    monkeypatch.setattr(
        "tandem.specdec.rounds.recovery.finish_with_full_distribution", recovered_afresh
    )
    chosen, max_tokens = METHODS["dssd, M 1, R 0"]
    probs = probs_through_the_machines(chosen, max_tokens, Pace())
    assert probs != exact_payload_probs(max_tokens, frozenset())
