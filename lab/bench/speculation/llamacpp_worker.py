"""llama.cpp's own server as a process: `llamacpp_worker TARGET DRAFT THREADS`, two GGUF files.

The server is the one that the package `xllamacpp` carries; it is called without HTTP. Its lines are
those of `hugging_face_worker`. Times to the first token are the server's own.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import xllamacpp

from lab.bench.speculation.generation_sums import GenerationSums, add_timings, serve

CONTEXT = 2048


class LlamaServers:
    """One server without a draft model, and one for each number of draft tokens asked for."""

    def __init__(self, target: str, draft: str, threads: int) -> None:
        self._target = target
        self._draft = draft
        self._threads = threads
        self._servers: dict[int | None, Any] = {}

    def answer(self, request: dict[str, Any]) -> GenerationSums:
        """Answer the prompts of a request. Its `assistant` is null for the target alone, or a
        number of draft tokens."""
        sums, server = GenerationSums(), self._server(request["assistant"])
        for number, prompt in enumerate(request["prompts"]):
            started_s = time.perf_counter()
            answer = server.handle_completions(
                {
                    "prompt": prompt,
                    "max_tokens": request["max_tokens"],
                    "temperature": request["temperature"],
                    "seed": request["seed"] + number,
                    **NO_CUTS,
                }
            )
            add_timings(sums, answer, time.perf_counter() - started_s)
        return sums

    def _server(self, draft_length: int | None) -> Any:
        if draft_length not in self._servers:
            self._servers[draft_length] = xllamacpp.Server(self._params(draft_length))
        return self._servers[draft_length]

    def _params(self, draft_length: int | None) -> Any:
        params = xllamacpp.CommonParams()
        params.model.path = self._target
        params.n_ctx = CONTEXT
        params.n_parallel = 1
        params.port = 0
        params.n_gpu_layers = 0
        params.verbosity = -1
        processors = [params.cpuparams, params.cpuparams_batch]
        if draft_length is not None:
            kinds = xllamacpp.common_speculative_type
            speculative = params.speculative
            speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
            speculative.draft.mparams.path = self._draft
            speculative.draft.n_max = draft_length
            speculative.draft.n_gpu_layers = 0
            processors += [speculative.draft.cpuparams, speculative.draft.cpuparams_batch]
        for processor in processors:
            processor.n_threads = self._threads
        return params


NO_CUTS = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True, "cache_prompt": False}
"""The whole distribution, answers of full length, every prompt computed."""


def main(target: str, draft: str, threads: str) -> None:
    serve(lambda: LlamaServers(target, draft, int(threads)).answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
