"""What a decoder is asked for, from a preset's choices and the sampling settings of a request.

Must not import asyncio, grpc, torch or time.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.core.laws import Sampling
from tandem.core.truncation import NO_TRUNCATION
from tandem.policy.aggregation_presets import (
    AggregationPreset,
    Agreement,
    Draw,
    LawPayload,
    LocalLaw,
)


@dataclass(frozen=True, slots=True)
class LocalChoices:
    """How each document's law is formed, and what of the side's law is drawn and sent."""

    sampling: Sampling
    law: LocalLaw


def local_choices(preset: AggregationPreset, sampling: Sampling) -> LocalChoices:
    """At temperature 0 the sides' laws are those of temperature 1, in full: the argmax of a mixture
    cannot be told from one-hot laws, nor, in general, from truncated ones."""
    needs_law = preset.two_sided and preset.agreement is not Agreement.ANSWER_COIN
    if sampling.greedy:
        payload = LawPayload.FULL if needs_law else LawPayload.NONE
        return LocalChoices(Sampling(), LocalLaw(Draw.LIKELIEST, payload, "float32", NO_TRUNCATION))
    return LocalChoices(sampling, preset.law)
