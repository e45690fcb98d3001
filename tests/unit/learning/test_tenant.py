"""One tenant's training: which part of which text each step takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from tandem.backends.interface import ForwardCancelled, never
from tandem.learning.adaptation import Weights
from tandem.learning.examples import Example
from tandem.learning.tenant import TenantLearning
from tests.unit.learning.unigrams import Unigrams, UnigramTrainer, answers, setup


class Noted(Unigrams):
    """Notes which tokens each step is to learn from, of those that are cancelled as well."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[int, ...]] = []

    def trainer(self, weights: Weights | None, state: Mapping[str, NDArray[Any]]) -> UnigramTrainer:
        trainer = super().trainer(weights, state)
        step = trainer.step

        def noted(text: Example, cancelled: Callable[[], bool] = never) -> float:
            self.parts.append(tuple(text.token_ids.tolist()))
            return step(text, cancelled)

        trainer.step = noted  # type: ignore[method-assign]
        return trainer


def begun(folder: Path) -> tuple[TenantLearning, Noted]:
    noted = Noted()
    learning = TenantLearning(folder, setup(noted))
    learning.read()
    return learning, noted


def test_steps_are_the_same_in_each_run_and_after_those_that_were_cancelled(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    whole, all_parts = begun(tmp_path / "one" / "tenant")
    (tmp_path / "two").mkdir()
    broken, some_parts = begun(tmp_path / "two" / "tenant")
    texts = answers(60)
    for text in texts:
        whole.record(text)
        broken.record(text)
    for _ in range(8):
        whole.work(never)
    for step in range(4):
        if step % 2:
            with pytest.raises(ForwardCancelled):
                broken.work(lambda: True)
            assert some_parts.parts.pop() == all_parts.parts[step], "it is taken again"
        broken.work(never)
    broken.keep_training()
    resumed, later_parts = begun(tmp_path / "two" / "tenant")
    for _ in range(4):
        resumed.work(never)
    assert len(set(all_parts.parts)) > 4
    assert [*some_parts.parts, *later_parts.parts] == all_parts.parts


def test_tenants_learn_from_their_texts_in_an_order_of_their_own(tmp_path: Path) -> None:
    orders = []
    for name in ("one", "other"):
        learning, noted = begun(tmp_path / name)
        for text in answers(60):
            learning.record(text)
        for _ in range(8):
            learning.work(never)
        orders.append(noted.parts)
    assert orders[0] != orders[1]


def learned(learning: TenantLearning, texts: list[Example]) -> None:
    """Record texts and learn from each until nothing is due."""
    for text in texts:
        learning.record(text)
        while learning.due:
            learning.work(never)
            if learning.evaluated:
                learning.conclude()


def scored(learning: TenantLearning, text: Example) -> None:
    """Record a text, and have the adapter in use scored on it, but learn nothing."""
    learning.record(text)
    for _ in range(2):
        assert not learning.work(never)


def test_an_adapter_is_set_aside_as_long_as_another_kind_is_asked(tmp_path: Path) -> None:
    learning, _ = begun(tmp_path)
    learned(learning, answers(60))
    used = learning.adapter
    assert used is not None
    assert learning.chosen is used
    others = answers(80, likely=9)
    for text in others[:8]:
        scored(learning, text)
    assert learning.adapter is used, "held-back texts are of the first kind still"
    assert learning.chosen is None
    for text in answers(80)[60:68]:
        scored(learning, text)
    assert learning.chosen is used, "it is used again once it serves"


def test_two_texts_set_nothing_aside(tmp_path: Path) -> None:
    learning, _ = begun(tmp_path)
    learned(learning, answers(60))
    for text in answers(80, likely=9)[:2]:
        scored(learning, text)
    assert learning.chosen is learning.adapter is not None
