"""Early exits that are chosen while an answer runs, against fixed ones, and with several clients.

Virtual time: real machines, distributions and early verdicts of the pair; declared durations, a
link, and what an exit adds to a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lab.bench.harness.report import Row, make_row, progress
from lab.bench.speculation.methods_grid import Question
from lab.simulation.answer import Conditions, SimulatedAnswer, simulate_answers
from lab.simulation.answer import Question as SimulatedQuestion
from lab.simulation.answer_figures import (
    answers_figures,
    cache_miss_rate,
    tokens_per_s_together,
    undrafted_rate,
)
from lab.simulation.model_pair import SimulatedPair
from lab.simulation.simulator import ModelTimes
from tandem.specdec.choices import Predraft
from tandem.specdec.presets import PRESETS, Preset

CHOICE_LIMIT = 0.97
PASS_S = 0.072
FURTHER_S = 0.003
BRANCH_SHARE = 0.05
LINKS = {
    "5 ms": (0.005, 100.0),
    "30 ms": (0.03, 100.0),
    "100 ms": (0.1, 100.0),
    "30 ms, 0.05 Mbit/s": (0.03, 0.05),
}
DRAFT_STEPS_S = {"quick draft": 0.008, "slow draft": 0.024}
EXIT_SHARES = (0.02, 0.2)
"""Of a pass, for each exit: about that of a head among 7 thousand million parameters, and among 135
million with a vocabulary of 49 thousand."""
WORKERS = (1, 4)
CLIENTS = (1, 2, 4, 8)
CHOICE_COLUMNS = (
    *("link", "draft", "exit_share", "best_fixed", "best_tokens_per_s"),
    *("tokens_per_s", "of_best", "without_exits", "early_verdicts"),
)
CLIENT_COLUMNS = (
    *("clients", "preset", "exit_share", "tokens_per_s", "tokens_per_s_each"),
    *("cache_miss_rate", "undrafted_rate", "speedup"),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One link, one draft model and one cost of exits."""

    link: str
    draft: str
    exit_share: float

    @property
    def conditions(self) -> Conditions:
        step_s = DRAFT_STEPS_S[self.draft]
        times = ModelTimes(
            step_s,
            PASS_S,
            FURTHER_S,
            exit_s=self.exit_share * PASS_S,
            branch_s=BRANCH_SHARE * step_s,
        )
        return Conditions(times, *LINKS[self.link])


CASES = tuple(
    Case(link, draft, share) for link in LINKS for draft in DRAFT_STEPS_S for share in EXIT_SHARES
)
QUICK_CASES = (
    Case("30 ms", "slow draft", 0.02),
    Case("30 ms", "quick draft", 0.2),
    Case("30 ms, 0.05 Mbit/s", "slow draft", 0.02),
)


def chosen_exits(exits: int) -> Preset:
    """Return the preset `fsd`, which chooses among that many exits while it runs."""
    return replace(PRESETS["fsd"], exits=exits)


def fixed_exits(exits: int, workers: int = 4) -> Preset:
    """Return the preset `fsd` with that many exits and workers throughout; without exits it is
    `dssd`."""
    fixed = replace(PRESETS["fsd"], exits=exits, adapts_exits=False, predraft_workers=workers)
    return fixed if exits else replace(fixed, predraft=Predraft.OFF)


def choice_rows(
    pair: SimulatedPair,
    questions: Sequence[Question],
    tokens: int,
    cases: Sequence[Case],
    seed: int,
) -> list[Row]:
    """Return a row for each case: the best of the fixed choices, and the choice made while
    running."""
    rows: list[Row] = []
    for case in cases:
        progress(f"exits chosen while running: {case.link}, {case.draft}, {case.exit_share:.0%}")
        speeds = {
            name: _speed(preset, pair, case.conditions, questions, tokens)
            for name, preset in _fixed(len(pair.exit_distributions))
        }
        best = max(speeds, key=lambda name: speeds[name])
        answers = _answers(
            chosen_exits(len(pair.exit_distributions)), pair, case.conditions, questions, tokens
        )
        figures = answers_figures(answers)
        rows.append(
            make_row(
                part="choice",
                link=case.link,
                draft=case.draft,
                exit_share=case.exit_share,
                best_fixed=best,
                best_tokens_per_s=speeds[best],
                without_exits=speeds["0"],
                of_best=figures["tokens_per_s"] / speeds[best],
                early_verdicts=sum(answer.stats.early_verdicts for answer in answers)
                / sum(answer.stats.rounds for answer in answers),
                seed=seed,
                **{name: figures[name] for name in ("tokens_per_s", "cache_miss_rate")},
            )
        )
    return rows


def client_rows(
    pair: SimulatedPair, questions: Sequence[Question], tokens: int, seed: int
) -> list[Row]:
    """Return rows for several clients of one verifier; each client has its edge and its link."""
    rows: list[Row] = []
    exits = len(pair.exit_distributions)
    for share in EXIT_SHARES:
        conditions = Case("30 ms", "slow draft", share).conditions
        for clients in CLIENTS:
            plain_s = 0.0
            for name, preset in (
                ("dssd", fixed_exits(0)),
                *((f"fsd, {count} exits", fixed_exits(count)) for count in _powers(exits)),
                ("fsd", chosen_exits(exits)),
            ):
                progress(f"{clients} clients, {name}, {share:.0%} a pass")
                answers = _together(preset, pair, conditions, questions, clients, tokens)
                speed = tokens_per_s_together(answers)
                plain_s = plain_s or speed
                rows.append(
                    make_row(
                        part="clients",
                        preset=name,
                        clients=clients,
                        exit_share=share,
                        tokens_per_s=speed,
                        tokens_per_s_each=speed / clients,
                        cache_miss_rate=cache_miss_rate(answers),
                        undrafted_rate=undrafted_rate(answers),
                        speedup=speed / plain_s,
                        seed=seed,
                    )
                )
    return rows


def _fixed(exits: int) -> Iterator[tuple[str, Preset]]:
    yield "0", fixed_exits(0)
    for count in _powers(exits):
        for workers in WORKERS:
            yield f"{count} exits, {workers} branches", fixed_exits(count, workers)


def _powers(most: int) -> Iterator[int]:
    """Yield 1, 2, 4 … below `most`, then `most` itself."""
    number = 1
    while number < most:
        yield number
        number *= 2
    if most:
        yield most


def _speed(
    preset: Preset,
    pair: SimulatedPair,
    conditions: Conditions,
    questions: Sequence[Question],
    tokens: int,
) -> float:
    answers = _answers(preset, pair, conditions, questions, tokens)
    return float(answers_figures(answers)["tokens_per_s"])


def _answers(
    preset: Preset,
    pair: SimulatedPair,
    conditions: Conditions,
    questions: Sequence[Question],
    tokens: int,
) -> list[SimulatedAnswer]:
    return [
        answer
        for one in questions
        for answer in simulate_answers(
            preset, pair, conditions, [SimulatedQuestion(one.prompt_ids, tokens, one.seed)]
        )
    ]


def _together(
    preset: Preset,
    pair: SimulatedPair,
    conditions: Conditions,
    questions: Sequence[Question],
    clients: int,
    tokens: int,
) -> list[SimulatedAnswer]:
    asked = [
        SimulatedQuestion(one.prompt_ids, tokens, one.seed + number, start_s=0.01 * number)
        for number, one in enumerate((list(questions) * clients)[:clients])
    ]
    return simulate_answers(preset, pair, conditions, asked)
