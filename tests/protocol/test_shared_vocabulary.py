"""A draft model with another tokenizer, through both machines: the answer's law is the target's.

In fractions, over all paths: the draft's laws over its own five tokens are restricted to the three
that the target's four contain, whose ids are others.
"""

import numpy as np
import pytest

from tandem.core.laws import Array, Sampling
from tandem.core.vocabulary import Vocabulary, intersect
from tests.exact import ExactChance, fractions, outcome_law
from tests.protocol.cases import Answer, ModelPair, preset
from tests.protocol.lockstep import Lockstep
from tests.protocol.test_exact_law import NumberPerDecision

SHARED = intersect(
    Vocabulary(5, dict(enumerate([b"a", b"b", b"c", b"d", b"e"]))),
    Vocabulary(4, dict(enumerate([b"d", b"x", b"b", b"a"]))),
)
# Weights whose shared part adds up to a power of two, so that no float on the way rounds.
DRAFTS = {0: [4, 3, 5, 1, 9], 1: [2, 2, 7, 4, 0], 2: [1, 6, 0, 1, 3], 3: [0, 8, 2, 8, 1]}
TARGETS = {0: [2, 3, 2, 1], 1: [5, 1, 1, 1], 2: [4, 4, 4, 4], 3: [1, 0, 4, 3]}


def draft_law(context: Answer) -> Array:
    """After a target token, over target tokens."""
    own = fractions(DRAFTS[context[-1]])
    law = np.array([own[0] * 0] * SHARED.target_size, dtype=object)
    law[SHARED.target_ids] = own[SHARED.draft_ids]
    conditional: Array = law / law.sum()
    return conditional


MODELS = ModelPair(4, draft_law, lambda context: fractions(TARGETS[context[-1]]), Sampling())


@pytest.mark.parametrize("name", ["dsd", "dssd-full", "dssd"])
def test_the_answers_law_is_the_targets(name: str) -> None:
    assert sorted(SHARED.target_ids) == [0, 2, 3]

    def answer(chance: ExactChance) -> Answer:
        machines = NumberPerDecision(chance)
        return Lockstep(preset(name, 2), MODELS, max_tokens=2, chance=machines).run()

    law = outcome_law(answer, once=False)
    first = MODELS.target_law((1, 2))
    assert law == {
        (one, two): first[one] * MODELS.target_law((one,))[two]
        for one in range(4)
        for two in range(4)
        if first[one] and MODELS.target_law((one,))[two]
    }
