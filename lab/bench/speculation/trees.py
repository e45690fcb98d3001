"""`bench trees`: what several candidates per position gain, and what verifying a tree costs.

Acceptance is exact arithmetic over the distributions at positions of held-out text at temperature
1: one candidate, two with replacement, two without (TSLT eqs. 30 and 39). Accepted tokens per round
are counted over answers of the state machines in virtual time. The cost is a ratio of passes of the
target in this process: a tree's nodes under their mask against as many tokens in a chain, in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lab.bench.harness.plots import bars
from lab.bench.harness.report import Goal, Report, Row, make_row
from lab.bench.harness.suite import Models
from lab.bench.harness.texts import prompts
from lab.bench.speculation.demo_pair import pairs_along, texts
from tandem.backends.interface import Engine, ForwardRequest, Session
from tandem.backends.model_description import load_tokenizer
from tandem.backends.torch.loading import load_engine
from tandem.core.acceptance import residual
from tandem.core.probs import Array, SamplingParams, truncate
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import Conditions, simulate_answer
from tandem.testing.simulation.model_pair import SimulatedPair, simulated_pair
from tandem.testing.simulation.model_times import ModelTimes

COST_LIMIT = 1.15
CONTEXT = 256
EXPANSIONS = ((2, 2, 2), (4, 2, 1), (2, 1, 1), (3, 3))
ANSWER_TOKENS = 48


def run(report: Report, models: Models) -> None:
    """Fill the report with the exact acceptance, counts over answers, and the ratio of passes."""
    target, draft = load_engine(models.target), load_engine(models.draft)
    _acceptance(report, models, target, draft)
    _answers(report, models, target, draft)
    _cost(report, target)


@dataclass(slots=True)
class Accepted:
    """Sums over positions of the probability that a candidate stands."""

    positions: int = 0
    one: float = 0.0
    with_replacement: float = 0.0
    without: float = 0.0

    def add(self, target: Array, draft: Array) -> None:
        """Add a position: two candidates of the draft distribution [V], and this target
        distribution [V]."""
        first, with_, without = two_candidates(target, draft)
        self.positions += 1
        self.one += first
        self.with_replacement += with_
        self.without += without


def two_candidates(target: Array, draft: Array) -> tuple[float, float, float]:
    """Return the probability that a candidate stands: of one; of two with, and without
    replacement."""
    first = float(np.minimum(target, draft).sum())
    rest = residual(target, draft)
    rest = rest / rest.sum()
    with_ = first + (1 - first) * float(np.minimum(rest, draft).sum())
    support = draft.nonzero()[0]
    probs, rest, aims = draft[support].astype(float), rest[support], target[support]
    rejected = probs - np.minimum(probs, aims)  # drawn first, and rejected
    others = np.where(np.eye(len(probs), dtype=bool), 0.0, probs[None])
    others /= np.maximum(others.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    second = np.minimum(rest[None], others).sum(axis=1)
    return first, with_, first + float((rejected * second).sum())


def _acceptance(report: Report, models: Models, target: Engine, draft: Engine) -> None:
    truncation, sums = PRESETS["mc-dsd"].truncation, Accepted()
    for _, token_ids in texts(models, report.quick):
        for target_probs, draft_probs in pairs_along(target, draft, token_ids):
            sums.add(target_probs, truncate(draft_probs, truncation))
    count = sums.positions
    figures = {
        "one candidate": sums.one / count,
        "two, with replacement": sums.with_replacement / count,
        "two, without": sums.without / count,
    }
    rows = [
        make_row(part="exact", candidates=name, seed=report.seed, acceptance_rate=figure)
        | {"positions": count}
        for name, figure in figures.items()
    ]
    title = "A position's acceptance, held-out text, temperature 1"
    report.add(title, ("candidates", "positions", "acceptance_rate"), rows)
    one, with_, without = figures.values()
    report.goals += [
        Goal("two candidates against one", with_, one, "at least"),
        Goal("without replacement against with", without, with_, "at least"),
    ]


def _answers(report: Report, models: Models, target: Engine, draft: Engine) -> None:
    pair = simulated_pair(draft, target, SamplingParams())
    tokenizer = load_tokenizer(models.target)
    prompts_ids = [tuple(tokenizer.encode(text)) for text in prompts(4 if report.quick else 24)]
    chain, tree = PRESETS["tslt"].with_draft_length(3), PRESETS["mc-dsd"]
    methods = {
        "chain of 3": chain,
        **{_words(e): tree.with_expansion(e) for e in EXPANSIONS},
        f"{_words((2, 2, 2))}, with replacement": replace(tree, with_replacement=True),
    }
    rows = [
        _answers_row(name, chosen, pair, prompts_ids, report) for name, chosen in methods.items()
    ]
    columns = ("shape", "nodes", "accepted_per_round", "tokens", "uplink_bytes_per_token")
    report.add("Answers in virtual time, seeded", columns, rows)
    shapes = {row["shape"]: row["accepted_per_round"] for row in rows}
    goal = Goal(
        "accepted per round: tree ⟨2,2,2⟩ (limit: chain of 3)",
        shapes[_words((2, 2, 2))],
        shapes["chain of 3"],
        "at least",
    )
    report.goals.append(goal)


def _words(expansion: tuple[int, ...]) -> str:
    return f"⟨{','.join(map(str, expansion))}⟩"


def _answers_row(
    name: str,
    chosen: Preset,
    pair: SimulatedPair,
    prompts_ids: list[tuple[int, ...]],
    report: Report,
) -> Row:
    near = Conditions(ModelTimes())
    done = [
        simulate_answer(chosen, pair, near, prompt_ids, ANSWER_TOKENS, report.seed + number)
        for number, prompt_ids in enumerate(prompts_ids)
    ]
    tokens = sum(len(answer.token_ids) for answer in done)
    rounds = sum(answer.stats.rounds for answer in done)
    accepted = sum(answer.stats.accepted for answer in done)
    return make_row(
        part="answers",
        preset=chosen.name,
        draft_length=chosen.schedule.chunk,
        shape=name,
        seed=report.seed,
        nodes=chosen.tree_nodes or chosen.schedule.chunk,
        tokens=tokens,
        accepted_per_round=accepted / rounds,
        acceptance_rate=accepted / sum(answer.stats.drafted for answer in done),
        uplink_bytes_per_token=sum(answer.uplink_bytes for answer in done) / tokens,
    )


def _cost(report: Report, target: Engine) -> None:
    """Measure passes over a tree and over a chain in turns, so that what else runs on the machine
    affects both alike."""
    session = target.open(CONTEXT + 64)
    source = np.random.default_rng(report.seed)
    fed = tuple(source.integers(0, target.vocabulary_size, CONTEXT).tolist())
    target.forward([ForwardRequest(session, fed, 0)])
    rows = []
    for expansion in EXPANSIONS:
        parents = tree_parents(expansion)
        tree, chain = (
            _passes(target, session, fed[: len(parents)], shape, 40 if report.quick else 200)
            for shape in (parents, None)
        )
        tree_s, chain_s = _in_turns(tree, chain)
        rows.append(
            make_row(part="cost", shape=_words(expansion), seed=report.seed, nodes=len(parents) - 1)
            | {"tree_s": tree_s, "chain_s": chain_s, "ratio": tree_s / chain_s}
        )
    session.close()
    columns = ("shape", "nodes", "tree_s", "chain_s", "ratio")
    report.add(f"One pass of the target after {CONTEXT} tokens", columns, rows)
    report.goals.append(
        Goal(
            "pass over tree ⟨2,2,2⟩ ÷ over a chain of as many tokens",
            rows[0]["ratio"],
            COST_LIMIT,
            "at most",
        )
    )


def tree_parents(expansion: tuple[int, ...]) -> tuple[int, ...]:
    """Return the parents of a tree's nodes as a verifier feeds it: the last committed token, and
    the expansion below it."""
    parents = [-1]
    layer = [0]
    for width in expansion:
        start = len(parents)
        parents += [node for node in layer for _ in range(width)]
        layer = list(range(start, len(parents)))
    return tuple(parents)


Passes = tuple[Callable[[], float], int]


def _passes(
    target: Engine,
    session: Session,
    token_ids: tuple[int, ...],
    parents: tuple[int, ...] | None,
    count: int,
) -> Passes:
    request = ForwardRequest(session, token_ids, len(token_ids), parents)

    def one() -> float:
        started_s = time.perf_counter()
        target.forward([request])
        took_s = time.perf_counter() - started_s
        session.rollback(CONTEXT)
        return took_s

    return one, count


def _in_turns(one: Passes, other: Passes) -> tuple[float, float]:
    """Return the lower quartiles of the seconds of each, after a first turn that does not count:
    what else runs on the machine makes passes longer, never shorter."""
    (first, count) = one
    (second, _) = other
    turns = [(first(), second()) for _ in range(count + 1)][1:]
    ones, others = zip(*turns, strict=True)
    return sorted(ones)[count // 4], sorted(others)[count // 4]


def draw(report: Report, folder: Path) -> None:
    rows = [row for row in report.rows if row.get("part") == "answers"]
    bars(
        folder / "accepted_per_round.png",
        {row["shape"]: row["accepted_per_round"] for row in rows},
        ylabel="accepted per round",
        title="Chain and trees, demo pair",
    )
