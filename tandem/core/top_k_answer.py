"""PicoSpec's answer to a refusal: the K most likely entries of the target law, and nothing of its
tail (its eq. 4). The paper calls that lossless; it is not, and `top_k_bias` says by how much.

Must not import asyncio, grpc, torch or time.
"""

from typing import Any

import numpy as np

from tandem.core.laws import Array, most_likely
from tandem.core.sparse_answer import SparseAnswer

_NONE = np.array([], dtype=np.intp)


def make_top_k_answer(target_probs: Array, top: int) -> SparseAnswer:
    """The head of the target law [V], for the edge to draw from as if there were no tail."""
    ids = most_likely(target_probs, top)
    return SparseAnswer(ids, target_probs[ids], target_probs[:0].sum(), _NONE, target_probs[:0])


def top_k_bias(target_probs: Array, draft_probs: Array, top: int) -> Any:
    """Total variation between the target law [V] and what comes out at one position.

    What is accepted is untouched. A recovered token comes from the residual max(0, target - draft)
    inside the top K alone, so the residual's mass outside, which is the bias, goes to the tokens
    inside it; if it has no mass inside, all of it goes to the head of the target law.
    """
    rest = np.maximum(target_probs - draft_probs, 0)
    ids = most_likely(target_probs, top)
    return rest.sum() - rest[ids].sum()
