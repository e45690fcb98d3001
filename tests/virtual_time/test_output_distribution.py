"""Whatever the method, schedule, link and faults: answers are distributed as the target model's.

Seeded chi-squared tests of whole answers through both machines over the simulator, wrong at random
once in 10^4. With 305 answers of 27 kinds a distribution that is 0.5 from the target's (Cohen's w)
is found out 99 times of 100; the wrong rules of `make test` are 0.6 and more from it. Presets in
`make test-long` have 510, for one that is 0.4 from it. The subtlest wrong rule, a token drawn
afresh, is 0.34 from it: test_exact_distribution finds it in every run.

One of each kind that floats, links and seeded chance could spoil: test_exact_distribution has the
rules in fractions, and ends of text, of which a small bias would not show in a sample. Gumbel
coupling is not here: test_text_equality compares its texts with those of `ar`, token by token.
`make test` takes a part: one or two of each table below; `make test-long` the rest.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tandem.core.probs import SamplingParams, Truncation
from tandem.core.randomness import Purpose
from tandem.specdec.choices import Acceptance, CloudDrafts, Schedule
from tandem.specdec.presets import Preset
from tandem.specdec.rules import Proposal, RejectionRule, TargetProbs, probs_of
from tests.long_runs import LONG, with_long_cases
from tests.virtual_time.cases import (
    ModelPair,
    TokenIds,
    assert_sample,
    faults_of,
    model_pair,
    opposed_pair,
    payload_probs,
    preset,
    recovered_afresh,
    run,
    scheduled,
    tree,
    with_exits,
)

SAMPLES = 305
MANY = 510
CLOSE = model_pair(3, sharpness=1.5)
OPPOSED = opposed_pair()
METHODS: dict[str, tuple[ModelPair, str, dict[str, Any]]] = {
    "ar": (CLOSE, "ar", {}),
    "dsd, opposed": (OPPOSED, "dsd", {}),
    "dsd, float32": (CLOSE, "dsd", {"uplink_precision": "float32"}),
    "dssd": (CLOSE, "dssd", {}),
    "dssd, M 0, R 0": (OPPOSED, "dssd", {"payload_top": 0, "payload_tail_draws": 0}),
    "dssd, M 1, R 0": (OPPOSED, "dssd", {"payload_top": 1, "payload_tail_draws": 0}),
    "dssd, M 2, R 3": (OPPOSED, "dssd", {"payload_top": 2, "payload_tail_draws": 3}),
    "dssd-full": (OPPOSED, "dssd-full", {}),
    "tslt, K 2": (OPPOSED, "tslt", {"truncation": Truncation(top_k=2)}),
    "tslt, P 0.7": (CLOSE, "tslt", {"truncation": Truncation(top_p=0.7)}),
    "dssd, K 2": (OPPOSED, "dssd", {"payload_top": 1, "truncation": Truncation(top_k=2)}),
    "fsd, opposed": (with_exits(OPPOSED), "fsd", {"exits": 3, "payload_top": 1}),
    "cloud drafts, opposed": (OPPOSED, "cloud-draft", {"acceptance": Acceptance.REJECTION}),
    "cloud lookup": (
        CLOSE,
        "cloud-draft",
        {"acceptance": Acceptance.REJECTION, "cloud_drafts": CloudDrafts.LOOKUP},
    ),
}
CASES = {method: 1 + number % 3 for number, method in enumerate(METHODS)}
"""Each at one length: tests of exact distributions and of text equality have the others."""
EVERY_RUN = ("dsd, float32", "dssd, M 2, R 3", "tslt, K 2")


def sample(
    chosen: Preset, models: ModelPair, samples: int = SAMPLES, **options: Any
) -> Counter[TokenIds]:
    """Answers over links all different; a third of them with faults as well."""
    return Counter(
        run(
            chosen,
            models,
            seed,
            faults=faults_of(seed, span_s=0.5) if seed % 3 == 0 else None,
            **options,
        ).token_ids
        for seed in range(samples)
    )


def check_method(method: str, draft_length: int, samples: int = SAMPLES) -> None:
    models, name, choices = METHODS[method]
    answers = sample(preset(name, draft_length, **choices), models, samples)
    assert_sample(answers, payload_probs(models))


@pytest.mark.parametrize(
    ("method", "samples"),
    [
        *((method, SAMPLES) for method in EVERY_RUN),
        *(pytest.param(method, MANY, marks=LONG) for method in METHODS),
    ],
)
def test_presets(method: str, samples: int) -> None:
    check_method(method, CASES[method], samples)


def test_where_a_draft_learns_between_answers() -> None:
    """Each answer is drafted by an adapter of its own; the target is one."""
    learned = [model_pair(3, sharpness=1.5, noise=0.9 - 0.2 * version) for version in range(4)]
    chosen = preset("dssd", 3, payload_top=1)
    answers = Counter(
        run(chosen, replace(CLOSE, draft_probs=learned[seed % 4].draft_probs), seed).token_ids
        for seed in range(SAMPLES)
    )
    assert_sample(answers, payload_probs(CLOSE))


TREES: dict[str, tuple[ModelPair, Preset]] = {
    "2": (OPPOSED, tree((2,))),
    "3, with replacement": (CLOSE, tree((3,), with_replacement=True)),
    "2, 2, 2": (CLOSE, tree((2, 2, 2))),
    "2, 2, P 0.7": (OPPOSED, tree((2, 2), truncation=Truncation(top_p=0.7))),
}


@pytest.mark.parametrize("shape", with_long_cases(TREES, ("2, 2, P 0.7",)))
def test_trees(shape: str) -> None:
    models, chosen = TREES[shape]
    answers = sample(chosen, models)
    assert_sample(answers, payload_probs(models))


class TakesTheLikeliest(RejectionRule):
    """Wrong: the candidate that the target likes best, if any is judged to stand."""

    def accepted(self, target: TargetProbs, proposal: Proposal, position: int) -> int | None:
        if super().accepted(target, proposal, position) is None:
            return None
        return int(probs_of(target)[list(proposal.token_ids)].argmax())


@LONG
def test_a_wrong_rule_for_trees_fails_the_same_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tandem.specdec.cloud.acceptance_rule",
        lambda chosen, seed, rng, keep_probs: TakesTheLikeliest(rng),
    )
    with pytest.raises(AssertionError, match="chi-squared"):
        test_trees("2")


class AcceptsAll(RejectionRule):
    """Wrong: the draft model's distribution comes out."""

    def accepted(self, target: TargetProbs, proposal: Proposal, position: int) -> int | None:
        return 0


class RecoversFromTarget(RejectionRule):
    """Wrong: what was rejected may come back."""

    def recovered(self, target: TargetProbs, proposal: Proposal, position: int) -> int:
        return self.target_token(target, position)


class AcceptsUpsideDown(RejectionRule):
    """Wrong: the ratio as DSSD and TSLT print it."""

    def accepted(self, target: TargetProbs, proposal: Proposal, position: int) -> int | None:
        assert proposal.draft_probs is not None
        (token,) = proposal.token_ids
        drafted, wanted = proposal.draft_probs[token], probs_of(target)[token]
        return 0 if self.rng.bernoulli(drafted, wanted, position, Purpose.ACCEPT) else None


@pytest.mark.parametrize(
    "wrong",
    with_long_cases([AcceptsAll, RecoversFromTarget, AcceptsUpsideDown], [AcceptsUpsideDown]),
)
def test_a_wrong_rule_fails_the_same_test(
    wrong: type[RejectionRule], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tandem.specdec.cloud.acceptance_rule",
        lambda chosen, seed, rng, keep_probs: wrong(rng),
    )
    with pytest.raises(AssertionError, match="chi-squared"):
        check_method("dsd, opposed", 3)


@pytest.mark.long
def test_drawing_afresh_with_the_full_distribution_fails_the_same_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "tandem.specdec.rounds.recovery.finish_with_full_distribution", recovered_afresh
    )
    with pytest.raises(AssertionError, match="chi-squared"):
        check_method("dssd, M 1, R 0", 2, MANY)


COMPOSITIONS = {
    "pipelined, uneven": scheduled("dsd", Schedule(3, 2, bonus=False)),
    "pipelined, float32": scheduled("dsd", Schedule(4, 2, bonus=False), uplink_precision="float32"),
    "pipelined, split": scheduled(
        "dssd", Schedule(3, 1, bonus=False), payload_top=1, payload_tail_draws=1
    ),
    "picospec": preset("picospec", 2, payload_top=1, payload_tail_draws=1),
    "stop and wait, no bonus": scheduled("dsd", Schedule(2, 2, bonus=False)),
}


MODELS_OF = {name: (CLOSE, OPPOSED)[number % 2] for number, name in enumerate(COMPOSITIONS)}


@pytest.mark.parametrize(
    "composition",
    with_long_cases(
        COMPOSITIONS,
        ("pipelined, split", "stop and wait, no bonus"),
    ),
)
def test_schedules(composition: str) -> None:
    models = MODELS_OF[composition]
    answers = sample(COMPOSITIONS[composition], models, max_tokens=4)
    assert_sample(answers, payload_probs(models, max_tokens=4))


COLDER = SamplingParams(temperature=0.6, top_k=3, top_p=0.9)


TRUNCATED = {
    "dsd, top_k": ("dsd", SamplingParams(top_k=2)),
    "dssd, top_p": ("dssd", SamplingParams(top_p=0.7)),
    **{f"{name}, colder": (name, COLDER) for name in ("dsd", "coupled")},
}


@pytest.mark.parametrize("case", with_long_cases(TRUNCATED, ("dssd, top_p",)))
def test_truncated_distributions(case: str) -> None:
    name, sampling = TRUNCATED[case]
    models = model_pair(4, sampling=sampling, noise=0.8)
    answers = sample(preset(name, 2, payload_top=1, payload_tail_draws=1), models)
    assert_sample(answers, payload_probs(models))
