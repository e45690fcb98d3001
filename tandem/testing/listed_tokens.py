"""The tokens that a draft's distribution names as it was sent: what its reader learns."""

from __future__ import annotations

import numpy as np

from tandem.core.probs import Array
from tandem.two_sided.protocol.draft_head import DraftHead
from tandem.two_sided.protocol.messages import SentProbs


def likeliest_first(probs: SentProbs) -> list[int]:
    """Return the tokens that are listed with a draft, the likeliest first and a draw from the rest
    last."""
    if probs is None:
        return []
    ids: Array = np.flatnonzero(probs) if isinstance(probs, np.ndarray) else probs.ids
    values = probs[ids] if isinstance(probs, np.ndarray) else probs.probs
    likeliest: list[int] = ids[np.argsort(-values, kind="stable")].tolist()
    if isinstance(probs, DraftHead) and probs.rest_id is not None:
        likeliest.append(probs.rest_id)
    return likeliest
