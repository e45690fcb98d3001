"""Early exits where several clients share one verifier.

Virtual time: real machines, distributions and early verdicts of the pair; declared durations, a
link, and what an exit adds to a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lab.bench.harness.report import Row, make_row, progress
from lab.bench.speculation.methods_grid import Question
from lab.simulation.answer_figures import cache_miss_rate, undrafted_rate
from tandem.specdec.presets import PRESETS
from tandem.testing.simulation.answer import (
    Conditions,
    SimulatedAnswer,
    simulate_answers,
    tokens_per_s_together,
)
from tandem.testing.simulation.answer import Question as SimulatedQuestion
from tandem.testing.simulation.model_pair import SimulatedPair
from tandem.testing.simulation.model_times import ModelTimes

PASS_S = 0.072
DRAFT_STEP_S = 0.024
BRANCH_SHARE = 0.05
"""Of a draft step, for each further branch in it."""
TIMES = ModelTimes(DRAFT_STEP_S, PASS_S, 0.003, branch_s=BRANCH_SHARE * DRAFT_STEP_S)
RTT_S = 0.03
MBPS = 100.0
EXIT_SHARES = (0.02, 0.2)
"""Of a pass, for each exit: about that of a head among 7 thousand million parameters, and among 135
million with a vocabulary of 49 thousand."""
CLIENTS = (1, 2, 4, 8)
CLIENT_COLUMNS = (
    *("clients", "preset", "exit_share", "tokens_per_s", "tokens_per_s_each"),
    *("cache_miss_rate", "undrafted_rate", "speedup"),
)


def client_rows(
    pair: SimulatedPair, questions: Sequence[Question], tokens: int, seed: int
) -> list[Row]:
    """Return rows for several clients of one verifier; each client has its edge and its link."""
    presets = {"dssd": PRESETS["dssd"]} | {
        f"fsd, {count} exits": replace(PRESETS["fsd"], exits=count)
        for count in _powers(len(pair.exit_distributions))
    }
    rows: list[Row] = []
    for share in EXIT_SHARES:
        conditions = Conditions(replace(TIMES, exit_s=share * PASS_S), RTT_S, MBPS)
        for clients in CLIENTS:
            plain_s = 0.0
            for name, preset in presets.items():
                progress(f"{clients} clients, {name}, {share:.0%} a pass")
                asked = _asked(questions, clients, tokens)
                answers = simulate_answers(preset, pair, conditions, asked)
                speed = tokens_per_s_together(answers)
                plain_s = plain_s or speed
                rows.append(_row(name, answers, clients, share, speed / plain_s) | {"seed": seed})
    return rows


def _row(
    name: str, answers: Sequence[SimulatedAnswer], clients: int, share: float, speedup: float
) -> Row:
    speed = tokens_per_s_together(answers)
    return make_row(
        part="clients",
        preset=name,
        clients=clients,
        exit_share=share,
        tokens_per_s=speed,
        tokens_per_s_each=speed / clients,
        cache_miss_rate=cache_miss_rate(answers),
        undrafted_rate=undrafted_rate(answers),
        speedup=speedup,
    )


def _powers(most: int) -> Iterator[int]:
    """Yield 1, 2, 4 … below `most`, then `most` itself."""
    number = 1
    while number < most:
        yield number
        number *= 2
    if most:
        yield most


def _asked(questions: Sequence[Question], clients: int, tokens: int) -> list[SimulatedQuestion]:
    return [
        SimulatedQuestion(one.prompt_ids, tokens, one.seed + number, start_s=0.01 * number)
        for number, one in enumerate((list(questions) * clients)[:clients])
    ]
