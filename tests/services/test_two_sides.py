"""Answers from documents on two sides over real gRPC: all services, scripted models.

What must come out is computed from the definitions, by one machine with all documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandem.core.probs import SamplingParams
from tandem.core.processors import NO_PROCESSORS, Grammar, GrammarKind, Processors
from tandem.core.prompt import Turn
from tandem.core.randomness import SeededRandom
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.status import Rejected
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.services.aggregator.retrieval import documents_of
from tandem.specdec.liveness import LostCloud
from tandem.testing.scripted import ScriptedEngine
from tandem.two_sided.decoding.document_decoder import SEPARATOR
from tandem.two_sided.protocol.draft_head import aggregate_sent
from tandem.two_sided.protocol.local_drafting import local_drafting
from tandem.two_sided.protocol.messages import ContextDocument
from tandem.two_sided.protocol.mixture import (
    Side,
    SideDraft,
    coupled_side,
    log_mass,
    mixture,
    side_weights,
)
from tandem.two_sided.protocol.presets import AggregationMode
from tests.services.decoding_peer import TOKENIZER, expected_processed_draft, opening
from tests.services.scripted_suite import answer_over, emulated, summary_of, until
from tests.services.two_sided_suite import (
    CONTEXT,
    PROBS,
    QUERY,
    VOCABULARY,
    TwoSides,
    asking,
    two_sides,
)

PROCESSORS = Processors(
    logit_bias=((3, 1.5), (40, -2.0)),
    presence_penalty=0.75,
    frequency_penalty=1.5,
    repetition_penalty=1.25,
    banned_token_ids=(7, 8, 9),
)
EXACT = ["dragon", "dragon placement=cloud", "dragon placement=random", "drdg-tw", "dragon-coupled"]


async def found(suite: TwoSides, side: Side) -> tuple[ContextDocument, ...]:
    """The documents of a side, weighed as its aggregator weighs them."""
    answer = await suite.retrievers[side].search(QUERY, 2)
    return documents_of(answer.hits)


async def central_text(suite: TwoSides, request: GenerationRequest) -> list[int]:
    """What one machine with all documents answers, from the same random numbers."""
    preset = request.composed_aggregation()
    choices = local_drafting(preset, request.params.sampling)
    opens = {
        side: opening(
            prompt=request.prompt,
            documents=await found(suite, side),
            side=side,
            sampling=choices.sampling,
            probs=choices.probs,
            seed=request.params.seed,
            processors=request.params.processors,
        )
        for side in Side
    }
    masses = [log_mass([each.relevance for each in opens[side].documents]) for side in Side]
    rng = SeededRandom(request.params.seed)
    assert isinstance(request.prompt, str)
    text = TOKENIZER.encode(request.prompt)
    start = len(text)
    while len(text) < start + request.params.max_tokens:
        found_of = {side: expected_processed_draft(opens[side], text) for side in Side}
        left = [found_of[side][2] for side in Side]
        weights = side_weights(*(mass + log for mass, log in zip(masses, left, strict=True)))
        drafts = {side: draft[:2] for side, draft in found_of.items()}
        text.append(decided(preset.mode, request, drafts, weights, rng, len(text)))
    return text[start:]


def decided(
    mode: AggregationMode,
    request: GenerationRequest,
    drafts: dict[Side, Any],
    weights: Any,
    rng: SeededRandom,
    position: int,
) -> int:
    (device, device_probs), (cloud, cloud_probs) = drafts[Side.DEVICE], drafts[Side.CLOUD]
    if request.params.sampling.greedy:
        return int(mixture(device_probs, cloud_probs, weights).argmax())
    if mode is AggregationMode.COIN:
        return int(drafts[coupled_side(weights, rng, position)][0])
    return aggregate_sent(
        SideDraft(device, device_probs),
        SideDraft(cloud, cloud_probs),
        weights=weights,
        rng=rng,
        position=position,
    ).token_id


def check_token_sources(answer: Generated, request: GenerationRequest) -> None:
    """Who made each token: by the coin, or as many as the device counted of its own."""
    mode = request.composed_aggregation().mode
    if mode is AggregationMode.COIN and not request.params.sampling.greedy:
        weights = side_weights(
            summary_of(answer).device.log_mass, summary_of(answer).cloud.log_mass
        )
        rng, first = SeededRandom(request.params.seed), answer.prompt_tokens
        coins = [coupled_side(weights, rng, first + n) for n in range(len(answer.token_sources))]
        assert answer.token_sources == [coin.name.lower() for coin in coins]
    else:
        count = Counter(answer.token_sources)
        assert set(count) <= {"device", "cloud", "both", "recovered"}
        assert count["device"] + count["both"] == summary_of(answer).device.accepted
    assert len(answer.token_sources) == len(answer.token_ids)


async def test_texts_are_what_one_machine_with_all_documents_says(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        for preset in EXACT:
            for temperature in (1.0, 0.0):
                request = asking(preset, sampling=SamplingParams(temperature))
                answer = await suite.client.generate(request)
                assert answer.token_ids == await central_text(suite, request), preset
                assert summary_of(answer).finish_reason == "length"
                assert (
                    summary_of(answer).device.documents,
                    summary_of(answer).cloud.documents,
                ) == (2, 2)
                assert answer.text
                check_token_sources(answer, request)


async def test_nothing_ends_an_answer_before_its_minimum(tmp_path: Path) -> None:
    """Until then the mixture is that without the tokens that would end it."""
    ends = frozenset(range(48))
    engines = [
        ScriptedEngine(VOCABULARY, PROBS, context_length=CONTEXT, eos_token_ids=ends)
        for _ in range(2)
    ]
    least = Processors(min_tokens=6)
    async with two_sides(tmp_path, engines=engines) as suite:
        for preset in (*EXACT, "crcg-device", "crcg-cloud"):
            short = await suite.client.generate(asking(preset, max_tokens=24))
            assert len(short.token_ids) < 6, preset
            answer = await suite.client.generate(asking(preset, max_tokens=24, processors=least))
            assert summary_of(answer).finish_reason == "stop"
            assert len(answer.token_ids) >= 7, preset
            assert not ends & {*answer.token_ids[:6]}
            assert answer.token_ids[-1] in ends
            if preset in EXACT:
                without = Processors(banned_token_ids=tuple(ends))
                first = asking(preset, max_tokens=6, processors=without)
                assert answer.token_ids[:6] == await central_text(suite, first), preset


async def test_what_leaves_no_token_is_refused_by_name(tmp_path: Path) -> None:
    too_high = Processors(banned_token_ids=(64,))
    grammar = Processors(grammar=Grammar(GrammarKind.REGEX, "a+"))
    async with two_sides(tmp_path) as suite:
        for processors, words in ((too_high, "banned_token_ids"), (grammar, "grammar")):
            with pytest.raises(Rejected, match=words) as caught:
                await suite.client.generate(asking("dragon-coupled", processors=processors))
            assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "preset", ["dragon placement=cloud", "dragon placement=random", "dragon-coupled"]
)
async def test_a_broken_link_changes_no_text(preset: str, tmp_path: Path) -> None:
    links: list[TcpLinkEmulator] = []
    processors = PROCESSORS if preset == "dragon-coupled" else NO_PROCESSORS
    async with two_sides(tmp_path, way=lambda address: emulated(address, links)) as suite:
        request = asking(preset, max_tokens=16, processors=processors)
        result = await answer_over(links[0], suite.client, request, every=4)
        assert result.token_ids == await central_text(suite, request)
        assert summary_of(result).resumes >= 1
        assert summary_of(result).links_lost >= 1


@asynccontextmanager
async def two_ways(address: str, links: list[TcpLinkEmulator]) -> AsyncIterator[str]:
    """Two clouds with the same documents, as the device is told of them."""
    async with emulated(address, links) as first, emulated(address, links) as second:
        yield f"{first}, {second}"


async def test_of_several_clouds_a_lost_one_s_answer_goes_on_at_another(tmp_path: Path) -> None:
    """Silent, so that nothing but its silence tells; new answers do not go there either."""
    links: list[TcpLinkEmulator] = []
    async with two_sides(tmp_path, way=lambda address: two_ways(address, links)) as suite:
        request = asking("dragon-coupled", max_tokens=24)
        expected = await central_text(suite, request)
        result = None
        async for result in suite.client.stream(request):
            if len(result.token_ids) > 6:
                links[0].cut()  # where the first answer goes, as nothing is known yet
        assert result is not None
        assert (result.token_ids, summary_of(result).resumes) == (expected, 1)
        assert (await suite.client.generate(request)).token_ids == expected


@pytest.mark.parametrize("preset", ["dragon-device", "dragon-coupled"])
@pytest.mark.parametrize("side", list(Side))
async def test_a_decoder_that_is_lost_is_opened_again(
    preset: str, side: Side, tmp_path: Path
) -> None:
    links: list[TcpLinkEmulator] = []
    async with two_sides(tmp_path, decoder_way=lambda address: emulated(address, links)) as suite:
        request = asking(preset, max_tokens=16, token_texts=True)
        whole = await suite.client.generate(request)
        result = await answer_over(links[side], suite.client, request, every=4)
        assert result.token_ids == await central_text(suite, request) == whole.token_ids
        assert result.text == whole.text
        assert result.token_texts == whole.token_texts == [f"<{one}>" for one in whole.token_ids]


@pytest.mark.parametrize("policy", [LostCloud.EDGE, LostCloud.FAIL])
async def test_a_lost_cloud_is_given_up_by_policy(policy: LostCloud, tmp_path: Path) -> None:
    links: list[TcpLinkEmulator] = []
    async with two_sides(
        tmp_path, way=lambda address: emulated(address, links), give_up_after_s=0.5
    ) as suite:
        request = asking("dragon", max_tokens=40, lost_cloud=policy)
        result, refused = None, ""
        try:
            async for result in suite.client.stream(request):
                if len(result.token_ids) >= 5:
                    links[0].cut()
        except Rejected as error:
            refused = f"{error.code.name}: {error}"
        assert result is not None
        if policy is LostCloud.FAIL:
            assert refused.startswith("UNAVAILABLE: the cloud is lost")
            return
        assert len(result.token_ids) == 40
        verified = 40 - len(result.unverified)
        assert result.unverified == list(range(verified, 40))
        assert [token_source == "edge" for token_source in result.token_sources] == [
            n >= verified for n in range(40)
        ]
        assert 5 <= verified < 40
        assert result.token_ids[:verified] == (await central_text(suite, request))[:verified]


async def test_documents_of_a_cloud_out_of_reach_are_not_waited_for(tmp_path: Path) -> None:
    @asynccontextmanager
    async def nowhere(address: str) -> AsyncIterator[str]:
        yield "127.0.0.1:9"

    async with two_sides(tmp_path, way=nowhere, give_up_after_s=1.1) as suite:
        with pytest.raises(Rejected, match=r"the cloud is lost: .*[Cc]onnect"):
            await suite.client.generate(asking("drcg-text"))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_one_side_reads_all_its_documents_in_one_sequence(
    temperature: float, tmp_path: Path
) -> None:
    """As CRCG and DRCG do: the text is what one plain prompt with the documents before it gives.
    Before, each document had a sequence, and their distributions were mixed."""
    async with two_sides(tmp_path) as suite:
        notes, public = [await found(suite, side) for side in Side]
        contexts = {
            "crcg-device": (notes, Side.DEVICE),
            "crcg-cloud": (public, Side.CLOUD),
            "drcg-text": ((*public, *notes), Side.DEVICE),
        }
        for preset, (documents, side) in contexts.items():
            request = asking(preset, sampling=SamplingParams(temperature))
            answer = await suite.client.generate(request)
            assert answer.token_ids == text_after(documents, request, side), preset
            apart = asking(
                preset,
                sampling=SamplingParams(temperature),
                overrides=("context=separate",),
            )
            assert (await suite.client.generate(apart)).token_ids != answer.token_ids, preset


def text_after(
    documents: Sequence[ContextDocument], request: GenerationRequest, side: Side
) -> list[int]:
    """What one sequence of the documents and the prompt gives, drawn as this side draws."""
    joined = SEPARATOR.join(document.text for document in documents)
    choices = local_drafting(request.composed_aggregation(), request.params.sampling)
    message = opening(
        prompt=request.prompt,
        documents=(ContextDocument(joined, 0.0),),
        side=side,
        sampling=choices.sampling,
        probs=choices.probs,
        seed=request.params.seed,
    )
    assert isinstance(request.prompt, str)
    text = TOKENIZER.encode(request.prompt)
    start = len(text)
    while len(text) < start + request.params.max_tokens:
        text.append(expected_processed_draft(message, text)[0])
    return text[start:]


async def test_the_last_turn_is_what_is_looked_for(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        chat = (Turn("user", "a cat"), Turn("assistant", "yes"), Turn("user", "and the heron"))
        answer = await suite.client.generate(asking("dragon", prompt=chat, query=""))
        assert summary_of(answer).device.documents == 2
        with pytest.raises(Rejected, match="query"):
            await suite.client.generate(asking("dragon", prompt=(1, 2, 3), query=""))


async def test_a_caller_that_leaves_frees_both_sides(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        engines = (suite.device, suite.cloud)
        await suite.client.generate(asking("dragon"))
        kept = [2, 2]  # the documents' own keys and values
        for preset in ("dragon placement=cloud", "dragon-coupled"):
            stream: Any = suite.client.stream(asking(preset, max_tokens=90))
            async with aclosing(stream) as results:
                async for result in results:
                    if len(result.token_ids) >= 3:
                        break
        await until(lambda: [engine.sessions_open for engine in engines] == kept)


@pytest.mark.parametrize(
    ("preset", "counted"),
    [("dragon placement=cloud", (0, 1)), ("dragon-device", (1, 0)), ("dragon-coupled", (0, 0))],
)
async def test_answers_under_way_are_counted_at_the_side_that_aggregates(
    preset: str, counted: tuple[int, int], tmp_path: Path
) -> None:
    async with two_sides(tmp_path) as suite:

        def census() -> tuple[float | None, ...]:
            value = suite.device_metrics.registry.get_sample_value
            labels = {"preset": preset.split()[0], "model_name": suite.cloud.model_name}
            name = "tandem_aggregation_side"
            return tuple(value(name, {**labels, "side": side}) for side in ("device", "cloud"))

        await suite.client.describe()  # the target's name is known from here on
        stream: Any = suite.client.stream(asking(preset, max_tokens=90))
        async with aclosing(stream) as results:
            async for result in results:
                if len(result.token_ids) >= 3:
                    assert census() == counted
                    break
        await until(lambda: census() == (0, 0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"overrides": ("ahead=0",)}, "ahead"),
        ({"documents": 33}, "documents"),
        ({"sampling": SamplingParams(-1.0)}, "temperature"),
        ({"max_tokens": 8, "prompt": "x" * CONTEXT}, "prompt|documents"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    async with two_sides(tmp_path) as suite:
        with pytest.raises(Rejected, match=words) as caught:
            await suite.client.generate(asking("dragon", **changes))
        assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
