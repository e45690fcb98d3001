"""Answers of the target, many at once, and what it thought of each token.

All rows of a step share the products; a row that ends makes room for the next prompt. The target's
last hidden state, normalised, is kept for each sampled token: times the head it is the whole
distribution again, at 1 KB a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

REFILL_ROWS = 8


@dataclass(frozen=True, slots=True)
class SamplingTask:
    """A prompt as token ids, of which the first `known` are the same in all prompts of its kind and
    teach nothing; at least one is. `temperature` 0 takes the likeliest token."""

    number: int
    token_ids: tuple[int, ...]
    temperature: float
    max_tokens: int
    known: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What was sampled after a prompt, its end included. For each token of prompt and answer after
    the known ones, `hidden` [tokens, size] bfloat16 gives the logits before it, `log_partition`
    [tokens] float32 the logarithm of the sum of their exponentials."""

    task: SamplingTask
    token_ids: tuple[int, ...]
    hidden: Tensor
    log_partition: Tensor


@dataclass(slots=True)
class _Row:
    task: SamplingTask
    token_ids: list[int] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    log_partition: list[Tensor] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.task.token_ids) + len(self.token_ids)

    def answer(self) -> Answer:
        hidden, partition = torch.cat(self.hidden).bfloat16(), torch.cat(self.log_partition)
        return Answer(self.task, tuple(self.token_ids), hidden, partition)


class AnswerSampler:
    """A Llama model of transformers, `rows` sequences at once of at most `capacity` tokens."""

    def __init__(
        self, model: Any, ends: frozenset[int], rows: int, capacity: int, seed: int
    ) -> None:
        self._decoder, self._head, self._ends = model.model, model.lm_head.weight, ends
        self._rows, self._capacity = rows, capacity
        config = model.config
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._size = config.head_dim
        shape = (len(self._decoder.layers), rows, self._kv_heads, capacity, self._size)
        self._keys, self._values = (self._head.new_zeros(shape) for _ in range(2))
        positions = torch.arange(capacity, device=self._head.device)
        cos, sin = self._decoder.rotary_emb(self._head, positions[None])
        self._cos, self._sin = cos[0], sin[0]
        self._generator = torch.Generator(self._head.device).manual_seed(seed)

    @torch.inference_mode()
    def answers(self, prompts: Iterable[SamplingTask]) -> Iterator[Answer]:
        """Each as soon as it ends: with an end of text, or at its limit. Prompts that leave no room
        are passed over."""
        waiting = (one for one in prompts if len(one.token_ids) + one.max_tokens <= self._capacity)
        running: dict[int, _Row] = {}
        exhausted = False
        while running or not exhausted:
            free = [row for row in range(self._rows) if row not in running]
            if not exhausted and (len(free) >= REFILL_ROWS or not running):
                new = {row: _Row(one) for row, one in zip(free, waiting, strict=False)}
                exhausted = len(new) < len(free)
                hidden = self._begun(new)
                running |= new
                self._sample(new, hidden)
            elif running:
                self._sample(running, self._stepped(running))
            for number in [row for row, state in running.items() if self._ended(state)]:
                yield running.pop(number).answer()

    @torch.inference_mode()
    def read(self, texts: Iterable[SamplingTask]) -> Iterator[Answer]:
        """Texts that nothing is sampled after, a few at a time, the longest cut to what there is
        room for."""
        fitting = (replace(one, token_ids=one.token_ids[: self._capacity]) for one in texts)
        while some := [_Row(one) for one in islice(fitting, min(REFILL_ROWS, self._rows))]:
            self._begun(dict(enumerate(some)))
            yield from (row.answer() for row in some)

    def _ended(self, row: _Row) -> bool:
        return row.token_ids[-1] in self._ends or len(row.token_ids) >= row.task.max_tokens

    def _begun(self, new: dict[int, _Row]) -> Tensor:
        """The last state of each prompt; those before it are kept with the rows. Prompts of like
        length run together, padded at their ends, which nothing before looks at."""
        lengths = {number: len(row.task.token_ids) for number, row in new.items()}
        order = sorted(new, key=lengths.__getitem__)
        heads: dict[int, Tensor] = {}
        for first in range(0, len(order), REFILL_ROWS):
            numbers = order[first : first + REFILL_ROWS]
            ids = torch.zeros(len(numbers), lengths[numbers[-1]], dtype=torch.long)
            for line, number in zip(ids, numbers, strict=True):
                line[: lengths[number]] = torch.tensor(new[number].task.token_ids)
            places = torch.tensor(numbers)[:, None], torch.arange(ids.shape[1])[None]
            hidden = self._passed(ids.to(self._head.device), places, None)
            for states, number in zip(hidden, numbers, strict=True):
                row, end = new[number], lengths[number] - 1
                self._keep(row, states[row.task.known - 1 : end])
                heads[number] = states[end]
        return torch.stack([heads[number] for number in new]) if new else self._head[:0]

    def _keep(self, row: _Row, states: Tensor) -> None:
        row.hidden.append(states.cpu().clone())
        row.log_partition.append(self._logits(states).logsumexp(-1).cpu())

    def _logits(self, states: Tensor) -> Tensor:
        return functional.linear(states, self._head).float()

    def _stepped(self, running: dict[int, _Row]) -> Tensor:
        """Sample one more token for each row. Rows without an answer run along where few are: to
        leave them out would copy the keys and values of all others."""
        few = 2 * len(running) <= self._rows
        lines = list(running) if few else list(range(self._rows))
        last = {row: (row_.token_ids[-1], row_.length - 1) for row, row_ in running.items()}
        ids, at = torch.tensor([last.get(line, (0, 0)) for line in lines]).split(1, dim=1)
        seen = torch.arange(int(at.max()) + 1)[None] <= at
        places = torch.tensor(lines)[:, None], at
        hidden = self._passed(ids.to(self._head.device), places, seen)[:, 0]
        return hidden[[lines.index(row) for row in running]]

    def _passed(self, ids: Tensor, places: tuple[Tensor, Tensor], seen: Tensor | None) -> Tensor:
        """[rows, tokens] -> normalised hidden states. `places`: rows and positions, whose product
        the tokens fill. `seen` [rows, positions]: what single tokens look at; None: these tokens
        alone, each those before it."""
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
        query = _turned(attention.q_proj(hidden).view(shape).transpose(1, 2), turn)
        key = _turned(attention.k_proj(hidden).view(shape).transpose(1, 2), turn)
        value = attention.v_proj(hidden).view(shape).transpose(1, 2)
        for store, new in zip(kept, (key, value), strict=True):
            store[places[0], :, places[1]] = new.transpose(1, 2)
        if seen is None:
            out = functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )
            return out.transpose(1, 2).reshape(rows, tokens, -1)
        # Query heads of one key head lie beside each other, as tokens of one sequence would.
        grouped = query.view(rows, self._kv_heads, -1, self._size)
        numbers, end = places[0][:, 0], seen.shape[1]
        whole = len(numbers) == self._rows
        keys, values = ((s if whole else s[numbers])[:, :, :end] for s in kept)
        out = functional.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=seen[:, None, None]
        )
        return out.reshape(rows, tokens, -1)

    def _sample(self, rows: dict[int, _Row], hidden: Tensor) -> None:
        """A token for each row from hidden [rows, size]."""
        if not rows:
            return
        logits = self._logits(hidden)
        partition = logits.logsumexp(-1, keepdim=True).cpu()
        temperatures = torch.tensor([row.task.temperature for row in rows.values()])
        scaled = logits / temperatures.clamp_min(1e-3)[:, None].to(logits.device)
        totals = scaled.softmax(-1).cumsum(-1)
        uniform = torch.rand(len(rows), 1, generator=self._generator, device=logits.device)
        drawn = torch.searchsorted(totals, uniform * totals[:, -1:]).clamp_max(logits.shape[1] - 1)
        token_ids = torch.where(temperatures > 0, drawn[:, 0].cpu(), logits.argmax(-1).cpu())
        for index, (row, token) in enumerate(zip(rows.values(), token_ids.tolist(), strict=True)):
            row.token_ids.append(token)
            row.hidden.append(hidden[index : index + 1].cpu().clone())
            row.log_partition.append(partition[index])


def _turned(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding of heads [rows, heads, tokens, size]."""
    first, second = heads.chunk(2, -1)
    cos, sin = turn
    return heads * cos + torch.cat((-second, first), -1) * sin


def chat_text(question: str, tokenizer: Any) -> str:
    """The question as a user's turn, up to where the answer begins."""
    turn = [{"role": "user", "content": question}]
    text: str = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return text
