"""The bench's own arithmetic: two candidates in closed form, cuts summed up, trees laid out."""

from functools import partial

import numpy as np

from lab.bench.speculation.trees import tree_parents, two_candidates
from lab.bench.speculation.truncation import Sums
from tandem.core.acceptance import accepted_candidate, draw_candidates
from tandem.core.probs import Truncation
from tandem.core.tree import depths
from tests.exact import ExactRandom, fractions, outcome_probs, probs_pairs


def stands(rng: ExactRandom, target: np.ndarray, draft: np.ndarray, replacement: bool) -> bool:
    candidates = draw_candidates(draft, 2, rng, 0, 0, replacement)
    return accepted_candidate(target, candidates, draft, rng, 0, replacement) is not None


def test_two_candidates_are_accepted_as_often_as_the_rule_accepts_them() -> None:
    for target, draft in probs_pairs(seed=8, count=40):
        first, with_, without = two_candidates(target.astype(float), draft.astype(float))
        assert np.isclose(first, float(sum(map(min, target, draft))))
        for replacement, figure in ((True, with_), (False, without)):
            rule = partial(stands, target=target, draft=draft, replacement=replacement)
            assert np.isclose(figure, float(outcome_probs(rule).get(True, 0)))


def test_a_cut_s_figures() -> None:
    sums = Sums(Truncation(top_k=1))
    target, draft = (fractions(w).astype(np.float32) for w in ([1, 3], [3, 1]))
    sums.add(target, draft)
    sums.add(target, target)
    row = sums.row(seed=1)
    assert (row["cut"], row["positions"]) == ("K 1", 2)
    assert np.isclose(row["retained_mass"], 0.75)
    assert np.isclose(row["acceptance_uncut"], (0.5 + 1) / 2)
    assert np.isclose(row["acceptance_rate"], (0.25 + 0.75) / 2)
    assert np.isclose(row["largest_excess"], 0.0)


def test_a_verifier_s_tree() -> None:
    assert tree_parents((2, 1)) == (-1, 0, 0, 1, 2)
    assert depths(tree_parents((2, 2, 2))) == [0, 1, 1, *[2] * 4, *[3] * 8]
