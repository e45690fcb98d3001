"""How much is trained: each text a few times, then the device rests."""

from __future__ import annotations

import numpy as np

from tandem.learning.examples import (
    MIN_CONTEXT,
    VALIDATION_OF,
    Example,
    TargetProbs,
    recent_index,
)
from tandem.learning.schedule import (
    EPOCHS,
    MAX_BACKLOG,
    MAX_FAILURES,
    TOKENS_PER_EVALUATION,
    TrainingSchedule,
)


def text(length: int, first: int) -> Example:
    return Example(np.arange(length, dtype=np.int32), first, 1.0)


def test_training_ends_once_each_new_token_was_seen_a_few_times() -> None:
    schedule = TrainingSchedule()
    schedule.recorded(100)
    steps = 0
    while schedule.backlog:
        schedule.trained(50)
        steps += 1
    assert steps == EPOCHS * 2
    assert not schedule.evaluates, "a judgement costs more than that"


def test_what_was_trained_is_judged_now_and_then() -> None:
    schedule = TrainingSchedule()
    schedule.recorded(10**9)
    assert schedule.backlog == MAX_BACKLOG
    schedule.trained(TOKENS_PER_EVALUATION - 1)
    assert not schedule.evaluates
    schedule.trained(1)
    assert schedule.evaluates
    assert not schedule.evaluated(gained=True)
    assert not schedule.evaluates


def test_what_gains_nothing_again_and_again_is_given_up() -> None:
    schedule = TrainingSchedule()
    schedule.recorded(1000)
    given_up = [schedule.evaluated(gained=False) for _ in range(MAX_FAILURES)]
    assert given_up == [*[False] * (MAX_FAILURES - 1), True]
    assert schedule.backlog == 0
    for _ in range(2 * MAX_FAILURES):
        assert not schedule.evaluated(gained=False)
        assert not schedule.evaluated(gained=True), "a gain, however small, begins the count anew"


def test_texts_with_the_same_prompt_are_on_the_same_side() -> None:
    sides = []
    for number in range(200):
        ids = np.array([number, number // 7, 1, 5], dtype=np.int32)
        again = np.array([number, number // 7, 1, 9, 9], dtype=np.int32)
        sides.append(Example(ids, 3, 1.0).validates)
        assert Example(again, 3, 0.0).validates == sides[-1]
    assert 200 / VALIDATION_OF / 2 < sum(sides) < 200 / VALIDATION_OF * 2


def test_a_part_asks_only_for_the_target_s_tokens_and_leaves_context() -> None:
    long = text(1000, 400)
    seen = set[int]()
    for number in range(300):
        part = long.training_window(64, (number + 0.5) / 300)
        assert len(part) == 64
        assert part.target_tokens > 0
        assert part.token_ids[part.first] >= 400
        assert part.first >= MIN_CONTEXT
        seen |= set(part.token_ids[part.first :].tolist())
    assert seen == set(range(400, 1000)), "every token of the answer is asked for"
    whole = text(20, 3).training_window(64, 0.7)
    assert (len(whole), whole.first) == (20, 3)


def test_the_judged_part_is_the_same_each_time() -> None:
    part = text(1000, 400).validation_window(64)
    assert part.token_ids[0] == 368
    assert (len(part), part.first) == (64, 32)
    assert text(1000, 1).validation_window(64).first == 1


def test_probabilities_stay_with_their_tokens() -> None:
    known = {
        500: TargetProbs(
            np.array([1], np.int32), np.array([0.5], np.float32), np.zeros(1, np.float32)
        )
    }
    whole = Example(np.arange(1000, dtype=np.int32), 400, 1.0, target_probs=known)
    assert set(whole.part(480, 520).target_probs) == {20}
    assert whole.part(480, 520).part(5, 30).position == 485
    assert not whole.part(501, 520).target_probs
    assert not whole.part(495, 520, context=8).target_probs, "it is not asked for"


def test_newer_texts_are_drawn_more_often() -> None:
    drawn = [recent_index(10, (number + 0.5) / 2000) for number in range(2000)]
    assert set(drawn) == set(range(10))
    assert sum(index >= 5 for index in drawn) > 1400
