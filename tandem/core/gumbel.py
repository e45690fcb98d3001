"""The Gumbel coupling rule: both ends take the argmax of log distribution + the same Gumbel noise.

The noise of a token is a pure function of (seed, position, token id). The token of the target
distribution is therefore the same whatever was drafted, and a draft is accepted iff it equals that
token. Coupled like this, two distributions at total variation distance TV give the same token with
probability at least (1 - TV)/(1 + TV) (Daliri, Musco & Suresh, "Coupling without communication and
drafter-invariant speculative decoding", 2024).

Noise is drawn from the top down, as in A* sampling (Maddison, Tarlow & Minka, NeurIPS 2014), so
that most of it is never drawn. With g = -log t the noises are independent iff the arrival times t
are independent Exp(1). Of the n tokens of a block the first arrives at m ~ Exp(1)/n, each is the
first equally often, and the others arrive at m + Exp(1) independently: exponential waits forget how
long they have lasted. So m alone bounds a block from above, and only blocks whose largest weight
may win with it are looked into. Invariant: hashes and uniforms are bit-identical on every machine;
times up to libm's log."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tandem.core.blocks import BLOCK, block_ids, block_maxima, block_of, places
from tandem.core.errors import InvalidArgument
from tandem.core.hashing import GOLDEN, Purpose, hash_ids, hash_words, mix, unit
from tandem.core.probs import Array

_SLACK = 1e-9
"""Room for rounding in a bound, relative: it may only keep a token too many."""

_FEW = 2048
"""So many tokens take less time than a search among them."""

_POSITIONS = 256
"""Of small vocabularies the noise of so many is kept: both ends ask for it, and branches again."""

Floats = NDArray[np.float64]
Ids = NDArray[np.intp]
LogWeighing = Callable[[Array], Floats]


def gumbel(seed: int, position: int, ids: Array) -> Floats:
    """Return standard Gumbel noise [n] of the token `ids` [n] at `position`."""
    return CoupledNoise(seed, position).added_to(np.zeros(len(ids)), ids)


def coupled_token(probs: Array, seed: int, position: int) -> int:
    """Return the argmax of log distribution + gumbel over the support of `probs` [V]; a tie goes to
    the lower id. A sample of the distribution, as seed and position vary; a one-hot distribution
    (greedy) needs no special case. Raises InvalidArgument("probs") if no entry is positive."""
    return coupled_candidates(probs, seed, position, 1)[0]


def coupled_candidates(probs: Array, seed: int, position: int, count: int) -> list[int]:
    """Return the `count` best tokens of log distribution + gumbel over the support of `probs` [V],
    best first: a sample without replacement (Gumbel top-k) that begins with `coupled_token`."""
    token_ids: list[int] = best_of_probs(probs, seed, position, count)[0].tolist()
    return token_ids


def best_of_probs(probs: Array, seed: int, position: int, count: int) -> tuple[Ids, Floats]:
    """Return `coupled_candidates`, with log distribution + gumbel of each."""
    few = len(probs) <= _FEW
    if not len(probs) or not (maxima := probs if few else block_maxima(probs)).max() > 0:
        raise InvalidArgument("probs", "has no positive entry")
    if few:
        ids, noise = _noise_of_few(seed, position, len(probs))
        return best_of(ids, _log(probs) + noise, count)
    return CoupledNoise(seed, position).best(probs, maxima, _log, count)


@lru_cache(_POSITIONS)
def _noise_of_few(seed: int, position: int, size: int) -> tuple[Ids, Floats]:
    """Return all ids of a vocabulary of `size` [V], and their noise [V]."""
    ids = np.arange(size)
    noise = CoupledNoise(seed, position).added_to(np.zeros(size), ids)
    ids.setflags(write=False)
    noise.setflags(write=False)
    return ids, noise


class CoupledNoise:
    """The noise of every token at one position."""

    def __init__(self, seed: int, position: int) -> None:
        self._place = seed, position
        self._token_key = hash_words(seed, position, Purpose.GUMBEL)
        self._block_key = mix(self._token_key + GOLDEN + mix(BLOCK))  # as if hashed with BLOCK

    def added_to(self, log_weights: Floats, ids: Array) -> Floats:
        """Return `log_weights` [n] + the noise of `ids` [n]."""
        blocks, rows = places(ids)
        times = self.times(ids, rows, *self.first_of(blocks))
        sums: Floats = np.subtract(log_weights, np.log(times, out=times), out=times)
        return sums

    def best(
        self, values: Array, maxima: Array, log_weights: LogWeighing, count: int
    ) -> tuple[Ids, Floats]:
        """Return the ids of the `count` best of `log_weights(values)` [V] + noise, best first, and
        these sums. `maxima`: the values' block maxima. `log_weights` grows with the values."""
        if len(values) <= _FEW:
            ids, noise = _noise_of_few(*self._place, len(values))
            return best_of(ids, log_weights(values) + noise, count)
        search = _Search(self, values, maxima, log_weights)
        reached = search.reached_by_one() if count == 1 else search.reached_by(count)
        if reached > -np.inf:
            reached -= _SLACK * (1 + abs(reached))
        return best_of(*search.look_into((search.bounds >= reached).nonzero()[0], reached), count)

    def first_of(self, blocks: Ids) -> tuple[Floats, NDArray[np.uint64]]:
        """Return when the first token of each of `blocks` [n] arrives, and its row. The two are
        independent: they come from different bits."""
        words = hash_ids(self._block_key, blocks)
        minima = np.log(_uniforms(words))
        minima *= -1 / BLOCK
        words &= np.uint64(BLOCK - 1)
        return minima, words

    def times(self, ids: Array, rows: Array, minima: Floats, firsts: NDArray[np.uint64]) -> Floats:
        """Return when the tokens `ids` [n] in these `rows` of their blocks arrive."""
        waits = np.log(_uniforms(hash_ids(self._token_key, ids)))
        waits[rows == firsts] = 0
        times: Floats = np.subtract(minima, waits, out=waits)
        return times

    def wait_of(self, token_id: int) -> float:
        """Return how much later than the first of its block the token arrives. It must not be the
        first."""
        return -math.log(unit(mix(self._token_key + (token_id + 1) * GOLDEN)))


class _Search:
    """Looks for the best tokens in the blocks where they may be."""

    def __init__(
        self, noise: CoupledNoise, values: Array, maxima: Array, log_weights: LogWeighing
    ) -> None:
        self._noise = noise
        self._values = values
        self._maxima = maxima
        self._log_weights = log_weights
        self._minima, self._firsts = noise.first_of(np.arange(len(maxima)))
        self._logs = np.log(self._minima)
        self.bounds = log_weights(maxima)
        self.bounds -= self._logs

    def look_into(self, blocks: Ids, least: float) -> tuple[Ids, Floats]:
        """Return the tokens in `blocks` whose sums may be `least` or more, and these."""
        ids = block_ids(blocks)
        weights = self._log_weights(self._values.take(ids, mode="clip"))
        promising = weights >= (self._logs[blocks] + least)[:, None]
        promising &= ids < len(self._values)
        at, rows = promising.nonzero()
        ids = ids[at, rows]
        blocks = blocks[at]
        times = self._noise.times(ids, rows, self._minima[blocks], self._firsts[blocks])
        return ids, weights[at, rows] - np.log(times, out=times)

    def reached_by_one(self) -> float:
        """Return a lower bound of the best token's sum: the larger of the heaviest token's, and of
        the first token's in the block with the highest bound."""
        heavy = int(self._maxima.argmax())
        high = int(self.bounds.argmax())
        row = int(self._values[block_of(heavy)].argmax())
        weight = float(self._log_weights(self._maxima[heavy : heavy + 1])[0])
        wait = 0.0
        if row != self._firsts[heavy]:
            wait = self._noise.wait_of(block_of(heavy).start + row * block_of(heavy).step)
        reached = weight - math.log(float(self._minima[heavy]) + wait)
        first = self._values[block_of(high)][int(self._firsts[high]) :][:1]
        sums = self._log_weights(first) - self._logs[high]
        return max(reached, float(sums.max(initial=-np.inf)))

    def reached_by(self, count: int) -> float:
        """Return a lower bound of the `count`-th best token's sum, by the blocks with the highest
        bounds and weights."""
        many = min(count, len(self._maxima))
        sides = [np.argpartition(scores, -many)[-many:] for scores in (self.bounds, self._maxima)]
        _, sums = self.look_into(np.unique(sides), -np.inf)
        return float(np.partition(sums, -count)[-count]) if len(sums) >= count else -np.inf


def best_of(ids: Ids, sums: Floats, count: int) -> tuple[Ids, Floats]:
    """Return the `count` best of `ids` [n] by their `sums`, best first, equal ones by id; and their
    sums. What is at -inf never counts."""
    if count == 1:
        best = sums.max()
        return ids[sums == best].min(keepdims=True), np.array([best])
    order = np.lexsort((ids, -sums))[:count]
    order = order[sums[order] > -np.inf]
    return ids[order], sums[order]


def _log(probs: Array) -> Floats:
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(probs.astype(np.float64))
    return logs


def _uniforms(words: NDArray[np.uint64]) -> Floats:
    """Return uniform numbers as `hashing.unit` does."""
    uniforms = (words >> np.uint64(12)).view(np.int64).astype(np.float64)  # signed: faster
    uniforms += 0.5
    uniforms *= 2.0**-52
    return uniforms
