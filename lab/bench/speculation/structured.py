"""`bench structured`: answers that must be valid by a JSON schema, and what their grammars cost.

Each schema is asked for once, in one process without a link, one request at a time: by the target
alone and by `coupled`, with the grammar and, in turns, as many tokens without it. Masks are timed
on one core, over a vocabulary of 151,936 made-up tokens, at every position of random answers.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import jsonschema
import numpy as np

from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.suite import Models
from tandem.core.processors import (
    NO_PROCESSORS,
    Grammar,
    GrammarKind,
    GrammarMask,
    LogitsProcessor,
    Processors,
)
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.grammar.compiler import GrammarCompiler
from tandem.specdec.messages import GenerationParams
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import choose_model, load_pair
from tandem.testing.json_schemas import Schema, json_schemas
from tandem.text import IncrementalText
from tandem.text.chat_rendering import NO_VARIABLES
from tandem.text.vocabulary import Vocabulary

MASK_LIMIT_S = 1e-4
VOCABULARY = 151_936
ANSWER_TOKENS = 200
PRESETS = ("ar", "coupled")

_LETTERS = " etaoinshrdlucmfwypvbgkjqxz" * 3 + '{}[]":,.-_0123456789'


def run(report: Report, models: Models) -> None:
    """Fill the report: validity, acceptance, tokens per second, and the time of a mask."""
    schemas = json_schemas(30 if report.quick else 200)
    _answers(report, models, schemas)
    _masks(report, list(schemas.values())[: 10 if report.quick else 60])


def _answers(report: Report, models: Models, schemas: Mapping[str, Schema]) -> None:
    by_preset = asyncio.run(_ask(models, schemas, report.seed))
    rows = [
        _row(preset, constrained, answers, report.seed)
        for (preset, constrained), answers in by_preset.items()
    ]
    columns = ("preset", "grammar", "finished", "acceptance_rate", "tokens_per_s")
    title = f"{len(schemas)} JSON schemas, one request at a time"
    report.add(title, (*columns, "target_passes_per_token", "tokens"), rows)
    drafted = by_preset["coupled", True]
    alone = by_preset["ar", True]
    finished = [(s, a) for s, a in zip(schemas.values(), drafted, strict=True) if _finished(a)]
    valid = sum(_is_valid(answer.text, schema) for schema, answer in finished)
    same = sum(one.token_ids == other.token_ids for one, other in zip(drafted, alone, strict=True))
    by_name = {(row["preset"], row["grammar"]): row for row in rows}
    with_ = by_name["coupled", True]
    without = by_name["coupled", False]
    report.goals += [
        Goal("finished answers that are valid", valid / len(finished), 1, "at least"),
        Goal("texts of the target alone", same / len(schemas), 1, "at least"),
        Goal(
            "acceptance with a grammar ÷ without, coupled",
            with_["acceptance_rate"] / without["acceptance_rate"],
            1,
            "at least",
        ),
        *(
            Goal(
                f"tokens/s with a grammar ÷ without, {preset}",
                by_name[preset, True]["tokens_per_s"] / by_name[preset, False]["tokens_per_s"],
                1,
                "at least",
            )
            for preset in PRESETS
        ),
    ]


async def _ask(
    models: Models, schemas: Mapping[str, Schema], seed: int
) -> dict[tuple[str, bool], list[Generated]]:
    pair = load_pair(choose_model(models.draft), choose_model(models.target))
    answers: dict[tuple[str, bool], list[Generated]] = {
        (preset, constrained): [] for preset in PRESETS for constrained in (True, False)
    }
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        for number, schema in enumerate(schemas.values()):
            progress(f"schema {number + 1} of {len(schemas)}")
            grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
            for preset in PRESETS:
                answer = await client.generate(
                    _request(preset, schema, Processors(grammar=grammar), ANSWER_TOKENS, seed)
                )
                answers[preset, True].append(answer)
                plain = _request(preset, schema, NO_PROCESSORS, len(answer.token_ids), seed)
                answers[preset, False].append(await client.generate(plain))
    return answers


def _request(
    preset: str, schema: Schema, processors: Processors, max_tokens: int, seed: int
) -> GenerationRequest:
    return GenerationRequest(
        f"JSON by the schema {json.dumps(schema)[:300]}:\n",
        preset,
        GenerationParams(
            processors=processors,
            max_tokens=max_tokens,
            seed=seed,
            ignore_eos=not processors.active,
        ),
    )


def _row(preset: str, constrained: bool, answers: Sequence[Generated], seed: int) -> Row:
    summaries = [answer.summary for answer in answers if answer.summary is not None]
    drafted, tokens = sum(s.drafted for s in summaries), sum(s.tokens for s in summaries)
    accepted, passes = sum(s.accepted for s in summaries), sum(s.target_passes for s in summaries)
    return make_row(
        preset=preset,
        seed=seed,
        acceptance_rate=accepted / drafted if drafted else None,
        tokens_per_s=tokens / sum(answer.duration_s for answer in answers),
        target_passes_per_token=passes / tokens,
    ) | {"grammar": constrained, "tokens": tokens, "finished": sum(map(_finished, answers))}


def _finished(answer: Generated) -> bool:
    return answer.summary is not None and answer.summary.finish_reason == "stop"


def _is_valid(text: str, schema: Schema) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _masks(report: Report, schemas: Sequence[Schema]) -> None:
    compiler = GrammarCompiler(MadeUpTokenizer(VOCABULARY, report.seed), VOCABULARY, frozenset({0}))
    compiler.mask(Grammar(GrammarKind.REGEX, "a"))  # builds the tokenizer
    compiled_s = list[float]()
    times_s = list[float]()
    rows_s = list[float]()
    source = random.Random(report.seed)
    for schema in schemas:
        began_s = time.perf_counter()
        mask = compiler.mask(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
        compiled_s.append(time.perf_counter() - began_s)
        assert mask is not None
        walked_s, answer = _walk(mask, source)
        times_s += walked_s
        rows_s += _rows(mask, answer)
    row = make_row(seed=report.seed) | {
        "vocabulary": VOCABULARY,
        "masks": len(times_s),
        "mask_median_s": median(times_s),
        "mask_p95_s": float(np.quantile(times_s, 0.95)),
        "row_median_s": median(rows_s),
        "compile_median_s": median(compiled_s),
        "compile_max_s": max(compiled_s),
    }
    report.add("Masks of a row", tuple(name for name in row if row[name] is not None), [row])
    report.goals.append(Goal("median of a mask, s", row["mask_median_s"], MASK_LIMIT_S, "at most"))


def _rows(mask: GrammarMask, answer: tuple[int, ...]) -> list[float]:
    """Return the seconds that the engine's thread takes for each row of an answer whose masks are
    ready."""
    processor = LogitsProcessor(Processors(), (), mask)
    logits = np.zeros(mask.vocabulary_size, dtype=np.float32)
    times_s = list[float]()
    for length in range(len(answer)):
        mask.allowed(answer[:length])  # as the masks' own thread does beside the pass
        began_s = time.perf_counter()
        processor.processed(logits, answer[:length])
        times_s.append(time.perf_counter() - began_s)
    return times_s


def _walk(
    mask: GrammarMask, source: random.Random, most: int = 60
) -> tuple[list[float], tuple[int, ...]]:
    """Choose a random answer; return the seconds of each position's mask, and the answer."""
    times_s = list[float]()
    answer: tuple[int, ...] = ()
    while len(answer) < most and 0 not in answer:
        began_s = time.perf_counter()
        allowed = mask.allowed(answer)
        times_s.append(time.perf_counter() - began_s)
        assert allowed is not None
        answer = (*answer, int(source.choice(allowed.nonzero()[0])))
    return times_s, answer


@dataclass
class MadeUpTokenizer:
    """All bytes, and words of random letters, as many as a large model's; 0 ends the text."""

    model_size: int
    seed: int
    vocabulary_hash: str = "made up"
    eos_token_ids: frozenset[int] = frozenset({0})
    starts_with_bos: bool = False

    def vocabulary(self) -> Vocabulary:
        source, words = random.Random(self.seed), [bytes([byte]) for byte in range(256)]
        known = {*words}
        while len(words) < self.model_size - 1:
            word = "".join(source.choices(_LETTERS, k=source.randint(2, 8))).encode()
            if word not in known:
                known.add(word)
                words.append(word)
        return Vocabulary(self.model_size, dict(enumerate(words, start=1)), specials={0: "<end>"})

    def encode(self, text: str) -> list[int]:
        return [byte + 1 for byte in text.encode()]

    encode_piece = encode

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        images: int = 0,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> list[int]:
        raise NotImplementedError("nobody talks to it")

    def detokenizer(self, after: Sequence[int] = ()) -> IncrementalText:
        raise NotImplementedError("nobody reads it")
