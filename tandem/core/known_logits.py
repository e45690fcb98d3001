"""Rows of logits of which only the largest are known, and what can be decided by them.

Of such a row [V] the `known` largest entries are the model's own; all others stand at one value,
which is no more than the least known one. What they really are is no more than that either.
So a greedy choice, and a distribution that is cut to its `top_k` likeliest tokens, are the model's
own if no unknown token can be among those that are kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tandem.core.default_sampling import DefaultSampling
from tandem.core.errors import FailedPrecondition, InvalidArgument
from tandem.core.probs import Array, SamplingParams
from tandem.core.processors import Processors


def check_decidable(
    sampling: SamplingParams, processors: Processors, *, known: int, remedy: str
) -> None:
    """Raise InvalidArgument naming the field of a request whose tokens `known` logits of a row
    cannot decide. `remedy`: what would make more of them known."""
    if not sampling.greedy and not 0 < sampling.top_k <= known:
        why = (
            f"the target tells of the {known} likeliest tokens alone: set top_k to 1 to {known},"
            f" or temperature to 0; more with {remedy}"
        )
        raise InvalidArgument("top_k", why)
    if processors.repetition_penalty != 1:
        why = "needs logits, and the target tells of log-probabilities alone"
        raise InvalidArgument("repetition_penalty", why)
    lifted = "would lift tokens that the target does not tell of"
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(processors, name) < 0:
            raise InvalidArgument(name, f"below 0 {lifted}")
    if any(bias > 0 for _, bias in processors.logit_bias):
        raise InvalidArgument("logit_bias", f"above 0 {lifted}")


def decidable_defaults(defaults: DefaultSampling, *, known: int) -> DefaultSampling:
    """Return the settings for requests that leave them open, such that `known` logits of a row
    decide their tokens: most programs that speak OpenAI's API cannot name a `top_k`."""
    top_k = defaults.top_k if defaults.top_k and defaults.top_k <= known else known
    return replace(defaults, top_k=top_k, repetition_penalty=None)


def check_row(
    logits: Array, processed: Array, sampling: SamplingParams, *, known: int, remedy: str
) -> None:
    """Check one row, after what a request changes about it, which lifts no logit.

    Args:
        logits: the row [V] as it was told.
        processed: the row [V] after penalties, biases and masks.
        sampling: what is taken of it.
        known: so many of the row's largest logits are the model's own.
        remedy: what would make more of them known.

    Raises FailedPrecondition where an unknown token might be among those that are kept."""
    if known >= len(logits):
        return
    kept = 1 if sampling.greedy else sampling.top_k
    if np.count_nonzero(logits > -np.inf) < kept:
        raise FailedPrecondition(
            f"the target tells of fewer than {kept} tokens here: others that it tells of are in no"
            " vocabulary; set top_k to less, or temperature to 0"
        )
    if processed is logits:
        return
    least = np.partition(logits, -known)[-known]
    highest = np.partition(processed, -kept)[-kept]
    if not highest >= least:
        raise FailedPrecondition(
            f"the target tells of {known} tokens a position, and this request forbids or"
            f" penalises so many of them that others may follow; more with {remedy}"
        )
