"""Figures of simulated answers, under the names that benchmark rows use."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from tandem.core.errors import InvalidArgument
from tandem.testing.simulation.answer import SimulatedAnswer


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


def cache_miss_rate(answers: Sequence[SimulatedAnswer]) -> float | None:
    """Return how often the drafts for the outcome that came were not there (FSD's r); None without
    pre-drafting."""
    hits = sum(answer.stats.predraft_hits for answer in answers)
    misses = sum(answer.stats.predraft_misses for answer in answers)
    return misses / (hits + misses) if hits + misses else None
