"""Figures of simulated answers, under the names that benchmark rows use."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import median
from typing import Any

from lab.analysis.cost_models import LinkTimes
from lab.analysis.cost_of_preset import CloudDrafting, Sizes, predict
from tandem.control.conditions import PairTimes
from tandem.core.errors import InvalidArgument
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.presets import Preset
from tandem.testing.simulation.answer import Conditions, SimulatedAnswer, verified_acceptance


def answers_figures(answers: Sequence[SimulatedAnswer]) -> dict[str, Any]:
    """Return the figures of answers given one after another: ratios of sums, so that long ones
    weigh more. `tpot_s` is None when no answer has a second token."""
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


def steady_tokens_per_s(answers: Sequence[SimulatedAnswer], warm: int) -> float:
    """Return the tokens of all sessions per second, each from one of its commits to another, while
    all of them are past their `warm`-th token and before their last: so bursts weigh no more than
    they last. A session with a single commit in that time counts as the others do on average."""
    begun_s = max(_moment_s(answer, warm) for answer in answers)
    ended_s = min(answer.commits[-1][0] for answer in answers)
    speeds = []
    for answer in answers:
        commits = [commit for commit in answer.commits if begun_s <= commit[0] <= ended_s]
        if commits and (lasted_s := commits[-1][0] - commits[0][0]) > 0:
            tokens = sum(count for moment, count in commits if moment > commits[0][0])
            speeds.append(tokens / lasted_s)
    if not speeds:
        raise InvalidArgument("max_tokens", "the sessions are never all under way")
    return len(answers) * sum(speeds) / len(speeds)


def _moment_s(answer: SimulatedAnswer, tokens: int) -> float:
    """Return the moment at which more than `tokens` tokens were committed, or the last commit's."""
    committed = 0
    for moment, count in answer.commits:
        committed += count
        if committed > tokens:
            return moment
    return answer.commits[-1][0]


def cloud_acceptance(answers: Sequence[SimulatedAnswer]) -> float | None:
    """Return the acceptance of drafts that the cloud made itself, counted as by
    `verified_acceptance`."""
    accepted = sum(answer.stats.cloud_accepted for answer in answers)
    rejections = sum(answer.cloud_rejections for answer in answers)
    return accepted / (accepted + rejections) if accepted + rejections else None


def cache_miss_rate(answers: Sequence[SimulatedAnswer]) -> float | None:
    """Return how often the drafts for the outcome that came were not there (FSD's r); None without
    pre-drafting."""
    hits = sum(answer.stats.predraft_hits for answer in answers)
    misses = sum(answer.stats.predraft_misses for answer in answers)
    return misses / (hits + misses) if hits + misses else None


def undrafted_rate(answers: Sequence[SimulatedAnswer]) -> float | None:
    """Return how often drafting for the outcome that came had not even begun, as cost models count;
    None without pre-drafting."""
    hits = sum(answer.stats.predraft_hits for answer in answers)
    misses = sum(answer.stats.predraft_misses for answer in answers)
    begun = sum(answer.stats.predraft_begun for answer in answers)
    return (misses - begun) / (hits + misses) if hits + misses else None


def predicted_tpot_s(
    preset: Preset, conditions: Conditions, vocabulary_size: int, answers: Sequence[SimulatedAnswer]
) -> float | None:
    """Return the TPOT by the preset's cost model at these answers' rates. Returns None if no draft
    was verified, or if drafts are looked up in the cloud, since no cost model knows how many."""
    if preset.cloud_drafts is CloudDrafts.LOOKUP:
        return None
    acceptance_rate = verified_acceptance(answers)
    miss_rate = undrafted_rate(answers)
    times = conditions.times
    cloud_drafting = None
    if preset.drafts_in_cloud:
        rate = cloud_acceptance(answers)
        cloud_drafting = None if rate is None else CloudDrafting(times.cloud_step_s, rate)
        acceptance_rate = rate if acceptance_rate is None else acceptance_rate
    if (preset.drafts or preset.drafts_in_cloud) and acceptance_rate is None:
        return None
    up = conditions.shape.up
    down = conditions.shape.down
    prediction = predict(
        preset,
        PairTimes(times.draft_s, times.verify_first_s, times.verify_further_s),
        LinkTimes(conditions.shape.rtt_s, up.bytes_per_s or inf, down.bytes_per_s or inf),
        acceptance_rate=acceptance_rate or 0.0,
        miss_rate=1.0 if miss_rate is None else miss_rate,
        sizes=Sizes(conditions.padded_vocabulary or vocabulary_size),
        cloud_drafting=cloud_drafting,
    )
    return prediction.tpot_s
