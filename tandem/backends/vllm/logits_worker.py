"""The method added to every worker process of vLLM: one packed pass, whose logits are read or
handed back in the place of sampled tokens. Invariant: a pass leaves nothing behind that vLLM waits
to sample from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument

LogitsReader = Callable[[NDArray[np.float32]], Any]
PassAnswer = list[Any]
"""Of each request whose logits were wanted: its logits, float32 [rows, vocabulary_size], or what
its reader made of them."""


@dataclass(frozen=True, slots=True)
class RefusedReading:
    """The InvalidArgument that a reader raised."""

    field: str
    why: str


class LogitsWorker:
    """vLLM mixes it into its worker (`worker_extension_cls`); `self` is that worker."""

    model_runner: Any
    tandem_texts: dict[str, list[int]]
    """All tokens of each request."""

    def tandem_pass(
        self,
        scheduled: Any,
        sent: Mapping[str, int],
        rows: Mapping[str, int],
        readers: Mapping[str, LogitsReader],
        vocabulary_size: int,
    ) -> PassAnswer | None:
        """Run `scheduled`, a SchedulerOutput whose requests bring the tokens after the first `sent`
        ones, which are here and still stand. `rows` says of how many last positions of each
        request, in this order, the logits are wanted; those of a request with a reader are read
        here. The answer comes from the first worker of the last pipeline stage, None from the
        others."""
        self._complete_texts(scheduled, sent)
        logits = self._logits(scheduled, rows, vocabulary_size)
        if logits is None:
            return None
        answers = []
        start = 0
        for name, count in rows.items():
            request_logits = logits[start : start + count]
            start += count
            answers.append(
                request_logits if name not in readers else read(readers[name], request_logits)
            )
        return answers

    def _complete_texts(self, scheduled: Any, sent: Mapping[str, int]) -> None:
        """Put all tokens of each request in the place of those that are new."""
        texts = self.__dict__.setdefault("tandem_texts", {})
        for name in scheduled.finished_req_ids:
            texts.pop(name, None)
        for request in scheduled.scheduled_new_reqs:
            text = texts.setdefault(request.req_id, [])
            text[sent[request.req_id] :] = request.prompt_token_ids
            request.prompt_token_ids = [*text]
            if request.prefill_token_ids is not None:
                request.prefill_token_ids = request.prompt_token_ids

    def _logits(
        self, scheduled: Any, rows: Mapping[str, int], vocabulary_size: int
    ) -> NDArray[np.float32] | None:
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        runner = self.model_runner
        runner.execute_model_state = None
        self._make_buffers(get_pp_group().is_first_rank)
        self.execute_model(scheduled)  # type: ignore[attr-defined]  # the worker's own
        state, runner.execute_model_state = runner.execute_model_state, None
        if not rows or not get_pp_group().is_last_rank:
            return None
        ends = _ends(runner, state, scheduled)
        places = [np.arange(ends[name] - count, ends[name]) for name, count in rows.items()]
        with torch.inference_mode():
            index = torch.from_numpy(np.concatenate(places)).to(state.hidden_states.device)
            # Every worker of the stage: each has a part of the vocabulary.
            logits = runner.model.compute_logits(state.hidden_states[index])
            if get_tp_group().rank_in_group != 0:
                return None
            rows_of_logits: NDArray[np.float32] = logits[:, :vocabulary_size].float().cpu().numpy()
            return rows_of_logits

    def _make_buffers(self, first_stage: bool) -> None:
        """Make the input buffers of a later stage: vLLM 0.32 makes them when it compiles, which a
        CPU does not."""
        runner = self.model_runner
        if not first_stage and getattr(runner, "intermediate_tensors", 0) is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=runner.dtype, device=runner.device
            )


def read(reader: LogitsReader, logits: NDArray[np.float32]) -> Any:
    """Return what the reader returns or raises: an error of the caller must not look like one of
    the worker."""
    try:
        return reader(logits)
    except InvalidArgument as error:
        return RefusedReading(error.field, error.why)


def _ends(runner: Any, state: Any, scheduled: Any) -> dict[str, int]:
    """Return the end of each request's positions among those of the pass. vLLM has two model
    runners, and chooses one by the model and the platform."""
    if hasattr(state, "input_batch"):
        names = state.input_batch.req_ids
        starts = state.input_batch.query_start_loc_np
        return {name: int(starts[place + 1]) for place, name in enumerate(names)}
    names = runner.input_batch.req_ids
    ends = np.cumsum([scheduled.num_scheduled_tokens[name] for name in names])
    return dict(zip(names, ends.tolist(), strict=True))
