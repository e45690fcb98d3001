"""What computing a table may use: models, seed, and experiments that several rows share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from lab.bench.harness.models import Models
from tandem.specdec.presets import Preset
from tandem.testing.simulation.answer import Conditions, SimulatedAnswer, simulate_answer
from tandem.testing.simulation.declared_pair import declared_pair

DECLARED_ANSWERS = 4
"""Of each seed."""
DECLARED_TOKENS = 128
PROMPT = (1, 2, 3)

T = TypeVar("T")


class Testbed:
    """Models are loaded, and an experiment is run, when the first row asks for it."""

    __test__ = False  # not pytest's

    def __init__(
        self,
        models: Models,
        seed: int,
        quick: bool,
        tasks: Path | None = None,
    ) -> None:
        """Keep the arguments; nothing is loaded yet. `tasks`: a folder with texts that this
        repository does not have."""
        self.models = models
        self.seed = seed
        self.quick = quick
        self.tasks = tasks
        self._shared: dict[Hashable, Any] = {}

    def once(self, name: Hashable, compute: Callable[[], T]) -> T:
        """Return what several rows share, computed when the first one asks for it."""
        if name not in self._shared:
            self._shared[name] = compute()
        value: T = self._shared[name]
        return value

    def forget(self) -> None:
        """Drop what rows shared."""
        self._shared.clear()

    def declared_answers(
        self, preset: Preset, conditions: Conditions, acceptance_rate: float
    ) -> list[SimulatedAnswer]:
        """Return answers in virtual time without models: every draft is accepted with this
        probability."""
        first = DECLARED_ANSWERS * self.seed
        return [
            simulate_answer(
                preset,
                declared_pair(acceptance_rate, seed=seed),
                conditions,
                PROMPT,
                DECLARED_TOKENS,
                seed,
            )
            for seed in range(first, first + DECLARED_ANSWERS)
        ]
