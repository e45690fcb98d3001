"""Attention of one sequence of a packed batch against its session's own keys and values.

Query heads that share a key head are folded into extra rows, so grouped-query attention needs no
repeated keys. Keys in several blocks (a forked session) are never joined: their scores are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from tandem.backends.torch.packed_batch import PackedBatch, PackedSequence

_SCORES_AT_ONCE = 1 << 24  # numbers; bounds the memory of the explicit path


class AttentionLayer(NamedTuple):
    """Properties of one layer that are the same for all sequences. `softcap` is Gemma 2's bound on
    scores, `sinks` [heads] are extra scores without a value (gpt-oss)."""

    number: int
    scaling: float
    window: int | None
    softcap: float | None = None
    sinks: Tensor | None = None


def attend_packed(
    packed: PackedBatch, layer: AttentionLayer, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Store the new keys and values, then attend; tokens are the packed batch's, in order. query
    [heads, tokens, key_size], key and value [kv_heads, tokens, size]; returns [tokens, heads,
    value_size]."""
    if len(packed.sequences) == 1:
        return _attend_sequence(
            sequence=packed.sequences[0], layer=layer, query=query, key=key, value=value
        )
    outputs = []
    for sequence in packed.sequences:
        rows = sequence.rows
        outputs.append(
            _attend_sequence(
                sequence=sequence,
                layer=layer,
                query=query[:, rows],
                key=key[:, rows],
                value=value[:, rows],
            )
        )
    return torch.cat(outputs)


def attend_whole(layer: AttentionLayer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend as `attend_packed` does, over one whole text that no session keeps; gradients go
    through it. No window is shorter than the text."""
    group = query.shape[0] // key.shape[0]
    seen = functional.scaled_dot_product_attention(
        query[None],
        key[None].repeat_interleave(group, 1),
        value[None].repeat_interleave(group, 1),
        is_causal=True,
        scale=layer.scaling,
    )
    return seen[0].transpose(0, 1)


def _attend_sequence(
    sequence: PackedSequence, layer: AttentionLayer, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    sequence.session.write(layer.number, key, value)
    heads = query.shape[0]
    kv_heads = key.shape[0]
    outputs = []
    for block in sequence.blocks(layer.window, heads // kv_heads):
        rows = block.last - block.first
        some = query if rows == sequence.count else query[:, block.first : block.last]
        folded = some.reshape(1, kv_heads, -1, query.shape[-1])
        spans = sequence.session.read(layer.number, block.start, block.end)
        if len(spans) == 1 and layer.softcap is None and layer.sinks is None:
            keys, values = spans[0]
            out = functional.scaled_dot_product_attention(
                folded, keys[None], values[None], attn_mask=block.mask, scale=layer.scaling
            )
        else:
            out = _attend_spans(folded[0], spans, block.mask, layer)
        if rows == 1:  # its heads lie side by side already
            outputs.append(out.reshape(1, heads, -1))
        else:
            outputs.append(out.reshape(heads, rows, -1).transpose(0, 1))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_spans(
    query: Tensor,
    spans: Sequence[tuple[Tensor, Tensor]],
    mask: Tensor | None,
    layer: AttentionLayer,
) -> Tensor:
    """Attend from query [kv_heads, rows, key_size] over keys in several places -> [kv_heads, rows,
    value_size]. Exact: one softmax over the joined scores, in float32."""
    kv_heads, rows = query.shape[:2]
    ends = sum(keys.shape[1] for keys, _ in spans)
    step = max(1, _SCORES_AT_ONCE // (kv_heads * ends))
    sinks = None if layer.sinks is None else _folded_sinks(layer.sinks, kv_heads, rows)
    outputs = []
    for first in range(0, rows, step):
        some = slice(first, first + step)
        scores = torch.cat([query[:, some] @ keys.transpose(1, 2) for keys, _ in spans], dim=-1)
        scores = scores.float() * layer.scaling
        if layer.softcap is not None:
            scores = torch.tanh(scores / layer.softcap) * layer.softcap
        if mask is not None:
            scores = scores + mask[some]
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, some]], dim=-1)
        weights = torch.softmax(scores, dim=-1).to(query.dtype)
        outputs.append(_weighted(weights, [values for _, values in spans]))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def _folded_sinks(sinks: Tensor, kv_heads: int, rows: int) -> Tensor:
    """Repeat the sinks' scores [heads] -> [kv_heads, rows, 1]: one score for each folded row."""
    repeats = rows * kv_heads // sinks.shape[0]
    return sinks.float().repeat_interleave(repeats).view(kv_heads, rows, 1)


def _weighted(weights: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Return the sum of values under weights [kv_heads, rows, tokens]; a last column of weights
    that has no value is left out."""
    end = values[0].shape[1]
    out = weights[:, :, :end] @ values[0]
    for block in values[1:]:
        out = torch.baddbmm(out, weights[:, :, end : end + block.shape[1]], block)
        end += block.shape[1]
    return out
