"""A draft model without weights: what followed the longest repeated end of the text follows again
(prompt lookup). Invariant: its distribution after a context is a function of that context alone, so
it is judged like any other draft model's, and every rule stays exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.backends.interface import (
    Capabilities,
    EngineDefaults,
    ForwardCancelled,
    ForwardRequest,
    Logits,
    Session,
    never,
)
from tandem.backends.model_source import LoadedModel, ModelChoice, find_source, is_gguf
from tandem.backends.request_checks import (
    check_batch,
    check_capacity,
    check_length,
    own_session,
)
from tandem.backends.text_session import TextSession
from tandem.core.errors import InvalidArgument
from tandem.core.ngram_index import LONGEST_MATCH, NgramIndex
from tandem.text import ComparableTokenizer

SURE_MATCH = 2
"""A shorter repeated end is a guess."""
GUESS_WEIGHT = 0.4
"""Of the follower of one repeated token; three others share the rest."""
_GUESSES = 4
_MATCHES = (1, SURE_MATCH, 6)
_CONTEXT_LENGTH = 2**17


def load(choice: ModelChoice) -> LoadedModel:
    """Load an engine for the factory: drafts by lookup, in the vocabulary of the model that
    `source` names; of that only the tokenizer and the configuration are read. Raises
    InvalidArgument ("engine") for anything but drafts."""
    if not choice.drafts:
        raise InvalidArgument("engine", "'lookup' drafts; choose another engine for the target")
    tokenizer = _tokenizer(choice)
    size = tokenizer.model_size
    engine = LookupEngine(
        size,
        vocabulary_hash=tokenizer.vocabulary_hash,
        eos_token_ids=frozenset(token for token in tokenizer.eos_token_ids if token < size),
    )
    return LoadedModel(engine, tokenizer, lambda: f"lookup:{tokenizer.vocabulary_hash}")


def _tokenizer(choice: ModelChoice) -> ComparableTokenizer:
    """Return the tokenizer of a folder, of a hub model or of a GGUF file. Raises
    InvalidArgument."""
    if is_gguf(choice.source):
        from tandem.backends import llamacpp

        return llamacpp.load_tokenizer(choice.source)
    find_source(choice.source, choice.revision)  # refused without waiting for torch
    from tandem.backends.model_description import load_tokenizer

    return load_tokenizer(choice.source, choice.revision)


class LookupEngine(EngineDefaults):
    """Implements `Engine` for drafts: logits after a text are the logarithm of `lookup_probs`."""

    model_name = "lookup"
    kv_bytes_per_token = 32
    capabilities = Capabilities(
        trees=True, forks=True, cancellation=True, same_bits=True, batch_invariant=True
    )

    def __init__(
        self,
        vocabulary_size: int,
        *,
        vocabulary_hash: str,
        eos_token_ids: frozenset[int] = frozenset(),
        context_length: int = _CONTEXT_LENGTH,
    ) -> None:
        self.vocabulary_size = vocabulary_size
        self.vocabulary_hash = vocabulary_hash
        self.eos_token_ids = eos_token_ids
        self.context_length = context_length
        self._open: set[LookupSession] = set()

    @property
    def kv_bytes_in_use(self) -> int:
        return sum(session.own_slots for session in self._open) * self.kv_bytes_per_token

    @property
    def sessions_open(self) -> int:
        return len(self._open)

    def open(self, capacity: int, spare: int = 0) -> LookupSession:
        check_capacity(capacity, self.context_length)
        return LookupSession(self._open, NgramIndex(_MATCHES), capacity, spare)

    def fork(self, parent: Session, length: int, capacity: int) -> LookupSession:
        source = own_session(parent, LookupSession, self._open)
        check_length(length, source.length)
        check_capacity(capacity, self.context_length, length)
        return LookupSession(self._open, source.index_of(length).copy(), capacity)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        sessions = [own_session(request.session, LookupSession, self._open) for request in batch]
        check_batch(batch, self)
        answers = list[Logits]()
        for session, request in zip(sessions, batch, strict=True):
            if cancelled():
                for begun in sessions:
                    begun.rollback(begun.length)
                raise ForwardCancelled("cancelled while the text was looked up")
            answers.append(session.rows(request, self.vocabulary_size))
        for session, request in zip(sessions, batch, strict=True):
            session.commit(request)
        return answers


class LookupSession(TextSession):
    """A session that keeps an index of its text in place of keys and values."""

    def __init__(
        self, open_sessions: set[Any], index: NgramIndex, capacity: int, spare: int = 0
    ) -> None:
        super().__init__(open_sessions, capacity, spare)
        self.token_ids += index.tokens
        self.own_slots = self.slots - len(index)
        self._index = index

    def index_of(self, length: int) -> NgramIndex:
        """Return an index of the first tokens, which is the session's."""
        self._index.truncate(length)
        self._index.extend(self.token_ids[len(self._index) : length])
        return self._index

    def rollback(self, length: int) -> None:
        super().rollback(length)
        self._index.truncate(length)

    def rows(self, request: ForwardRequest, vocabulary_size: int) -> Logits:
        """Return the logits that a pass keeps."""
        whole = self.whole(request)
        if not request.extends_tree:
            self.pending = None
        first = len(whole.token_ids) - whole.logits_to_keep
        index = self.index_of(self.length)
        rows = np.empty((whole.logits_to_keep, vocabulary_size), np.float32)
        if whole.parents is None:
            index.extend(whole.token_ids[:first])
        for row in range(whole.logits_to_keep):
            index.extend(_fed(whole, first + row))
            with np.errstate(divide="ignore"):
                rows[row] = np.log(lookup_probs(index, vocabulary_size))
            if whole.parents is not None:
                index.truncate(self.length)
        return rows


def _fed(request: ForwardRequest, node: int) -> list[int]:
    """Return what a node adds to the text: of a chain itself, of a tree its whole path."""
    if request.parents is None:
        return [request.token_ids[node]]
    path = list[int]()
    while node >= 0:
        path.append(request.token_ids[node])
        node = request.parents[node]
    return path[::-1]


def lookup_probs(text: NgramIndex, vocabulary_size: int) -> NDArray[np.float32]:
    """Return the distribution [vocabulary_size] after a text: one-hot where at least `SURE_MATCH`
    tokens at its end stood in it before; else spread over a few guesses, so that a preset's
    `confidence_threshold` can tell the difference."""
    probs = np.zeros(vocabulary_size, dtype=np.float32)
    matched, places = text.find(text.tokens[-LONGEST_MATCH:])
    followers = [text.tokens[place] for place in places[:1]]
    if matched >= SURE_MATCH:
        probs[followers] = 1.0
        return probs
    last = reversed(text.tokens[-_GUESSES:])
    any_ids = range(min(_GUESSES, vocabulary_size))
    guesses = list(dict.fromkeys([*followers, *last, *any_ids]))[:_GUESSES]
    probs[guesses] = (1.0 - GUESS_WEIGHT) / max(1, len(guesses) - 1)
    probs[guesses[0]] = GUESS_WEIGHT if len(guesses) > 1 else 1.0
    return probs
