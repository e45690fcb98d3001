"""Distributions: the next-token distribution that is sampled, after temperature, top-k, top-p,
min-p and typical-p.

Invariant: a distribution is a float array [V] with entries in [0, 1] that sums to 1; greedy
decoding is the one-hot distribution. Distributions are float32, the wire precision, from the start,
so that both ends of a link compute with the same numbers. Truncation always comes before sampling
(TSLT: then it costs at most the truncated mass of acceptance and no exactness)."""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument

Array = NDArray[Any]

MAX_VOCABULARY_SIZE = 2**22
"""Bounds what depends on a vocabulary where none is known yet; 15 times the largest in use."""

_COLDEST = float(np.finfo(np.float32).tiny)
_HOTTEST = float(np.finfo(np.float32).max)
_SUM_TOLERANCE = 1e-3
_HEAD_BAR = 2.0**-10


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Settings that turn logits into a distribution. top_k = 0, top_p = 1, min_p = 0 and typical_p
    = 1 do not truncate."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0

    @property
    def greedy(self) -> bool:
        """Temperature 0: the distribution is one-hot on the most likely token."""
        return self.temperature == 0

    @property
    def cuts_by_probs(self) -> bool:
        """True if truncation needs the probability of every token."""
        return self.top_p < 1 or self.min_p > 0 or self.typical_p < 1

    def validate(self, vocabulary_size: int) -> None:
        """Raise InvalidArgument naming the first field that is out of range (NaN included)."""
        if not 0 <= self.temperature < np.inf:
            raise InvalidArgument("temperature", f"{self.temperature} is not in [0, inf)")
        if not 0 <= self.top_k <= vocabulary_size:
            raise InvalidArgument("top_k", f"{self.top_k} is not in [0, {vocabulary_size}]")
        if not 0 < self.top_p <= 1:
            raise InvalidArgument("top_p", f"{self.top_p} is not in (0, 1]")
        if not 0 <= self.min_p <= 1:
            raise InvalidArgument("min_p", f"{self.min_p} is not in [0, 1]")
        if not 0 < self.typical_p <= 1:
            raise InvalidArgument("typical_p", f"{self.typical_p} is not in (0, 1]")


@dataclass(frozen=True, slots=True)
class Truncation:
    """Truncation of a draft's distribution before its token is sampled: keep the `top_k` most
    likely tokens, then the fewest that hold `top_p` of what is left. `top_k` 0 and `top_p` 1 do not
    cut.

    What is left is renormalised and drawn from, so the output keeps the target's distribution; the
    acceptance rate falls by at most the mass that was cut (TSLT, theorem 3.2). To truncate after
    the draw is lossy (`truncate_keeping`)."""

    top_k: int = 0
    top_p: float = 1.0

    @property
    def cuts(self) -> bool:
        return self.top_k > 0 or self.top_p < 1

    def validate(self, vocabulary_size: int) -> None:
        """Raise InvalidArgument("draft_top_k") or ("draft_top_p") when out of range (NaN too)."""
        if not 0 <= self.top_k <= vocabulary_size:
            raise InvalidArgument("draft_top_k", f"{self.top_k} is not in [0, {vocabulary_size}]")
        if not 0 < self.top_p <= 1:
            raise InvalidArgument("draft_top_p", f"{self.top_p} is not in (0, 1]")


NO_TRUNCATION = Truncation()


def probs_from_logits(logits: Array, sampling: SamplingParams) -> NDArray[np.float32]:
    """Return the distribution [V] float32 of `logits` [V]: temperature, then top-k, top-p, min-p
    and typical-p, normalised. Top-p keeps the smallest set of most likely tokens whose mass reaches
    top_p; min-p those at least min_p times as likely as the likeliest; typical-p the smallest set
    of mass typical_p whose surprise is nearest to the entropy (Meister et al. 2023). Ties at a
    border, and the greedy choice, go to the lower token id. Raises InvalidArgument("logits") for
    NaN, +inf or nothing but -inf, and names the field of `sampling` that is out of range."""
    if logits.ndim != 1 or not len(logits):
        raise InvalidArgument("logits", f"shape {logits.shape} is not [V]")
    sampling.validate(len(logits))
    with np.errstate(over="ignore"):
        scores = logits.astype(np.float32)  # a copy: it becomes the distribution in place
        highest = float(scores.max())
        if not isfinite(highest):  # max passes NaN on
            raise InvalidArgument("logits", f"maximum is {highest}")
        if sampling.greedy:
            return one_hot(len(scores), int(scores.argmax()))
        if 0 < sampling.top_k < len(scores):
            keep_largest(scores, sampling.top_k, -np.inf)
        scores -= np.float32(highest)
        scores /= np.float32(min(max(sampling.temperature, _COLDEST), _HOTTEST))
    probs: NDArray[np.float32] = np.exp(scores, out=scores)
    if sampling.top_p < 1:
        keep_nucleus(probs, sampling.top_p)
    if sampling.min_p > 0:
        np.putmask(probs, probs < np.float32(sampling.min_p), 0)  # the likeliest weighs 1
    if sampling.typical_p < 1:
        _keep_typical(probs, sampling.typical_p)
    probs /= probs.sum()
    return probs


def batch_probs_from_logits(logits: Array, sampling: SamplingParams) -> NDArray[np.float32]:
    """Return the distributions [n, V] of `logits` [n, V], each row as by `probs_from_logits`."""
    if logits.ndim != 2:
        raise InvalidArgument("logits", f"shape {logits.shape} is not [n, V]")
    distributions = np.empty(logits.shape, dtype=np.float32)
    for row, probs in zip(logits, distributions, strict=True):
        probs[:] = probs_from_logits(row, sampling)
    return distributions


def log_partition(logits: Array, temperature: float) -> float:
    """Return the logarithm of the sum of exp(logits / temperature), -inf where all of them are.
    Raises InvalidArgument("logits") for NaN and +inf."""
    highest = float(logits.max())
    if highest == -np.inf:
        return highest
    if not isfinite(highest):
        raise InvalidArgument("logits", f"maximum is {highest}")
    scores = logits.astype(np.float32)
    scale = min(max(temperature, _COLDEST), _HOTTEST)
    with np.errstate(over="ignore"):
        scores -= np.float32(highest)
        scores /= np.float32(scale)
    total = float(np.exp(scores, out=scores).sum(dtype=np.float64))
    return highest / scale + float(np.log(total))


def confidence(logits: Array, temperature: float = 1.0) -> float:
    """Return the largest probability that `logits` [V] give any token before sampling settings
    (FSD, equation 4). NaN where they give none. `temperature`: what calibrates them."""
    with np.errstate(all="ignore"):
        scores = logits.astype(np.float32)
        scores -= scores.max()
        if temperature != 1.0:
            scores /= np.float32(temperature)
        return 1.0 / float(np.exp(scores, out=scores).sum())


def check_probs(probs: Array, vocabulary_size: int, field: str) -> None:
    """Raise InvalidArgument(field) unless `probs` [V] is finite, in [0, 1] and sums to 1 ± 1e-3."""
    if probs.shape != (vocabulary_size,):
        raise InvalidArgument(field, f"shape {probs.shape} for a vocabulary of {vocabulary_size}")
    if not (probs.min() >= 0 and probs.max() <= 1):  # False for NaN as well
        raise InvalidArgument(field, "has entries outside [0, 1]")
    total = float(probs.sum(dtype=np.float64))
    if abs(total - 1) > _SUM_TOLERANCE:
        raise InvalidArgument(field, f"sums to {total}, not 1")


def truncate(probs: Array, truncation: Truncation) -> Array:
    """Return `probs` [V] cut and renormalised; ties at either border stay by lower id."""
    if not truncation.cuts:
        return probs
    kept = probs.copy()
    if 0 < truncation.top_k < len(probs):
        keep_largest(kept, truncation.top_k, 0)
    if truncation.top_p < 1:
        keep_nucleus(kept, truncation.top_p)
    kept /= kept.sum()
    return kept


def truncate_keeping(probs: Array, truncation: Truncation, token: int, floor: float = 0) -> Array:
    """Return `probs` [V] cut and renormalised, where `token` was drawn before the cut: it stays
    whatever the cut, with at least `floor` times the largest probability. What is left is not what
    it was drawn from, so to judge it by that is lossy."""
    kept = truncate(probs, truncation)
    if kept[token] > 0 and kept[token] >= floor * kept.max():
        return kept
    kept = np.where(kept > 0, probs, 0)
    kept[token] = max(probs[token], floor * probs.max())
    kept /= kept.sum()
    return kept


def most_likely(probs: Array, count: int) -> NDArray[np.intp]:
    """Return the ids, ascending, of the `count` largest entries of `probs` [V]; ties go to the
    lower id. Entries of zero never count, so the answer may be shorter."""
    if count <= 0:
        return np.empty(0, dtype=np.intp)
    # No more than 1/_HEAD_BAR entries reach the bar, mostly a few dozen: a partition of the whole
    # distribution would take ten times as long as finding those.
    head = (probs >= _HEAD_BAR).nonzero()[0]
    if len(probs) > count and len(head) >= count:
        return head[_largest(probs[head], count)]
    return _largest(probs, count)


def _largest(probs: Array, count: int) -> NDArray[np.intp]:
    kept = probs.copy()
    if count < len(probs):
        keep_largest(kept, count, 0)
    return (kept > 0).nonzero()[0]


def one_hot(vocabulary_size: int, token: int) -> NDArray[np.float32]:
    """Return the distribution [V] that is certain of a token."""
    probs = np.zeros(vocabulary_size, dtype=np.float32)
    probs[token] = 1
    return probs


def keep_nucleus(weights: Array, top_p: float) -> None:
    """Zero, in place, all of `weights` outside the smallest set that holds `top_p` of the sum."""
    total = float(weights.sum(dtype=np.float64))
    # What lies below this bar weighs less than 1 - top_p altogether, so the nucleus lies above it
    # and only that part needs sorting.
    bar = (1 - top_p) * total / len(weights)
    ordered = np.sort(weights.compress(weights >= bar))[::-1]
    reached = np.cumsum(ordered, dtype=np.float64)
    count = int(reached.searchsorted(top_p * total, side="left")) + 1
    if count < len(ordered):
        keep_largest(weights, count, 0, border=ordered[count - 1])
    else:
        np.putmask(weights, weights < bar, 0)


def _keep_typical(weights: Array, typical_p: float) -> None:
    """Zero, in place, all but the fewest of `weights` that hold `typical_p` of the sum and whose
    log-probabilities are nearest to the expected one."""
    (ids,) = weights.nonzero()
    probs = weights[ids].astype(np.float64)
    probs /= probs.sum()
    logs = np.log(probs)
    order = np.argsort(np.abs(logs - (probs * logs).sum()), kind="stable")
    reached = np.cumsum(probs[order])
    count = int(reached.searchsorted(typical_p * reached[-1], side="left")) + 1
    weights[ids[order[count:]]] = 0


def keep_largest(values: Array, count: int, fill: float, border: Any = None) -> None:
    """Set, in place, all but the `count` largest values to `fill`; ties stay by lower index.
    `border` is the smallest value that stays, if the caller knows it."""
    if border is None:
        border = np.partition(values, len(values) - count)[len(values) - count]
    outside = values < border
    surplus = len(values) - int(np.count_nonzero(outside)) - count
    if surplus:
        outside[np.flatnonzero(values == border)[-surplus:]] = True
    np.putmask(values, outside, fill)
