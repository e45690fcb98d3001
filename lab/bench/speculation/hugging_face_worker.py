"""Hugging Face's own generation as a process: `hugging_face_worker DRAFT TARGET DEVICE THREADS`.

Loads the pair in float32 and says `ready`; then each line of JSON on standard input is a set of
prompts to answer with `generate`, and each line of standard output what it took. Passes are counted
where the models are called.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from lab.bench.speculation.generation_sums import GenerationSums, serve


class _Arrivals:
    """A streamer that notes when tokens come; `generate` first hands it the prompt."""

    def __init__(self) -> None:
        self.moments_s: list[float] = []

    def put(self, token_ids: torch.Tensor) -> None:
        self.moments_s.append(time.perf_counter())

    def end(self) -> None:
        pass


class _Passes:
    """Counts calls of a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.count = 0
        model.register_forward_pre_hook(self._called)

    def _called(self, *_: object) -> None:
        self.count += 1


class Peer:
    """A pair in Hugging Face's own hands."""

    def __init__(self, draft: str, target: str, device: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(target)
        self._device = device
        self._draft = _load(draft, device)
        self._target: Any = _load(target, device)
        self._draft_defaults = self._draft.generation_config.to_dict()
        self._passes = _Passes(self._target), _Passes(self._draft)

    def answer(self, request: dict[str, Any]) -> GenerationSums:
        """Answer the prompts of a request with `prompts`, `max_tokens`, `temperature`, `seed` and
        `assistant`. The last is null for the target alone, a number of draft tokens, "default" for
        transformers' policy, or {"lookup": N} for drafts of N tokens by prompt lookup."""
        sums = GenerationSums()
        assisted = self._assistant(request["assistant"])
        for number, prompt in enumerate(request["prompts"]):
            torch.manual_seed(request["seed"] + number)
            self._answer_one(sums, prompt, request, assisted)
        return sums

    def _assistant(self, policy: int | str | dict[str, int] | None) -> dict[str, Any]:
        if policy is None:
            return {}
        if isinstance(policy, dict):
            return {"prompt_lookup_num_tokens": policy["lookup"]}
        config = self._draft.generation_config
        config.update(**self._draft_defaults)
        if isinstance(policy, int):
            config.num_assistant_tokens = policy
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0.0
        return {"assistant_model": self._draft}

    def _answer_one(
        self, sums: GenerationSums, prompt: str, request: dict[str, Any], assisted: dict[str, Any]
    ) -> None:
        ids = torch.tensor([self._tokenizer.encode(prompt)], device=self._device)
        before = [passes.count for passes in self._passes]
        arrivals = _Arrivals()
        started_s = time.perf_counter()
        answer = self._target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=request["max_tokens"],
            streamer=arrivals,
            **_sampling(request["temperature"]),
            **assisted,
        )
        ended_s = time.perf_counter()
        sums.tokens += answer.shape[1] - ids.shape[1]
        sums.texts.append(answer[0, ids.shape[1] :].tolist())
        sums.duration_s += ended_s - started_s
        sums.first_s.append(arrivals.moments_s[1] - started_s)
        sums.decoding_s += arrivals.moments_s[-1] - arrivals.moments_s[1]
        target, draft = (
            passes.count - earlier for passes, earlier in zip(self._passes, before, strict=True)
        )
        sums.target_passes += target
        sums.drafted += draft


def _load(model: str, device: str) -> PreTrainedModel:
    loaded: PreTrainedModel
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    loaded.generation_config.eos_token_id = None  # answers of equal length on both sides
    loaded.generation_config.pad_token_id = 0
    loaded.to(device)  # type: ignore[arg-type]  # its stubs want a torch.device
    return loaded


def _sampling(temperature: float) -> dict[str, Any]:
    if temperature == 0:
        return {"do_sample": False}
    return {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}


def main(draft: str, target: str, device: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    serve(lambda: Peer(draft, target, device).answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
