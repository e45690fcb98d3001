"""Simulated answers as rows with the names every report of the suite uses (DESIGN §9).

Must not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from tandem.policy.cost_models import LinkTimes, PairTimes
from tandem.policy.cost_of_preset import Sizes, predict
from tandem.policy.presets import Preset
from tandem.simulation.answer import Answered, Conditions


def answers_figures(answers: Sequence[Answered]) -> dict[str, Any]:
    """Figures over answers given one after another; ratios of sums, so that long ones weigh more.

    `tpot_s` is None when no answer has a second token.
    """
    tokens = sum(len(answer.token_ids) for answer in answers)
    later = tokens - len(answers)
    decoding_s = sum(answer.last_commit_s - answer.ttft_s for answer in answers)
    drafted = sum(answer.stats.drafted for answer in answers)
    accepted = sum(answer.stats.accepted for answer in answers)
    return {
        "tokens_per_s": tokens / sum(answer.last_commit_s for answer in answers),
        "tpot_s": decoding_s / later if later else None,
        "ttft_s": median(answer.ttft_s for answer in answers),
        "acceptance_rate": accepted / drafted if drafted else None,
        "target_passes_per_token": sum(a.stats.target_passes for a in answers) / tokens,
        "uplink_bytes_per_token": sum(a.uplink_bytes for a in answers) / tokens,
        "downlink_bytes_per_token": sum(a.downlink_bytes for a in answers) / tokens,
        "cache_miss_rate": cache_miss_rate(answers),
    }


def judged_acceptance(answers: Sequence[Answered]) -> float | None:
    """Accepted ÷ judged drafts: the models' own rate, where those a refusal voids do not count.

    Every refusal judges one draft more than it accepts. None when nothing was judged.
    """
    accepted = sum(answer.stats.accepted for answer in answers)
    refused = sum(answer.refused for answer in answers)
    return accepted / (accepted + refused) if accepted + refused else None


def cache_miss_rate(answers: Sequence[Answered]) -> float | None:
    """How often nothing was drafted for the outcome that came; None without pre-drafting."""
    hits = sum(answer.stats.predraft_hits for answer in answers)
    misses = sum(answer.stats.predraft_misses for answer in answers)
    return misses / (hits + misses) if hits + misses else None


def predicted_tpot_s(
    preset: Preset, conditions: Conditions, vocabulary_size: int, answers: Sequence[Answered]
) -> float | None:
    """TPOT by the cost model of the preset's choices, given the rates of these answers; None where
    it drafts and nothing was judged."""
    acceptance_rate = judged_acceptance(answers)
    miss_rate = cache_miss_rate(answers)
    if preset.drafts and acceptance_rate is None:
        return None
    times = conditions.times
    rate = float("inf") if conditions.mbps is None else conditions.mbps * 1e6 / 8
    prediction = predict(
        preset,
        PairTimes(times.draft_s, times.verify_first_s, times.verify_further_s),
        LinkTimes(conditions.rtt_s, rate, rate),
        acceptance_rate=acceptance_rate or 0.0,
        miss_rate=1.0 if miss_rate is None else miss_rate,
        sizes=Sizes(conditions.padded_vocabulary or vocabulary_size),
    )
    return prediction.tpot_s
