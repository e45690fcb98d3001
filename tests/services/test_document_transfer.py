"""The cloud's documents travel to the device as keys and values: over real gRPC, with a small
random model on both sides. What must come out is what their texts give."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandem.backends.interface import ForwardRequest, Logits, never
from tandem.backends.torch.engine import HuggingFaceEngine
from tandem.generation.request import GenerationRequest
from tandem.net.lifecycle import RunningService
from tandem.net.status import Rejected
from tandem.services.drafter.config import DrafterSettings
from tandem.services.verifier.servicer import VerifierLimits
from tandem.specdec.messages import GenerationParams
from tandem.two_sided.decoding.document_decoder import SEPARATOR
from tandem.two_sided.protocol.messages import KV_PART_BYTES, ContextDocument
from tandem.two_sided.serving.decoder_codec import document_to_proto
from tandem_api.aggregator.v1 import aggregator_pb2, aggregator_pb2_grpc
from tandem_api.decoding.v1 import decoding_pb2 as pb
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc
from tests.services.decoding_peer import TOKENIZER
from tests.services.scripted_suite import sample, summary_of, until
from tests.services.test_other_aggregators import Tampering, tampering
from tests.services.two_sided_suite import NOTES, TwoSides, two_sides
from tests.unit.backends.reference_models import pair

PUBLIC = ("public heron text " * 6, "a heron in general")
REQUEST = GenerationRequest(
    "what of the heron?",
    "drcg-kv",
    GenerationParams(seed=5, max_tokens=12),
    query="heron",
    documents=2,
)
SAME = ("the weights", "the weights")
DOCUMENT = ContextDocument(PUBLIC[0], 0.0)
IMPORTED = replace(DOCUMENT, imported=True)
TIMEOUT_S = 30.0


class Counted(HuggingFaceEngine):
    """Counts the rows that it was fed."""

    rows = 0

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        self.rows += sum(len(request.token_ids) for request in batch)
        return super().forward(batch, cancelled)


def engines() -> list[Counted]:
    """The same model twice, since an engine belongs to one thread."""
    models: list[Any] = [copy.deepcopy(pair("llama").reference) for _ in range(2)]
    return [Counted(model, model_name="llama", vocabulary_hash="v") for model in models]


@asynccontextmanager
async def suite(
    folder: Path, weights: Sequence[str] = SAME, **more: Any
) -> AsyncIterator[TwoSides]:
    async with two_sides(
        folder, public=PUBLIC, engines=engines(), weights=weights, **more
    ) as found:
        yield found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_text_is_that_of_the_documents_texts(temperature: float, tmp_path: Path) -> None:
    answers = []
    for preset in ("drcg-text", "drcg-kv"):
        async with suite(tmp_path / preset) as sides:
            request = REQUEST.with_fields(preset=preset, temperature=temperature)
            answers.append(await sides.client.generate(request))
    by_text, by_kv = answers
    assert by_kv.token_ids == by_text.token_ids
    assert by_kv.text == by_text.text
    assert summary_of(by_kv).device.documents == 4


async def test_nothing_is_computed_and_nothing_travels_twice(tmp_path: Path) -> None:
    async with suite(tmp_path) as sides:
        await sides.client.generate(replace(REQUEST, preset="crcg-device"))  # the notes' own
        assert isinstance(sides.device, Counted)
        before = sides.device.rows
        first = await sides.client.generate(REQUEST)
        # One sequence of the notes, prompt and drafts; the public documents are not computed here.
        fed = len(REQUEST.prompt) + REQUEST.params.max_tokens + 8
        assert sides.device.rows - before < sum(map(document_tokens, NOTES)) + fed
        assert fed < document_tokens(PUBLIC[0])
        again = await sides.client.generate(REQUEST)
    assert again.token_ids == first.token_ids
    tensors = sum(document_tokens(text) for text in PUBLIC) * sides.cloud.kv_bytes_per_token
    assert tensors < summary_of(first).downlink_bytes < tensors + 2**13
    assert summary_of(again).downlink_bytes < 2**11
    assert summary_of(first).uplink_bytes < 2**9


def document_tokens(text: str) -> int:
    return len(TOKENIZER.encode(text.rstrip() + SEPARATOR))


async def test_another_model_is_told_before_anything_travels(tmp_path: Path) -> None:
    async with suite(tmp_path, weights=("ones", "others")) as sides:
        with pytest.raises(Rejected) as caught:
            await sides.client.generate(REQUEST)
        assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
        for words in ("weights ones", "weights others", "drcg-text"):
            assert words in str(caught.value)
        # Nor does a decoder believe whoever asks it.
        with pytest.raises(Rejected, match="weights others"):
            await exported(sides.verifier, pb.KvModel(weights="ones", vocabulary_hash="v"))
        assert (await sides.client.generate(replace(REQUEST, preset="drcg-text"))).token_ids


async def test_a_device_s_decoder_gives_nothing_out(tmp_path: Path) -> None:
    """Nor does a verifier that was not allowed to. The drafter cannot be allowed."""
    assert not [name for name in DrafterSettings.model_fields if "export" in name]
    own = pb.KvModel(weights="the weights", vocabulary_hash="v")
    async with suite(tmp_path, limits=VerifierLimits(document_kv_export=False)) as sides:
        await sides.client.generate(replace(REQUEST, preset="drcg-text"))  # all is at hand there
        for running in (sides.drafter, sides.verifier):
            with pytest.raises(Rejected, match="gives no documents' keys and values") as caught:
                await exported(running, own)
            assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION
            assert not (await looked_up(running)).exports
        with pytest.raises(Rejected, match="the cloud's decoder gives no keys") as caught:
            await sides.client.generate(REQUEST)
        assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION


async def test_an_engine_without_files_says_what_else_there_is(tmp_path: Path) -> None:
    async with two_sides(tmp_path) as sides:
        with pytest.raises(Rejected, match="drcg-text") as caught:
            await sides.client.generate(REQUEST)
        assert caught.value.code is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_document_that_is_taken_in_is_at_hand(tmp_path: Path) -> None:
    async with suite(tmp_path) as sides:
        size, *chunks = await exported(sides.verifier)
        assert size.size_bytes == sum(len(part.chunk) for part in chunks)
        assert max(len(part.chunk) for part in chunks) == KV_PART_BYTES
        assert (await looked_up(sides.drafter)).cached == [False]
        assert await imported(sides.drafter, [size, *chunks]) == ("OK", "")
        assert (await looked_up(sides.drafter)).cached == [True]
        assert (await looked_up(sides.drafter, DOCUMENT)).cached == [False]  # none of its own
        assert await imported(sides.drafter, [size, *chunks]) == ("OK", "")  # again changes nothing
        tokens = document_tokens(DOCUMENT.text)
        assert sides.device.kv_bytes_in_use == tokens * sides.device.kv_bytes_per_token


async def test_a_verifier_takes_nothing_in(tmp_path: Path) -> None:
    """Before, keys and values that an edge sent it were served warm to everybody."""
    async with suite(tmp_path / "one") as sides:
        parts = await exported(sides.verifier)
    async with suite(tmp_path / "another") as sides:
        ended = ("INTERNAL", "Internal error from Core")
        while ended[0] == "INTERNAL":  # a status may be lost on its way (grpc issue 36066)
            ended = await imported(sides.verifier, parts)
        assert ended[0] == "FAILED_PRECONDITION"
        assert "takes no keys and values in" in ended[1]
        assert sides.cloud.kv_bytes_in_use == 0
        assert (await looked_up(sides.verifier)).cached == [False]


def forged(
    size: pb.ExportDocumentsResponse, chunks: Sequence[pb.ExportDocumentsResponse]
) -> dict[str, Any]:
    """What must not be taken in, and the status that says so."""
    packed = b"".join(part.chunk for part in chunks)
    damaged = packed[:-9] + b"\xff\xff\xc0\x7f" + packed[-5:]  # NaN, if anybody reads it
    other = packed.replace(b"the weights", b"our weights")
    assert other != packed
    half = len(packed) // 2

    def cut(raw: bytes) -> list[pb.ExportDocumentsResponse]:
        starts = range(0, len(raw), KV_PART_BYTES)
        return [pb.ExportDocumentsResponse(chunk=raw[at : at + KV_PART_BYTES]) for at in starts]

    return {
        "other weights": ([size, *cut(other)], "INVALID_ARGUMENT chunk: what was sent"),
        "too small": ([pb.ExportDocumentsResponse(size_bytes=100)], "INVALID_ARGUMENT size_bytes"),
        "too large": (
            [pb.ExportDocumentsResponse(size_bytes=2**40)],
            "INVALID_ARGUMENT size_bytes",
        ),
        "damaged": ([size, *cut(damaged)], "INVALID_ARGUMENT chunk: what was sent"),
        "rubbish": (
            [size, *cut(bytes(len(packed)))],
            "INVALID_ARGUMENT chunk: what was sent cannot be read",
        ),
        "no size": (chunks, "INVALID_ARGUMENT size_bytes"),
        "two sizes": ([size, size], "INVALID_ARGUMENT size_bytes"),
        "half": ([size, *cut(packed[:half]), None], "INVALID_ARGUMENT part: the stream ended"),
        "more": ([size, *cut(packed[:-1]), *cut(b"12")], "INVALID_ARGUMENT chunk: more than"),
        "a large chunk": (
            [size, pb.ExportDocumentsResponse(chunk=bytes(KV_PART_BYTES + 1))],
            "INVALID_ARGUMENT chunk",
        ),
        "an empty chunk": ([size, pb.ExportDocumentsResponse(chunk=b"")], "INVALID_ARGUMENT chunk"),
        "nothing": ([size, pb.ExportDocumentsResponse()], "INVALID_ARGUMENT part"),
    }


async def test_what_is_not_the_document_s_is_refused(tmp_path: Path) -> None:
    async with suite(tmp_path) as sides:
        size, *chunks = await exported(sides.verifier)
        for name, (parts, expected) in forged(size, chunks).items():
            code, details = await imported(sides.drafter, parts)
            assert f"{code} {details}".startswith(expected), name
            assert sides.device.kv_bytes_in_use == 0, name
        assert (await looked_up(sides.drafter)).cached == [False]
        empty = document_to_proto(ContextDocument("  ", 0.0))
        code, details = await imported(sides.drafter, [size], empty)
        assert (code, details) == ("INVALID_ARGUMENT", "documents[0]: is empty")


async def test_one_who_leaves_in_the_middle_frees_the_room(tmp_path: Path) -> None:
    async with suite(tmp_path) as sides, grpc.aio.insecure_channel(sides.drafter.target) as channel:
        size, *_ = await exported(sides.verifier)

        def held() -> float:
            return sample(sides.drafter_metrics, "tandem_document_kv_bytes", model_name="llama")

        call: Any = pb_grpc.DecodingServiceStub(channel).ImportDocuments(timeout=TIMEOUT_S)
        await call.write(
            pb.ImportDocumentsRequest(documents=[document_to_proto(DOCUMENT)], part=size)
        )
        assert isinstance(await call.read(), pb.ImportDocumentsResponse)
        size_bytes = document_tokens(DOCUMENT.text) * sides.device.kv_bytes_per_token
        await until(lambda: held() == size_bytes)
        call.cancel()
        await until(lambda: held() == 0)


BAD_ASKING: dict[str, tuple[dict[str, Any], str]] = {
    "beyond the list": ({"want": {"sequences": [2]}}, "INVALID_ARGUMENT sequences"),
    "beyond the only one": (
        {"want": {"sequences": [1], "joined": True}},
        "INVALID_ARGUMENT sequences",
    ),
    "too often": ({"want": {"sequences": [0, 1, 0]}}, "INVALID_ARGUMENT sequences"),
    "something else": ({"find": {"query": "heron"}}, "INVALID_ARGUMENT message"),
    "nothing": ({}, "INVALID_ARGUMENT message"),
}


async def test_only_what_was_found_can_be_asked_for(tmp_path: Path) -> None:
    async with suite(tmp_path) as sides:
        model = {"weights": "the weights", "vocabulary_hash": "v"}
        find = {"query": "heron", "documents": 2, "document_kv": model}
        for name, (asked, expected) in BAD_ASKING.items():
            ended = await fetched(sides.cloud_aggregator.target, {"find": find}, asked)
            assert ended.startswith(expected), name


async def fetched(target: str, *requests: dict[str, Any]) -> str:
    """Status and details of a stream that fetches with these requests."""
    async with grpc.aio.insecure_channel(target) as channel:
        call: Any = aggregator_pb2_grpc.AggregatorServiceStub(channel).FetchDocuments(timeout=20)
        with suppress(grpc.aio.AioRpcError):
            for request in requests:
                await call.write(aggregator_pb2.FetchDocumentsRequest(**request))
            while await call.read() is not grpc.aio.EOF:
                pass
        return f"{(await call.code()).name} {await call.details() or ''}"


async def test_what_is_looked_for_is_bounded(tmp_path: Path) -> None:
    async with suite(tmp_path) as sides:
        for find, expected in (
            ({"query": "x" * 4097}, "INVALID_ARGUMENT query"),
            ({"query": "x", "documents": 65}, "INVALID_ARGUMENT documents"),
            ({"query": "x", "document_kv": {}}, "INVALID_ARGUMENT document_kv"),
        ):
            ended = await fetched(sides.cloud_aggregator.target, {"find": find})
            assert ended.startswith(expected)


def broken(parts: Sequence[pb.ExportDocumentsResponse]) -> dict[str, list[dict[str, Any]]]:
    """What a cloud may answer that breaks the conversation."""
    size, *chunks = parts
    texts = [document_to_proto(DOCUMENT)]
    found = {"found": aggregator_pb2.FoundDocuments(documents=texts)}
    many = aggregator_pb2.FoundDocuments(documents=texts * 65)
    rubbish = [pb.ExportDocumentsResponse(chunk=bytes(len(part.chunk))) for part in chunks]
    return {
        "a part at once": [{"part": size}],
        "too many": [{"found": many}],
        "an end at once": [],
        "an end in the middle": [found, {"part": size}],
        "a chunk before it is said of what": [found, {"part": chunks[0]}],
        "another document among the chunks": [found, *[{"part": size}] * 2],
        "something else among the chunks": [found, {"part": size}, found],
        "damaged": [found, *({"part": part} for part in (size, *rubbish))],
        "nothing in a part": [found, {"part": pb.ExportDocumentsResponse()}],
        "nothing": [found, {}],
    }


class TamperingGiver(Tampering):
    """Hears what is wanted before it goes on: a status is lost where it crosses a message."""

    messages: Sequence[dict[str, Any]] = ()

    async def FetchDocuments(  # type: ignore[override]  # noqa: N802  # the RPC's name
        self, request_iterator: object, context: Any
    ) -> None:
        self.streams += 1
        assert (await context.read()).HasField("find")
        for message in self.messages:
            answer = aggregator_pb2.FetchDocumentsResponse(**message)
            await context.write(answer)
            if message is self.messages[0] and len(answer.found.documents) == 1:
                assert (await context.read()).HasField("want")


async def test_a_cloud_that_breaks_the_conversation_is_told_from_a_bad_request(
    tmp_path: Path,
) -> None:
    cloud = TamperingGiver(lambda opening: [])  # type: ignore[abstract]
    async with suite(tmp_path, way=lambda address: tampering(cloud)) as sides:
        for name, messages in broken(await exported(sides.verifier)).items():
            cloud.messages = messages
            with pytest.raises(Rejected, match="the cloud violated the protocol") as caught:
                await sides.client.generate(REQUEST)
            assert caught.value.code is grpc.StatusCode.DATA_LOSS, name
        assert cloud.streams == 10
        assert (await looked_up(sides.drafter)).cached == [False]


async def exported(
    running: RunningService, user: pb.KvModel | None = None
) -> list[pb.ExportDocumentsResponse]:
    """The parts of DOCUMENT."""
    user = user or pb.KvModel(weights="the weights", vocabulary_hash="v")
    request = pb.ExportDocumentsRequest(documents=[document_to_proto(DOCUMENT)], model=user)
    async with grpc.aio.insecure_channel(running.target) as channel:
        call: Any = pb_grpc.DecodingServiceStub(channel).ExportDocuments(request, timeout=TIMEOUT_S)
        try:
            return [part async for part in call]
        except grpc.aio.AioRpcError as error:
            raise Rejected(error.code(), error.details() or "") from None


async def imported(
    running: RunningService,
    parts: Sequence[pb.ExportDocumentsResponse | None],
    document: pb.ContextDocument | None = None,
) -> tuple[str, str]:
    """Status and details of handing the parts in as DOCUMENT's; None ends the stream there."""
    documents = [document or document_to_proto(DOCUMENT)]
    async with grpc.aio.insecure_channel(running.target) as channel:
        call: Any = pb_grpc.DecodingServiceStub(channel).ImportDocuments(timeout=TIMEOUT_S)
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(pb.ImportDocumentsRequest(documents=documents, part=parts[0]))
            if (await call.read()) is not grpc.aio.EOF:
                for part in parts[1:]:
                    if part is None:
                        await call.done_writing()
                    else:
                        await call.write(pb.ImportDocumentsRequest(part=part))
                while await call.read() is not grpc.aio.EOF:
                    pass
        return (await call.code()).name, await call.details() or ""


async def looked_up(
    running: RunningService, document: ContextDocument = IMPORTED
) -> pb.LookUpDocumentsResponse:
    request = pb.LookUpDocumentsRequest(documents=[document_to_proto(document)])
    async with grpc.aio.insecure_channel(running.target) as channel:
        stub = pb_grpc.DecodingServiceStub(channel)
        return await stub.LookUpDocuments(request, timeout=TIMEOUT_S)
