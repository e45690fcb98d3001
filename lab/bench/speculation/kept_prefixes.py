"""`bench prefix`: time to the first token of a chat's second turn, where the first one's keys and
values are kept and where they are not.

Two suites in this process, one of which keeps nothing; the chats take turns in them, so that
whatever else the machine does meets both alike. Texts must be the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from statistics import median

from lab.bench.harness.report import Goal, Report, Row, counted, make_row, progress
from lab.bench.harness.suite import ROOT, Models
from tandem.backends.model_source import ModelChoice
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.runtime.prefix_cache import PrefixLimits
from tandem.services.drafter.servicer import DrafterLimits
from tandem.services.verifier.servicer import VerifierLimits
from tandem.specdec.liveness import LivenessTimes
from tandem.specdec.messages import GenerationParams
from tandem.suite.embedded import GIVE_UP_AFTER_S, EmbeddedSuite
from tandem.suite.models import ModelPair, choose_model, load_pair
from tandem.text import Tokenizer

TTFT_LIMIT = 0.3
PROMPT_TOKENS = 970
ANSWER_TOKENS = 16
SETTLED_S = 0.05
"""A session's end reaches the verifier after its answer has reached the caller."""

COLUMNS = ("preset", "turn", "kept", "prompt_tokens", "cached_tokens", "ttft_median_s", "ratio")
PRESETS = ("coupled", "ar")


def run(report: Report, models: Models) -> None:
    """Fill the report; the goals are for second turns."""
    rows = asyncio.run(_measure(models, 5 if report.quick else 15, report.seed))
    report.add(f"Turns of a chat; prompts of about {PROMPT_TOKENS} tokens", COLUMNS, rows)
    for preset in PRESETS:
        (second,) = (
            row for row in rows if row["preset"] == preset and row["turn"] == 2 and row["kept"]
        )
        name = f"TTFT of a second turn ÷ without kept prefixes, {preset}"
        report.goals.append(Goal(name, second["ratio"], TTFT_LIMIT, "at most"))
        report.goals.append(Goal(f"same texts, {preset}", second["same_texts"], 1, "at least"))


async def _measure(models: Models, chats: int, seed: int) -> list[Row]:
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        clients = {
            kept: await stack.enter_async_context(
                AggregatorClient(await _suite(stack, models, kept))
            )
            for kept in (False, True)
        }
        prompts = _prompts(load_pair(*_choices(models)), chats)
        for preset in PRESETS:
            answers: dict[tuple[int, bool], list[Generated]] = {}
            progress(preset)
            for prompt in counted(prompts, lambda prompt: "a chat"):
                for kept, client in clients.items():
                    for turn, answer in enumerate(await _turns(client, prompt, preset, seed), 1):
                        answers.setdefault((turn, kept), []).append(answer)
            rows += _rows(preset, answers, seed)
    return rows


async def _turns(client: AggregatorClient, prompt: str, preset: str, seed: int) -> list[Generated]:
    request = GenerationRequest(
        prompt, preset, GenerationParams(max_tokens=ANSWER_TOKENS, seed=seed, ignore_eos=True)
    )
    first = await client.generate(request)
    await asyncio.sleep(SETTLED_S)
    again = replace(request, prompt=f"{prompt}{first.text}\n\nWhat else is there to say?\n")
    second = await client.generate(again)
    await asyncio.sleep(SETTLED_S)
    return [first, second]


def _rows(preset: str, answers: dict[tuple[int, bool], list[Generated]], seed: int) -> list[Row]:
    rows = []
    for (turn, kept), some in sorted(answers.items()):
        summaries = [answer.summary for answer in some if answer.summary is not None]
        without = answers[turn, False]
        same = all(a.token_ids == b.token_ids for a, b in zip(some, without, strict=True))
        row = make_row(preset=preset, turn=turn, kept=kept, seed=seed, same_texts=int(same))
        row["prompt_tokens"] = median(summary.prompt_tokens for summary in summaries)
        row["cached_tokens"] = median(summary.cached_tokens for summary in summaries)
        row["ttft_median_s"] = _ttft_s(some)
        row["ratio"] = _ttft_s(some) / _ttft_s(without)
        rows.append(row)
    return rows


def _ttft_s(answers: Sequence[Generated]) -> float:
    return median(answer.ttft_s for answer in answers if answer.ttft_s is not None)


async def _suite(stack: AsyncExitStack, models: Models, kept: bool) -> str:
    prefixes = PrefixLimits() if kept else PrefixLimits(kv_bytes=0)
    drafter = DrafterLimits(
        liveness=LivenessTimes(give_up_after_s=GIVE_UP_AFTER_S), prefixes=prefixes
    )
    suite = EmbeddedSuite(
        load_pair(*_choices(models)),
        verifier_limits=VerifierLimits(prefixes=prefixes),
        drafter_limits=drafter,
    )
    return (await stack.enter_async_context(suite)).target


def _choices(models: Models) -> tuple[ModelChoice, ModelChoice]:
    return choose_model(models.draft), choose_model(models.target)


def _prompts(pair: ModelPair, count: int) -> list[str]:
    """Return different texts of about PROMPT_TOKENS tokens."""
    lines = (ROOT / "models" / "heldout.jsonl").read_text("utf-8").splitlines()
    text = "\n\n".join(json.loads(line)["text"] for line in lines)
    ends = [at * len(text) // count for at in range(1, count + 1)]
    return [_last_tokens(pair.tokenizer, text[:end]) for end in ends]


def _last_tokens(tokenizer: Tokenizer, text: str) -> str:
    """Return the text's end, of at most PROMPT_TOKENS tokens."""
    some = text[-8 * PROMPT_TOKENS :]
    while (excess := len(tokenizer.encode(some)) - PROMPT_TOKENS) > 0:
        some = some[excess:]
    return some
