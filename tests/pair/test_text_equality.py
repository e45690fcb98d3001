"""The reproducibility promise, on real models: the text is the target's own, whatever drafts it.

Each prompt × draft lengths 1…8 goes through the whole suite (gRPC, packed batches of many sessions)
and is compared with the cloud decoding alone. `make test-texts` takes 125 prompts: 1,000 cases per
preset and temperature. `make test` takes 2, one with the odd lengths and one with the even ones: a
fault that changes every second text is then missed by a preset once in 256 times, and smaller ones
that presets share are seen by the 64 of all; what the machines do wrong by themselves,
tests/virtual_time finds in thousands of texts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.core.probs import SamplingParams
from tandem.generation.client import AggregatorClient
from tandem.generation.request import GenerationRequest
from tandem.specdec.choices import Acceptance
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair
from tests.long_runs import LONG

DRAFT_LENGTHS = range(1, 9)
TOKENS = 10
AT_ONCE = 16
FEW = 2
"""Prompts that `make test` takes: it asks for no more than 3."""
HELD_OUT = Path(__file__).parents[2] / "models" / "heldout.jsonl"


@pytest.fixture(scope="module")
def cloud_alone() -> dict[float, list[tuple[int, ...]]]:
    """The cloud's own answers to all prompts, by temperature, once somebody asked for them."""
    return {}


def prompts(count: int) -> Iterator[str]:
    """Distinct openings of held-out texts."""
    texts = [json.loads(line)["text"] for line in HELD_OUT.read_text().splitlines()]
    for number in range(count):
        text = texts[number % len(texts)]
        start = 37 * (number // len(texts))
        yield text[start : start + 40 + 3 * (number % 11)]


async def token_ids(
    client: AggregatorClient, requests: list[GenerationRequest]
) -> list[tuple[int, ...]]:
    """The answers, asked for `AT_ONCE` at a time."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def ask(request: GenerationRequest) -> tuple[int, ...]:
        async with slots:
            return tuple((await client.generate(request)).token_ids)

    return await asyncio.gather(*(ask(request) for request in requests))


def request(
    prompt: str, preset: str, length: int | None, sampling: SamplingParams
) -> GenerationRequest:
    return GenerationRequest(
        prompt,
        preset,
        GenerationParams(sampling=sampling, max_tokens=TOKENS, seed=len(prompt)),
        overrides=() if length is None else (f"draft_length={length}",),
    )


GUMBEL = Acceptance.GUMBEL
EVERY_RUN = (
    *((name, 0.0) for name in ("dssd", "tslt", "picospec", "mc-dsd", "fsd")),
    *((name, 1.0) for name in ("auto", "stream", "cloud-draft")),
)
"""Each way to draft, send, judge and answer at least once, on this engine; `make test-long` has all
presets. Scripted models have each in every run, in tests/services."""
SHARING = (
    *("ar", "auto", "cloud-draft", "coupled", "dsd", "dssd", "fsd", "mc-dsd", "picospec"),
    *("stream", "tslt"),
)
"""Presets that share a verifier, of whose texts timing decides none."""
DRAFTING = [name for name, preset in PRESETS.items() if preset.drafts or preset.drafts_in_cloud]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("preset", "temperature"),
    [
        pytest.param(name, temperature, marks=[] if (name, temperature) in EVERY_RUN else [LONG])
        for temperature in (0.0, 1.0)
        for name in DRAFTING
        if (not PRESETS[name].lossy if temperature == 0 else PRESETS[name].acceptance is GUMBEL)
    ],
)
async def test_texts_equal_the_cloud_s_own(
    pair: ModelPair,
    cloud_alone: dict[float, list[tuple[int, ...]]],
    preset: str,
    temperature: float,
    pytestconfig: pytest.Config,
) -> None:
    sampling = SamplingParams(temperature=temperature)
    count = pytestconfig.getoption("--prompts")
    texts = list(prompts(count if count > 3 else FEW))
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        if temperature not in cloud_alone:
            asked = [request(text, "ar", None, sampling) for text in texts]
            cloud_alone[temperature] = await token_ids(client, asked)
        alone = cloud_alone[temperature]
        cases = [
            (number, length)
            for number in range(len(texts))
            for length in DRAFT_LENGTHS
            if len(texts) > FEW or length % FEW == number
        ]
        drafted = await token_ids(
            client, [request(texts[number], preset, length, sampling) for number, length in cases]
        )
    assert len(cases) == (8 * len(texts) if len(texts) > FEW else 8)
    assert {length for _, length in cases} == {*DRAFT_LENGTHS}
    expected = [alone[number] for number, _ in cases]
    assert sum(len(tokens) for tokens in expected) > 8 * len(cases)
    different = [
        case for case, got, want in zip(cases, drafted, expected, strict=True) if got != want
    ]
    assert not different, f"{len(different)} of {len(cases)} differ, the first is {different[0]}"


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=LONG), 1.0])
async def test_a_split_target_s_texts_equal_the_whole_one_s(
    pair: ModelPair, temperature: float
) -> None:
    """Three of its layers computed by an engine of their own, hidden states in float32."""
    sampling = SamplingParams(temperature=temperature)
    texts = list(prompts(FEW))
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        asked = {
            name: [request(text, name, None, sampling) for text in texts]
            for name in ("ar", "split")
        }
        alone = await token_ids(client, asked["ar"])
        split = await token_ids(client, asked["split"])
    assert split == alone


@LONG  # tests/services/test_generate.py has the same with scripted models
async def test_sessions_of_different_presets_share_a_verifier(pair: ModelPair) -> None:
    """Every text that timing does not decide is the one of a session on its own."""
    (text,) = prompts(1)
    requests = [
        request(text, name, None, SamplingParams()).with_fields(max_tokens=12) for name in SHARING
    ]
    async with EmbeddedSuite(pair) as suite, AggregatorClient(suite.target) as client:
        alone = [(await client.generate(asked)).token_ids for asked in requests]
        together = await token_ids(client, requests)
    assert len(requests) >= 8
    different = [
        asked.preset
        for asked, want, got in zip(requests, alone, together, strict=True)
        if tuple(want) != got
    ]
    assert not different
