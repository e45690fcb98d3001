"""A target model that an unmodified vLLM or SGLang computes, asked over HTTP.

The server keeps no session: a session here is the text itself, and each pass asks for the rows
after its last tokens, which the server's prefix cache makes cheap. What one token after the other
is fed to, as the target alone, is read from one streamed answer: the server writes its likeliest
continuation, and as long as that is what is fed, no further request is made.

The server tells of the `known_tokens` likeliest tokens of a position. Their logits are exact; what
is left of the probability is spread evenly over all others, each of which then has at most what
the least likely known one has. So greedy choices, and distributions cut to at most `known_tokens`
tokens, are the model's own (`tandem.core.known_logits`)."""

from __future__ import annotations

import hashlib
import secrets
from asyncio import Lock
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import aclosing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.backends.interface import (
    Capabilities,
    EngineDefaults,
    EngineFailed,
    ForwardCancelled,
    ForwardRequest,
    Logits,
    Session,
    never,
)
from tandem.backends.remote.continuation import Continuation
from tandem.backends.remote.dialects import Dialect, Nonsense, RowsWanted, TopLogprobs
from tandem.backends.remote.server import RemoteServer
from tandem.backends.request_checks import check_batch, check_capacity, check_length, own_session
from tandem.backends.text_session import TextSession

BYTES_PER_TOKEN = 8
"""What a session holds here of each token; keys and values are the server's."""
ASK_CANCELLED_EVERY_S = 0.05


Check = Callable[[], Awaitable[None]]


async def unchanged() -> None:
    """Find nothing: the check of a server that is always the same."""


class RemoteEngine(EngineDefaults):
    """Implements `tandem.backends.interface.Engine` and `DefersPasses`."""

    capabilities = Capabilities(forks=True, cancellation=True)
    kv_bytes_per_token = BYTES_PER_TOKEN

    def __init__(
        self,
        server: RemoteServer,
        dialect: Dialect,
        *,
        served_name: str,
        model_name: str,
        vocabulary_size: int,
        vocabulary_hash: str,
        context_length: int,
        known_tokens: int,
        eos_token_ids: frozenset[int] = frozenset(),
        logits: int = 0,
        check: Check = unchanged,
    ) -> None:
        """Take over a connection.

        Args:
            served_name: what the server calls the model.
            logits: how many the model has; those beyond the vocabulary stand for no token. 0: as
                many as the vocabulary.
            check: raises where the server is not what it was, after it may have begun anew."""
        self.model_name = model_name
        self.vocabulary_size = vocabulary_size
        self.vocabulary_hash = vocabulary_hash
        self.context_length = context_length
        self.known_tokens = known_tokens
        self.eos_token_ids = eos_token_ids
        self.more_logprobs = f"{dialect.name}'s {dialect.more_logprobs}"
        self._server = server
        self._dialect = dialect
        self._served_name = served_name
        self._open: set[RemoteSession] = set()
        self._logits = max(logits, vocabulary_size)
        self._check = check
        self._checked = server.connections_made
        self._checking = Lock()

    @property
    def kv_bytes_in_use(self) -> int:
        return sum(session.own_capacity for session in self._open) * self.kv_bytes_per_token

    @property
    def sessions_open(self) -> int:
        return len(self._open)

    def open(self, capacity: int, spare: int = 0) -> RemoteSession:
        check_capacity(capacity, self.context_length)
        return RemoteSession(self._open, capacity, secrets.token_hex(16))

    def open_for(self, owner: str, capacity: int, spare: int = 0) -> RemoteSession:
        """Open a session of `owner`, whose texts alone share the server's prefix cache."""
        check_capacity(capacity, self.context_length)
        return RemoteSession(self._open, capacity, hashlib.sha256(owner.encode()).hexdigest())

    def fork(self, parent: Session, length: int, capacity: int) -> RemoteSession:
        source = own_session(parent, RemoteSession, self._open)
        check_length(length, source.length)
        check_capacity(capacity, self.context_length, length)
        session = RemoteSession(self._open, capacity, source.salt)
        session.token_ids += source.token_ids[:length]
        session.own_capacity -= length
        return session

    def begin(self, batch: Sequence[ForwardRequest]) -> RemotePass:
        """Ask for a pass and return it at once. Raises InvalidArgument, before anything is
        asked."""
        sessions = [own_session(request.session, RemoteSession, self._open) for request in batch]
        check_batch(batch, self)
        asked = [
            self._ask(session, request) if request.logits_to_keep else None
            for session, request in zip(sessions, batch, strict=True)
        ]
        return RemotePass(self, list(batch), sessions, asked)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        begun = self.begin(batch)
        while not cancelled():
            if begun.wait(ASK_CANCELLED_EVERY_S):
                return begun.collect()
        begun.cancel()
        raise ForwardCancelled("cancelled while the server computed")

    def _ask(self, session: RemoteSession, request: ForwardRequest) -> Future[list[TopLogprobs]]:
        if request.logits_to_keep == 1:
            return self._server.run(self._next_row(session, request.token_ids))
        session.stop_continuation()
        text = (*session.token_ids, *request.token_ids)
        wanted = RowsWanted(text, request.logits_to_keep, self.known_tokens)
        return self._server.run(self._rows(session, wanted))

    async def _next_row(
        self, session: RemoteSession, token_ids: tuple[int, ...]
    ) -> list[TopLogprobs]:
        continuation = session.continuation
        if continuation is not None:
            row = await continuation.row_after(session.length, token_ids)
            if row is not None:
                return [self._within(row)]
            continuation.stop()
        text = (*session.token_ids, *token_ids)
        left = session.capacity - len(text) + 1
        body = self._dialect.stream_body(
            text, left, self.known_tokens, model=self._served_name, salt=session.salt
        )
        events = self._checked_events(body)
        continuation = Continuation(len(text), events, self._dialect, self.known_tokens)
        session.continuation = continuation
        row = await continuation.row_after(len(text), ())
        if row is None:
            raise Nonsense("the stream ended without a token")
        return [self._within(row)]

    async def _rows(self, session: RemoteSession, wanted: RowsWanted) -> list[TopLogprobs]:
        body = self._dialect.rows_body(wanted, model=self._served_name, salt=session.salt)
        answer = await self._server.post(self._dialect.path(), body)
        await self._check_again()
        return [self._within(row) for row in self._dialect.rows(answer, wanted)]

    async def _checked_events(self, body: object) -> AsyncIterator[Any]:
        """Yield the events of a stream, none before the server is known to be what it was."""
        async with aclosing(self._server.events(self._dialect.path(), body)) as events:
            async for event in events:
                await self._check_again()
                yield event

    async def _check_again(self) -> None:
        """Check the server once more if there were new connections since: there may be another one
        behind them. Raises what the check does."""
        async with self._checking:
            made = self._server.connections_made
            if made != self._checked:
                await self._check()
                self._checked = made

    def _within(self, row: TopLogprobs) -> TopLogprobs:
        """Return a row without what stands for no token: models have more logits than their
        tokenizer has tokens, to be of a round size."""
        if any(token_id >= self._logits for token_id, _ in row):
            raise Nonsense("a row has tokens that the vocabulary does not have")
        return tuple(entry for entry in row if entry[0] < self.vocabulary_size)

    def logits_of(self, row: TopLogprobs) -> NDArray[np.float32]:
        """Return a row [V] of what the server tells."""
        token_ids = np.array([token_id for token_id, _ in row], np.intp)
        logprobs = np.array([logprob for _, logprob in row], np.float64)
        others = self.vocabulary_size - len(row)
        rest = max(0.0, 1.0 - float(np.exp(logprobs).sum()))
        with np.errstate(divide="ignore"):
            each = np.log(rest / others) if others else -np.inf
        # Where fewer are known than was promised, no other is (`check_row`).
        others_are = min(each, float(logprobs.min(initial=0.0)))
        if len(row) < min(self.known_tokens, self.vocabulary_size):
            others_are = -np.inf
        logits = np.full(self.vocabulary_size, others_are, np.float32)
        logits[token_ids] = logprobs
        return logits

    def close(self) -> None:
        """End the connection."""
        self._server.close()

    def nonsense(self, error: Nonsense) -> EngineFailed:
        return EngineFailed(f"the target's server answers nonsense: {error}")


class RemoteSession(TextSession):
    """The text of a session. Texts with another `salt` find nothing of it at the server.
    `own_capacity`: what it does not share with the session that it was forked from."""

    def __init__(self, open_sessions: set[Any], capacity: int, salt: str) -> None:
        super().__init__(open_sessions, capacity)
        self.own_capacity = capacity
        self.salt = salt
        self.continuation: Continuation | None = None

    def stop_continuation(self) -> None:
        """Free the server's slot, if it writes on."""
        continuation, self.continuation = self.continuation, None
        if continuation is not None:
            continuation.stop()

    def close(self) -> None:
        self.stop_continuation()
        super().close()


class RemotePass:
    """A pass that the server computes. Lengths change when it is collected, on the engine's
    thread."""

    def __init__(
        self,
        engine: RemoteEngine,
        batch: list[ForwardRequest],
        sessions: list[RemoteSession],
        asked: list[Future[list[TopLogprobs]] | None],
    ) -> None:
        self._engine = engine
        self._batch = batch
        self._sessions = sessions
        self._asked = asked
        self._lengths = [session.length for session in sessions]
        self._futures = [future for future in asked if future is not None]

    def done(self) -> bool:
        return all(future.done() for future in self._futures)

    def add_done_callback(self, fn: Callable[[Any], object], /) -> None:
        """Call `fn` once all of it is there, at once if it is."""
        left = len(self._futures)
        if not left:
            fn(self)

        def one_done(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                fn(self)

        for future in self._futures:
            future.add_done_callback(one_done)

    def wait(self, seconds: float) -> bool:
        """Wait for it, so long at most; return whether it is there."""
        for future in self._futures:
            try:
                future.exception(seconds)
            except TimeoutError:
                return False
            except CancelledError:
                continue
        return True

    def cancel(self) -> None:
        """Free the server's slots; the sessions are as before."""
        for future, session in zip(self._asked, self._sessions, strict=True):
            if future is not None and not future.done():
                future.cancel()
                session.stop_continuation()

    def collect(self) -> list[Logits]:
        """Commit the tokens and return the logits. Raises EngineFailed, ResourceExhausted, with
        all sessions as before."""
        answers = list[Logits]()
        none = np.empty((0, self._engine.vocabulary_size), np.float32)
        for future, session in zip(self._asked, self._sessions, strict=True):
            try:
                rows = [] if future is None else future.result()
            except Nonsense as error:
                session.stop_continuation()
                raise self._engine.nonsense(error) from error
            except CancelledError as error:
                raise ForwardCancelled("cancelled while the server computed") from error
            except BaseException:
                session.stop_continuation()
                raise
            answers.append(
                np.stack([self._engine.logits_of(row) for row in rows]) if rows else none
            )
        for session, request, length in zip(
            self._sessions, self._batch, self._lengths, strict=True
        ):
            assert session.length == length, "nothing else changes a session during its pass"
            session.commit(request)
        return answers
