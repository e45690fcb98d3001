"""`bench learning`: its questions, its windows and its goals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lab.bench.harness.texts import NoTexts
from lab.bench.speculation.learning import OTHER, goals, window_rows
from lab.bench.speculation.learning_streams import STREAM, other_questions
from lab.bench.speculation.offline_learning import Learned
from tandem.learning.evaluation import Score


def learned(frozen: int, adapted: int) -> Learned:
    return Learned(Score(frozen, 10), Score(adapted, 10), 0, 0.0, ())


def test_a_window_compares_both_drafts_on_its_questions() -> None:
    answers = [*[learned(4, 4)] * 5, *[learned(5, 6)] * 5, learned(0, 9)]
    rows = window_rows(answers, STREAM, 1.0, 5)
    assert [row["window"] for row in rows] == [1, 2], "the last question fills no window"
    assert [row["gain"] for row in rows] == [1.0, pytest.approx(1.2)]
    assert rows[1]["frozen_acceptance"] == 0.5
    (short,) = window_rows(answers[:3], STREAM, 1.0, 5)
    assert short["questions"] == 3
    assert window_rows([], OTHER, 1.0, 5) == []


def test_goals_are_of_the_last_window_and_of_the_other_kind() -> None:
    rows = [
        *window_rows([learned(5, 5)] * 4 + [learned(5, 6)] * 4, STREAM, 0.0, 4),
        *window_rows([learned(5, 4)] * 4, OTHER, 0.0, 4),
    ]
    last, elsewhere = goals(rows, 0.0)
    assert last.met
    assert not elsewhere.met
    assert [last.figure, elsewhere.figure] == pytest.approx([1.2, 0.8])


def test_other_questions_come_from_a_file_or_from_the_repository(tmp_path: Path) -> None:
    assert len(other_questions(None)) >= 6
    assert other_questions(tmp_path) == other_questions(None)
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"prompt": "def f():"}).encode()))
    assert other_questions(tmp_path)[0].endswith("def f():")
    path.write_bytes(gzip.compress(json.dumps({"prompt": 2}).encode()))
    with pytest.raises(NoTexts, match=r"HumanEval\.jsonl\.gz: cannot be read"):
        other_questions(tmp_path)
