"""vLLM's own generation as a process: `vllm_worker TARGET DRAFT LENGTH THREADS`, run by the Python
of an environment that has vLLM. LENGTH 0: the target alone. Its lines are those of
`hugging_face_worker`.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from lab.bench.speculation.generation_sums import GenerationSums, serve

CONTEXT = 1024


class VllmPeer:
    """One vLLM engine, which drafts `length` tokens where that is not 0."""

    def __init__(self, target: str, draft: str, length: int) -> None:
        from vllm import LLM

        drafts = {"model": draft, "num_speculative_tokens": length, "method": "draft_model"}
        self._model = LLM(
            model=target,
            dtype="float32",
            max_model_len=CONTEXT,
            max_num_seqs=1,
            enable_prefix_caching=False,
            disable_log_stats=True,
            **({"speculative_config": drafts} if length else {}),
        )

    def answer(self, request: dict[str, Any]) -> GenerationSums:
        from vllm import SamplingParams

        sums = GenerationSums()
        for number, prompt in enumerate(request["prompts"]):
            sampling = SamplingParams(
                temperature=request["temperature"],
                seed=request["seed"] + number,
                max_tokens=request["max_tokens"],
                ignore_eos=True,
            )
            started_s = time.perf_counter()
            (answered,) = self._model.generate([prompt], sampling, use_tqdm=False)
            duration_s = time.perf_counter() - started_s
            token_ids = list(answered.outputs[0].token_ids)
            sums.tokens += len(token_ids)
            sums.texts.append(token_ids)
            sums.duration_s += duration_s
            sums.decoding_s += duration_s
            sums.first_s.append(duration_s / len(token_ids))  # it tells no more without a stream
        return sums


def main(target: str, draft: str, length: str, threads: str) -> None:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    serve(lambda: VllmPeer(target, draft, int(length)).answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
