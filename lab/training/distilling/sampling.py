"""Answers of the target, many at once, and what it thought of each token.

All prompts of a wave begin together and share every product; once half of them have ended, the
others move together, so that little is computed for nothing. The target's last hidden state,
normalised, is kept for each token: times the head it is the whole distribution again, at twice the
model's width in bytes.

Invariant: nothing here waits for a GPU within a step, so that a step costs what its products cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lab.training.distilling.recordings import UNRECORDED, Recording

LLAMA_LIKE = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Types of models whose layers are known here."""
_LOOK_EVERY = 8
"""Steps between two looks at which answers have ended."""
_PREFILL_TOKENS = {"cpu": 1024, "cuda": 65_536}
_LOGIT_ROWS = {"cpu": 512, "cuda": 4096}
_STEP_SPAN = 64
"""Caches are looked at in lengths that are multiples of this, for which kernels are quick."""


@dataclass(frozen=True, slots=True)
class SamplingTask:
    """A prompt as token ids, of which the first `known` are the same in all prompts of its kind and
    teach nothing; at least one is. `temperature` 0 takes the likeliest token."""

    number: int
    token_ids: tuple[int, ...]
    temperature: float
    max_tokens: int
    known: int = 1


@dataclass(slots=True)
class _Wave:
    """Prompts and their growing answers: `tokens` [rows, width] hold `lengths` [rows] each.
    `states` [rows, width, size] and `log_partition` [rows, width] are what the target thought after
    the token of that place."""

    tasks: Sequence[SamplingTask]
    tokens: Tensor
    lengths: Tensor
    states: Tensor
    log_partition: Tensor

    def recording(self) -> Recording:
        lengths, device = self.lengths.cpu(), self.tokens.device
        known = torch.tensor([task.known for task in self.tasks])
        places = torch.arange(self.tokens.shape[1])[None]
        written = places < lengths[:, None]
        recorded = written & (places >= known[:, None])
        marks = recorded[written]
        before = recorded[:, 1:].to(device)
        return Recording(
            numbers=torch.tensor([task.number for task in self.tasks]),
            temperatures=torch.tensor([task.temperature for task in self.tasks]),
            token_ids=self.tokens.cpu()[written],
            starts=functional.pad(lengths.cumsum(0), (1, 0)),
            prompt_lengths=torch.tensor([len(task.token_ids) for task in self.tasks]),
            records=torch.where(marks, marks.cumsum(0) - 1, UNRECORDED),
            hidden=self.states[:, :-1][before],
            log_partition=self.log_partition[:, :-1][before],
        )


class AnswerSampler:
    """A Llama-like model of transformers, `rows` sequences at once of at most `capacity` tokens.
    Raises ValueError for a model of another kind."""

    def __init__(
        self, model: Any, ends: frozenset[int], rows: int, capacity: int, seed: int
    ) -> None:
        config = model.config
        if config.model_type not in LLAMA_LIKE:
            known = ", ".join(sorted(LLAMA_LIKE))
            raise ValueError(f"models of the type {config.model_type} are none of {known}")
        window = getattr(config, "sliding_window", None)
        if window is not None and window < capacity:
            raise ValueError(f"the model looks back {window} tokens; {capacity} are needed")
        self._decoder = model.model
        self._head = model.lm_head.weight
        self._rows = rows
        self._capacity = capacity
        self._kv_heads = config.num_key_value_heads
        self._size = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        device = self._device = self._head.device
        shape = (len(self._decoder.layers), rows, self._kv_heads, capacity, self._size)
        self._keys, self._values = (self._head.new_zeros(shape) for _ in range(2))
        cos, sin = self._decoder.rotary_emb(self._head, torch.arange(capacity, device=device)[None])
        self._cos = cos[0]
        self._sin = sin[0]
        self._ends = torch.tensor(sorted(ends), dtype=torch.int64, device=device)
        self._generator = torch.Generator(device).manual_seed(seed)

    @torch.no_grad()
    def answers(self, prompts: Iterable[SamplingTask]) -> Iterator[Recording]:
        """Yield the answers to as many prompts as there are rows, again and again: each ends with
        an end of text, or at its limit. Prompts that leave no room are passed over."""
        waiting = (one for one in prompts if len(one.token_ids) + one.max_tokens <= self._capacity)
        while tasks := list(islice(waiting, self._rows)):
            tasks.sort(key=lambda task: len(task.token_ids))
            wave = self._wave(tasks)
            self._answer(wave, self._begin(wave))
            yield wave.recording()

    @torch.no_grad()
    def read(self, texts: Iterable[SamplingTask]) -> Iterator[Recording]:
        """Yield texts that nothing is sampled after, the longest cut to what there is room for."""
        fitting = (
            replace(one, token_ids=one.token_ids[: self._capacity], max_tokens=0) for one in texts
        )
        while tasks := list(islice(fitting, self._rows)):
            tasks.sort(key=lambda task: len(task.token_ids))
            wave = self._wave(tasks)
            self._begin(wave)
            yield wave.recording()

    def _wave(self, tasks: Sequence[SamplingTask]) -> _Wave:
        longest = max(len(task.token_ids) for task in tasks)
        width = longest + max(task.max_tokens for task in tasks) + 1  # one for rows that have ended
        tokens = torch.zeros(len(tasks), width, dtype=torch.int64)
        for line, task in zip(tokens, tasks, strict=True):
            line[: len(task.token_ids)] = torch.tensor(task.token_ids)
        lengths = torch.tensor([len(task.token_ids) for task in tasks])
        shape = (len(tasks), width)
        device = self._device
        return _Wave(
            tasks,
            tokens.to(device),
            lengths.to(device),
            torch.zeros(*shape, self._head.shape[1], dtype=torch.bfloat16, device=device),
            torch.zeros(shape, device=device),
        )

    def _begin(self, wave: _Wave) -> Tensor:
        """Read the prompts, those of like length together; return the last state of each [rows,
        size]. Pads are at their ends, where nothing before looks at them."""
        lengths = [len(task.token_ids) for task in wave.tasks]
        last = list[Tensor]()
        first = 0
        while first < len(lengths):
            most = _PREFILL_TOKENS[self._device.type]
            end = first + 1
            while end < len(lengths) and (end + 1 - first) * lengths[end] <= most:
                end += 1
            last.append(self._read_rows(wave, first, end, lengths))
            first = end
        return torch.cat(last)

    def _read_rows(self, wave: _Wave, first: int, end: int, lengths: Sequence[int]) -> Tensor:
        width = lengths[end - 1]
        device = self._device
        rows = torch.arange(first, end, device=device)
        columns = torch.arange(width, device=device)
        places = rows[:, None], columns[None]
        states = self._passed(wave.tokens[first:end, :width], places, None)
        wave.states[first:end, :width] = states
        known = torch.tensor([task.known - 1 for task in wave.tasks[first:end]], device=device)
        ends = wave.lengths[first:end] - 1
        wanted = (columns[None] >= known[:, None]) & (columns[None] < ends[:, None])
        some = states[wanted].split(_LOGIT_ROWS[device.type])
        sums = [self._logits(part).logsumexp(-1) for part in some]
        if sums:
            wave.log_partition[first:end, :width][wanted] = torch.cat(sums)
        return states[torch.arange(end - first, device=device), ends]

    def _answer(self, wave: _Wave, last: Tensor) -> None:
        """Sample until every answer has ended. `rows` are those that still run, or lie among such:
        line i of the caches is the wave's row `rows[i]`."""
        device, limits = self._device, torch.tensor([task.max_tokens for task in wave.tasks])
        if not int(limits.max()):
            return
        rows = torch.arange(len(wave.tasks), device=device)
        ended_at = wave.lengths + limits.to(device)
        temperatures = torch.tensor([task.temperature for task in wave.tasks], device=device)
        running = wave.lengths < ended_at
        longest = int(wave.lengths.max())
        for step in range(int(limits.max())):
            at = wave.lengths[rows]
            drawn, partition = self._drawn(last, temperatures[rows])
            wave.tokens[rows, at] = drawn
            wave.states[rows, at - 1] = last.to(wave.states.dtype)
            wave.log_partition[rows, at - 1] = partition
            wave.lengths[rows] = at + running
            running &= (wave.lengths[rows] < ended_at[rows]) & ~torch.isin(drawn, self._ends)
            if step % _LOOK_EVERY == _LOOK_EVERY - 1:
                left = torch.nonzero(running).flatten()
                if not len(left):
                    return
                if 2 * len(left) <= len(rows):
                    self._move_together(left)
                    rows, drawn, at, running = rows[left], drawn[left], at[left], running[left]
                    longest = int(at.max()) - step
            last = self._stepped(drawn, at, longest + step + 1)

    def _move_together(self, lines: Tensor) -> None:
        """Let these lines of the caches be the first ones, layer by layer, to need little room."""
        for store in (self._keys, self._values):
            for layer in store:
                layer[: len(lines)] = layer[lines]

    def _logits(self, states: Tensor) -> Tensor:
        return functional.linear(states, self._head).float()

    def _drawn(self, states: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        """Draw a token after each state. Return the tokens, and the logarithm of the sum over all
        tokens."""
        logits = self._logits(states)
        partition = logits.logsumexp(-1)
        totals = (logits / temperatures.clamp_min(1e-3)[:, None]).softmax(-1).cumsum(-1)
        uniform = torch.rand(len(states), 1, generator=self._generator, device=self._device)
        drawn = torch.searchsorted(totals, uniform * totals[:, -1:]).clamp_max(logits.shape[1] - 1)
        return torch.where(temperatures > 0, drawn[:, 0], logits.argmax(-1)), partition

    def _stepped(self, token_ids: Tensor, at: Tensor, end: int) -> Tensor:
        """Return the states after one more token of each of the first lines, at places `at`, all of
        which are before `end`."""
        end = min(self._capacity, -(-end // _STEP_SPAN) * _STEP_SPAN)
        # A row that ended with its room exhausted writes at the last place once more.
        at = at.clamp_max(self._capacity - 1)[:, None]
        lines = torch.arange(len(token_ids), device=self._device)[:, None]
        seen = torch.arange(end, device=self._device)[None] <= at
        return self._passed(token_ids[:, None], (lines, at), seen)[:, 0]

    def _passed(self, ids: Tensor, places: tuple[Tensor, Tensor], seen: Tensor | None) -> Tensor:
        """Run the decoder over token ids [rows, tokens]; return the normalised hidden states.
        `places`: rows and positions, whose product the tokens fill. `seen` [rows, positions]: what
        single tokens look at; None: these tokens alone, each those before it."""
        hidden: Tensor = self._decoder.embed_tokens(ids)
        turn = self._cos[places[1]][:, None], self._sin[places[1]][:, None]
        for index, layer in enumerate(self._decoder.layers):
            kept = self._keys[index], self._values[index]
            normed = layer.input_layernorm(hidden)
            attended = self._attended(layer.self_attn, normed, turn, kept, places, seen)
            hidden = hidden + layer.self_attn.o_proj(attended)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        last: Tensor = self._decoder.norm(hidden)
        return last

    def _attended(
        self,
        attention: Any,
        hidden: Tensor,
        turn: tuple[Tensor, Tensor],
        kept: tuple[Tensor, Tensor],
        places: tuple[Tensor, Tensor],
        seen: Tensor | None,
    ) -> Tensor:
        rows, tokens = hidden.shape[:2]
        shape = rows, tokens, -1, self._size
        query, key, value = (
            projection(hidden).view(shape)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm(query), attention.k_norm(key)
        query, key = (_turned(heads.transpose(1, 2), turn) for heads in (query, key))
        value = value.transpose(1, 2)
        for store, new in zip(kept, (key, value), strict=True):
            store[places[0], :, places[1]] = new.transpose(1, 2)
        if seen is None:
            out = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )
            return out.transpose(1, 2).reshape(rows, tokens, -1)
        # Query heads of one key head lie beside each other, as tokens of one sequence would.
        grouped = query.view(rows, self._kv_heads, -1, self._size)
        keys, values = (store[:rows, :, : seen.shape[1]] for store in kept)
        out = functional.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=seen[:, None, None]
        )
        return out.reshape(rows, tokens, -1)


def _turned(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary position embedding to heads [rows, heads, tokens, size]."""
    first, second = heads.chunk(2, -1)
    cos, sin = turn
    return heads * cos + torch.cat((-second, first), -1) * sin
