"""An aggregator that speaks to a decoder frame by frame, and what the decoder should answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import grpc
import numpy as np

from services.drafter.servicer import DrafterLimits, DrafterServicer
from services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.core.aggregation import Side, document_weights
from tandem.core.chance import SeededChance
from tandem.core.laws import Array, Sampling
from tandem.core.prefix import EMPTY_PREFIX, extend_prefix
from tandem.engine.base import Engine
from tandem.engine.document_decoder import SEPARATOR, Documents
from tandem.engine.document_jobs import side_law
from tandem.engine.scripted import ScriptedEngine, scripted_law
from tandem.engine.scripted_tokenizer import ScriptedTokenizer
from tandem.policy.aggregation_presets import Draw, LawPayload, LocalLaw
from tandem.policy.local_laws import local_draft
from tandem.protocol.decoder import law_sampling
from tandem.protocol.decoding_messages import (
    DecodeRequestMessage,
    DecodingDraft,
    DecodingOpen,
    DecodingOpened,
    DecodingTarget,
    Document,
)
from tandem.protocol.messages import Cancel, Ping
from tandem.rpc.convert_decoding import AggregatorEnd
from tandem.rpc.lifecycle import RunningService
from tandem.telemetry.metrics import Metrics, new_registry
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc
from tests.rpc.scripted_suite import started

VOCABULARY = 64
CONTEXT = 128
LAW = scripted_law(5, VOCABULARY, order=CONTEXT, sharpness=6.0)
TOKENIZER = ScriptedTokenizer(VOCABULARY)
SESSION = 11
PROMPT = "query?"
DOCUMENTS = (Document("first note", 0.4), Document("another", -0.3), Document("third one", 1.1))
IDS_ONLY = LocalLaw(Draw.SHARED_NOISE, LawPayload.NONE)
TIMEOUT_S = 60.0

Place = Literal["verifier", "drafter"]


class OneDecoder:
    """A service that decodes, and what stands behind it."""

    def __init__(self, running: RunningService, engine: Engine, metrics: Metrics) -> None:
        self.running = running
        self.engine = engine
        self.metrics = metrics


@asynccontextmanager
async def decoder(
    place: Place = "verifier",
    engine: Engine | None = None,
    documents: Documents | None = None,
    max_sessions: int = 8,
    kv_budget_bytes: int = 2**20,
) -> AsyncIterator[OneDecoder]:
    """The service at one of the two places, drained at the end."""
    engine = engine or scripted()
    documents = documents or Documents(TOKENIZER)
    metrics = Metrics(new_registry(), "cloud" if place == "verifier" else "device")
    if place == "verifier":
        running = await started(
            VerifierServicer(
                engine, VerifierLimits(max_sessions, kv_budget_bytes), metrics, documents=documents
            )
        )
    else:
        limits = DrafterLimits(max_sessions, kv_budget_bytes)
        nobody = "127.0.0.1:1"
        running = await started(
            DrafterServicer(engine, TOKENIZER, nobody, limits, metrics, documents=documents)
        )
    try:
        yield OneDecoder(running, engine, metrics)
    finally:
        await running.drain(0.5)
    assert engine.kv_bytes_in_use == 0


def scripted() -> ScriptedEngine:
    return ScriptedEngine(VOCABULARY, LAW, context_length=CONTEXT)


def opening(**changes: Any) -> DecodingOpen:
    found = DecodingOpen(
        SESSION, 0, 0, 0,
        prompt=PROMPT,
        committed_ids=(),
        documents=DOCUMENTS,
        sampling=Sampling(),
        seed=3,
        side=Side.DEVICE,
        law=IDS_ONLY,
        ahead=4,
        max_tokens=30,
        preset="dragon",
    )  # fmt: skip
    return replace(found, **changes)


class AggregatorPeer:
    """One stream to a decoder."""

    def __init__(self, call: Any, law: LocalLaw) -> None:
        self.call = call
        self.codec = AggregatorEnd(law)
        self.answers: list[Any] = []
        self.text: tuple[int, ...] = ()

    async def send(self, message: DecodeRequestMessage) -> None:
        """What the decoder no longer takes is dropped; `ending` says why."""
        with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):
            await self.call.write(self.codec.encode(message))

    async def open(self, message: DecodingOpen) -> DecodingOpened:
        """Open the session; `text` is what is settled from now on."""
        await self.send(message)
        opened = await self.answer(DecodingOpened)
        self.text = (*opened.prompt_ids, *message.committed_ids)
        return opened  # type: ignore[no-any-return]

    async def settle(self, *token_ids: int, epoch: int = 0, last: bool = False) -> None:
        frame = DecodingTarget(
            SESSION, epoch, len(self.text), prefix_of(self.text), token_ids, last
        )
        self.text += token_ids
        await self.send(frame)

    async def answer(self, kind: type) -> Any:
        """The next answer of that kind."""
        while True:
            frame = await self.call.read()
            assert frame is not grpc.aio.EOF, await self.call.details()
            found = self.codec.decode(frame)
            self.answers.append(found)
            if isinstance(found, kind):
                return found

    async def drafts(self, count: int) -> list[DecodingDraft]:
        return [await self.answer(DecodingDraft) for _ in range(count)]

    async def ending(self) -> tuple[str, str]:
        """Status and details, when the decoder ends the stream."""
        try:
            while (frame := await self.call.read()) is not grpc.aio.EOF:
                self.answers.append(self.codec.decode(frame))
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        return (await self.call.code()).name, await self.call.details() or ""

    async def cancel(self) -> tuple[str, str]:
        await self.send(Cancel(SESSION, 0, 0, 0))
        return await self.ending()

    async def ping(self, nonce: int) -> None:
        await self.send(Ping(SESSION, 0, 0, 0, nonce=nonce))


@asynccontextmanager
async def aggregator_peer(
    running: RunningService, law: LocalLaw = IDS_ONLY
) -> AsyncIterator[AggregatorPeer]:
    """A stream of its own connection, given up at the end."""
    async with grpc.aio.insecure_channel(running.target) as channel:
        call = pb_grpc.DecodingServiceStub(channel).Decode(timeout=TIMEOUT_S)
        try:
            yield AggregatorPeer(call, law)
        finally:
            call.cancel()


def prefix_of(token_ids: Sequence[int]) -> int:
    return extend_prefix(EMPTY_PREFIX, token_ids)


def expected_draft(
    message: DecodingOpen, text: Sequence[int], relevances: Sequence[float] | None = None
) -> tuple[int, Array | None]:
    """Token and law that go with the next position after `text`, by the definitions alone."""
    documents = [tuple(TOKENIZER.encode(it.text + SEPARATOR)) for it in message.documents] or [()]
    scores = relevances or [document.relevance for document in message.documents]
    weights = document_weights(scores) if message.documents else np.ones(1)
    with np.errstate(divide="ignore"):
        logits = [np.log(LAW((*ids, *text))).astype(np.float32) for ids in documents]
    law = side_law(logits, weights, law_sampling(message.sampling))
    chance = SeededChance(message.seed)
    return local_draft(law, message.law, chance, len(text), message.side)


def expected_text(message: DecodingOpen, text: Sequence[int], count: int) -> list[int]:
    """The side's own drafts one after the other."""
    found = list(text)
    for _ in range(count):
        found.append(expected_draft(message, found)[0])
    return found[len(text) :]
