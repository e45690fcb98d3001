"""The time of a decoding step on this machine at rest, by the length of the context (DRAGON §5.2,
offline): measured, and kept in a JSON file from one start to the next.

Invariants: a file is complete or as it was before; a file that cannot be used is refused with its
name, never half used; a line of another model is no line of this one."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import TypeAdapter, ValidationError

from tandem.backends.interface import Engine, ForwardRequest, Session
from tandem.core.errors import InvalidArgument, TandemError
from tandem.runtime.private_files import replace_privately
from tandem.two_sided.profiling.side_metrics import NAMES
from tandem.two_sided.protocol.mixture import Side
from tandem.two_sided.protocol.profiler import DecodeFit, fit_decoding


@dataclass(frozen=True, slots=True)
class StoredFit:
    """A line, and what it was measured with: `documents` sequences side by side."""

    model_name: str
    documents: int
    fit: DecodeFit


_FITS = TypeAdapter(dict[Literal["device", "cloud"], StoredFit])


def default_fits_path() -> Path:
    """Return the path of the file in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "tandem" / "decode-fits.json"


def read_fits(path: Path) -> dict[Side, StoredFit]:
    """Return what is stored; nothing where there is no file. Raises TandemError for a file that is
    none of ours, naming it."""
    try:
        return {
            Side[name.upper()]: fit for name, fit in _FITS.validate_json(path.read_bytes()).items()
        }
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise TandemError(f"{path}: cannot be read: {error}; remove it") from None
    except (ValidationError, InvalidArgument) as error:
        raise TandemError(f"{path}: holds no decode fits ({error}); remove it") from None


def write_fits(path: Path, fits: Mapping[Side, StoredFit]) -> None:
    """Replace the file at once. Raises TandemError naming it."""
    named = {NAMES[side]: fit for side, fit in fits.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_privately(path, _FITS.dump_json(named, indent=1))
    except OSError as error:
        raise TandemError(f"{path}: cannot be written: {error.strerror}") from None


DOCUMENTS = 2
FIT_DOCUMENT_TOKENS = 64
FIT_CONTEXT_TOKENS = 256
RUNS = 3
_WARM_UP_STEPS = 4


def profile_decoding(engine: Engine, side: Side, *, documents: int, path: Path) -> str:
    """Measure the decode line of the model at `side` with `documents` documents, and store it in
    the file `path`, where the other side's line stays; return what was measured, in words.

    Raises InvalidArgument for a context that is too short, TandemError for a file of another
    kind."""
    context_tokens = min(FIT_CONTEXT_TOKENS, engine.context_length)
    if context_tokens <= FIT_DOCUMENT_TOKENS:
        raise InvalidArgument("context_length", f"is {context_tokens} tokens only")
    fit = measure_fit(engine, documents=documents, context_tokens=context_tokens)
    write_fits(path, read_fits(path) | {side: StoredFit(engine.model_name, documents, fit)})
    early_ms, late_ms = (fit.at(tokens) * 1e3 for tokens in (FIT_DOCUMENT_TOKENS, context_tokens))
    return (
        f"{engine.model_name}, {documents} documents: {early_ms:.3g} ms a token after"
        f" {FIT_DOCUMENT_TOKENS}, {late_ms:.3g} ms after {context_tokens}; stored in {path}"
    )


def measure_fit(
    engine: Engine,
    *,
    documents: int = DOCUMENTS,
    document_tokens: int = FIT_DOCUMENT_TOKENS,
    context_tokens: int = FIT_CONTEXT_TOKENS,
    runs: int = RUNS,
) -> DecodeFit:
    """Return the line through the steps from `document_tokens` to `context_tokens` - 1, each the
    median of `runs`."""
    steps_s = [
        _decode(
            engine,
            documents=documents,
            document_tokens=document_tokens,
            context_tokens=context_tokens,
            seed=seed,
        )
        for seed in range(runs)
    ]
    medians_s = np.median(steps_s, axis=0).tolist()
    return fit_decoding(range(document_tokens, context_tokens), medians_s)


def _decode(
    engine: Engine, *, documents: int, document_tokens: int, context_tokens: int, seed: int
) -> list[float]:
    """Return the duration of each step of one run."""
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
    """Return the seconds of one pass with one token for each session."""
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
