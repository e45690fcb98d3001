"""Passes in which no bit of a token's logits depends on the tokens beside it.

llama.cpp chooses how to compute a product by its number of rows: a row alone is multiplied by other
code than several, whole groups of four by other code than what is left over, fewer than eight rows
of some quantisations by other code than more, and each rounds in its own way. So each session's
tokens are fed apart from the others', in whole groups of `rows`. What a group lacks is filled with
tokens after the last one, which no other token sees and which are forgotten after the pass. Logits
are asked for by whole groups too, since the last layer and the head compute only rows that are
asked for.

That needs a context whose sequences have cells of their own (`LlamaContext`): attention sums over
cells in their order, and between those of a session would lie other sessions'.
"""

import platform
from collections.abc import Callable, Sequence

import numpy as np

from tandem.backends.interface import ForwardCancelled, Logits
from tandem.backends.llamacpp.native import LlamaContext

GROUPS = (2, 4, 8, 16) if platform.machine() in ("x86_64", "AMD64") else (8, 16)
"""Rows of a group that are tried, in this order. On x86-64 attention needs two, Q4_K four, Q6_K
eight. Elsewhere attention may need eight, and where activations are rounded to 8 bits a trial would
hardly notice: their last bits decide too seldom."""
MOST_FILLING = GROUPS[-1] - 1
"""Cells that a sequence needs beyond those of its tokens."""


def feed_alone(
    context: LlamaContext,
    sequence: int,
    first: int,
    token_ids: Sequence[int],
    *,
    logits_to_keep: int,
    rows: int,
    cancelled: Callable[[], bool],
) -> Logits:
    """Feed one sequence's next tokens, in groups of `rows`.

    Args:
        context: its sequences have cells of their own, and `rows` - 1 more than their tokens need.
        sequence: the number of the sequence.
        first: tokens that it has; the position of the first one that is fed.
        token_ids: what to feed, at least one.
        logits_to_keep: logits are returned after so many of the last tokens.
        rows: tokens of a group; divides what the context takes at once.
        cancelled: asked before each part that is computed at once.

    Returns:
        Logits [logits_to_keep, V].

    Raises:
        ForwardCancelled: some of the tokens may lie in the sequence then.
    """
    count = len(token_ids)
    filling = -count % rows
    fed = [*token_ids, *[token_ids[-1]] * filling]
    kept = np.zeros(len(fed), np.bool_)
    kept[count - logits_to_keep : count] = True
    wanted = np.repeat(kept.reshape(-1, rows).any(axis=1), rows)
    parts = []
    for start in range(0, len(fed), context.most_tokens):
        if cancelled():
            raise ForwardCancelled("cancelled before llama.cpp had processed all tokens")
        part = slice(start, start + context.most_tokens)
        tokens = fed[part]
        positions = range(first + start, first + start + len(tokens))
        logits = context.feed(tokens, positions, [[sequence]] * len(tokens), wanted[part])
        parts.append(logits[kept[part][wanted[part]]])
    if filling:
        context.forget(sequence, first + count)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
