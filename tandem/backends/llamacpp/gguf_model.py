"""A GGUF file as an engine and a tokenizer. Every failure is an InvalidArgument that says what is
wrong with which part of the choice."""

import hashlib
from functools import partial
from math import ceil
from pathlib import Path

from tandem.backends.llamacpp.adaptive_threads import AdaptiveThreads, halvings
from tandem.backends.llamacpp.engine import LlamaCppEngine
from tandem.backends.llamacpp.gguf_tokenizer import GgufTokenizer
from tandem.backends.llamacpp.native import CELLS_STEP, KV_TYPES, LlamaContext, LlamaModel
from tandem.backends.model_source import LoadedModel, ModelChoice
from tandem.backends.processors import machine_threads
from tandem.core.errors import InvalidArgument

POOL_BYTES = 2**28
"""Of keys and values, where the choice does not say for how many tokens there is room."""
LEAST_CELLS = 2048
MOST_CONTEXTS = 16
"""No more than this many full contexts unasked."""
LEAST_APART = 4
"""Sessions that there is room for where each has cells to itself; more where a share of the cells
that is as long as the model's longest text leaves room for more."""
MOST_APART = 64
_AT_ONCE = 32
"""Tokens that llama.cpp computes without a sign of life, and without asking whether the pass was
cancelled. On a processor more of them at once are no faster for each."""
_AT_ONCE_ON_DEVICE = 512


def load_chosen(choice: ModelChoice) -> LoadedModel:
    """Load a GGUF model. `dtype` is that of keys and values; weights are as the file has them.
    `threads` are those of a pass; 0: up to the machine's cores, by what passes take. `gpu_layers`
    lie on the device; None: all, unless it is the CPU.
    `kv_cells`: tokens that there is room for, of all sessions together; with `batch_invariant`
    each session has an equal share of them. Raises InvalidArgument naming the field."""
    path = Path(choice.source)
    if choice.dtype not in KV_TYPES:
        raise InvalidArgument("dtype", f"{choice.dtype!r} is not one of {', '.join(KV_TYPES)}")
    if choice.threads < 0:
        raise InvalidArgument("threads", f"{choice.threads} is less than 0")
    model = LlamaModel(path, *_placement(choice))
    tokenizer = GgufTokenizer(model)
    cell = model.kv_values_per_token * KV_TYPES[choice.dtype][1]
    cells = choice.kv_cells or _cells(cell, model.trained_length)
    apart = 0
    if choice.batch_invariant:
        least = LEAST_APART * min(LEAST_CELLS, model.trained_length)
        apart, cells = _cells_apart(choice.kv_cells or max(cells, least), model.trained_length)
    at_once = _AT_ONCE if choice.device == "cpu" else _AT_ONCE_ON_DEVICE
    engine = LlamaCppEngine(
        LlamaContext(
            model=model,
            cells=cells,
            threads=_threads(choice),
            kv_type=choice.dtype,
            most_tokens=min(at_once, cells),
            apart=apart,
        ),
        model_name=path.resolve().name.removesuffix(".gguf"),
        vocabulary_hash=tokenizer.vocabulary_hash,
        vocabulary_size=tokenizer.vocabulary_size,
        context_length=model.trained_length,
        kv_bytes_per_token=cell,
        eos_token_ids=tokenizer.eos_token_ids,
    )
    return LoadedModel(engine, tokenizer, partial(_content_hash, path, choice.dtype))


def _threads(choice: ModelChoice) -> AdaptiveThreads:
    return AdaptiveThreads([choice.threads] if choice.threads else halvings(machine_threads()))


def _placement(choice: ModelChoice) -> tuple[int, int]:
    """Return how many layers are on an accelerator (-1: all), and on which."""
    kind, _, number = choice.device.partition(":")
    if kind not in ("cpu", "cuda") or not (number or "0").isdecimal():
        raise InvalidArgument("device", f"{choice.device!r} is neither cpu nor cuda")
    if kind == "cpu":
        if choice.gpu_layers:
            raise InvalidArgument("gpu_layers", "needs the device cuda")
        return 0, 0
    return (-1 if choice.gpu_layers is None else choice.gpu_layers), int(number or 0)


def _cells(cell_bytes: int, trained_length: int) -> int:
    """Return how many cells fit in `POOL_BYTES`: no fewer than `LEAST_CELLS`, or the model's
    longest text if that is shorter, and no more than `MOST_CONTEXTS` full contexts."""
    least = min(LEAST_CELLS, trained_length)
    most = MOST_CONTEXTS * trained_length
    return min(max(POOL_BYTES // cell_bytes, least), most)


def _cells_apart(cells: int, trained_length: int) -> tuple[int, int]:
    """Return how many sessions are to have cells, and the cells of all: `cells` or somewhat more,
    as each session has a multiple of `CELLS_STEP`."""
    sessions = min(max(cells // trained_length, LEAST_APART), MOST_APART)
    each = min(cells // sessions, trained_length)
    return sessions, sessions * ceil(each / CELLS_STEP) * CELLS_STEP


def _content_hash(path: Path, dtype: str) -> str:
    """Hash everything that determines keys and values. Reads the whole file."""
    with path.open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    return hashlib.sha256(f"{weights}\n{dtype}".encode()).hexdigest()
