"""An aggregator that speaks to a decoder frame by frame, and what the decoder should answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import grpc
import numpy as np

from tandem.backends.interface import Engine
from tandem.core.probs import SamplingParams, probs_from_logits
from tandem.core.processors import LogitsProcessor
from tandem.core.randomness import SeededRandom
from tandem.core.tokens import EMPTY_PREFIX, extend_prefix
from tandem.net.lifecycle import RunningService, Service
from tandem.services.drafter.servicer import DrafterLimits, DrafterServicer
from tandem.services.verifier.servicer import VerifierLimits, VerifierServicer
from tandem.specdec.messages import Cancel, Ping
from tandem.telemetry.metrics import Metrics, new_registry
from tandem.testing.scripted import ScriptedEngine, ScriptedTokenizer, scripted_probs
from tandem.two_sided.decoding.document_decoder import SEPARATOR, Documents
from tandem.two_sided.decoding.document_jobs import side_probs
from tandem.two_sided.protocol.decoder_machine import probs_sampling
from tandem.two_sided.protocol.draft_head import DraftProbs
from tandem.two_sided.protocol.local_drafting import local_draft
from tandem.two_sided.protocol.messages import (
    ContextDocument,
    DecodeRequestMessage,
    DecodingOpen,
    DecodingOpened,
    DecodingTarget,
    SideDraftFrame,
)
from tandem.two_sided.protocol.mixture import Side, document_weights
from tandem.two_sided.protocol.presets import Draw, LocalProbs, ProbsPayload
from tandem.two_sided.serving.decoder_codec import AggregatorCodec
from tandem_api.decoding.v1 import decoding_pb2_grpc as pb_grpc
from tests.services.scripted_suite import serving

VOCABULARY = 64
CONTEXT = 128
PROBS = scripted_probs(5, VOCABULARY, order=CONTEXT, sharpness=6.0)
TOKENIZER = ScriptedTokenizer(VOCABULARY)
SESSION = 11
PROMPT = "query?"
DOCUMENTS = (
    ContextDocument("first note", 0.4),
    ContextDocument("another", -0.3),
    ContextDocument("third one", 1.1),
)
IDS_ONLY = LocalProbs(Draw.GUMBEL, ProbsPayload.NONE)
TIMEOUT_S = 60.0

Place = Literal["verifier", "drafter"]


class OneDecoder:
    """A service that decodes, and what stands behind it."""

    def __init__(self, running: RunningService, engine: Engine, metrics: Metrics) -> None:
        self.running = running
        self.engine = engine
        self.metrics = metrics

    def documents_found(self, source: str) -> int:
        """How many documents' keys and values came from there."""
        return int(
            sum(
                sample.value
                for metric in self.metrics.registry.collect()
                for sample in metric.samples
                if sample.name == "tandem_document_kv_lookups_total"
                and sample.labels["source"] == source
            )
        )


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
    service: Service
    if place == "verifier":
        limits = VerifierLimits(max_sessions, kv_budget_bytes)
        service = VerifierServicer(engine, limits, metrics, documents=documents)
    else:
        room, nobody = DrafterLimits(max_sessions, kv_budget_bytes), "127.0.0.1:1"
        service = DrafterServicer(engine, TOKENIZER, nobody, room, metrics, documents=documents)
    async with serving(service, drain_s=TIMEOUT_S) as running:
        yield OneDecoder(running, engine, metrics)
    assert engine.kv_bytes_in_use == 0


def scripted() -> ScriptedEngine:
    return ScriptedEngine(VOCABULARY, PROBS, context_length=CONTEXT)


def opening(**changes: Any) -> DecodingOpen:
    found = DecodingOpen(
        SESSION, 0, 0,
        prompt=PROMPT,
        committed_ids=(),
        documents=DOCUMENTS,
        sampling=SamplingParams(),
        seed=3,
        side=Side.DEVICE,
        probs=IDS_ONLY,
        ahead=4,
        max_tokens=30,
        preset="dragon",
    )  # fmt: skip
    return replace(found, **changes)


class AggregatorPeer:
    """One stream to a decoder."""

    def __init__(self, call: Any, probs: LocalProbs) -> None:
        self.call = call
        self.codec = AggregatorCodec(probs)
        self.answers: list[Any] = []
        self.text: tuple[int, ...] = ()

    async def send(self, message: DecodeRequestMessage) -> None:
        """What the decoder no longer takes is dropped; `ending` says why."""
        with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):
            await self.call.write(self.codec.encode(message))

    async def open(self, message: DecodingOpen) -> DecodingOpened:
        """Open the session; `text` is what is committed from now on."""
        await self.send(message)
        opened = await self.answer(DecodingOpened)
        self.text = (*opened.prompt_ids, *message.committed_ids)
        return opened  # type: ignore[no-any-return]

    async def send_target(self, *token_ids: int, last: bool = False) -> None:
        frame = DecodingTarget(SESSION, len(self.text), prefix_of(self.text), token_ids, last)
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

    async def drafts(self, count: int) -> list[SideDraftFrame]:
        return [await self.answer(SideDraftFrame) for _ in range(count)]

    async def ending(self) -> tuple[str, str]:
        """Status and details, when the decoder ends the stream."""
        try:
            while (frame := await self.call.read()) is not grpc.aio.EOF:
                self.answers.append(self.codec.decode(frame))
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ""
        return (await self.call.code()).name, await self.call.details() or ""

    async def cancel(self) -> tuple[str, str]:
        await self.send(Cancel(SESSION, 0, 0))
        return await self.ending()

    async def ping(self, nonce: int) -> None:
        await self.send(Ping(SESSION, 0, 0, nonce=nonce))


@asynccontextmanager
async def aggregator_peer(
    running: RunningService, probs: LocalProbs = IDS_ONLY
) -> AsyncIterator[AggregatorPeer]:
    """A stream of its own connection, given up at the end."""
    async with grpc.aio.insecure_channel(running.target) as channel:
        call = pb_grpc.DecodingServiceStub(channel).Decode(timeout=TIMEOUT_S)
        try:
            yield AggregatorPeer(call, probs)
        finally:
            call.cancel()


def prefix_of(token_ids: Sequence[int]) -> int:
    return extend_prefix(EMPTY_PREFIX, token_ids)


def expected_draft(
    message: DecodingOpen, text: Sequence[int], relevances: Sequence[float] | None = None
) -> tuple[int, DraftProbs | None]:
    """Token and distribution that go with the next position after `text`, by the definitions
    alone."""
    token_id, sent, _ = expected_processed_draft(message, text, relevances)
    return token_id, sent


def expected_processed_draft(
    message: DecodingOpen, text: Sequence[int], relevances: Sequence[float] | None = None
) -> tuple[int, DraftProbs | None, float]:
    """The same where processors change the documents' mixture, and the mass they leave (log)."""
    documents = [tuple(TOKENIZER.encode(it.text + SEPARATOR)) for it in message.documents] or [()]
    scores = relevances or [document.relevance for document in message.documents]
    weights = document_weights(scores) if message.documents else np.ones(1)
    with np.errstate(divide="ignore"):
        logits = [np.log(PROBS((*ids, *text))).astype(np.float32) for ids in documents]
    sampling, left = probs_sampling(message.sampling), 1.0
    if message.processors.active:
        prompt_ids = TOKENIZER.encode(str(message.prompt))
        processor = LogitsProcessor(message.processors, prompt_ids)
        answer = tuple(text[len(prompt_ids) :])
        own = [probs_from_logits(processor.repeated(row, answer), sampling) for row in logits]
        logits = [processor.processed(row, answer) for row in logits]
        zeros = np.zeros(VOCABULARY, dtype=np.float32)
        factors = np.exp(processor.weighted(zeros, answer) / sampling.temperature)
        weights = weights * np.array([float((probs * factors).sum()) for probs in own])
        left = float(weights.sum())
        weights /= left
    probs = side_probs(logits, weights, sampling)
    rng = SeededRandom(message.seed)
    return *local_draft(
        probs, message.probs, rng=rng, position=len(text), side=message.side
    ), float(np.log(left))


def expected_text(message: DecodingOpen, text: Sequence[int], count: int) -> list[int]:
    """The side's own drafts one after the other."""
    found = list(text)
    for _ in range(count):
        found.append(expected_draft(message, found)[0])
    return found[len(text) :]
