"""Answers that must match a grammar, on real models through the whole suite: they match it, and
under coupling they are the texts of the target alone under the same grammar."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio

from tandem.backends.interface import ForwardRequest, Logits
from tandem.core.processors import Grammar, GrammarKind, Processors
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.netem.link_model import shape_from
from tandem.specdec.presets import PRESETS
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair
from tandem.suite.suite_documents import SuiteDocuments
from tandem.testing.json_schemas import Schema, json_schemas
from tests.long_runs import with_long_cases

LONG = 160
DRAFTING = [name for name, preset in PRESETS.items() if preset.drafts and not preset.lossy]
EVERY_RUN = ("dssd", "picospec", "mc-dsd", "auto")
"""Rounds, windows, trees, and what is chosen while it runs."""


def asking(preset: str, grammar: Grammar, **more: Any) -> GenerationRequest:
    own: dict[str, Any] = {"max_tokens": LONG, "seed": 3, **more}
    own.setdefault("processors", Processors(grammar=grammar))
    return GenerationRequest("The answer in JSON: ", preset).with_fields(**own)


def by_schema(schema: Schema) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


async def answers(
    client: AggregatorClient, requests: list[GenerationRequest], at_once: int = 8
) -> list[Generated]:
    slots = asyncio.Semaphore(at_once)

    async def ask(request: GenerationRequest) -> Generated:
        async with slots:
            return await client.generate(request)

    return await asyncio.gather(*map(ask, requests))


async def test_answers_are_valid_by_their_schemas_and_the_targets_own(pair: ModelPair) -> None:
    schemas = list(json_schemas(8).values())
    requests = [[asking(name, by_schema(each)) for each in schemas] for name in ("ar", "coupled")]
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        alone, drafted = [await answers(client, asked) for asked in requests]
    finished = 0
    for schema, own, answer in zip(schemas, alone, drafted, strict=True):
        assert answer.token_ids == own.token_ids, schema
        assert answer.summary is not None
        if answer.summary.finish_reason == "stop":
            jsonschema_rs.validate(schema, json.loads(answer.text))
            finished += 1
    assert finished > 5, "only recursion may go on to the length limit"


LISTED: Schema = {
    "type": "array",
    "items": {"enum": ["alpha", "beta", 10]},
    "minItems": 10,
    "maxItems": 10,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def listed_alone(pair: ModelPair) -> Generated:
    """The target's own answer by `LISTED`."""
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        return await client.generate(asking("ar", by_schema(LISTED)))


@pytest.mark.parametrize(
    "preset", with_long_cases(["coupled", "stream", "auto"], ("stream", "auto"))
)
async def test_a_cut_answer_goes_on_in_its_grammar(
    pair: ModelPair, listed_alone: Generated, preset: str
) -> None:
    grammar, link = by_schema(LISTED), shape_from(0.004)
    cuts = 0
    async with EmbeddedSuite(pair, link=link) as suite, AggregatorClient(suite.target) as client:
        async for answer in client.stream(asking(preset, grammar)):
            if len(answer.token_ids) > 10 * (cuts + 1) and cuts < 2:
                suite._emulators[0].drop()
                cuts += 1
    assert answer.token_ids == listed_alone.token_ids
    assert len(answer.token_ids) > 25, "both cuts are in its midst"
    assert answer.summary is not None
    assert 0 < answer.summary.resumes <= cuts, "the last cut may meet an answer that has just ended"
    jsonschema_rs.validate(LISTED, json.loads(answer.text))


@pytest.mark.parametrize("preset", with_long_cases(DRAFTING, EVERY_RUN))
async def test_every_preset_keeps_to_a_regular_expression(pair: ModelPair, preset: str) -> None:
    expression = r"Name: [A-Z][a-z]{2,8}, (male|female), born in (19|20)[0-9]{2}\."
    grammar = Grammar(GrammarKind.REGEX, expression)
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        found = await answers(client, [asking(preset, grammar, seed=seed) for seed in range(2)])
    assert all(re.fullmatch(expression, answer.text) for answer in found), found
    assert {each.summary.finish_reason for each in found if each.summary} == {"stop"}


async def test_answers_from_two_sides_keep_to_their_schema(pair: ModelPair, tmp_path: Path) -> None:
    """Each token by both sides' documents, each side with its own model, under one grammar."""
    notes = {}
    for side in ("device", "cloud"):
        notes[side] = tmp_path / f"{side}.md"
        notes[side].write_text(f"The {side} has a list of names: alpha, beta and 10.")
    documents = SuiteDocuments(
        (notes["device"],), (notes["cloud"],), tmp_path / "index", embedding="lexical"
    )
    schema = {"type": "array", "items": {"enum": ["alpha", "beta", 10]}, "minItems": 4}
    schema |= {"maxItems": 4}
    presets = ("dragon", "dragon-coupled", "crcg-cloud")
    asked = [
        asking(preset, by_schema(schema), query="names", documents=1, seed=seed)
        for preset in presets
        for seed in range(2)
    ]
    async with (
        EmbeddedSuite(pair, documents=documents) as suite,
        AggregatorClient(suite.target) as client,
    ):
        found = await answers(client, asked)
    assert len({answer.text for answer in found}) > 1
    for answer in found:
        assert answer.summary is not None
        assert answer.summary.finish_reason == "stop"
        jsonschema_rs.validate(schema, json.loads(answer.text))


@pytest.mark.parametrize("preset", ["coupled", "dssd"])
async def test_a_forced_span_takes_no_draft_pass_and_one_of_the_target(
    preset: str, pair: ModelPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it is: here several times the window."""
    fed: list[int] = []
    forward = pair.draft.forward

    def counted(batch: Sequence[ForwardRequest], *rest: Any) -> list[Logits]:
        fed.append(sum(len(request.token_ids) for request in batch))
        return forward(batch, *rest)

    monkeypatch.setattr(pair.draft, "forward", counted)
    words = "The answer to this question is long and the same for everybody who asks it today"
    grammar = Grammar(GrammarKind.REGEX, f"[ab]{words}[cd]")
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        fed.clear()  # passes are timed as the suite starts
        answer = await client.generate(asking(preset, grammar))
        plain = await client.generate(asking("ar", grammar))
    assert re.fullmatch(grammar.source, answer.text)
    assert answer.summary is not None
    forced = len(answer.token_ids) - 3
    assert forced > 12
    assert answer.summary.target_passes <= 4
    assert len(fed) <= 4
    if preset == "coupled":
        assert answer.token_ids == plain.token_ids
