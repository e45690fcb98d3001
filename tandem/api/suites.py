"""Suites for Python programs, in this process or elsewhere. Invariant: leaving a stream early ends
the request on every service; when a suite is closed, nothing of it listens and no thread runs."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, Self, Unpack

from tandem.api.access import Place, client_access
from tandem.api.errors import typed
from tandem.api.options import GenerationOptions, Message, request_of
from tandem.api.results import Answer, Piece, Progress, answer_of
from tandem.backends.model_source import AUTO
from tandem.core.errors import InvalidArgument
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import LONGEST_ANSWER_S
from tandem.net.endpoint import of_grpc, parse_endpoint
from tandem.net.status import Rejected
from tandem.netem.link_model import INSTANT, shape_from
from tandem.suite.background import LoopThread
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import (
    choose_draft,
    choose_target,
    load_pair,
    lookup_note,
    with_documents,
)
from tandem.suite.suite_documents import SuiteDocuments
from tandem.telemetry.logging import get_logger

log = get_logger(__name__)

Arguments = ParamSpec("Arguments")

Prompt = str | Sequence[int] | Sequence[Message]
"""A text to continue, its token ids, or a conversation."""


class AsyncStream:
    """The pieces of one answer as they are committed; `answer` is whole after the last. Iterate
    over all of them, or use it as a context manager, which cancels what is left."""

    def __init__(self, growing: AsyncIterator[Generated], seed: int, endpoint: str) -> None:
        self._growing = growing
        self._seed = seed
        self._endpoint = endpoint
        self._result = Generated()
        self._progress = Progress()

    @property
    def answer(self) -> Answer:
        """Raises TandemError before the stream has ended."""
        return answer_of(self._result, self._seed)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        try:
            while True:
                self._result = await anext(self._growing)
                if (piece := self._progress.piece(self._result)) is not None:
                    return piece
        except Rejected as error:
            raise typed(error, self._endpoint) from error

    async def aclose(self) -> None:
        """Cancel the request, if it still runs."""
        await self._growing.aclose()  # type: ignore[attr-defined]  # a generator

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncSuite:
    """Made by `embedded_async` and `connect_async`: an asynchronous context manager. Every method
    takes the options of GenerationOptions and raises a TandemError: InvalidArgument naming a bad
    option, DeadlineExceeded, Unavailable, ResourceExhausted, AccessDenied or FailedPrecondition."""

    def __init__(
        self, open_client: Callable[[AsyncExitStack], Awaitable[AggregatorClient]]
    ) -> None:
        self._open_client = open_client
        self._client: AggregatorClient | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._client = await self._open_client(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End what runs, and what was started in this process."""
        self._client = None
        await self._stack.aclose()

    async def generate(
        self, prompt: str | Sequence[int], **options: Unpack[GenerationOptions]
    ) -> Answer:
        """Return the whole answer to a text or token ids."""
        async with self.stream(prompt, **options) as stream:
            async for _ in stream:
                pass
            return stream.answer

    async def chat(
        self, messages: Sequence[Message], **options: Unpack[GenerationOptions]
    ) -> Answer:
        """Return the whole answer to a conversation, in the model's own chat template."""
        async with self.stream(messages, **options) as stream:
            async for _ in stream:
                pass
            return stream.answer

    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> AsyncStream:
        """Stream the answer to a text, token ids or a conversation, as it is committed."""
        timeout_s = options.get("timeout_s", LONGEST_ANSWER_S)
        if not timeout_s > 0:
            raise InvalidArgument("timeout_s", f"must be above 0, is {timeout_s:g}")
        request = request_of(prompt, options)
        if self._client is None:
            raise RuntimeError("the suite is not open; use it as a context manager")
        growing = self._client.stream(request, timeout_s)
        return AsyncStream(growing, request.params.seed, self._client.target)


class Stream:
    """AsyncStream without asyncio: iterate over it, or use it as a context manager."""

    def __init__(self, stream: AsyncStream, thread: LoopThread) -> None:
        self._stream = stream
        self._thread = thread

    @property
    def answer(self) -> Answer:
        """Raises TandemError before the stream has ended."""
        return self._stream.answer

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Piece:
        piece = self._thread.run(_next(self._stream))
        if piece is None:
            raise StopIteration
        return piece

    def close(self) -> None:
        """Cancel the request, if it still runs."""
        self._thread.run(self._stream.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Suite:
    """AsyncSuite without asyncio, made by `embedded` and `connect`: a context manager. Threads may
    share it. It runs an event loop on a thread of its own."""

    def __init__(self, suite: AsyncSuite) -> None:
        self._suite = suite
        self._thread = LoopThread("tandem")

    def __enter__(self) -> Self:
        self._thread.enter(self._suite)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what runs, and what was started in this process."""
        self._thread.leave(self._suite)

    def generate(self, prompt: str | Sequence[int], **options: Unpack[GenerationOptions]) -> Answer:
        """Return the whole answer to a text or token ids."""
        return self._thread.run(self._suite.generate(prompt, **options))

    def chat(self, messages: Sequence[Message], **options: Unpack[GenerationOptions]) -> Answer:
        """Return the whole answer to a conversation, in the model's own chat template."""
        return self._thread.run(self._suite.chat(messages, **options))

    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Stream:
        """Stream the answer to a text, token ids or a conversation, as it is committed."""
        return Stream(self._suite.stream(prompt, **options), self._thread)


def connect_async(
    endpoint: str,
    *,
    tls_ca: Place | None = None,
    tls_certificate: Place | None = None,
    tls_key: Place | None = None,
    call_key_file: Place | None = None,
    insecure: bool = False,
) -> AsyncSuite:
    """Return the suite that runs at `endpoint`: HOST:PORT or a URL, of its aggregator's HTTP or
    gRPC port. Beyond this machine, the connection needs TLS (three PEM files, as `tandem certs`
    makes them) and the key that the service asks for; `insecure` connects without. Raises
    InvalidArgument naming what is wrong."""
    try:
        place = parse_endpoint(endpoint)
    except ValueError as error:
        raise InvalidArgument("endpoint", str(error)) from None
    access = client_access(
        place.host,
        tls_ca=tls_ca,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        call_key_file=call_key_file,
        insecure=insecure,
    )

    async def opened(stack: AsyncExitStack) -> AggregatorClient:
        authorities = None if tls_ca is None else Path(tls_ca)
        target = await asyncio.to_thread(of_grpc, place, authorities)
        return await stack.enter_async_context(AggregatorClient(str(target), access=access))

    return AsyncSuite(opened)


def embedded_async(
    draft: Place | None = None,
    target: Place | None = None,
    *,
    demo: bool = False,
    engine_draft: str = AUTO,
    engine_target: str = AUTO,
    device_draft: str = "cpu",
    device_target: str = "cpu",
    dtype_draft: str | None = None,
    dtype_target: str | None = None,
    exits: str = "auto",
    threads: int = 0,
    batch_invariant: bool = False,
    device_documents: Iterable[Place] = (),
    cloud_documents: Iterable[Place] = (),
    index_folder: Place | None = None,
    embedding: str = "auto",
    rtt_s: float = 0.0,
    mbps: float | None = None,
    jitter_s: float = 0.0,
    mbps_up: float | None = None,
    mbps_down: float | None = None,
) -> AsyncSuite:
    """Return a suite of two models in this process, which talk over loopback gRPC; by default, of
    the best chat model on this machine, with its draft model if it has one, or of the included
    `demo` pair, a toy.

    `draft` and `target`: folders, GGUF files, names that `tandem models` lists, or hub models as
    NAME@COMMIT; `engine_…`: the back ends that compute them; `dtype_…`: None is float32, or int8
    for a model that was trained to draft. A target without a draft has its drafts looked up in the
    text. What is decided about models that nobody named is logged as a warning. `exits`: the
    target's early exits, a folder, "none" or "auto". `threads`: of each model's passes on a CPU; 0:
    as its engine sees fit. `batch_invariant`: compute each token of a GGUF target to the same bits
    in every pass. With `device_documents` or `cloud_documents` (files
    and folders), answers can be asked for with `rag=True`, and a draft that only drafts gives way
    to the target's own model; `index_folder` keeps both indexes. `rtt_s`, `mbps` (10^6 bit/s;
    `mbps_up` and `mbps_down` for one direction) and `jitter_s` emulate a link between edge and
    cloud. The models are loaded when the suite is entered. Raises CannotLoad for a model that
    cannot be read, or where none is on this machine; InvalidArgument naming any other argument.
    """
    if demo and draft is not None:
        raise InvalidArgument("demo", "sets both models; leave out target and draft")
    target_choice = choose_target(
        _text(target),
        demo=demo,
        device=device_target,
        dtype=dtype_target,
        exits=exits,
        engine=engine_target,
    )
    target_choice = replace(target_choice, batch_invariant=batch_invariant, threads=threads)
    draft_choice = choose_draft(
        _text(draft), target_choice, device=device_draft, dtype=dtype_draft, engine=engine_draft
    )
    shape = shape_from(rtt_s, mbps, jitter_s, mbps_up=mbps_up, mbps_down=mbps_down)
    link = None if shape == INSTANT else shape
    folder = None if index_folder is None else Path(index_folder)
    device = tuple(map(Path, device_documents))
    cloud = tuple(map(Path, cloud_documents))
    documents = SuiteDocuments(device, cloud, folder, embedding)
    documents.check()
    held = documents if device or cloud else None
    draft_choice = replace(draft_choice, threads=threads)
    if held is not None:
        draft_choice = with_documents(draft_choice, target_choice)
    looked_up = lookup_note(draft_choice, target_choice)
    for note in filter(None, (target_choice.note, looked_up, draft_choice.note)):
        log.warning(note)

    async def opened(stack: AsyncExitStack) -> AggregatorClient:
        pair = await asyncio.to_thread(load_pair, draft_choice, target_choice)
        suite = await stack.enter_async_context(EmbeddedSuite(pair, link=link, documents=held))
        for refused in suite.refused:
            log.warning(refused.line())
        return await stack.enter_async_context(AggregatorClient(suite.target))

    return AsyncSuite(opened)


def _blocking(make: Callable[Arguments, AsyncSuite], name: str) -> Callable[Arguments, Suite]:
    def made(*arguments: Arguments.args, **options: Arguments.kwargs) -> Suite:
        return Suite(make(*arguments, **options))

    made.__name__ = made.__qualname__ = name
    made.__doc__ = make.__doc__
    signature = inspect.signature(make).replace(return_annotation="Suite")
    made.__signature__ = signature  # type: ignore[attr-defined]  # which `help` shows
    return made


connect = _blocking(connect_async, "connect")
embedded = _blocking(embedded_async, "embedded")


async def _next(stream: AsyncStream) -> Piece | None:
    """Return the next piece, or None at the end: StopAsyncIteration cannot leave a task."""
    return await anext(stream, None)


def _text(place: Place | None) -> str | None:
    return None if place is None else str(place)
