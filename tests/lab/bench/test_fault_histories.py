"""The models that `bench faults` compares histories with: what a correct suite may answer."""

from __future__ import annotations

from math import inf

import pytest

from lab.bench.faults.document_history import (
    DocumentChange,
    DocumentRead,
    Outcome,
    flowing_again_s,
    reported_s,
    wrong_reads,
)
from lab.bench.faults.text_history import Answered, noticed_s, tokens_again_s, wrong_tokens

ACK = Outcome.ACKNOWLEDGED
REFUSED = Outcome.REFUSED
UNKNOWN = Outcome.UNKNOWN


def change(
    number: int, outcome: Outcome = ACK, put: bool = True, at_s: float = 0
) -> DocumentChange:
    """Change `number` lasts from 10 · number to 10 · number + 5."""
    began_s = at_s or 10.0 * number
    return DocumentChange("a", number, put, began_s, began_s + 5, outcome)


def read(seen: int | None, at_s: float, lasts_s: float = 0.5) -> DocumentRead:
    return DocumentRead("a", seen, at_s, at_s + lasts_s)


@pytest.mark.parametrize(
    ("changes", "reads"),
    [
        ([change(1)], [read(1, 16)]),
        ([change(1)], [read(None, 5), read(None, 11), read(1, 12), read(1, 20)]),
        ([change(1), change(2, put=False)], [read(1, 16), read(None, 26)]),
        # Not acknowledged: it may have happened, or not, or happen late.
        ([change(1), change(2, UNKNOWN)], [read(1, 26), read(1, 30)]),
        ([change(1), change(2, UNKNOWN)], [read(1, 26), read(2, 30), read(2, 40)]),
        ([change(1), change(2, UNKNOWN, put=False)], [read(None, 30)]),
        ([change(1), change(2, UNKNOWN), change(3)], [read(3, 36)]),
        # Under way together, two readers may see the change at different times.
        ([change(1), change(2)], [read(2, 21, 3), read(1, 22, 3)]),
        ([change(1), change(2, REFUSED)], [read(1, 26)]),
    ],
)
def test_what_a_correct_store_may_answer(
    changes: list[DocumentChange], reads: list[DocumentRead]
) -> None:
    assert wrong_reads(changes, reads) == []


@pytest.mark.parametrize(
    ("changes", "reads", "lost"),
    [
        ([change(1)], [read(None, 16)], 1),
        ([change(1), change(2)], [read(1, 26)], 2),
        ([change(1), change(2, put=False)], [read(1, 26)], 2),
        ([change(1)], [read(1, 5)], None),  # before it began
        ([change(1), change(2, REFUSED)], [read(2, 26)], 1),
        # What was seen once stays.
        ([change(1), change(2, UNKNOWN)], [read(2, 26), read(1, 30)], None),
        ([change(1), change(2, UNKNOWN), change(3)], [read(2, 36)], 3),
    ],
)
def test_what_no_correct_store_answers(
    changes: list[DocumentChange], reads: list[DocumentRead], lost: int | None
) -> None:
    (wrong,) = wrong_reads(changes, reads)
    assert wrong.read == reads[-1]
    assert wrong.lost_change == lost


def test_how_long_a_fault_of_documents_was_felt() -> None:
    assert reported_s(
        [(1.0, 2.0), (9.0, 10.4), (11.0, 11.2), (30.0, 39.0)], 10.0, 20.0
    ) == pytest.approx(0.4)
    assert reported_s([(1.0, 2.0)], 10.0, 20.0) is None
    changes = [change(1, at_s=18), change(2, UNKNOWN, at_s=21), change(3, at_s=30)]
    assert flowing_again_s(changes, [["a"]], over_s=20.0) == 15.0
    assert flowing_again_s(changes, [["a"], ["b"]], over_s=20.0) == inf


def answer(
    token_ids: list[int], status: str = "ok", began_s: float = 0.0, ended_s: float = 9.0
) -> Answered:
    return Answered(0, 0, began_s, ended_s, status, token_ids, [began_s + 1, ended_s])


@pytest.mark.parametrize(
    ("token_ids", "status", "wrong"),
    [
        ([1, 2, 3, 4], "ok", 0),
        ([1, 2, 3], "ok", 1),  # lost
        ([1, 2, 3], "UNAVAILABLE", 0),
        ([1, 2, 2, 3, 4], "ok", 3),  # repeated
        ([1, 3], "UNAVAILABLE", 1),
        ([1, 2, 3, 4, 5], "UNAVAILABLE", 1),
        ([], "UNAVAILABLE", 0),
    ],
)
def test_tokens_that_are_not_the_undisturbed_runs(
    token_ids: list[int], status: str, wrong: int
) -> None:
    assert wrong_tokens(answer(token_ids, status), [1, 2, 3, 4]) == wrong


def test_how_long_a_fault_was_not_noticed() -> None:
    failed = answer([1], "UNAVAILABLE", began_s=1.0, ended_s=7.0)
    resumed = answer([1, 2, 3, 4], began_s=2.0, ended_s=30.0)
    resumed.links_lost, resumed.loss_noticed_s = 1, 2.4
    assert noticed_s([failed, resumed], 5.0, 20.0, of_cloud=False) == 2.0
    assert noticed_s([failed, resumed], 5.0, 20.0, of_cloud=True) == 2.4
    assert noticed_s([failed], 5.0, 6.0, of_cloud=True) is None  # ended under the next fault
    assert noticed_s([failed], 8.0, 20.0, of_cloud=True) is None


def test_when_tokens_came_again() -> None:
    assert tokens_again_s([answer([1, 2], began_s=3.0, ended_s=9.0)], [0], over_s=5.0) == 4.0
    assert tokens_again_s([answer([1, 2])], [0, 1], over_s=5.0) == inf
