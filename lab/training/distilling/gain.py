"""What a draft gains by the cost model, and how many tokens it pays to let it propose."""

from __future__ import annotations

from math import inf

from torch import Tensor

from lab.analysis.cost_models import LinkTimes, dssd
from tandem.control.conditions import PairTimes

DRAFT_LENGTHS = range(1, 9)
LIKELY_ACCEPTANCE = 0.6
"""Of a draft that could propose every token; only for choosing a head before the training."""
DRAFT_SHARE = 0.5
"""What a parameter of the draft costs beside one of the target: 8 bits beside 16."""
_SMALLEST_HEAD = 2048


def best_speedup(pair: PairTimes, rtt_s: float, acceptance: float) -> tuple[int, float]:
    """Return the draft length at which the rejection rule gains most over the target alone by the
    cost model, and that gain."""
    link = LinkTimes(rtt_s, inf, inf)  # so that no size counts
    gains = {
        length: dssd(
            pair,
            link,
            acceptance_rate=acceptance,
            draft_length=length,
            vocabulary_size=1,
            precision_bytes=2.0,
        ).speedup_over_ar
        for length in DRAFT_LENGTHS
    }
    best = max(gains, key=gains.__getitem__)
    return best, gains[best]


def paying_head(
    counts: Tensor, draft_parameters: int, head_width: int, target_parameters: int
) -> int:
    """Return for how many tokens the head of a draft pays most, from how often each token was seen
    (counts [V]) and from numbers of parameters, to which times are proportional: powers of two from
    2,048 on, or all tokens. `draft_parameters` are those without embedding and head."""
    size = len(counts)
    shares = counts.double().sort(descending=True).values.cumsum(0) / max(float(counts.sum()), 1.0)
    heads = [size]
    while _SMALLEST_HEAD << (len(heads) - 1) < size:
        heads.append(_SMALLEST_HEAD << (len(heads) - 1))

    def gain(kept: int) -> float:
        draft = DRAFT_SHARE * (draft_parameters + kept * head_width)
        pair = PairTimes(draft, float(target_parameters))
        return best_speedup(pair, 0.0, LIKELY_ACCEPTANCE * float(shares[kept - 1]))[1]

    return max(heads, key=gain)
