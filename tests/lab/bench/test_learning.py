"""`bench learning`: its questions, its windows and its goals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lab.bench.harness.texts import NoTexts
from lab.bench.speculation.learning import OTHER, STREAM, Asked, goals, window_rows
from lab.bench.speculation.learning_streams import (
    STREAMS,
    other_questions,
    questions,
    stream_questions,
)
from tandem.generation.client import Generated
from tandem_api.common.v1 import generation_pb2 as pb


def answer(accepted: int, tokens: int = 3) -> Generated:
    generated = Generated(tpot_s=0.01)
    generated.token_ids = list(range(tokens))
    generated.summary = pb.Summary(drafted=10, accepted=accepted)
    return generated


def asked(frozen: int, learning: int, same: bool = True) -> Asked:
    return Asked(answer(frozen), answer(learning, 3 if same else 2))


def test_a_window_compares_both_drafts_on_its_questions() -> None:
    answers = [*[asked(4, 4)] * 5, *[asked(5, 6)] * 5, asked(0, 9)]
    rows = window_rows(answers, STREAM, 1.0, 5)
    assert [row["window"] for row in rows] == [1, 2], "the last question fills no window"
    assert [row["gain"] for row in rows] == [1.0, pytest.approx(1.2)]
    assert rows[1]["frozen_acceptance"] == 0.5
    (short,) = window_rows(answers[:3], STREAM, 1.0, 5)
    assert short["questions"] == 3
    assert window_rows([], OTHER, 1.0, 5) == []


def test_goals_are_of_the_last_window_and_of_the_other_kind() -> None:
    rows = [
        *window_rows([asked(5, 5)] * 4 + [asked(5, 6)] * 4, STREAM, 0.0, 4),
        *window_rows([asked(5, 4)] * 4, OTHER, 0.0, 4),
    ]
    last, elsewhere, tpot, same = goals(rows, 0.0)
    assert last.met
    assert not elsewhere.met
    assert tpot.met
    assert same.met
    assert [last.figure, elsewhere.figure] == pytest.approx([1.2, 0.8])
    rows = window_rows([asked(5, 5), asked(5, 5, same=False)], STREAM, 0.0, 2)
    assert not goals(rows, 0.0)[-1].met, "another text is not the target's"


def test_questions_come_from_files_or_from_the_repository(tmp_path: Path) -> None:
    assert len(questions(None)) >= 50
    assert len(other_questions(None)) >= 6
    assert not any(each.startswith("Question:") for each in questions(None))
    assert questions(tmp_path) == questions(None)
    (tmp_path / "gsm8k-train.jsonl").write_text(json.dumps({"question": "1 + 1?"}) + "\n")
    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt") as file:
        file.write(json.dumps({"prompt": "def f():"}) + "\n")
    assert questions(tmp_path) == ["1 + 1?"]
    assert other_questions(tmp_path)[0].endswith("def f():")
    (tmp_path / "gsm8k-test.jsonl").write_text(json.dumps({"question": 2}))
    with pytest.raises(NoTexts, match=r"gsm8k-test\.jsonl: cannot be read"):
        questions(tmp_path)


def test_a_stream_asks_nothing_twice() -> None:
    for stream in STREAMS[1:]:
        asked = stream_questions(stream, None)
        assert len(set(asked)) == len(asked) == 400
    assert stream_questions("gsm8k", None) == questions(None)
