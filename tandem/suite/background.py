"""Asynchronous code on an event loop of its own thread, for callers that have none. Invariant: when
a context is left, by whatever way, nothing listens and the thread has ended."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Self, TypeVar

from tandem.core.errors import FailedPrecondition
from tandem.net.process import run_loop
from tandem.runtime.tenant_memories import MemoryLimits
from tandem.suite.embedded import EmbeddedSuite
from tandem.suite.models import ModelPair

Value = TypeVar("Value")


class LoopThread:
    """An event loop that runs on a thread from `start` to `stop`."""

    def __init__(self, name: str) -> None:
        # A daemon: who forgets to stop it can still leave the interpreter.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = threading.Event()
        self._submitting = threading.Lock()  # what comes before the loop's end is cancelled by it
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None

    def start(self) -> None:
        self._thread.start()
        self._started.wait()

    def stop(self) -> None:
        """Stop the loop, and cancel tasks that still run. Idempotent."""
        with self._submitting:
            alive = self._thread.is_alive()
            if alive and not self._stopped:
                assert self._loop is not None
                assert self._leave is not None
                self._loop.call_soon_threadsafe(self._leave.set)
            self._stopped = True
        if alive:
            self._thread.join()

    def enter(self, context: AbstractAsyncContextManager[Any]) -> None:
        """Start, and enter `context` there; when that fails, the thread has ended."""
        self.start()
        try:
            self.run(context.__aenter__())
        except BaseException:
            self.stop()
            raise

    def leave(self, context: AbstractAsyncContextManager[Any]) -> None:
        """Leave `context` and stop, even when that fails. Of a thread that has ended, or is another
        process's, nothing is left to leave."""
        try:
            if self._thread.is_alive():
                self.run(context.__aexit__(None, None, None))
        finally:
            self.stop()

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Return what `work` returns, or raise what it raises. An interrupted caller cancels it.
        Raises FailedPrecondition where the thread has ended, ends meanwhile, or is that of the
        process that this one was forked from."""
        assert self._loop is not None, "not started"
        with self._submitting:
            if self._stopped or not self._thread.is_alive():
                work.close()
                raise FailedPrecondition("the suite is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise FailedPrecondition("the suite was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    def _run(self) -> None:
        run_loop(self._stay())

    async def _stay(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave = asyncio.Event()
        self._started.set()
        await self._leave.wait()


class BackgroundSuite:
    """Serves `pair` over HTTP at `url`; a context manager. `memory`: as of `EmbeddedSuite`."""

    def __init__(self, pair: ModelPair, memory: MemoryLimits | None = None) -> None:
        self._suite = EmbeddedSuite(pair, http=True, memory=memory)
        self._thread = LoopThread("suite")

    @property
    def url(self) -> str:
        return self._suite.http_url

    def __enter__(self) -> Self:
        """Start the suite, and return once it serves; raises what kept it from that."""
        self._thread.enter(self._suite)
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.leave(self._suite)
