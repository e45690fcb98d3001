"""What a decoding step costs on this machine, by the length of the context (DRAGON §5.2, offline).
One sequence per document of random tokens is prefilled, then all decode side by side until the
context is full. Call this on the engine's thread, with nothing else running."""

import time
from collections.abc import Sequence

import numpy as np

from tandem.backends.interface import Engine, ForwardRequest, Session
from tandem.core.errors import InvalidArgument
from tandem.two_sided.protocol.profiler_decoding import DecodeFit, fit_decoding

DOCUMENTS, DOCUMENT_TOKENS, CONTEXT_TOKENS, RUNS = 2, 64, 256, 3
_WARM_UP_STEPS = 4


def measure_fit(
    engine: Engine,
    documents: int = DOCUMENTS,
    document_tokens: int = DOCUMENT_TOKENS,
    context_tokens: int = CONTEXT_TOKENS,
    runs: int = RUNS,
) -> DecodeFit:
    """The line through the steps from `document_tokens` to `context_tokens` - 1, each the median
    of `runs`. Raises InvalidArgument for a context that the model does not have."""
    if not 1 <= document_tokens < context_tokens <= engine.context_length:
        why = f"must be {document_tokens + 1} to {engine.context_length}, is {context_tokens}"
        raise InvalidArgument("context_tokens", why)
    for field, count in (("documents", documents), ("runs", runs)):
        if count < 1:
            raise InvalidArgument(field, f"must be 1 or more, is {count}")
    steps_s = [
        _decode(engine, documents, document_tokens, context_tokens, seed) for seed in range(runs)
    ]
    medians_s = np.median(steps_s, axis=0).tolist()
    return fit_decoding(range(document_tokens, context_tokens), medians_s)


def _decode(
    engine: Engine, documents: int, document_tokens: int, context_tokens: int, seed: int
) -> list[float]:
    """The duration of each step of one run."""
    source = np.random.default_rng(seed)
    sessions = [engine.open(context_tokens) for _ in range(documents)]
    try:
        engine.forward(_requests(engine, sessions, source, document_tokens))
        for _ in range(_WARM_UP_STEPS):
            _step_s(engine, sessions, source)
            for session in sessions:
                session.rollback(document_tokens)
        return [_step_s(engine, sessions, source) for _ in range(document_tokens, context_tokens)]
    finally:
        for session in sessions:
            session.close()


def _step_s(engine: Engine, sessions: Sequence[Session], source: np.random.Generator) -> float:
    """One token for all sequences in one pass."""
    batch = _requests(engine, sessions, source, 1)
    began_s = time.perf_counter()
    engine.forward(batch)
    return time.perf_counter() - began_s


def _requests(
    engine: Engine, sessions: Sequence[Session], source: np.random.Generator, count: int
) -> list[ForwardRequest]:
    """Feed each sequence `count` random tokens."""
    draws = [source.integers(0, engine.vocabulary_size, count).tolist() for _ in sessions]
    pairs = zip(sessions, map(tuple, draws), strict=True)
    return [ForwardRequest(session, ids, logits_to_keep=1) for session, ids in pairs]
