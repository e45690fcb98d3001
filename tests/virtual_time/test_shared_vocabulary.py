"""A draft model with another tokenizer, through both machines: the answer's distribution is the
target's.

In fractions, over all paths: the draft's distributions over its own five tokens are restricted to
the three that the target's four contain, whose ids are others.
"""

import numpy as np
import pytest

from tandem.core.probs import Array, SamplingParams
from tandem.text.vocabulary import Vocabulary, intersect
from tests.exact import ExactRandom, fractions, outcome_probs
from tests.virtual_time.cases import ModelPair, TokenIds, preset
from tests.virtual_time.exact_models import NumberPerDecision
from tests.virtual_time.lockstep import Lockstep

SHARED = intersect(
    Vocabulary(5, dict(enumerate([b"a", b"b", b"c", b"d", b"e"]))),
    Vocabulary(4, dict(enumerate([b"d", b"x", b"b", b"a"]))),
)
# Weights whose shared part adds up to a power of two, so that no float on the way rounds.
DRAFTS = {0: [4, 3, 5, 1, 9], 1: [2, 2, 7, 4, 0], 2: [1, 6, 0, 1, 3], 3: [0, 8, 2, 8, 1]}
TARGETS = {0: [2, 3, 2, 1], 1: [5, 1, 1, 1], 2: [4, 4, 4, 4], 3: [1, 0, 4, 3]}


def draft_probs(context: TokenIds) -> Array:
    """After a target token, over target tokens."""
    own = fractions(DRAFTS[context[-1]])
    probs = np.array([own[0] * 0] * SHARED.target_size, dtype=object)
    probs[SHARED.target_ids] = own[SHARED.draft_ids]
    conditional: Array = probs / probs.sum()
    return conditional


MODELS = ModelPair(
    4, draft_probs, lambda context: fractions(TARGETS[context[-1]]), SamplingParams()
)


@pytest.mark.parametrize("name", ["dsd", "dssd-full", "dssd"])
def test_the_answers_distribution_is_the_targets(name: str) -> None:
    assert sorted(SHARED.target_ids) == [0, 2, 3]

    def answer(rng: ExactRandom) -> TokenIds:
        machines = NumberPerDecision(rng)
        return Lockstep(preset(name, 2), MODELS, max_tokens=2, rng=machines).run()

    probs = outcome_probs(answer, once=False)
    first = MODELS.target_probs((1, 2))
    assert probs == {
        (one, two): first[one] * MODELS.target_probs((one,))[two]
        for one in range(4)
        for two in range(4)
        if first[one] and MODELS.target_probs((one,))[two]
    }
