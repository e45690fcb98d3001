"""Answers from documents on two sides over real gRPC: all services, scripted models.

What must come out is computed from the definitions, by one machine with all documents.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandem.core.aggregation import (
    Side,
    SideDraft,
    aggregate,
    coupled_side,
    log_mass,
    mixture,
    side_weights,
)
from tandem.core.chance import SeededChance
from tandem.core.laws import Sampling
from tandem.core.prompt import Turn
from tandem.netem.link_model import LinkSettings
from tandem.netem.tcp_emulator import TcpLinkEmulator
from tandem.policy.aggregation_presets import AGGREGATION_PRESETS, Agreement
from tandem.policy.local_choices import local_choices
from tandem.protocol.decoding_messages import DecodingOpen, Document
from tandem.protocol.liveness import LostCloud
from tandem.rpc.aggregator_client import Generated
from tandem.rpc.generation import GenerationRequest
from tandem.rpc.status import Rejected
from tandem_api.aggregator.v1 import aggregator_pb2 as pb
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tests.rpc.decoding_peer import TOKENIZER, expected_draft, opening, prefix_of
from tests.rpc.two_sided_suite import CONTEXT, TwoSides, two_sides

PROMPT = "what of the heron?"
QUERY = "heron"
EXACT = ["dragon", "dragon-cloud", "dragon-random", "drdg-tw", "dragon-coupled"]


def asking(preset: str, **changes: Any) -> GenerationRequest:
    request = GenerationRequest(PROMPT, preset, seed=5, max_tokens=16, query=QUERY, documents=2)
    return replace(request, **changes)


async def found(suite: TwoSides, side: Side) -> tuple[Document, ...]:
    """The documents of a side, weighed as its aggregator weighs them."""
    answer = await suite.retrievers[side].search(QUERY, 2)
    return tuple(Document(hit.text, -math.log(rank + 1)) for rank, hit in enumerate(answer.hits))


async def central_text(
    suite: TwoSides, request: GenerationRequest, reweigh_every: int = 0
) -> list[int]:
    """What one machine with all documents answers, from the same random numbers; by `rescored` at
    every so many tokens of the answer."""
    preset = AGGREGATION_PRESETS[request.preset]
    choices = local_choices(preset, request.sampling)
    opens = {
        side: opening(
            prompt=request.prompt,
            documents=await found(suite, side),
            side=side,
            sampling=choices.sampling,
            law=choices.law,
            seed=request.seed,
        )
        for side in Side
    }
    chance = SeededChance(request.seed)
    assert isinstance(request.prompt, str)
    text = TOKENIZER.encode(request.prompt)
    start = len(text)
    while len(text) < start + request.max_tokens:
        if reweigh_every and len(text) > start and (len(text) - start) % reweigh_every == 0:
            opens = {side: rescored(opens[side], text) for side in Side}
        masses = [log_mass([each.relevance for each in opens[side].documents]) for side in Side]
        weights = side_weights(*masses)
        drafts = {side: expected_draft(opens[side], text) for side in Side}
        text.append(decided(preset.agreement, request, drafts, weights, chance, len(text)))
    return text[start:]


def rescore(query: str, texts: Sequence[str]) -> list[float]:
    """Some relevances that change with every token."""
    return [sum(map(ord, query + text)) % 7 / 2.0 for text in texts]


def rescored(message: DecodingOpen, text: Sequence[int]) -> DecodingOpen:
    """The opening with the relevances of its documents to the text."""
    query = "".join(f"<{token_id}>" for token_id in text)
    scores = rescore(query, [document.text for document in message.documents])
    pairs = zip(message.documents, scores, strict=True)
    return replace(message, documents=tuple(replace(it, relevance=score) for it, score in pairs))


def decided(
    agreement: Agreement,
    request: GenerationRequest,
    drafts: dict[Side, Any],
    weights: Any,
    chance: SeededChance,
    position: int,
) -> int:
    (device, device_law), (cloud, cloud_law) = drafts[Side.DEVICE], drafts[Side.CLOUD]
    if request.sampling.greedy:
        return int(mixture(device_law, cloud_law, weights).argmax())
    if agreement is Agreement.COIN:
        return int(drafts[coupled_side(weights, chance, position)][0])
    pair = SideDraft(device, device_law), SideDraft(cloud, cloud_law)
    return aggregate(*pair, weights, chance, position).token_id


def check_makers(answer: Generated, request: GenerationRequest) -> None:
    """Who made each token: by the coin, or as many as the device counted of its own."""
    assert answer.summary is not None
    agreement = AGGREGATION_PRESETS[request.preset].agreement
    if agreement is Agreement.COIN and not request.sampling.greedy:
        weights = side_weights(answer.summary.device.log_mass, answer.summary.cloud.log_mass)
        chance, first = SeededChance(request.seed), answer.prompt_tokens
        coins = [coupled_side(weights, chance, first + n) for n in range(len(answer.makers))]
        assert answer.makers == [coin.name.lower() for coin in coins]
    else:
        count = Counter(answer.makers)
        assert set(count) <= {"device", "cloud", "both", "recovered"}
        assert count["device"] + count["both"] == answer.summary.device.accepted
    assert len(answer.makers) == len(answer.token_ids)


async def test_texts_are_what_one_machine_with_all_documents_says(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        for preset in EXACT:
            for temperature in (1.0, 0.0):
                request = asking(preset, sampling=Sampling(temperature))
                answer = await suite.client.generate(request)
                assert answer.token_ids == await central_text(suite, request), preset
                assert answer.summary is not None
                assert answer.summary.finish_reason == "length"
                assert (answer.summary.device.documents, answer.summary.cloud.documents) == (2, 2)
                assert answer.text
                check_makers(answer, request)


async def test_answers_side_by_side_are_what_they_are_alone(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        requests = [asking(preset, seed=seed) for seed in (1, 2) for preset in EXACT]
        answers = await asyncio.gather(*(suite.client.generate(each) for each in requests))
        for request, answer in zip(requests, answers, strict=True):
            assert answer.token_ids == await central_text(suite, request), request.preset


async def test_relevances_may_be_estimated_anew_while_decoding(tmp_path: Path) -> None:
    async with two_sides(tmp_path, rescore=rescore) as suite:
        cases = (("dragon", 1.0), ("dragon-random", 1.0), ("dragon-cloud", 0.0))
        for preset, temperature in (*cases, ("dragon-coupled", 1.0), ("dragon-coupled", 0.0)):
            request = asking(preset, sampling=Sampling(temperature), overrides=("reweigh_every=3",))
            answer = await suite.client.generate(request)
            assert answer.token_ids == await central_text(suite, request, 3), preset
            assert answer.token_ids != await central_text(suite, request)
        with pytest.raises(Rejected, match="reweigh_every: one coin"):
            await suite.client.generate(asking("drdg-sw", overrides=("reweigh_every=3",)))


@asynccontextmanager
async def emulated(address: str, links: list[TcpLinkEmulator]) -> AsyncIterator[str]:
    """A link of 10 ms each way to a service."""
    host, port = address.rsplit(":", 1)
    link = LinkSettings(delay_s=0.01)
    async with TcpLinkEmulator(("127.0.0.1", 0), (host, int(port)), link, link) as emulator:
        links.append(emulator)
        yield f"127.0.0.1:{emulator.address[1]}"


@pytest.mark.parametrize("preset", ["dragon-cloud", "dragon-random", "dragon-coupled"])
async def test_a_broken_link_changes_no_text(preset: str, tmp_path: Path) -> None:
    links: list[TcpLinkEmulator] = []
    async with two_sides(tmp_path, way=lambda address: emulated(address, links)) as suite:
        request = asking(preset, max_tokens=24)
        result, drops = None, 0
        async for result in suite.client.stream(request):
            if len(result.token_ids) > 6 * (drops + 1) and drops < 2:
                links[0].drop()
                drops += 1
        assert result is not None
        assert result.summary is not None
        assert result.token_ids == await central_text(suite, request)
        assert result.summary.resumes >= 1
        assert result.summary.links_lost >= 1


@pytest.mark.parametrize("preset", ["dragon-device", "dragon-coupled"])
@pytest.mark.parametrize("side", list(Side))
async def test_a_decoder_that_is_lost_is_opened_again(
    preset: str, side: Side, tmp_path: Path
) -> None:
    links: list[TcpLinkEmulator] = []
    async with two_sides(tmp_path, decoder_way=lambda address: emulated(address, links)) as suite:
        request = asking(preset, max_tokens=24)
        whole = await suite.client.generate(request)
        result, drops = None, 0
        async for result in suite.client.stream(request):
            if len(result.token_ids) > 6 * (drops + 1) and drops < 2:
                links[side].drop()
                drops += 1
        assert result is not None
        assert drops == 2
        assert result.token_ids == await central_text(suite, request) == whole.token_ids
        assert result.text == whole.text


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
        assert [maker == "edge" for maker in result.makers] == [n >= verified for n in range(40)]
        assert 5 <= verified < 40
        assert result.token_ids[:verified] == (await central_text(suite, request))[:verified]


async def test_a_stop_string_ends_the_answer_and_nothing_follows(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        for preset in ("dragon", "dragon-coupled"):
            whole = await suite.client.generate(asking(preset))
            stop = whole.text[5:7]
            answer = await suite.client.generate(asking(preset, stop=(stop,)))
            assert answer.text == whole.text[: whole.text.index(stop)]
            assert answer.summary is not None
            assert answer.summary.finish_reason == "stop"
            assert answer.summary.tokens == len(answer.token_ids)
            assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]


async def test_one_side_alone(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        texts = {}
        for preset in ("crcg-device", "crcg-cloud", "drcg-text"):
            answer = await suite.client.generate(asking(preset))
            assert answer.summary is not None
            texts[preset] = answer.token_ids
            assert set(answer.makers) == {"cloud" if preset == "crcg-cloud" else "device"}
            documents = (answer.summary.device.documents, answer.summary.cloud.documents)
            assert (
                documents
                == {
                    "crcg-device": (2, 0),
                    "crcg-cloud": (0, 2),
                    "drcg-text": (4, 0),
                }[preset]
            )
        assert len({tuple(text) for text in texts.values()}) == 3
    async with two_sides(tmp_path / "without notes", notes=()) as suite:
        answer = await suite.client.generate(asking("dragon-coupled"))
        assert answer.token_ids == texts["crcg-cloud"]


async def test_the_last_turn_is_what_is_looked_for(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        chat = (Turn("user", "a cat"), Turn("assistant", "yes"), Turn("user", "and the heron"))
        answer = await suite.client.generate(asking("dragon", prompt=chat, query=""))
        assert answer.summary is not None
        assert answer.summary.device.documents == 2
        with pytest.raises(Rejected, match="query"):
            await suite.client.generate(asking("dragon", prompt=(1, 2, 3), query=""))


async def test_a_caller_that_leaves_frees_both_sides(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        engines = (suite.device, suite.cloud)
        await suite.client.generate(asking("dragon"))
        kept = [2, 2]  # the documents' own keys and values
        for preset in ("dragon-cloud", "dragon-coupled"):
            stream: Any = suite.client.stream(asking(preset, max_tokens=90))
            async with aclosing(stream) as results:
                async for result in results:
                    if len(result.token_ids) >= 3:
                        break
        async with asyncio.timeout(20):
            while [engine.sessions_open for engine in engines] != kept:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("preset", "counted"),
    [("dragon-cloud", (0, 1)), ("dragon-device", (1, 0)), ("dragon-coupled", (0, 0))],
)
async def test_answers_under_way_are_counted_at_the_side_that_aggregates(
    preset: str, counted: tuple[int, int], tmp_path: Path
) -> None:
    async with two_sides(tmp_path) as suite:

        def census() -> tuple[float | None, ...]:
            value = suite.device_metrics.registry.get_sample_value
            labels = {"preset": preset, "model_name": suite.cloud.model_name}
            name = "tandem_aggregation_side"
            return tuple(value(name, {**labels, "side": side}) for side in ("device", "cloud"))

        await suite.client.describe()  # the target's name is known from here on
        stream: Any = suite.client.stream(asking(preset, max_tokens=90))
        async with aclosing(stream) as results:
            async for result in results:
                if len(result.token_ids) >= 3:
                    assert census() == counted
                    break
        async with asyncio.timeout(20):
            while census() != (0, 0):
                await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"overrides": ("ahead=0",)}, "ahead"),
        ({"documents": 33}, "documents"),
        ({"sampling": Sampling(-1.0)}, "temperature"),
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


async def test_each_call_is_for_one_side(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        with pytest.raises(Rejected, match="runs at the cloud"):
            await suite.cloud_client.generate(asking("dragon"))
        assert await collaboration(suite.client.target, []) == (
            "FAILED_PRECONDITION",
            "side: this aggregator runs at the device; this call is for the cloud's",
        )
        described = await suite.client.describe(), await suite.cloud_client.describe()
        assert set(AGGREGATION_PRESETS) < set(described[0].presets)
        assert set(AGGREGATION_PRESETS) == set(described[1].presets)


BAD_OPENINGS: dict[str, tuple[dict[str, Any], str]] = {
    "no choices": ({}, "INVALID_ARGUMENT agreement"),
    "no prompt": ({"prompt_ids": []}, "INVALID_ARGUMENT prompt_ids"),
    "foreign ids": ({"prompt_ids": [64]}, "INVALID_ARGUMENT prompt_ids"),
    "complete": ({"committed_ids": [1, 2, 3]}, "INVALID_ARGUMENT committed_ids"),
    "no law": ({"law": 1}, "INVALID_ARGUMENT law"),
    "other vocabulary": ({"vocabulary_hash": "abc"}, "FAILED_PRECONDITION vocabulary_hash"),
    "NaN": ({"log_mass": math.nan}, "INVALID_ARGUMENT log_mass"),
    "wrong hash": ({"prefix": 3}, "DATA_LOSS prefix"),
    "wrong base": ({"base": 3}, "INVALID_ARGUMENT base"),
}


async def test_bad_openings_are_refused_by_name(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        for name, (changes, expected) in BAD_OPENINGS.items():
            fields = {} if name == "no choices" else opening_fields(suite)
            head = {"base": 2, "prefix": prefix_of((1, 2))}
            head |= {key: changes[key] for key in head if key in changes}
            fields |= {key: value for key, value in changes.items() if key not in head}
            if name in ("no prompt", "complete"):
                head = {"base": len(fields["prompt_ids"]), "prefix": 0}
            frame = pb.CollaborateRequest(
                session=1,
                open=pb.CollaborationOpen(**fields),
                **head,  # type: ignore[arg-type]
            )
            code, details = await collaboration(suite.cloud_aggregator.target, [frame])
            assert f"{code} {details}".startswith(expected), name
        ping = pb.CollaborateRequest(ping=pb.Ping())
        code, details = await collaboration(suite.cloud_aggregator.target, [ping])
        assert (code, details.split(":")[0]) == ("INVALID_ARGUMENT", "open")


BAD_FRAMES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "INVALID_ARGUMENT message"),
    "a gap": ({"base": 4, "target": pb.Target(token_ids=[1])}, "INVALID_ARGUMENT base"),
    "other text": ({"prefix": 7, "target": pb.Target(token_ids=[1])}, "DATA_LOSS prefix"),
    "a foreign token": ({"target": pb.Target(token_ids=[64])}, "INVALID_ARGUMENT token_ids"),
    "another session": ({"session": 2, "ping": pb.Ping()}, "INVALID_ARGUMENT message"),
    "a draft without its law": ({"draft": pb.SideDraft(token_id=1)}, "INVALID_ARGUMENT law"),
    "beyond the answer": (
        {"base": 9, "draft": pb.SideDraft(token_id=1)},
        "INVALID_ARGUMENT base",
    ),
    "a fetch of nothing": ({"fetch": pb.Fetch()}, "INVALID_ARGUMENT count"),
}


async def test_bad_frames_end_a_stream_with_their_status(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as suite:
        head: dict[str, Any] = {"session": 1, "base": 2, "prefix": prefix_of((1, 2))}
        opened = pb.CollaborationOpen(**opening_fields(suite))
        begin = pb.CollaborateRequest(open=opened, **head)
        for name, (fields, expected) in BAD_FRAMES.items():
            bad = pb.CollaborateRequest(**(head | fields))
            code, details = await collaboration(suite.cloud_aggregator.target, [begin, bad])
            assert f"{code} {details}".startswith(expected), name
        code, details = await collaboration(suite.cloud_aggregator.target, [begin, begin])
        assert f"{code} {details}".startswith("INVALID_ARGUMENT open")


def opening_fields(suite: TwoSides) -> dict[str, Any]:
    return {
        "vocabulary_hash": suite.cloud.vocabulary_hash,
        "vocabulary_size": 64,
        "prompt_ids": [1, 2],
        "query": "heron",
        "documents": 2,
        "sampling": {"temperature": 1.0, "top_p": 1.0},
        "max_tokens": 3,
        "agreement": pb.AGREEMENT_AGGREGATOR,
        "placement": pb.PLACEMENT_DEVICE,
        "sources": pb.SOURCES_BOTH,
        "draw": 1,
        "law": 3,
        "precision": 1,
        "law_top_p": 1.0,
        "ahead": 4,
        "top": 4,
    }


async def collaboration(target: str, frames: list[pb.CollaborateRequest]) -> tuple[str, str]:
    """Status and details of a stream with these frames."""
    async with grpc.aio.insecure_channel(target) as channel:
        call: Any = pb_grpc.AggregatorServiceStub(channel).Collaborate(timeout=20)
        try:
            for frame in frames:
                await call.write(frame)
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        return (await call.code()).name, await call.details() or ""


async def test_pings_are_answered_while_documents_are_being_read(tmp_path: Path) -> None:
    """However long that takes, the device does not take the cloud for dead."""
    links: list[TcpLinkEmulator] = []
    head: dict[str, Any] = {"session": 1, "base": 2, "prefix": prefix_of((1, 2))}
    async with two_sides(tmp_path, decoder_way=lambda address: emulated(address, links)) as suite:
        opened = pb.CollaborationOpen(**opening_fields(suite))
        links[Side.CLOUD].cut()
        async with grpc.aio.insecure_channel(suite.cloud_aggregator.target) as channel:
            call: Any = pb_grpc.AggregatorServiceStub(channel).Collaborate(timeout=20)
            await call.write(pb.CollaborateRequest(open=opened, **head))
            await call.write(pb.CollaborateRequest(ping=pb.Ping(nonce=7), **head))
            assert (await call.read()).pong.nonce == 7
            links[Side.CLOUD].restore()
            assert (await call.read()).HasField("opened")
            call.cancel()


async def test_a_device_that_does_not_read_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.aggregator.cloud_session.MAX_QUEUED_FRAMES", 16)
    async with two_sides(tmp_path) as suite:
        head = {"session": 1, "base": 2, "prefix": prefix_of((1, 2))}
        opened = pb.CollaborationOpen(**opening_fields(suite))
        ping = pb.CollaborateRequest(ping=pb.Ping(), **head)  # type: ignore[arg-type]
        async with grpc.aio.insecure_channel(suite.cloud_aggregator.target) as channel:
            call: Any = pb_grpc.AggregatorServiceStub(channel).Collaborate(timeout=30)
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(pb.CollaborateRequest(open=opened, **head))  # type: ignore[arg-type]
                for _ in range(20_000):
                    await call.write(ping)
            with suppress(grpc.aio.AioRpcError):
                while await call.read() is not grpc.aio.EOF:
                    pass
            # A status that comes while a frame is being sent is lost in grpc.aio (issue 36066).
            lost = grpc.StatusCode.INTERNAL
            assert await call.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, lost)
        answer = await suite.client.generate(asking("dragon"))
        assert len(answer.token_ids) == 16
