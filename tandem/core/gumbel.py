"""The Gumbel coupling rule: both ends take the argmax of log distribution + the same Gumbel noise.

The noise of a token is a pure function of (seed, position, token id). The token of the target
distribution is therefore the same whatever was drafted, and a draft is accepted iff it equals that
token. Coupled like this, two distributions at total variation distance TV give the same token with
probability at least (1 - TV)/(1 + TV) (Daliri, Musco & Suresh, "Coupling without communication and
drafter-invariant speculative decoding", 2024). Invariant: hashes and uniforms are bit-identical on
every machine; g up to libm's log."""

import numpy as np
from numpy.typing import NDArray

from tandem.core.errors import InvalidArgument
from tandem.core.hashing import Purpose, hash_ids, hash_words
from tandem.core.probs import Array

# Room for rounding in the bounds of _winner: it may only keep a token too many.
_SLACK = 1 + 1e-9
# Tokens at once. Arrays this small are reused by malloc, larger ones mapped and cleared anew.
_CHUNK = 8192


def gumbel(seed: int, position: int, ids: Array) -> NDArray[np.float64]:
    """Standard Gumbel noise [n] of the token `ids` [n] at `position`: g = -log(-log u)."""
    return _gumbel(_cells(_key(seed, position), ids))


def coupled_token(probs: Array, seed: int, position: int) -> int:
    """argmax of log distribution + gumbel over the support of `probs` [V]; a tie goes to the lower
    id. A sample of the distribution, as seed and position vary; a one-hot distribution (greedy)
    needs no special case. Raises InvalidArgument("distribution") if no entry is positive."""
    support = (probs > 0).nonzero()[0]
    if not len(support):
        raise InvalidArgument("probs", "has no positive entry")
    key = _key(seed, position)
    best, best_score = 0, -np.inf
    for start in range(0, len(support), _CHUNK):
        ids = support[start : start + _CHUNK]
        index, score = _winner(probs[ids], _cells(key, ids))
        if score > best_score:
            best, best_score = int(ids[index]), score
    return best


def coupled_candidates(probs: Array, seed: int, position: int, count: int) -> list[int]:
    """The `count` best tokens of log distribution + gumbel over the support of `probs` [V], best
    first: a sample without replacement (Gumbel top-k) that begins with `coupled_token`."""
    support = (probs > 0).nonzero()[0]
    scores = np.log(probs[support].astype(np.float64)) + gumbel(seed, position, support)
    best_first = np.argsort(-scores, kind="stable")[:count]
    found: list[int] = support[best_first].tolist()
    return found


def _winner(probs: Array, cells: NDArray[np.int64]) -> tuple[int, float]:
    """Index and value of the maximum of log prob + g. It lies where -log(u)/prob is smallest, and
    (1 - u)/prob bounds that from below. Few entries have a bound within one exact value and need
    logarithms."""
    bounds = _uniforms(cells)
    np.subtract(1, bounds, out=bounds)
    bounds /= probs
    nearest = int(bounds.argmin())
    reached = -np.log(_uniforms(cells[nearest : nearest + 1])[0]) / float(probs[nearest])
    runners_up = (bounds <= reached * _SLACK).nonzero()[0]
    scores = np.log(probs[runners_up].astype(np.float64)) + _gumbel(cells[runners_up])
    first = int(scores.argmax())
    return int(runners_up[first]), float(scores[first])


def _key(seed: int, position: int) -> int:
    return hash_words(seed, position, Purpose.GUMBEL)


def _cells(key: int, ids: Array) -> NDArray[np.int64]:
    """Which of the 2^52 equal cells of (0, 1) each token's u is the midpoint of."""
    words = hash_ids(key, ids)
    words >>= np.uint64(12)
    return words.view(np.int64)  # converts to float faster than unsigned


def _uniforms(cells: NDArray[np.int64]) -> NDArray[np.float64]:
    """The midpoints, as in hashing.unit; so coarse that 1 - u is exact as well."""
    uniforms = cells.astype(np.float64)
    uniforms += 0.5
    uniforms *= 2.0**-52
    return uniforms


def _gumbel(cells: NDArray[np.int64]) -> NDArray[np.float64]:
    noise: NDArray[np.float64] = -np.log(-np.log(_uniforms(cells)))
    return noise
