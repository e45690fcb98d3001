"""The smallest back end: a table of logits by the last token, without trees and without forks."""

from collections.abc import Callable, Sequence

import numpy as np

from tandem.backends.interface import EngineDefaults, ForwardRequest, Logits, never
from tandem.backends.model_source import LoadedModel, ModelChoice
from tandem.backends.request_checks import check_batch, check_capacity, check_length
from tandem.core.errors import InvalidArgument
from tandem.testing.scripted import ScriptedTokenizer

SIZE = 64


def load(choice: ModelChoice) -> LoadedModel:
    """A table of random numbers; `source` is its seed."""
    engine = BigramEngine(int(choice.source))
    return LoadedModel(engine, ScriptedTokenizer(SIZE), lambda: engine.model_name)


class BigramEngine(EngineDefaults):
    """Implements `tandem.backends.interface.Engine`."""

    context_length = 640
    kv_bytes_per_token = 1

    def __init__(self, seed: int, vocabulary_size: int = SIZE) -> None:
        self.model_name = f"bigram-{seed}"
        self.vocabulary_size = vocabulary_size
        self.vocabulary_hash = f"bigram:{vocabulary_size}"
        random = np.random.default_rng(seed)
        self._table = random.normal(0, 3, (vocabulary_size, vocabulary_size)).astype(np.float32)
        self._open: set[BigramSession] = set()

    @property
    def kv_bytes_in_use(self) -> int:
        return sum(session.slots for session in self._open)

    @property
    def sessions_open(self) -> int:
        return len(self._open)

    def open(self, capacity: int, spare: int = 0) -> "BigramSession":
        check_capacity(capacity, self.context_length)
        return BigramSession(self._open, capacity, spare)

    def forward(
        self, batch: Sequence[ForwardRequest], cancelled: Callable[[], bool] = never
    ) -> list[Logits]:
        for request in batch:
            if request.session not in self._open:
                raise InvalidArgument("session", "is closed, or belongs to another engine")
        check_batch(batch, self)
        answers = []
        for request in batch:
            assert isinstance(request.session, BigramSession)
            request.session.length += len(request.token_ids)
            rows = len(request.token_ids) - request.logits_to_keep
            answers.append(self._table[list(request.token_ids[rows:])])
        return answers


class BigramSession:
    """A count of tokens: logits depend on the one that is fed."""

    tree = None

    def __init__(self, open_sessions: "set[BigramSession]", capacity: int, spare: int) -> None:
        self.length, self.capacity, self.slots = 0, capacity, capacity + spare
        self._open = open_sessions
        open_sessions.add(self)

    def rollback(self, length: int) -> None:
        self._check_open()
        check_length(length, self.length)
        self.length = length

    def keep_path(self, indices: Sequence[int]) -> None:
        self._check_open()
        raise InvalidArgument("indices", "no tree is pending")

    def close(self) -> None:
        self._open.discard(self)

    def _check_open(self) -> None:
        if self not in self._open:
            raise InvalidArgument("session", "the session is closed")
