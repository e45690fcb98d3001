"""Processed distributions through both machines, in fractions: what comes out is the processed
target's distribution, not nearly, by every rule and payload.

The processors' own arithmetic is in float32; its results are made fractions of 2^20, which add up
to 1 and stay what they are as floats, and from there on nothing is rounded."""

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from tandem.core.probs import Array, SamplingParams, probs_from_logits
from tandem.core.processors import LogitsProcessor, Processors
from tandem.specdec.choices import Predraft, RejectionPayload, Schedule, Uplink
from tandem.specdec.presets import Preset
from tandem.testing.simulation.simulated_drafts import ProbsOf
from tests.exact import outcome_probs
from tests.long_runs import LONG
from tests.virtual_time.cases import ModelPair, TokenIds, preset, scheduled, tree
from tests.virtual_time.exact_models import NumberPerDecision
from tests.virtual_time.lockstep import Lockstep, Pace

PROMPT = (1, 2)
PROCESSORS = {
    "penalties": Processors(presence_penalty=0.5, frequency_penalty=0.7, repetition_penalty=1.3),
    "bias": Processors(logit_bias=((0, 1.5), (2, -0.75))),
    "banned": Processors(banned_token_ids=(1,)),
    "allowed, with a penalty": Processors(allowed_token_ids=(0, 2), frequency_penalty=-1.0),
}
CUTS = {"min_p": SamplingParams(min_p=0.3), "typical_p": SamplingParams(typical_p=0.7)}
METHODS: dict[str, tuple[Preset, int]] = {
    "dsd": (preset("dsd", 2), 3),
    "pipelined": (scheduled("dsd", Schedule(2, 1, bonus=False)), 3),
    "dssd, M 1, R 1": (preset("dssd", 1, payload_top=1, payload_tail_draws=1), 2),
    "dssd-full": (preset("dssd-full", 2), 3),
    "sparse uplink": (preset("dsd", 2, uplink=Uplink.SPARSE_DISTRIBUTIONS), 3),
    "distribution up": (
        preset(
            "picospec",
            2,
            uplink=Uplink.FULL_DISTRIBUTIONS,
            rejection_payload=RejectionPayload.TOKEN,
        ),
        3,
    ),
    "predraft": (preset("dsd", 1, predraft=Predraft.LIKELY_OUTCOMES), 2),
    "tree": (tree((2, 1)), 2),
    "tree, with replacement": (tree((2,), with_replacement=True), 2),
}
EVERY_RUN = (
    "dsd",
    "dssd, M 1, R 1",
    "dssd-full",
    "distribution up",
    "predraft",
    "tree",
)
"""In `make test`: each payload, and a tree; with each processor."""
TARGET = {0: [4, 3, 1], 1: [2, 2, 4], 2: [8, 5, 3]}
DRAFT = {0: [1, 2, 5], 1: [4, 4, 1], 2: [1, 1, 14]}


def processed_probs(
    weights: dict[int, list[int]], processors: Processors, sampling: SamplingParams
) -> ProbsOf:
    processor = LogitsProcessor(processors, PROMPT)

    @cache  # every path through the random choices asks for the same few
    def probs_of(context: TokenIds) -> Array:
        logits = np.log(np.array(weights[context[-1]], dtype=np.float32))
        probs = probs_from_logits(processor.processed(logits, context[len(PROMPT) :]), sampling)
        exact = [Fraction(round(float(each) * 2**20), 2**20) for each in probs]
        exact[int(np.argmax(probs))] += 1 - sum(exact)
        return np.array(exact, dtype=object)

    return probs_of


def pair_of(processors: Processors, sampling: SamplingParams) -> ModelPair:
    models = [processed_probs(weights, processors, sampling) for weights in (DRAFT, TARGET)]
    return ModelPair(3, models[0], models[1], sampling)


def own_probs(target: ProbsOf, max_tokens: int) -> dict[TokenIds, Fraction]:
    probs: dict[TokenIds, Fraction] = {(): Fraction(1)}
    for _ in range(max_tokens):
        probs = {
            (*answer, token): mass * each
            for answer, mass in probs.items()
            for token, each in enumerate(target((*PROMPT, *answer)))
            if each
        }
    return probs


def probs_through_the_machines(chosen: Preset, models: ModelPair, count: int) -> dict[Any, Any]:
    def answer(rng: Any) -> TokenIds:
        numbers = NumberPerDecision(rng)
        return Lockstep(chosen, models, max_tokens=count, pace=Pace(), rng=numbers).run()

    return outcome_probs(answer, once=False)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        pytest.param(
            method,
            [*PROCESSORS][(number + step) % 4],
            marks=[LONG] if step or method not in EVERY_RUN else [],
        )
        for number, method in enumerate(METHODS)
        for step in (0, 2)
    ],
)
def test_the_answers_distribution_is_the_processed_targets(method: str, name: str) -> None:
    models = pair_of(PROCESSORS[name], SamplingParams())
    chosen, count = METHODS[method]
    assert probs_through_the_machines(chosen, models, count) == own_probs(
        models.target_probs, count
    )


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("method", ["dsd", "dssd, M 1, R 1", "tree"])
def test_so_it_is_after_cuts(method: str, name: str) -> None:
    models = pair_of(Processors(frequency_penalty=0.5), CUTS[name])
    chosen, count = METHODS[method]
    assert probs_through_the_machines(chosen, models, count) == own_probs(
        models.target_probs, count
    )
