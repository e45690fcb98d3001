"""Client of an aggregator: one request in, committed tokens and a summary out. Invariant: leaving
the iterator early cancels the request on every service."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import grpc

from tandem.core.errors import ProtocolError
from tandem.generation.conversation import answers_to
from tandem.generation.request import LONGEST_ANSWER_S, GenerationRequest, request_to_proto
from tandem.net.access import ClientAccess
from tandem.net.channels import open_channel
from tandem.net.status import Rejected, details_of
from tandem.text.thinking import ThinkingStart
from tandem.wire.common_codec import THINKING_STARTS, token_sources_from_proto
from tandem_api.aggregator.v1 import aggregator_pb2_grpc as pb_grpc
from tandem_api.common.v1 import generation_pb2 as pb

MAX_MESSAGE_BYTES = 12 * 2**20

_OF_LIKELY_TOKENS = ("logprobs", "top_logprobs", "token_texts", "token_bytes")
_OF_TOKENS = ("token_sources", *_OF_LIKELY_TOKENS)
"""Fields of `Committed` that have something for each token, or nothing at all."""

_STARTS = {number: start for start, number in THINKING_STARTS.items()}

TopLogprobs = tuple[tuple[int, str, float], ...]
"""The likeliest tokens at a position, best first: id, what it would have spelt, log-probability."""


@dataclass(slots=True)
class LikelyTokens:
    """Tokens with their log-probabilities, and what they spell. Lists are of one length, or empty
    where nothing was told of it."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    token_texts: list[str] = field(default_factory=list)
    token_bytes: list[bytes] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    top_bytes: list[tuple[bytes, ...]] = field(default_factory=list)
    """Of the tokens in `top_logprobs`."""

    def take_tokens(
        self, message: pb.Committed | pb.PromptTokens, names: Sequence[str] = _OF_LIKELY_TOKENS
    ) -> None:
        """Add what a message tells. Raises ProtocolError, with nothing taken, where its fields of
        these `names` are neither empty nor one for each token."""
        kind = type(message).__name__
        for name in names:
            if len(getattr(message, name)) not in (0, len(message.token_ids)):
                raise ProtocolError("answering", kind, f"{name} are not one for each token")
        tops = message.top_logprobs
        for top in tops:
            count = len(top.token_ids)
            lengths = {len(top.texts), len(top.logprobs), len(top.token_bytes) or count}
            if lengths != {count}:
                raise ProtocolError("answering", kind, "top_logprobs are not of one length")
        self.token_ids += message.token_ids
        self.logprobs += message.logprobs
        self.token_texts += message.token_texts
        self.token_bytes += message.token_bytes
        for top in tops:
            spelt = zip(top.token_ids, top.texts, top.logprobs, strict=True)
            self.top_logprobs.append(tuple(spelt))
            self.top_bytes.append(tuple(top.token_bytes))
        missing = len(self.logprobs) - len(self.top_logprobs)
        self.top_logprobs += [()] * missing
        self.top_bytes += [()] * missing


@dataclass(slots=True)
class Generated(LikelyTokens):
    """A generation as its caller saw it; times in seconds by the caller's clock. `token_sources`
    says who made each token (the values of `TokenSource`, "" where that is not known); `logprobs`
    and `token_texts` are there if they were asked for, and `top_logprobs` if those were too, as are
    `rounds`. `family` and `thinking_start` say how the text of an answer to a conversation is read
    (`tandem.text.families`). `prompt`: the prompt's tokens, if their log-probabilities were asked
    for, before the first token of the answer."""

    preset: str = ""
    session: str = ""
    prompt_tokens: int = 0
    text: str = ""
    unverified: list[int] = field(default_factory=list)
    token_sources: list[str] = field(default_factory=list)
    prompt: LikelyTokens = field(default_factory=LikelyTokens)
    rounds: list[pb.RoundFigures] = field(default_factory=list)
    ttft_s: float | None = None
    tpot_s: float | None = None
    duration_s: float = 0.0
    last_commit_s: float = 0.0
    summary: pb.Summary | None = None
    family: str = ""
    thinking_start: ThinkingStart = ThinkingStart.NONE

    def observe(self, answer: pb.GenerateResponse, elapsed_s: float) -> None:
        """Take a message that arrived `elapsed_s` after the request was sent."""
        match answer.WhichOneof("message"):
            case "started":
                self.begin(answer.started)
            case "prompt_tokens":
                self.prompt.take_tokens(answer.prompt_tokens)
            case "committed":
                self.take(answer.committed, elapsed_s)
            case "summary":
                self.end(answer.summary, elapsed_s)

    def begin(self, started: pb.Started) -> None:
        self.session = started.session
        self.preset = started.preset
        self.prompt_tokens = started.prompt_tokens
        self.family = started.family
        self.thinking_start = _STARTS.get(started.thinking_start, ThinkingStart.NONE)

    def take(self, committed: pb.Committed, elapsed_s: float) -> None:
        """Add committed tokens that arrived `elapsed_s` after the request was sent. Raises
        ProtocolError for lists that should be of one length and are not."""
        first = len(self.token_ids)
        self.take_tokens(committed, _OF_TOKENS)
        if committed.unverified:
            self.unverified += range(first, first + len(committed.token_ids))
        self.text += committed.text
        self.token_sources += (
            each or "" for each in token_sources_from_proto(committed.token_sources)
        )
        self.rounds += committed.rounds
        self.token_sources += [""] * (len(self.token_ids) - len(self.token_sources))  # not said
        if committed.token_ids:
            if self.ttft_s is None:
                self.ttft_s = elapsed_s
            self.last_commit_s = elapsed_s

    def end(self, summary: pb.Summary, elapsed_s: float) -> None:
        self.summary = summary
        self.duration_s = elapsed_s
        if self.ttft_s is not None and len(self.token_ids) > 1:
            self.tpot_s = (self.last_commit_s - self.ttft_s) / (len(self.token_ids) - 1)


class AggregatorClient:
    """Use as an async context manager."""

    def __init__(
        self,
        target: str,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        access: ClientAccess | None = None,
    ) -> None:
        """Open a channel to `target`; without `access`, the connection is plain."""
        self.target = target
        self._max_message_bytes = max_message_bytes
        self._channel = open_channel(target, max_message_bytes, access)
        self._stub = pb_grpc.AggregatorServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._channel.close()

    async def describe(self, timeout_s: float = 10.0) -> pb.DescribeResponse:
        """Return what the suite can do. Raises Rejected with the status."""
        try:
            return await self._stub.Describe(pb.DescribeRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise Rejected(error.code(), details_of(error)) from None

    async def stream(
        self, request: GenerationRequest, timeout_s: float = LONGEST_ANSWER_S
    ) -> AsyncIterator[Generated]:
        """Yield the growing result after each message; the last one has its summary. Raises
        Rejected."""
        start = pb.GenerateRequest(start=request_to_proto(request))
        self._check_size(start)
        began_s = time.perf_counter()
        call = self._stub.Generate(timeout=timeout_s)
        result = Generated()
        try:
            async for answer in answers_to(call, start, self.describe):
                result.observe(answer, time.perf_counter() - began_s)
                yield result
        finally:
            call.cancel()

    def _check_size(self, start: pb.GenerateRequest) -> None:
        """Refuse here what the server would refuse in the middle of sending it: grpc.aio may then
        lose the server's status (grpc issue 36066)."""
        if (size := start.ByteSize()) > self._max_message_bytes:
            details = f"request: {size} bytes; at most {self._max_message_bytes} are taken"
            raise Rejected(grpc.StatusCode.RESOURCE_EXHAUSTED, details)

    async def generate(
        self, request: GenerationRequest, timeout_s: float = LONGEST_ANSWER_S
    ) -> Generated:
        """Return the finished result. Raises Rejected with the status."""
        return [result async for result in self.stream(request, timeout_s)][-1]
