"""Changes of source code for `bench prediction`, and the pair that recites them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
import pytest

from lab.bench.harness.suite import ROOT
from lab.bench.speculation.code_edits import KINDS, CodeEdit, code_edits
from lab.bench.speculation.predicted_outputs import Recited

SOURCES = ROOT / "tandem" / "two_sided"
"""As many pieces as are needed, and twice that: all sources take long to read."""


@pytest.fixture(scope="module")
def edits() -> Sequence[CodeEdit]:
    return code_edits(50, 1, SOURCES)


def test_fifty_different_changes_are_the_same_for_a_seed(edits: Sequence[CodeEdit]) -> None:
    assert len(edits) == 50
    assert len({edit.old for edit in edits}) == 50
    assert code_edits(50, 1, SOURCES) == edits != code_edits(50, 2, SOURCES)
    assert {edit.kind for edit in edits} == set(KINDS)


def test_a_change_leaves_most_of_whole_functions_and_classes_as_it_was(
    edits: Sequence[CodeEdit],
) -> None:
    for edit in edits:
        assert len(ast.parse(edit.old).body) == 1
        assert edit.new != edit.old
        ratio = SequenceMatcher(None, edit.old.split(), edit.new.split(), autojunk=False).ratio()
        assert ratio > 0.5, edit.change
        assert edit.old in edit.prompt
        assert edit.change in edit.prompt


def test_a_recited_answer_follows_its_prompt_whatever_was_said() -> None:
    target = Recited({(1, 2): (5, 6, 7), (4,): (8,)}, vocabulary_size=10)
    assert [int(np.argmax(target((1, 2, *said)))) for said in ((), (5,), (9, 9))] == [5, 6, 7]
    assert int(np.argmax(target((4,)))) == 8


def test_a_draft_model_is_right_as_often_as_declared() -> None:
    answer = tuple(number % 10 for number in range(4000))
    draft = Recited({(1,): answer}, vocabulary_size=10, acceptance=0.7)
    said = [int(np.argmax(draft((1, *(0,) * place)))) for place in range(len(answer))]
    right = sum(one == other for one, other in zip(said, answer, strict=True))
    assert right / len(answer) == pytest.approx(0.7, abs=0.03)
