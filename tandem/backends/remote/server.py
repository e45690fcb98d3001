"""The connection to a server that computes the model: one event loop on a thread of its own, on
which every request to it runs.

A request is a future that any thread may wait for or cancel; cancelling closes the connection,
which is how a server learns that its slot is free. Errors are our own: what the server cannot do
now is `EngineFailed`, which ends in a retry elsewhere or a refusal, never in another text. They
reach callers, so none has the server's address."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx2

from tandem.backends.interface import EngineFailed
from tandem.backends.remote.dialects import Nonsense
from tandem.core.errors import InvalidArgument, ResourceExhausted, os_words

Result = TypeVar("Result")

CONNECT_S = 5.0
MOST_WAIT_S = 5.0
"""A server that asks for more patience than this is busy, and the caller hears so."""
MOST_REFUSALS = 3
BUSY = frozenset({429, 503})
EVENT = "data:"
LAST_EVENT = "[DONE]"
MOST_BYTES = 2**26
"""Of an answer, or of one event of a stream; 64 rows of 64 tokens take some 200 kB."""
SHOWN = 300
"""Characters of a server's own words that an error repeats."""


class RefusedByServer(EngineFailed):
    """The server answers with a `status` of HTTP that is an error."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class RemoteServer:
    """A server at `url`, asked with `key` if it has one. `silent_s`: how long it may say nothing
    within a request; a long prompt is one silence."""

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        certificates: str | None = None,
        silent_s: float = 300.0,
        connections: int = 256,
    ) -> None:
        """Start the loop; nothing is asked yet. `certificates`: a file of authorities to trust in
        place of the system's. Raises InvalidArgument naming the setting."""
        self.url = url.rstrip("/")
        self._key = key
        verify = True if certificates is None else _trusting(certificates)
        if not (key.isascii() and key.isprintable() and " " not in key):
            # Not quoted: whoever sees the error need not know the key.
            raise InvalidArgument("target_key_file", "must hold one key, a line of ASCII letters")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            if httpx2.URL(self.url).scheme not in ("http", "https"):
                raise InvalidArgument("target_url", f"{url!r} is not http://… or https://…")
            self._client = httpx2.AsyncClient(
                base_url=self.url,
                headers=headers,
                verify=verify,
                timeout=httpx2.Timeout(silent_s, connect=CONNECT_S),
                follow_redirects=False,  # the key is for this address alone
                limits=httpx2.Limits(max_connections=connections),
            )
        except httpx2.InvalidURL as error:
            raise InvalidArgument("target_url", f"{url!r}: {error}") from error
        self.connections_made = 0
        """For `post` and `events`: behind a new one there may be another server than before."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="remote")
        self._thread.start()

    def run(self, asking: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Run a coroutine on the loop. Its errors are this module's."""
        return asyncio.run_coroutine_threadsafe(asking, self._loop)

    def close(self) -> None:
        """End what is being asked, the connections and the thread."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(CONNECT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CONNECT_S)
            self._loop.close()

    async def _end(self) -> None:
        asking = asyncio.all_tasks() - {asyncio.current_task()}
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self._client.aclose()
        await self._loop.shutdown_asyncgens()

    async def get(self, path: str) -> Any:
        """Return the JSON of a GET; None where the server has no such route. Raises
        EngineFailed."""
        async with self._sent("GET", path) as answer:
            text = await self._text(answer)
        if answer.status_code in (404, 405):
            return None
        self._check(answer, text)
        return _json(text)

    async def post(self, path: str, body: object) -> Any:
        """Return the JSON of an answer. Raises EngineFailed, ResourceExhausted."""
        async with self._asked(path, body) as answer:
            return _json(await self._text(answer))

    async def events(self, path: str, body: object) -> AsyncGenerator[Any, None]:
        """Yield the JSON of each event of a streamed answer. Raises as `post`."""
        async with self._asked(path, body) as answer:
            async for line in self._lines(answer):
                text = line[len(EVENT) :].strip() if line.startswith(EVENT) else ""
                if text == LAST_EVENT:
                    return
                if text:
                    yield self._event(text)

    @asynccontextmanager
    async def _asked(self, path: str, body: object) -> AsyncIterator[httpx2.Response]:
        """Yield an answer that has begun well. A busy server is asked again when it says so."""
        refusals = 0
        while True:
            async with self._sent("POST", path, body) as answer:
                if answer.status_code not in BUSY:
                    self._check(answer, "" if answer.is_success else await self._text(answer))
                    yield answer
                    return
            refusals += 1
            wait_s = _retry_after_s(answer)
            if refusals == MOST_REFUSALS or wait_s > MOST_WAIT_S:
                why = f"the target's server is busy; try again in {wait_s:.3g} s"
                raise ResourceExhausted(why)
            await asyncio.sleep(wait_s)

    @asynccontextmanager
    async def _sent(
        self, method: str, path: str, body: object = None
    ) -> AsyncIterator[httpx2.Response]:
        request = self._client.build_request(method, path, json=body)
        if method == "POST":
            request.extensions["trace"] = self._traced
        try:
            answer = await self._client.send(request, stream=True)
        except httpx2.HTTPError as error:
            raise self._lost(error) from error
        try:
            yield answer
        finally:
            await answer.aclose()

    async def _traced(self, event: str, about: object) -> None:
        if event == "connection.connect_tcp.complete":
            self.connections_made += 1

    async def _text(self, answer: httpx2.Response) -> str:
        """Read an answer to its end. Raises Nonsense where it is endless."""
        parts = bytearray()
        async for part in self._bytes(answer):
            parts += part
            _check_size(parts)
        return parts.decode("utf-8", "replace")

    async def _lines(self, answer: httpx2.Response) -> AsyncIterator[str]:
        left = bytearray()
        async for part in self._bytes(answer):
            *lines, rest = (left + part).split(b"\n")
            left = bytearray(rest)
            _check_size(left)
            for line in lines:
                yield line.decode("utf-8", "replace").rstrip("\r")
        if left:
            yield left.decode("utf-8", "replace")

    async def _bytes(self, answer: httpx2.Response) -> AsyncIterator[bytes]:
        try:
            async for part in answer.aiter_bytes():
                yield part
        except httpx2.HTTPError as error:
            raise self._lost(error) from error

    def _check(self, answer: httpx2.Response, text: str) -> None:
        if answer.is_success:
            return
        status = answer.status_code
        words = self._words(text)
        if answer.is_redirect:
            words = "redirects are not followed"
        says = "refuses the key" if status in (401, 403) else f"answers {status}"
        raise RefusedByServer(f"the target's server {says}: {words}", status)

    def _event(self, text: str) -> Any:
        event = _json(text)
        if isinstance(event, dict) and "error" in event:
            raise EngineFailed(f"the target's server failed: {self._words(text)}")
        return event

    def _lost(self, error: Exception) -> EngineFailed:
        if isinstance(error, httpx2.TimeoutException):
            why = "says nothing"
        else:
            why = f"cannot be reached ({self._words(str(error)) or type(error).__name__})"
        return EngineFailed(f"the target's server {why}")

    def _words(self, text: str) -> str:
        """Return what is said of an error, in one line: without the key, which some servers repeat
        when they refuse it, and without where the server is, which TLS names."""
        try:
            said = json.loads(text)
            error = said.get("error", said)
            text = str(error.get("message", error) if isinstance(error, dict) else error)
        except (ValueError, AttributeError, RecursionError):
            pass
        for ours in (self._key, httpx2.URL(self.url).host):
            text = text.replace(ours, "…") if ours else text
        return " ".join("".join(c if c.isprintable() else " " for c in text[:SHOWN]).split())


def _trusting(certificates: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=certificates)
    except ssl.SSLError as error:
        raise InvalidArgument("target_ca", f"{certificates}: holds no certificate") from error
    except OSError as error:
        raise InvalidArgument("target_ca", f"{certificates}: {os_words(error)}") from error


def _check_size(parts: bytearray) -> None:
    if len(parts) > MOST_BYTES:
        raise Nonsense(f"an answer of more than {MOST_BYTES >> 20} MiB")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Nonsense("an answer is not JSON") from error
    except RecursionError as error:
        raise Nonsense("an answer is nested too deeply") from error


def _retry_after_s(answer: httpx2.Response) -> float:
    try:
        return max(0.05, float(answer.headers.get("Retry-After", "1")))
    except ValueError:  # a date
        return 1.0
