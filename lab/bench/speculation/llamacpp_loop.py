"""llama.cpp's own loop over a GGUF file: `llama_decode` of one token after the other in a context
of one sequence with its own settings, and a look at the logits where they lie. What the engine
`llamacpp` takes beyond it is ours: packing, sessions, a copy of the logits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.bench.speculation.draft_step import BURST, steps_of
from tandem.backends.llamacpp.library import Batch
from tandem.backends.llamacpp.native import LlamaModel

CONTEXT = 2048
"""As of the other measurements of llama.cpp."""


class OwnLoop:
    """One thread, on the CPU."""

    def __init__(self, path: Path, context: int) -> None:
        self._model = LlamaModel(path)
        self._library = self._model.library
        options = self._library.llama_context_default_params()
        options.n_ctx = max(CONTEXT, context + BURST)
        options.n_threads = options.n_threads_batch = 1
        self._context: Any = self._library.llama_init_from_model(self._model.pointer, options)
        assert self._context, "llama.cpp has no room for a context"
        self._memory: Any = self._library.llama_get_memory(self._context)

    def steps(self, token_ids: list[int]) -> list[float]:
        """Return the processor seconds of each step of a burst after these tokens, as
        `engine_steps` does."""
        self._library.llama_memory_seq_rm(self._memory, -1, -1, -1)  # of all sequences, all
        self._decode(token_ids)
        return steps_of(lambda token_id: self._decode([token_id]), token_ids)

    def _decode(self, token_ids: list[int]) -> float:
        """Decode the tokens after those before, and return the first logit after them."""
        some = (ctypes.c_int32 * len(token_ids))(*token_ids)
        batch = Batch(n_tokens=len(token_ids), token=ctypes.addressof(some))
        status = self._library.llama_decode(self._context, batch)
        assert status == 0, f"llama_decode: {status}"
        return float(self._library.llama_get_logits(self._context)[0])


def own_steps(path: Path, context: int) -> Callable[[list[int]], list[float]]:
    """Return a function that measures the steps of a burst after that many tokens."""
    return OwnLoop(path, context).steps
