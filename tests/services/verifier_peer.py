"""An edge that speaks to a verifier frame by frame, as badly as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import grpc
import numpy as np

from tandem.backends.interface import ForwardRequest
from tandem.core.codecs import probs_to_bytes, sparse_probs_to_bytes
from tandem.core.gumbel import coupled_token
from tandem.core.probs import SamplingParams, probs_from_logits
from tandem.core.tokens import EMPTY_PREFIX, extend_prefix
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.specdec.choices import Uplink
from tandem.specdec.messages import GenerationParams, Open
from tandem.specdec.presets import PRESETS, Preset
from tandem.wire.verifier_codec import EdgeCodec
from tandem_api.verifier.v1 import verifier_pb2 as pb
from tandem_api.verifier.v1 import verifier_pb2_grpc as pb_grpc
from tests.services.scripted_suite import VOCABULARY, Suite, scripted_suite, target_engine

SESSION = 7
PROMPT = (1, 2, 3)
TIMEOUT_S = 60.0
VERIFY = f"/{pb.DESCRIPTOR.services_by_name['VerifierService'].full_name}/Verify"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stream ended, and what had come before."""

    code: str
    details: str
    answers: tuple[pb.VerifyResponse, ...]

    def kinds(self) -> list[str | None]:
        return [answer.WhichOneof("message") for answer in self.answers]


def prefix_of(token_ids: Iterable[int]) -> int:
    return extend_prefix(EMPTY_PREFIX, tuple(token_ids))


def opening(
    preset: str = "dssd",
    *,
    prompt_ids: tuple[int, ...] = PROMPT,
    committed_ids: tuple[int, ...] = (),
    max_tokens: int = 40,
    **changes: Any,
) -> pb.VerifyRequest:
    """An `open` with `changes` of its fields."""
    known = (*prompt_ids, *committed_ids)
    message = Open(
        SESSION,
        len(known),
        prefix_of(known),
        vocabulary_hash=target_engine().vocabulary_hash,
        vocabulary_size=VOCABULARY,
        prompt_ids=prompt_ids,
        committed_ids=committed_ids,
        params=GenerationParams(seed=3, max_tokens=max_tokens, ignore_eos=True),
        settings=_precise(PRESETS[preset].fitted(VOCABULARY)).verify_settings,
    )
    frame: pb.VerifyRequest = EdgeCodec(VOCABULARY, message.settings).encode(message)
    for name, value in changes.items():
        setattr(frame.open, name, value)
    return frame


def _precise(preset: Preset) -> Preset:
    """Whole distributions in float32: what is wrong with one is then not rounded away."""
    whole = preset.uplink is Uplink.FULL_DISTRIBUTIONS
    return replace(preset, uplink_precision="float32") if whole else preset


def draft(
    token_ids: Iterable[int], *, after: tuple[int, ...] = PROMPT, **fields: Any
) -> pb.VerifyRequest:
    """A whole chunk after the token ids `after`, with more `fields`."""
    drafts = pb.Drafts(token_ids=token_ids, end_of_chunk=True, **fields)
    return pb.VerifyRequest(
        session=SESSION, base=len(after), prefix=prefix_of(after), drafts=drafts
    )


def honest_draft(preset: str) -> pb.VerifyRequest:
    """Two tokens after the prompt, as the preset sends them."""
    uniform = np.full(VOCABULARY, 1 / VOCABULARY, dtype=np.float32)
    row = sparse_probs_to_bytes(uniform, "float16")
    fields: dict[str, dict[str, Any]] = {
        "coupled": {},
        "dssd": {"probabilities": [0.5, 0.5]},
        "dsd": {"distributions": probs_to_bytes(uniform, "float32") * 2},
        "tslt": {"sparse_probs": [row, row]},
        "mc-dsd": {"parents": [-1, -1], "sparse_probs": [row]},
    }
    return draft((1, 2), **fields[preset])


def control(kind: str, *, after: tuple[int, ...] = PROMPT, **fields: Any) -> pb.VerifyRequest:
    """A frame with the message `kind`: ping, cancel, recovered or hidden_states."""
    frame = pb.VerifyRequest(session=SESSION, base=len(after), prefix=prefix_of(after))
    message = getattr(frame, kind)
    message.SetInParent()
    for name, value in fields.items():
        setattr(message, name, value)
    return frame


class EdgePeer:
    """One stream to a verifier."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self._answers: list[pb.VerifyResponse] = []

    async def send(self, *frames: Any) -> None:
        """Frames the verifier no longer takes are dropped; `ending` says why."""
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            for frame in frames:
                await self.call.write(frame)

    async def half_close(self) -> None:
        with suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await self.call.done_writing()

    async def answer(self, kind: str) -> pb.VerifyResponse:
        """The next answer of that kind; others before it are kept for `ending` alone."""
        while True:
            frame = await self.call.read()
            assert isinstance(frame, pb.VerifyResponse), await self.call.details()
            self._answers.append(frame)
            if frame.WhichOneof("message") == kind:
                return frame

    async def ending(self) -> Ending:
        """Wait until the verifier ends the stream."""
        try:
            while (frame := await self.call.read()) is not grpc.aio.EOF:
                self._answers.append(frame)
        except grpc.aio.AioRpcError as error:
            return Ending(error.code().name, error.details() or "", tuple(self._answers))
        code, details = await self.call.code(), await self.call.details()
        return Ending(code.name, details, tuple(self._answers))


@asynccontextmanager
async def edge_peer(target: str) -> AsyncIterator[EdgePeer]:
    """A stream of its own connection, given up at the end."""
    async with grpc.aio.insecure_channel(target, [("grpc.max_send_message_length", -1)]) as channel:
        call = pb_grpc.VerifierServiceStub(channel).Verify(timeout=TIMEOUT_S)
        try:
            yield EdgePeer(call)
        finally:
            call.cancel()


async def raw_ending(target: str, *messages: bytes) -> Ending:
    """Send bytes as messages, half-close, and wait for the end."""
    while True:
        ending = await _raw_ending(target, *messages)
        # grpc.aio loses the status of a stream that ends while it is being written to (grpc issue
        # 36066); the same conversation tells it another time.
        if (ending.code, ending.details) != ("INTERNAL", "Internal error from Core"):
            return ending


async def _raw_ending(target: str, *messages: bytes) -> Ending:
    options = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(target, options) as channel:
        verify = channel.stream_stream(
            VERIFY,
            request_serializer=lambda raw: raw,
            response_deserializer=pb.VerifyResponse.FromString,
        )
        peer = EdgePeer(verify(timeout=TIMEOUT_S))
        await peer.send(*messages)
        await peer.half_close()
        return await peer.ending()


BESIDE_ONE = 8
BYSTANDER_PROMPT = tuple(range(1, 10))
BYSTANDER = GenerationRequest(
    BYSTANDER_PROMPT, "coupled", GenerationParams(max_tokens=80, seed=9, ignore_eos=True)
)


@cache
def own_text(prompt_ids: tuple[int, ...], seed: int, count: int) -> list[int]:
    """The target's own text under Gumbel coupling, without any service."""
    engine = target_engine()
    session = engine.open(len(prompt_ids) + count)
    token_ids, fed = list(prompt_ids), 0
    while len(token_ids) < len(prompt_ids) + count:
        (logits,) = engine.forward([ForwardRequest(session, tuple(token_ids[fed:]), 1)])
        probs = probs_from_logits(logits[0], SamplingParams())
        fed = len(token_ids)
        token_ids.append(coupled_token(probs, seed, fed))
    return token_ids[len(prompt_ids) :]


@asynccontextmanager
async def unharmed(suite: Suite) -> AsyncIterator[None]:
    """Another session generates meanwhile: its text is its own, and nothing is left behind."""
    stream = suite.client.stream(BYSTANDER)
    result = Generated()
    async for result in stream:
        if result.token_ids:
            break
    yield
    # The result grows in place.
    assert [_ async for _ in stream][-1] is result
    assert result.token_ids == own_text(
        BYSTANDER_PROMPT, BYSTANDER.params.seed, BYSTANDER.params.max_tokens
    )
    await suite.idle()


async def endings_of(streams: Sequence[Sequence[Any]]) -> list[Ending]:
    """How one verifier ends each of these streams, one after the other, with a bystander beside
    every few of them."""
    endings = []
    async with scripted_suite() as suite:
        for first in range(0, len(streams), BESIDE_ONE):
            async with unharmed(suite):
                for frames in streams[first : first + BESIDE_ONE]:
                    async with edge_peer(suite.verifier.target) as peer:
                        await peer.send(*frames)
                        endings.append(await peer.ending())
    return endings
