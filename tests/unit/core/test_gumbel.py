"""The Gumbel coupling rule: a sample of the distribution, reproducible, agreeing as often as
promised."""

import numpy as np
import pytest

from tandem.core import gumbel as gumbel_module
from tandem.core.errors import InvalidArgument
from tandem.core.gumbel import coupled_candidates, coupled_token, gumbel
from tandem.core.hashing import GOLDEN, Purpose, hash_ids, hash_words, mix, unit
from tandem.core.probs import Array, SamplingParams, probs_from_logits
from tests.chi_squared import assert_fits
from tests.long_runs import with_long_cases


def reference_token(probs: Array, seed: int, position: int) -> int:
    """The rule as it is written: noise for every token of the support, then argmax."""
    support = np.flatnonzero(probs)
    scores = np.log(probs[support].astype(np.float64)) + gumbel(seed, position, support)
    return int(support[scores.argmax()])


def random_probs(source: np.random.Generator, size: int) -> Array:
    probs = source.dirichlet(np.full(size, source.choice([0.02, 0.3, 5.0])))
    probs[source.random(size) < 0.3] = 0
    probs[source.integers(size)] += 0.01
    rounded: Array = (probs / probs.sum()).astype(np.float32)
    return rounded


def slow_noise(seed: int, position: int, token_id: int) -> float:
    """One token's noise as the module's docstring says it, in whole numbers and floats."""
    span, inside = divmod(token_id, 64 * 1024)
    row, column = divmod(inside, 1024)
    key = hash_words(seed, position, Purpose.GUMBEL)
    of_block = hash_words(seed, position, Purpose.GUMBEL, 64)
    word = mix(of_block + (span * 1024 + column + 1) * GOLDEN)
    first_arrives = -np.log(unit(word)) / 64
    waits = 0.0 if row == word % 64 else -np.log(unit(mix(key + (token_id + 1) * GOLDEN)))
    return float(-np.log(first_arrives + waits))


@pytest.mark.parametrize("size", [1, 2, 50, 2048, 2049, 20_000, 65_536, 70_000, 151_936])
def test_coupled_token_is_the_argmax_over_all_the_noise(size: int) -> None:
    source = np.random.default_rng(size)
    for position in range(60 if size < 10_000 else 6):
        probs = random_probs(source, size)
        assert coupled_token(probs, size, position) == reference_token(probs, size, position)


@pytest.mark.parametrize("count", [1, 2, 3, 30, 5000])
def test_candidates_are_the_best_over_all_the_noise(count: int) -> None:
    source = np.random.default_rng(count)
    for position in range(3 if count > 30 else 20):
        probs = random_probs(source, 9000)
        (support,) = np.nonzero(probs)
        scores = np.log(probs[support].astype(np.float64)) + gumbel(1, position, support)
        best = support[np.argsort(-scores)][:count]
        assert coupled_candidates(probs, 1, position, count) == best.tolist()


def test_noise_is_that_of_the_docstring() -> None:
    ids = np.array([0, 1, 1024, 1023, 65_535, 65_536, 151_935, *range(0, 65_536, 1024)])
    for position in range(4):
        expected = [slow_noise(5, position, int(token_id)) for token_id in ids]
        np.testing.assert_allclose(gumbel(5, position, ids), expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("tokens", "count", "most"),
    [
        *(("many", 1, 78), ("many", 2, 400), ("many", 20, 3300)),
        *(("few", 1, 55), ("few", 2, 320), ("few", 20, 2100)),
        ("flat", 1, 20_000),
    ],
)
def test_hardly_any_noise_is_drawn(
    tokens: str, count: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 151,936 tokens, beside the first of each of their 3,072 blocks."""
    drawn = []
    whole = hash_ids

    def counting(key: int, ids: Array) -> Array:
        drawn.append(len(ids))
        return whole(key, ids)

    monkeypatch.setattr(gumbel_module, "hash_ids", counting)
    ids = np.arange(151_936)
    probs = np.where(ids % 3001 == 7, 1.0, 0.0)
    if tokens == "many":
        probs = np.random.default_rng(1).permutation((ids + 1) ** -1.3)
    if tokens == "flat":
        probs = np.random.default_rng(3).gamma(0.3, size=len(ids))
    for position in range(30):
        coupled_candidates(probs, 1, position, count)
    assert sum(drawn) < 30 * (3072 + most)


def test_fewer_tokens_than_asked_for_are_all_of_them() -> None:
    """In a vocabulary that is searched; also where all of them are in one block."""
    for step in (1000, 1024):
        probs = np.zeros(9000)
        probs[7::step] = np.arange(1, len(probs[7::step]) + 1)
        for position in range(5):
            every = coupled_candidates(probs, 1, position, 30)
            assert sorted(every) == np.flatnonzero(probs).tolist()
            assert coupled_candidates(probs, 1, position, 10_000) == every
            assert coupled_candidates(probs, 1, position, len(every)) == every
            assert coupled_candidates(probs, 1, position, 3) == every[:3]


def test_noises_of_one_block_are_independent_though_one_word_says_which_is_the_first() -> None:
    """Tokens 0, 1024 and 2048 are of one block, 1 is of another: their ranks in all orders are
    equally likely, and so are all cells of the unit cube of two of them."""
    ids = np.array([0, 1024, 2048, 1])
    noise = np.array([gumbel(3, position, ids) for position in range(4000)])
    orders = (np.argsort(noise, axis=1) * [64, 16, 4, 1]).sum(axis=1)
    _, counts = np.unique(orders, return_counts=True)
    assert len(counts) == 24
    assert_fits(counts, np.ones(24))
    uniform = (np.exp(-np.exp(-noise)) * 6).astype(int)
    assert_fits(np.bincount(uniform[:, 0] * 6 + uniform[:, 1], minlength=36), np.ones(36))


def test_coupled_tokens_of_one_block_have_the_distribution() -> None:
    probs = np.zeros(3 * 1024, dtype=np.float32)
    probs[[0, 1024, 1025, 2048]] = [0.55, 0.3, 0.1, 0.05]
    tokens = [coupled_token(probs, 4, position) for position in range(2000)]
    assert_fits(np.bincount(tokens, minlength=len(probs)), probs)


def test_noise_of_a_token_does_not_depend_on_the_others() -> None:
    everyone = gumbel(3, 5, np.arange(1000))
    some = np.array([999, 0, 17])
    assert (gumbel(3, 5, some) == everyone[some]).all()
    assert (gumbel(3, 5, some.astype(np.int32)) == everyone[some]).all()


def test_noise_is_pinned() -> None:
    # The text of a seed depends on these values; the last bits may differ with the libm.
    np.testing.assert_allclose(
        gumbel(42, 7, np.array([0, 1, 151_935])),
        [0.4480690853145522, 1.114917717618638, 1.7492821315640283],
        rtol=1e-14,
    )


def test_noise_has_the_gumbel_distribution() -> None:
    noise = gumbel(8, 0, np.arange(50_000))
    uniform = np.exp(-np.exp(-noise))
    counts, _ = np.histogram(uniform, bins=50, range=(0, 1))
    assert_fits(counts, np.ones(50))


@pytest.mark.parametrize("vary", ["position", "seed"])
def test_coupled_tokens_have_the_distribution(vary: str) -> None:
    probs = np.array([0.4, 0.0, 0.3, 0.05, 0.05, 0.2], dtype=np.float32)
    tokens = [
        coupled_token(probs, *((9, index) if vary == "position" else (index, 9)))
        for index in range(5_000)
    ]
    assert_fits(np.bincount(tokens, minlength=6), probs)


def test_successive_coupled_tokens_are_independent() -> None:
    probs = np.array([0.5, 0.3, 0.2], dtype=np.float32)
    tokens = np.array([coupled_token(probs, 10, position) for position in range(8000)])
    counts = np.bincount(3 * tokens[:-1] + tokens[1:], minlength=9)
    assert_fits(counts, np.outer(probs, probs).ravel())


@pytest.mark.parametrize("seed", with_long_cases(range(6), range(2)))
def test_acceptance_is_at_least_what_the_coupling_promises(seed: int) -> None:
    source = np.random.default_rng(seed)
    target = source.dirichlet(np.full(8, 0.7))
    draft = 0.6 * target + 0.4 * source.dirichlet(np.full(8, 0.7))
    distance = np.abs(target - draft).sum() / 2
    samples = 2000
    agreed = sum(
        coupled_token(target, seed, position) == coupled_token(draft, seed, position)
        for position in range(samples)
    )
    promised = (1 - distance) / (1 + distance)
    deviation = np.sqrt(promised * (1 - promised) / samples)
    assert agreed / samples >= promised - 4 * deviation
    assert agreed / samples <= 1 - distance + 4 * deviation  # no coupling agrees more often


def test_a_truncated_distribution_sees_the_same_noise() -> None:
    logits = np.random.default_rng(2).normal(scale=2, size=500).astype(np.float32)
    whole = probs_from_logits(logits, SamplingParams())
    head = probs_from_logits(logits, SamplingParams(top_k=50))
    for position in range(200):
        token = coupled_token(whole, 4, position)
        if head[token]:
            assert coupled_token(head, 4, position) == token


@pytest.mark.parametrize("probs", [[], [0.0, 0.0], [float("nan"), 0.0]])
def test_a_distribution_without_support_is_rejected(probs: list[float]) -> None:
    with pytest.raises(InvalidArgument, match=r"^probs: "):
        coupled_token(np.array(probs), 0, 0)
