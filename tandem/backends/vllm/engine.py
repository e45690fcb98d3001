"""The engine over vLLM's workers. vLLM's own engine is built and never stepped: its cache of pages
is asked for room, and its workers run the passes that are made up here.

Invariant: an error of a worker is final. What the workers know may then differ from what is known
here, so every later pass fails too, and the service says that it does not serve."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tandem.backends.interface import (
    Capabilities,
    EngineDefaults,
    EngineFailed,
    ForwardCancelled,
    ForwardRequest,
    Logits,
    PrefixTotals,
    Session,
    never,
)
from tandem.backends.request_checks import (
    check_batch,
    check_capacity,
    check_length,
    own_session,
)
from tandem.backends.vllm.logits_worker import LogitsReader, PassAnswer, RefusedReading, read
from tandem.backends.vllm.paged_session import Fed, PagedSession, PagePool
from tandem.core.errors import InvalidArgument


class VllmEngine(EngineDefaults):
    """Implements `tandem.backends.interface.Engine`. A fork begins with its parent's tokens and
    finds their pages in the prefix cache; the last, part-filled one is computed again. A pass over
    more tokens than vLLM takes at once is made in pieces, between which it can be cancelled."""

    capabilities = Capabilities(forks=True, cancellation=True, readers=True)

    def __init__(
        self,
        core: Any,
        *,
        model_name: str,
        vocabulary_hash: str,
        vocabulary_size: int,
        eos_token_ids: frozenset[int],
        kv_bytes_per_token: int,
    ) -> None:
        """Take over `core`, an EngineCore whose workers have the extension LogitsWorker."""
        self.model_name = model_name
        self.vocabulary_hash = vocabulary_hash
        self.vocabulary_size = vocabulary_size
        self.eos_token_ids = frozenset(
            token_id for token_id in eos_token_ids if token_id < vocabulary_size
        )
        self.context_length = int(core.vllm_config.model_config.max_model_len)
        self.kv_bytes_per_token = kv_bytes_per_token
        self._core = core
        self.pages = PagePool(core)
        self._failure: str = ""

    @property
    def kv_bytes_in_use(self) -> int:
        held = sum(session.own_capacity for session in self.pages.sessions)
        return held * self.kv_bytes_per_token

    @property
    def sessions_open(self) -> int:
        return len(self.pages.sessions)

    @property
    def prefix_totals(self) -> PrefixTotals:
        """Lookups and hits of vLLM's prefix cache: it is queried when the first pages of a text are
        allocated."""
        return self.pages.prefix_totals

    def open(self, capacity: int, spare: int = 0) -> PagedSession:
        check_capacity(capacity, self.context_length)
        return PagedSession(self.pages, capacity, salt=secrets.token_hex(16))

    def open_for(self, owner: str, capacity: int, spare: int = 0) -> PagedSession:
        """Open a session of `owner`: the owner's salt is in the hash of its first page, and so in
        those of all that follow."""
        check_capacity(capacity, self.context_length)
        salt = hashlib.sha256(owner.encode()).hexdigest()
        return PagedSession(self.pages, capacity, salt=salt)

    def fork(self, parent: Session, length: int, capacity: int) -> PagedSession:
        source = own_session(parent, PagedSession, self.pages.sessions)
        check_length(length, source.length)
        check_capacity(capacity, self.context_length, length)
        return PagedSession(self.pages, capacity, source.tokens[:length], salt=source.salt)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        sessions = [
            own_session(request.session, PagedSession, self.pages.sessions) for request in batch
        ]
        check_batch(batch, self)
        feeds = [
            self.pages.fed(request, session)
            for request, session in zip(batch, sessions, strict=True)
        ]
        try:
            while waiting := [fed for fed in feeds if fed.left]:
                if cancelled():
                    raise ForwardCancelled("cancelled between two chunks of a pass")
                self._piece(waiting)
        except BaseException:
            for session in sessions:
                session.forget_beyond(session.length)
            raise
        for fed in feeds:
            fed.session.tokens = fed.whole
        return [self._answer(request, fed) for request, fed in zip(batch, feeds, strict=True)]

    def _answer(self, request: ForwardRequest, fed: Fed) -> Logits:
        none = np.empty((0, self.vocabulary_size), dtype=np.float32)
        if request.reader is None:
            return np.concatenate(fed.logits or [none])
        result = fed.logits[0] if fed.read else read(request.reader, np.concatenate(fed.logits))
        request.on_read(
            InvalidArgument(result.field, result.why)
            if isinstance(result, RefusedReading)
            else result
        )
        return none

    def _piece(self, waiting: Sequence[Fed]) -> None:
        """Run one pass of the workers."""
        taken, scheduled = self.pages.next_pass(waiting)
        requests = {fed.session.request.request_id: fed for fed in taken if fed.rows}
        readers = {}
        for name, fed in requests.items():
            if fed.request.reader is not None and fed.rows == fed.request.logits_to_keep:
                readers[name] = fed.request.reader
                fed.read = True
        rows = {name: fed.rows for name, fed in requests.items()}
        sent = {fed.session.request.request_id: fed.session.sent for fed in taken}
        answers = self._run(scheduled, sent, rows, readers)
        for fed, answer in zip(requests.values(), answers, strict=True):
            fed.logits.append(answer)
        for fed in taken:
            fed.session.computed += fed.count
            fed.session.sent = len(fed.whole)

    def _run(
        self,
        scheduled: Any,
        sent: Mapping[str, int],
        rows: Mapping[str, int],
        readers: Mapping[str, LogitsReader],
    ) -> PassAnswer:
        if self._failure:
            raise EngineFailed(self._failure)
        try:
            arguments = (scheduled, sent, rows, readers, self.vocabulary_size)
            answers = self._core.model_executor.collective_rpc("tandem_pass", args=arguments)
        except Exception as error:
            self._failure = f"vLLM's workers failed: {error}"
            raise EngineFailed(self._failure) from error
        return next((answer for answer in answers if answer is not None), [])

    def shut_down(self) -> None:
        """End the workers; they also end with this process."""
        self._core.shutdown()
