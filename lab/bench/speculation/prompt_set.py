"""`bench prompts`: how many times as fast as the cloud alone, over a named set of prompts.

Verifier, drafter and aggregator run as processes, computed as `tandem up` does: both sides on all
cores, with a thread each. The verifier has the draft model, too, so that the cloud can do without
an edge: each prompt is answered by the cloud one token at a time (`ar`), by a cloud that drafts for
itself (`cloud-draft`) and by `auto`, one after the other. They take turns in being
first, so that load from elsewhere meets all. Nothing of a prompt is kept from one answer to the
next. There are two settings: temperature 0, and the sampling that the target's
`generation_config.json` asks for (temperature 1 where it asks for none).

A prompt's ratio is the seconds per token of `ar` over those of `auto`, from the request to the end
of the answer, over all rounds together. The last table has the mean of the prompts' ratios with its
spread, of several presets over several baselines: a single prompt says little, and the prompt that
gains most says nothing. `best of the cloud` is, for each prompt, whichever baseline was fastest.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev

from lab.bench.harness.baselines import (
    ALONE,
    BASELINES,
    CLOUD_DRAFT,
    best_baseline,
)
from lab.bench.harness.models import Models
from lab.bench.harness.report import Goal, Report, Row, counted, make_row
from lab.bench.harness.suite import Suite, running_suite
from lab.bench.harness.workload import ANSWER_TIMEOUT_S, summary_of, total
from lab.bench.speculation.named_prompts import PROMPTS, SET_NAME, NamedPrompt
from tandem.core.errors import InvalidArgument
from tandem.core.probs import SamplingParams
from tandem.core.prompt import Turn
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.figures import answer_figures
from tandem.generation.request import GenerationRequest
from tandem.net.process import run_loop
from tandem.specdec.messages import GenerationParams

TOGETHER = "auto"
ARMS = (*BASELINES, TOGETHER)
"""Presets that answer every prompt."""
BEST = "best of the cloud"
"""Of each prompt, the fastest baseline."""
COMPARED = (
    (TOGETHER, ALONE),
    (CLOUD_DRAFT, ALONE),
    (TOGETHER, CLOUD_DRAFT),
    (TOGETHER, BEST),
)
"""What the summary has ratios of: how many times as fast the first one is as the second."""
ROUNDS = 3
QUICK_ROUNDS = 1
TOKENS = 128
QUICK_TOKENS = 48
GREEDY = "temperature 0"
OWN = "the model's own"
"""Names of the two settings."""
WARM_UP = "Hello! What can you do?"
SETTLED_S = 0.2
"""Before each answer. What the last one leaves to the services, they do after its caller has it."""

PROMPT_COLUMNS = (
    *("prompt", "kind", "tokens", "alone_s_per_token", "together_s_per_token", "ratio"),
    *("cloud_draft_ratio", "over_cloud"),
    *("acceptance_rate", "same_text"),
)
SUMMARY_COLUMNS = (
    *("sampling", "preset", "over", "prompts", "mean", "standard_deviation"),
    *("least", "least_prompt"),
    *("most", "most_prompt", "slower", "same_text"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """How tokens are chosen, and what that is called in the tables."""

    name: str
    sampling: SamplingParams


Round = Mapping[str, Generated]
"""The answers to one prompt, by preset."""


def run(
    report: Report,
    models: Models,
    rounds: int | None = None,
    rtt_ms: float = 0.0,
    mbps: float | None = None,
    device: str | None = None,
    dtype_draft: str | None = None,
) -> None:
    """Fill the report: a row for each prompt and setting, and the spread over the prompts. `rtt_ms`
    and `mbps`: an emulated link; without either, both sides talk over loopback. `device` computes
    both models."""
    rounds = rounds or (QUICK_ROUNDS if report.quick else ROUNDS)
    tokens = QUICK_TOKENS if report.quick else TOKENS
    settings = (
        Setting(GREEDY, SamplingParams(temperature=0.0)),
        Setting(OWN, own_sampling(Path(models.target))),
    )
    with running_suite(
        replace(
            models,
            device=device or models.device,
            draft_dtype=dtype_draft or models.draft_dtype,
        ),
        with_link=rtt_ms > 0 or mbps is not None,
        shares_cores=True,
        target_threads=0,
        keeps_prefixes=False,
        cloud_draft=True,
    ) as suite:
        if suite.link is not None:
            suite.link.set(rtt_ms / 1e3, mbps)
        for setting in settings:
            answered = run_loop(_ask_all(suite, setting, rounds, tokens, report.seed))
            rows = [
                prompt_row(prompt, answered[prompt.name], setting)
                | {"seed": report.seed, "rtt_s": rtt_ms / 1e3, "mbps": mbps}
                for prompt in PROMPTS
            ]
            title = f"{setting.name}: set {SET_NAME}, {rounds} rounds, at most {tokens} tokens"
            report.add(title, PROMPT_COLUMNS, rows)
    of_prompts = list(report.rows)
    summaries = [
        summary_row(
            [row for row in of_prompts if row["sampling"] == setting.name], preset=preset, over=over
        )
        for setting in settings
        for preset, over in COMPARED
    ]
    report.add("Times as fast, over the prompts", SUMMARY_COLUMNS, summaries)
    report.goals += goals(summaries)
    report.notes += notes(settings[1].sampling, report.rows)


def own_sampling(target: Path) -> SamplingParams:
    """Return what the model in folder `target` asks for; temperature 1 where it asks for nothing.
    Raises InvalidArgument for a file that has no such settings."""
    try:
        config = json.loads((target / "generation_config.json").read_text("utf-8"))
        return SamplingParams(
            temperature=float(config.get("temperature") or 1.0),
            top_k=int(config.get("top_k") or 0),
            top_p=float(config.get("top_p") or 1.0),
        )
    except OSError:  # none, or the target is a file of weights
        return SamplingParams()
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidArgument("target", f"{target}/generation_config.json: {error}") from None


async def _ask_all(
    suite: Suite, setting: Setting, rounds: int, tokens: int, seed: int
) -> dict[str, list[Round]]:
    """Ask for all answers, and return the rounds of each prompt, by its name. One client asks for
    all: a new one would have to connect first."""
    async with AggregatorClient(suite.aggregator) as client:

        async def ask(text: str, preset: str, of_round: int) -> Generated:
            await asyncio.sleep(SETTLED_S)
            params = GenerationParams(
                sampling=setting.sampling, max_tokens=tokens, seed=seed + of_round
            )
            request = GenerationRequest((Turn("user", text),), preset, params)
            return await client.generate(request, ANSWER_TIMEOUT_S)

        for preset in ARMS:
            await ask(WARM_UP, preset, 0)
        answered: dict[str, list[Round]] = {prompt.name: [] for prompt in PROMPTS}
        turns = [
            (number, place, prompt)
            for number in range(rounds)
            for place, prompt in enumerate(PROMPTS)
        ]
        for number, place, prompt in counted(turns, lambda turn: f"{setting.name}, {turn[2].name}"):
            order = order_of(number, place)
            answers = {preset: await ask(prompt.text, preset, number) for preset in order}
            answered[prompt.name].append(answers)
        return answered


def order_of(number: int, place: int) -> tuple[str, ...]:
    """Return who answers first, second and so on, in round `number` and for the prompt at `place`,
    both from 0. Each is first in turn, along the prompts of a round as along the rounds of a
    prompt."""
    first = (number + place) % len(ARMS)
    return (*ARMS[first:], *ARMS[:first])


def prompt_row(prompt: NamedPrompt, rounds: Sequence[Round], setting: Setting) -> Row:
    """Return the figures of one prompt. `seconds_per_token`: by preset; `ratio`,
    `cloud_draft_ratio`: times as fast as `ar`; `over_cloud`: `auto` over the fastest baseline,
    which is `best_cloud`; `same_text`: the share of rounds in which all texts were that of `ar`;
    `times_s`: of each answer by preset, in the rounds' order."""
    presets = [preset for preset in ARMS if preset in rounds[0]]
    seconds = {preset: _seconds_per_token(rounds, preset) for preset in presets}
    alone = seconds[ALONE]
    together = seconds[TOGETHER]
    answers = [answers[TOGETHER] for answers in rounds]
    tokens, drafted = total(answers, "tokens"), total(answers, "drafted")
    same = [
        all(answers[preset].token_ids == answers[ALONE].token_ids for preset in presets)
        for answers in rounds
    ]
    row = make_row(
        preset=TOGETHER,
        tokens_per_s=1 / together,
        speedup_over_ar=alone / together,
        acceptance_rate=total(answers, "accepted") / drafted if drafted else None,
        target_passes_per_token=total(answers, "target_passes") / tokens,
    )
    return row | {
        "set": SET_NAME,
        "sampling": setting.name,
        "prompt": prompt.name,
        "kind": prompt.kind,
        "tokens": int(tokens),
        "seconds_per_token": seconds,
        "alone_s_per_token": alone,
        "together_s_per_token": together,
        "ratio": alone / together,
        "cloud_draft_ratio": _times_as_fast(seconds, CLOUD_DRAFT, ALONE),
        "over_cloud": _times_as_fast(seconds, TOGETHER, BEST),
        "best_cloud": _fastest_baseline(seconds),
        "same_text": sum(same) / len(same),
        "same_bits": all(
            summary_of(answers[preset]).same_bits for answers in rounds for preset in presets
        ),
        "times_s": {
            preset: [answers[preset].duration_s for answers in rounds] for preset in presets
        },
        "answers": [answer_figures(answer) for answer in answers],
    }


def _fastest_baseline(seconds: Mapping[str, float]) -> str:
    """Return the baseline of fewest seconds per token; the cloud alone is always there."""
    return best_baseline({preset: 1 / took_s for preset, took_s in seconds.items()}) or ALONE


def _times_as_fast(seconds: Mapping[str, float], preset: str, over: str) -> float | None:
    """Return the ratio of seconds per token of `over`, which may be BEST, to those of `preset`;
    None where one of them did not answer."""
    baseline = _fastest_baseline(seconds) if over == BEST else over
    if preset not in seconds or baseline not in seconds:
        return None
    return seconds[baseline] / seconds[preset]


def _seconds_per_token(rounds: Sequence[Round], preset: str) -> float:
    """Return the seconds per token of all rounds together; an answer that ends at once still counts
    as a token."""
    seconds = sum(answers[preset].duration_s for answers in rounds)
    return seconds / sum(max(1, len(answers[preset].token_ids)) for answers in rounds)


def summary_row(rows: Sequence[Row], *, preset: str = TOGETHER, over: str = ALONE) -> Row:
    """Return the mean over the prompts of a setting, and its spread, of how many times as fast
    `preset` is as `over`. `standard_deviation`: between prompts, of a sample; `slower`: the number
    of prompts for which it took longer."""
    ratio_of = {
        row["prompt"]: ratio
        for row in rows
        if (ratio := _times_as_fast(row["seconds_per_token"], preset, over)) is not None
    }
    ratios = list(ratio_of.values())
    least = min(ratio_of, key=lambda name: ratio_of[name])
    most = max(ratio_of, key=lambda name: ratio_of[name])
    mean = fmean(ratios)
    return make_row(preset=preset, speedup_over_ar=mean if over == ALONE else None) | {
        "set": SET_NAME,
        "sampling": rows[0]["sampling"],
        "over": over,
        "prompts": len(ratios),
        "mean": mean,
        "standard_deviation": stdev(ratios) if len(ratios) > 1 else 0.0,
        "least": ratio_of[least],
        "least_prompt": least,
        "most": ratio_of[most],
        "most_prompt": most,
        "slower": sum(ratio < 1 for ratio in ratios),
        "same_text": fmean(row["same_text"] for row in rows),
        "same_bits": all(row["same_bits"] for row in rows),
    }


def goals(summaries: Sequence[Row]) -> list[Goal]:
    """Return a goal for the texts of each setting; speed is a finding here, with no limit. There is
    no goal where the target says that its logits depend on how a text is cut into passes."""
    of_setting = {row["sampling"]: row for row in summaries}
    return [
        Goal(f"{sampling}: texts equal to {ALONE}'s", row["same_text"], 1.0, "at least")
        for sampling, row in of_setting.items()
        if row["same_bits"]
    ]


def notes(own: SamplingParams, rows: Sequence[Row]) -> Iterator[str]:
    """Yield notes on what the figures are."""
    yield (
        f"ratio: seconds per token of {ALONE} ÷ those of {TOGETHER}, from the request to the end of"
        f" the answer; above 1 {TOGETHER} is faster. over_cloud: the same over the fastest of"
        f" {', '.join(BASELINES)} for the prompt. mean: of the ratios of all prompts. The"
        f" model's own sampling: temperature {own.temperature:g}, top_k {own.top_k}, top_p"
        f" {own.top_p:g}."
    )
    if not all(row["same_bits"] for row in rows if "same_bits" in row):
        yield (
            "same_bits is False: logits depend in their last bits on how many tokens a pass has, so"
            " texts may differ, and with them the work."
        )
