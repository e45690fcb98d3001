"""llama.cpp's library: a model's file, and a context that feeds packed tokens to sequences.

Thin: it knows no sessions. Invariant: no pointer of the library leaves this module, and arrays that
do are copies. What the library writes to its log is kept for errors, never printed.
"""

import ctypes
import os
import time
import weakref
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.backends.interface import Logits
from tandem.backends.llamacpp.adaptive_threads import AdaptiveThreads
from tandem.backends.llamacpp.library import LIBRARY_VARIABLE, Batch, LogCallback, library
from tandem.core.errors import InvalidArgument, ResourceExhausted, TandemError

MOST_SEQUENCES = 256
"""llama.cpp's own bound."""
CELLS_STEP = 256
"""A sequence that has cells to itself has a multiple of this number."""
_ERROR_LINES: deque[str] = deque(maxlen=8)
_ERROR_LEVEL = 3
_NO_ROOM = 1  # what llama_decode returns
_TEXT_BYTES = 2**16
_FLASH = {False: 0, True: -1}
"""Off on a CPU, where it rounds to half precision and splits rows by their number; else as
llama.cpp likes."""


def _log(level: int, text: bytes | None, _: object) -> None:
    if text and level == _ERROR_LEVEL:
        _ERROR_LINES.append(text.decode("utf-8", "replace").strip())


_LOG: Any = LogCallback(_log)  # the library keeps its address


def first_error() -> str:
    """Return the library's first message since the last call, as one line."""
    lines = [line.split(": ", 1)[-1] for line in _ERROR_LINES if line]
    _ERROR_LINES.clear()
    return lines[0] if lines else "llama.cpp does not say why"


class LlamaModel:
    """The weights and the vocabulary of a GGUF file. Raises InvalidArgument("model") for a file
    that llama.cpp does not take, or whose sequences cannot be rolled back."""

    def __init__(
        self, path: Path, gpu_layers: int = 0, gpu: int = 0, vocabulary_only: bool = False
    ) -> None:
        """Load the file at `path`, with `gpu_layers` of its layers on the accelerator with the
        number `gpu`; -1: all of them."""
        self.library = llama = library()
        llama.llama_log_set(_LOG, None)
        llama.llama_backend_init()
        if gpu_layers and not llama.llama_supports_gpu_offload():
            why = (
                "this llama.cpp was built without CUDA; name a build with it by"
                f" {LIBRARY_VARIABLE}, or use the device cpu"
            )
            raise InvalidArgument("device", why)
        options = llama.llama_model_default_params()
        options.n_gpu_layers = gpu_layers
        options.main_gpu = gpu
        options.vocab_only = vocabulary_only
        first_error()
        self.pointer: Any = llama.llama_model_load_from_file(os.fsencode(path), options)
        if not self.pointer:
            raise InvalidArgument("model", f"{path} cannot be loaded: {first_error()}")
        self.close = weakref.finalize(self, llama.llama_model_free, self.pointer)
        self.vocabulary: Any = llama.llama_model_get_vocab(self.pointer)
        self.on_device = gpu_layers != 0
        self.trained_length = int(llama.llama_model_n_ctx_train(self.pointer))
        self._refuse_unfit(path)

    def text(self, key: str) -> str | None:
        """Return a field of the file's metadata, as text."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        size = self.library.llama_model_meta_val_str(
            self.pointer, key.encode(), buffer, _TEXT_BYTES
        )
        return buffer.value.decode("utf-8", "replace") if size >= 0 else None

    @property
    def chat_template(self) -> str | None:
        template = self.library.llama_model_chat_template(self.pointer, None)
        return template.decode("utf-8", "replace") if template else None

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that a token's keys and values consist of, over all layers."""
        layers = int(self.library.llama_model_n_layer(self.pointer))
        heads = int(self.library.llama_model_n_head(self.pointer))
        size = int(self.library.llama_model_n_embd(self.pointer)) // max(heads, 1)
        kv_heads = self._numbers("head_count_kv") or [heads]
        of_layers = kv_heads if len(kv_heads) > 1 else kv_heads * layers
        keys, values = (self._numbers(f"{part}_length") or [size] for part in ("key", "value"))
        return sum(of_layers) * (keys[0] + values[0])

    def _numbers(self, key: str) -> list[int]:
        """Return an attention field, which is a number or one number for each layer."""
        value = self.text(f"{self.text('general.architecture')}.attention.{key}") or ""
        return [int(number) for number in value.strip("[] ").split(",") if number.strip()]

    def _refuse_unfit(self, path: Path) -> None:
        kinds = {
            "is an encoder": self.library.llama_model_has_encoder,
            "is recurrent": self.library.llama_model_is_recurrent,
            "is partly recurrent": self.library.llama_model_is_hybrid,
            "is a diffusion model": self.library.llama_model_is_diffusion,
        }
        for words, applies in kinds.items():
            if applies(self.pointer):
                why = f"{path} {words}; Tandem needs a decoder whose text can be rolled back"
                raise InvalidArgument("model", why)


KV_TYPES = {"float32": (0, 4), "float16": (1, 2), "bfloat16": (30, 2)}
"""ggml's number of a type, and its bytes."""


class LlamaContext:
    """Cells for keys and values, and passes over them. A token's place is its position in one or
    more of `sequences` sequences; it sees what precedes it in any of its own."""

    def __init__(
        self,
        model: LlamaModel,
        cells: int,
        threads: AdaptiveThreads,
        kv_type: str,
        most_tokens: int,
        apart: int = 0,
    ) -> None:
        """Allocate `cells` cells; at most `most_tokens` tokens may be fed at once. `apart`: have
        that many sequences, each with an equal share of the cells to itself, so that a token is in
        only one of them; 0: as many as llama.cpp can have, which share the cells. Raises
        ResourceExhausted if there is too little memory for that many cells."""
        self._model = model  # lives as long as its context
        self._library = model.library
        self.cells = cells
        self.apart = apart > 0
        self.sequences = apart or MOST_SEQUENCES
        self.cells_of_each = cells // apart if apart else cells
        self.most_tokens = most_tokens
        self._logits_per_row = int(self._library.llama_vocab_n_tokens(model.vocabulary))
        options = self._library.llama_context_default_params()
        options.n_ctx = cells
        options.n_seq_max = self.sequences
        options.kv_unified = not self.apart
        options.n_batch = options.n_ubatch = max(most_tokens, MOST_SEQUENCES)
        # The rows whose logits may be asked for: of one sequence, and of all.
        options.n_outputs_max_per_seq = options.n_outputs_max = options.n_batch
        self._threads = threads
        self._threads_set = threads.current
        self._ended_s = time.perf_counter()
        options.n_threads = options.n_threads_batch = threads.current
        options.type_k = options.type_v = KV_TYPES[kv_type][0]
        options.swa_full = True  # else a sliding window refuses a rollback
        options.no_perf = True
        options.flash_attn_type = _FLASH[model.on_device]
        first_error()
        pointer = self._library.llama_init_from_model(model.pointer, options)
        if not pointer:
            raise ResourceExhausted(f"llama.cpp: cannot allocate {cells} tokens: {first_error()}")
        self._pointer: Any = pointer
        self.close = weakref.finalize(self, self._library.llama_free, pointer)
        self._memory: Any = self._library.llama_get_memory(pointer)
        self._batch = _Batch(max(most_tokens, MOST_SEQUENCES))

    def feed(
        self,
        *,
        token_ids: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]],
        wanted: NDArray[np.bool_],
    ) -> Logits:
        """Feed `token_ids` [n], at most `most_tokens`, each at its position and to each of its
        sequences; return the logits [rows, V] after those that are `wanted` [n]. Raises
        ResourceExhausted where there are too few free cells, TandemError for a failed pass; either
        may leave some of the tokens in their sequences."""
        batch = self._batch.filled(
            token_ids=token_ids, positions=positions, sequences=sequences, wanted=wanted
        )
        status = self._decode(batch)
        if status == _NO_ROOM:
            why = f"the pool of {self.cells} tokens is full; set kv_cells higher"
            raise ResourceExhausted(f"llama.cpp: {why}")
        if status:
            raise TandemError(f"llama.cpp: the pass failed ({status}): {first_error()}")
        return self._logits(int(np.count_nonzero(wanted)))

    def _decode(self, batch: Batch) -> int:
        began_s = time.perf_counter()
        threads = self._threads.choose(batch.n_tokens, began_s - self._ended_s)
        if threads != self._threads_set:
            self._threads_set = threads
            self._library.llama_set_n_threads(self._pointer, threads, threads)
        status = int(self._library.llama_decode(self._pointer, batch))
        self._ended_s = time.perf_counter()
        self._threads.took(batch.n_tokens, self._ended_s - began_s)
        return status

    def _logits(self, rows: int) -> Logits:
        logits: Logits = np.empty((rows, self._logits_per_row), np.float32)
        if rows:
            rows_pointer = self._library.llama_get_logits(self._pointer)
            ctypes.memmove(logits.ctypes.data, rows_pointer, logits.nbytes)
        return logits

    def copy(self, source: int, target: int, length: int) -> None:
        """Let an empty sequence begin as the first `length` tokens of another, in the same
        cells."""
        if length:
            self._library.llama_memory_seq_cp(self._memory, source, target, 0, length)

    def forget(self, sequence: int, length: int = 0) -> None:
        """Forget all of a sequence after its first `length` tokens."""
        if not self._library.llama_memory_seq_rm(self._memory, sequence, length, -1):
            raise TandemError("llama.cpp: this model's sequences cannot be rolled back")


class _Batch:
    """llama.cpp's batch over arrays that are made once: beside a step of a small model, making them
    anew takes a twentieth of the time."""

    def __init__(self, most_tokens: int) -> None:
        self._ids, self._positions, self._sequences, self._counts = np.ones(
            (4, most_tokens), np.int32
        )
        self._wanted = np.zeros(most_tokens, np.int8)
        places = np.arange(most_tokens, dtype=np.int64) * self._sequences.itemsize
        self._one_each = self._sequences.ctypes.data + places
        self._starts = np.empty(most_tokens, np.int64)
        self._batch = Batch(
            token=self._ids.ctypes.data,
            pos=self._positions.ctypes.data,
            n_seq_id=self._counts.ctypes.data,
            seq_id=self._starts.ctypes.data,
            logits=self._wanted.ctypes.data,
        )

    def filled(
        self,
        *,
        token_ids: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]],
        wanted: NDArray[np.bool_],
    ) -> Any:
        """Fill the batch as for `LlamaContext.feed`; valid until it is filled again."""
        count = self._batch.n_tokens = len(token_ids)
        self._ids[:count] = token_ids
        self._positions[:count] = positions
        self._wanted[:count] = wanted
        flat = [sequence for joined in sequences for sequence in joined]
        if len(flat) == count:  # one each, as everywhere but in trees
            self._counts[:count] = 1
            self._sequences[:count] = flat
            self._starts[:count] = self._one_each[:count]
            return self._batch
        lengths = self._counts[:count] = np.fromiter(map(len, sequences), np.int32, count)
        self._joined = np.array(flat, np.int32)  # lives as long as what points into it
        firsts = np.cumsum(lengths, dtype=np.int64) - lengths
        self._starts[:count] = self._joined.ctypes.data + self._joined.itemsize * firsts
        return self._batch
