"""What computing a table may use: models, seed, and experiments that several rows share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from lab.bench.harness.models import Models
from lab.bench.harness.pair_distributions import pairs_along, texts
from lab.bench.speculation.methods import load_simulated_pair, questions
from lab.bench.speculation.methods_grid import Question
from tandem.backends.torch.loading import load_engine
from tandem.core.probs import Array
from tandem.specdec.presets import Preset
from tandem.testing.simulation.answer import Conditions, SimulatedAnswer, simulate_answer
from tandem.testing.simulation.declared_pair import declared_pair
from tandem.testing.simulation.model_pair import SimulatedPair

DECLARED_ANSWERS = 16
QUICK_DECLARED_ANSWERS = 6
DECLARED_TOKENS = 128
TOKENS = 96
QUICK_TOKENS = 32
PROMPT = (1, 2, 3)
POSITIONS_APART = 8
MOST_POSITIONS = 400

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

    @cached_property
    def pair(self) -> SimulatedPair:
        """The demo pair, or the one given, at temperature 1."""
        return load_simulated_pair(self.models)

    @cached_property
    def questions(self) -> list[Question]:
        """Held-out prompts."""
        return questions(self.models, self.seed, self.quick)

    @cached_property
    def distributions(self) -> list[tuple[Array, Array]]:
        """The distributions of target and draft at positions of held-out text, evenly spread."""
        target, draft = load_engine(self.models.target), load_engine(self.models.draft)
        pairs: list[tuple[Array, Array]] = []
        for _, token_ids in texts(self.models, self.quick):
            pairs += list(pairs_along(target, draft, token_ids))[::POSITIONS_APART]
        return pairs[:: 1 + len(pairs) // MOST_POSITIONS]

    def once(self, name: Hashable, compute: Callable[[], T]) -> T:
        """Return what several rows share, computed when the first one asks for it."""
        if name not in self._shared:
            self._shared[name] = compute()
        value: T = self._shared[name]
        return value

    def answers(
        self,
        preset: Preset,
        conditions: Conditions,
    ) -> list[SimulatedAnswer]:
        """Return answers to the held-out prompts in virtual time, by the models'
        distributions."""
        tokens = QUICK_TOKENS if self.quick else TOKENS
        return [
            simulate_answer(preset, self.pair, conditions, one.prompt_ids, tokens, one.seed)
            for one in self.questions
        ]

    def declared_answers(
        self, preset: Preset, conditions: Conditions, acceptance_rate: float
    ) -> list[SimulatedAnswer]:
        """Return answers in virtual time without models: every draft is accepted with this
        probability."""
        count = QUICK_DECLARED_ANSWERS if self.quick else DECLARED_ANSWERS
        return [
            simulate_answer(
                preset,
                declared_pair(acceptance_rate, seed=seed),
                conditions,
                PROMPT,
                DECLARED_TOKENS,
                seed,
            )
            for seed in range(self.seed, self.seed + count)
        ]
