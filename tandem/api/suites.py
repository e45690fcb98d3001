"""Suites for Python programs, in this process or elsewhere. Invariant: leaving a stream early ends
the request on every service; when a suite is closed, nothing of it listens and no thread runs."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # ends its executors after `_close_all`
import inspect
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import ParamSpec, Self, Unpack

from tandem.api.access import Place, client_access
from tandem.api.argument_types import typed_arguments
from tandem.api.errors import typed
from tandem.api.options import (
    GenerationOptions,
    Message,
    conversation,
    given_options,
    request_of,
)
from tandem.api.results import Answer, Piece, Progress, answer_of
from tandem.backends.model_source import AUTO
from tandem.core.errors import FailedPrecondition, InvalidArgument
from tandem.generation.client import AggregatorClient, Generated
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
        self, messages: str | Sequence[Message], **options: Unpack[GenerationOptions]
    ) -> Answer:
        """Return the whole answer to a conversation, or to a text as its only turn, in the model's
        own chat template."""
        async with self.stream(conversation(messages), **options) as stream:
            async for _ in stream:
                pass
            return stream.answer

    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> AsyncStream:
        """Stream the answer to a text, token ids or a conversation, as it is committed."""
        given = given_options(options)
        timeout_s = given["timeout_s"]
        if not timeout_s > 0:
            raise InvalidArgument("timeout_s", f"must be above 0, is {timeout_s:g}")
        request = request_of(prompt, given)
        if self._client is None:
            raise FailedPrecondition("the suite is not open; use it with 'async with'")
        growing = self._client.stream(request, timeout_s)
        return AsyncStream(growing, request.params.seed, self._client.target)


class Stream:
    """AsyncStream without asyncio: iterate over it, or use it as a context manager."""

    def __init__(self, stream: AsyncStream, thread: LoopThread, suite: Suite) -> None:
        self._stream = stream
        self._thread = thread
        self._suite = suite  # which is closed when nobody holds it any more

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
        with suppress(FailedPrecondition):  # it ended with its suite
            self._thread.run(self._stream.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Suite:
    """AsyncSuite without asyncio, made by `embedded` and `connect`. Threads may share it, and it
    works where an event loop runs, as in a notebook: its own is on another thread.

    It opens when it is entered (`with`) or first asked, and stays open until it is left or closed,
    until nothing refers to it any more, or until the program ends."""

    def __init__(self, suite: AsyncSuite) -> None:
        self._suite = suite
        self._changing = threading.Lock()  # `_thread` and `_closed`
        self._thread: LoopThread | None = None
        self._closed = False

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._thread is not None:  # may be called on any thread, even that of the loop
            threading.Thread(target=self._thread.leave, args=(self._suite,)).start()

    def close(self) -> None:
        """End what runs, and what was started in this process. What is asked then is
        FailedPrecondition."""
        with self._changing:
            thread, self._thread, self._closed = self._thread, None, True
        if thread is not None:
            thread.leave(self._suite)

    def generate(self, prompt: str | Sequence[int], **options: Unpack[GenerationOptions]) -> Answer:
        """Return the whole answer to a text or token ids."""
        return self._opened().run(self._suite.generate(prompt, **options))

    def chat(
        self, messages: str | Sequence[Message], **options: Unpack[GenerationOptions]
    ) -> Answer:
        """Return the whole answer to a conversation, or to a text as its only turn, in the model's
        own chat template."""
        return self._opened().run(self._suite.chat(messages, **options))

    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Stream:
        """Stream the answer to a text, token ids or a conversation, as it is committed."""
        thread = self._opened()
        return Stream(self._suite.stream(prompt, **options), thread, self)

    def _opened(self) -> LoopThread:
        with self._changing:
            if self._closed:
                raise FailedPrecondition("the suite is closed")
            if self._thread is None:
                thread = LoopThread("tandem")
                thread.enter(self._suite)
                self._thread = thread
                _open_suites.add(self)
            return self._thread


_open_suites: weakref.WeakSet[Suite] = weakref.WeakSet()


def _close_all() -> None:
    """Close what is open once the program's own threads have ended, as the interpreter waits for
    them too; not those of executors, which end after this."""
    process = sys.modules.get("concurrent.futures.process")
    executors = {
        *concurrent.futures.thread._threads_queues,
        *getattr(process, "_threads_wakeups", ()),
    }
    for thread in threading.enumerate():
        ours = thread is threading.current_thread() or thread in executors
        if not (ours or thread.daemon):
            thread.join()
    for suite in list(_open_suites):
        suite.close()


# `atexit` would be too late: closing needs executors, which end before what is registered there.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]
os.register_at_fork(after_in_child=_open_suites.clear)  # their threads are the parent's


@typed_arguments
def connect_async(
    endpoint: str,
    *,
    tls_ca: Place | None = None,
    tls_certificate: Place | None = None,
    tls_key: Place | None = None,
    call_key_file: Place | None = None,
    insecure: bool = False,
) -> AsyncSuite:
    """Return the suite that runs elsewhere. Beyond this machine, the connection needs TLS and the
    key that the service asks for.

    Args:
        endpoint: HOST:PORT or a URL, of its aggregator's HTTP or gRPC port.
        tls_ca: PEM file of the authority that signed the service's certificate, as `tandem certs`
            makes it.
        tls_certificate: PEM file of the caller's certificate.
        tls_key: PEM file of its key.
        call_key_file: file of the key that the service asks for.
        insecure: connect without TLS and key.

    Raises InvalidArgument naming what is wrong."""
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


@typed_arguments
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
    device_documents: Sequence[Place] = (),
    cloud_documents: Sequence[Place] = (),
    index_folder: Place | None = None,
    embedding: str = "auto",
    rtt_s: float = 0.0,
    mbps: float | None = None,
    jitter_s: float = 0.0,
    mbps_up: float | None = None,
    mbps_down: float | None = None,
) -> AsyncSuite:
    """Return a suite of two models in this process, which talk over loopback gRPC. They are loaded
    when the suite opens.

    Args:
        draft: the draft model: a folder, a GGUF file, a name that `tandem models` lists, or a hub
            model as NAME@COMMIT. None: the one that was made for the target, or drafts that are
            looked up in the text.
        target: the target model, named alike. None: the best chat model on this machine.
        demo: take the included demo pair, a toy.
        engine_draft: back end that computes the draft model.
        engine_target: back end that computes the target model.
        device_draft: device of the draft model.
        device_target: device of the target model.
        dtype_draft: data type of the draft model. None: float32, or int8 for a model that was
            trained to draft.
        dtype_target: data type of the target model. None: float32.
        exits: the target's early exits: a folder, "none" or "auto".
        threads: CPU threads of each model's passes. 0: as its engine sees fit.
        batch_invariant: compute each token of a GGUF target to the same bits in every pass.
        device_documents: files and folders for answers with `rag=True`, which stay on the device. A
            draft that only drafts then gives way to the target's own model.
        cloud_documents: files and folders for these answers that the cloud has.
        index_folder: keep both indexes of documents in this folder. None: in a temporary one.
        embedding: how documents are found: "auto", "lexical", or an embedding model.
        rtt_s: round trip of an emulated link between edge and cloud, in seconds.
        mbps: bandwidth of that link in 10^6 bit/s. None: not limited.
        jitter_s: jitter of that link, in seconds.
        mbps_up: its bandwidth to the cloud, where it differs.
        mbps_down: its bandwidth from the cloud, where it differs.

    What is decided about models that nobody named is logged as a warning. Raises CannotLoad for a
    model that cannot be read, or where none is on this machine; InvalidArgument naming any other
    argument."""
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
    @wraps(make)
    def made(*arguments: Arguments.args, **options: Arguments.kwargs) -> Suite:
        return Suite(make(*arguments, **options))

    made.__name__ = made.__qualname__ = name
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
