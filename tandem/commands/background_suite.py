"""An embedded suite on a thread of its own, so that the main thread can wait for a person.

Invariant: when the context is left, by whatever way, nothing listens and the thread has ended. Must
not import grpc or torch.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Self

from tandem.commands.embedded import EmbeddedSuite
from tandem.commands.models import ModelPair
from tandem.rpc.process import run_loop


class BackgroundSuite:
    """Serves `pair` over HTTP at `url`; use as a context manager on the main thread."""

    def __init__(self, pair: ModelPair) -> None:
        self._pair = pair
        self._thread = threading.Thread(target=self._run, name="suite")
        self._settled = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.url = ""

    def __enter__(self) -> Self:
        """Returns once it serves; raises what kept it from that."""
        self._thread.start()
        self._settled.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(self, *reason: object) -> None:
        assert self._loop is not None
        assert self._leave is not None
        self._loop.call_soon_threadsafe(self._leave.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            run_loop(self._serve())
        except BaseException as error:  # raised again on the main thread
            self._failure = error
        finally:
            self._settled.set()

    async def _serve(self) -> None:
        async with EmbeddedSuite(self._pair, http=True) as suite:
            self.url = suite.http_url
            self._loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
            self._settled.set()
            await self._leave.wait()
