"""Requests to a running suite, and the figures of their answers.

Invariant: a figure over several requests is a ratio of sums, so that long answers weigh more; TPOT
is (last commit − first commit)/(tokens − 1) by the caller's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import median
from typing import Any

from lab.bench.harness.report import Row, make_row
from lab.bench.harness.suite import Suite
from tandem.core.probs import SamplingParams
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.specdec.messages import GenerationParams

ANSWER_TIMEOUT_S = 180.0


def requests(
    texts: Sequence[str],
    preset: str,
    draft_length: int | None,
    max_tokens: int,
    seed: int,
    sampling: SamplingParams | None = None,
    overrides: tuple[str, ...] = (),
) -> list[GenerationRequest]:
    """Return one request per prompt, each with another seed, of exactly `max_tokens` tokens."""
    length = () if draft_length is None else (f"draft_length={draft_length}",)
    return [
        GenerationRequest(
            prompt=text,
            preset=preset,
            params=GenerationParams(
                sampling=sampling or SamplingParams(),
                max_tokens=max_tokens,
                seed=seed + number,
                ignore_eos=True,
            ),
            overrides=(*length, *overrides),
        )
        for number, text in enumerate(texts)
    ]


async def one_after_another(suite: Suite, wanted: Sequence[GenerationRequest]) -> list[Generated]:
    async with AggregatorClient(suite.aggregator) as client:
        return [await client.generate(request, ANSWER_TIMEOUT_S) for request in wanted]


async def all_at_once(suite: Suite, wanted: Sequence[GenerationRequest]) -> list[Generated]:
    async with AggregatorClient(suite.aggregator) as client:
        answers = (client.generate(request, ANSWER_TIMEOUT_S) for request in wanted)
        return await asyncio.gather(*answers)


def total(answers: Sequence[Generated], figure: str) -> float:
    """Return the sum of one figure of the answers' summaries."""
    return float(sum(getattr(summary_of(answer), figure) for answer in answers))


def summary_of(answer: Generated) -> Any:
    assert answer.summary is not None, "a finished answer has a summary"
    return answer.summary


def measured_tpot_s(answers: Sequence[Generated]) -> float:
    """Return the seconds from each answer's first commit to its last, per token after the first."""
    decoding_s = sum(answer.last_commit_s - (answer.ttft_s or 0.0) for answer in answers)
    return decoding_s / sum(len(answer.token_ids) - 1 for answer in answers)


def answers_row(preset: str, draft_length: int | None, answers: Sequence[Generated]) -> Row:
    """Return the figures of answers that were asked for one after another."""
    tokens = sum(len(answer.token_ids) for answer in answers)
    drafted = total(answers, "drafted")
    return make_row(
        preset=preset,
        draft_length=draft_length,
        tokens_per_s=tokens / sum(answer.duration_s for answer in answers),
        tpot_s=measured_tpot_s(answers),
        ttft_s=median(answer.ttft_s or 0.0 for answer in answers),
        acceptance_rate=total(answers, "accepted") / drafted if drafted else None,
        target_passes_per_token=total(answers, "target_passes") / tokens,
        uplink_bytes_per_token=total(answers, "uplink_bytes") / tokens,
        downlink_bytes_per_token=total(answers, "downlink_bytes") / tokens,
        prompts=len(answers),
        tokens=tokens,
        full_distribution_requests=int(total(answers, "full_distribution_requests")),
    )


def add_speedups(rows: Sequence[Row]) -> None:
    """Fill `speedup_over_ar`: TPOT of `ar` over TPOT, under the same pacing and link."""
    for row in rows:
        same = [
            other
            for other in rows
            if other["preset"] == "ar"
            and all(other[name] == row[name] for name in ("pacing", "rtt_s", "mbps"))
        ]
        if same and row["tpot_s"]:
            row["speedup_over_ar"] = same[0]["tpot_s"] / row["tpot_s"]
