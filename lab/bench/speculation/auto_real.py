"""`bench auto --real`: what a user of `auto` waits for, beside the cloud alone, a cloud that drafts
itself and fixed presets, with real models as processes. The verifier has the same draft model as
the drafter. With the large pair `auto` is held against the cloud alone.

A cell is a pair of models, the round trip of the link, the tokens of an answer, its temperature,
and what else the machine does. It starts a new suite, computed as `tandem up` does: both sides on
all cores, with as many threads as their engines see fit. After a warm-up answer of each preset come
the rounds: each asks every preset the same question, in turn another one first, and the next round
another question. All have the same seed, so every preset has to write what the cloud alone writes,
at any temperature, unless the target says that its logits depend on how a text is cut into passes
(`same_bits`), as with llama.cpp.

A preset's figure is the time of an answer, from the request to its end; ratios are medians over the
rounds of what two answers of one round took. What one answer measured, the suite keeps for the next
one, of whatever preset, as it does for users; but it keeps no prefixes, or all but the first to
answer a question would find its prompt computed.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from lab.bench.harness.busy_loop import busy_loops, rest_first
from lab.bench.harness.models import ROOT, Models
from lab.bench.harness.report import Goal, Report, Row, duration_words, make_row, progress
from lab.bench.harness.suite import Suite, running_suite
from lab.bench.harness.texts import prompts
from lab.bench.harness.workload import ANSWER_TIMEOUT_S, requests, summary_of, total
from lab.bench.speculation.auto_rows import (
    ALONE,
    CHOSEN,
    cells_named,
    keep_row,
    read_rows,
    time_left,
)
from lab.machine import usable_cores
from tandem.core.probs import SamplingParams
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.figures import answer_figures
from tandem.net.process import run_loop
from tools.large_pair import PAIR as LARGE_PAIR
from tools.write_gguf import write_gguf

ROUNDS = 5
QUICK_ROUNDS = 3
DRAFTING = "cloud-draft"
FIXED = ("coupled", "stream")
"""What `auto` is held against beside the cloud without an edge: stop and wait, and drafts that
never wait."""
PRESETS = (ALONE, CHOSEN, DRAFTING, *FIXED)
WARM_UP_TOKENS = 48
SETTLED_S = 0.2
"""Before each answer. What the last one leaves to the services, they do after its caller has it."""
QUESTIONS = 40
"""Held-out prompts that the seed chooses from."""
GGUF_KIND = "Q8_0"
OVER_ALONE = 1.03
OVER_BEST = 1.10
PULSE_S = 1.0
"""Load that comes and goes is away and there for so long in turn: some 20 tokens."""
SMOLLM2 = "smollm2"
DEMO_GGUF = "demo-gguf"
LARGE = "large"
"""Qwen2.5-Coder with 0.5 and 1.5 billion parameters, 'make large-pair'."""


class Load(StrEnum):
    """What else the machine does."""

    QUIET = "quiet"
    BUSY = "busy"
    """One busy loop beside, from before the services start."""
    ENDED = "ended"
    """A busy loop for each core while the services start and give their first answers; none in the
    rounds. What the services measured at first is wrong then."""
    COMING = "coming"
    """A busy loop for each core that comes and goes, at the same moments of each answer."""


@dataclass(frozen=True, slots=True)
class RealCell:
    """`rtt_s`: of the emulated link; 0: no link between the two sides but loopback."""

    pair: str
    rtt_s: float
    tokens: int
    temperature: float
    load: Load

    def __str__(self) -> str:
        link = f"{self.rtt_s * 1e3:g}ms"
        return f"{self.pair}:{link}:{self.tokens}:t{self.temperature:g}:{self.load}"


LINKS_S = (0.0, 0.040)
LENGTHS = (48, 200)
LOADS: dict[str, dict[float, tuple[Load, ...]]] = {
    SMOLLM2: {0.0: tuple(Load), 1.0: (Load.QUIET, Load.COMING)},
    DEMO_GGUF: {0.0: (Load.QUIET, Load.BUSY, Load.ENDED)},
    LARGE: {0.0: (Load.QUIET, Load.COMING), 1.0: (Load.QUIET, Load.COMING)},
}
"""What each pair is measured under, by temperature."""
CELLS = [
    RealCell(pair, rtt_s, tokens, temperature, load)
    for pair, loads_by_temperature in LOADS.items()
    for temperature, loads in loads_by_temperature.items()
    for rtt_s, tokens, load in product(LINKS_S, LENGTHS, loads)
]
QUICK_CELLS = [
    cell
    for cell in CELLS
    if cell.pair != LARGE and (cell.tokens, cell.temperature, cell.load) == (48, 0.0, Load.QUIET)
]
COLUMNS = (
    *("cell", *(f"{name}_s" for name in PRESETS), "auto_over_ar", "auto_over_cloud"),
    *("best", "auto_over_best"),
    *(
        "acceptance_rate",
        "target_passes_per_token",
        "drafted_per_token",
        "chosen",
        "same_text",
        "same_bits",
    ),
)


@dataclass(frozen=True, slots=True)
class RealRun:
    """What a run was asked for, beside its report. `rounds`: None: as many as the report's size
    has. `only`: names of cells, in which `*` is anything; none: all that the report's size has."""

    rounds: int | None = None
    only: Sequence[str] = ()
    kept: Path | None = None
    minutes: float | None = None


def measure_real(report: Report, options: RealRun) -> None:
    """Fill the report: a row for each cell. A pair of models that is missing is left out, with a
    note. Raises InvalidArgument for a name of no cell."""
    rounds = options.rounds or (QUICK_ROUNDS if report.quick else ROUNDS)
    wanted = QUICK_CELLS if report.quick else CELLS
    if options.only:
        wanted = cells_named(options.only, CELLS)
    made = {
        "real": list(PRESETS),
        "rounds": rounds,
        "seed": report.seed,
        "commit": report.machine.commit,
    }
    known = read_rows(options.kept, made)
    may_begin = time_left(options.minutes)
    with pairs_there({cell.pair for cell in wanted}, report.notes.append) as pairs:
        there = [cell for cell in wanted if cell.pair in pairs]
        left = [cell for cell in there if str(cell) not in known]
        began_s = time.monotonic()
        for number, cell in enumerate(left):
            if not may_begin():
                break
            left_s = (len(left) - number) * (time.monotonic() - began_s) / max(1, number)
            about = f", about {duration_words(left_s)} left" if number else ""
            progress(f"{cell} ({number + 1} of {len(left)}{about})")
            measured = measured_rounds(cell, pairs[cell.pair], rounds, report.seed)
            row = cell_row(cell, measured) | {"seed": report.seed}
            known[str(cell)] = row
            if options.kept is not None:
                keep_row(options.kept, cell, made, row)
            over_cloud = row["auto_over_cloud"]
            over_best = row["auto_over_best"]
            words = f"auto ÷ the faster of ar and cloud-draft {over_cloud:.3f}"
            progress(f"{words}, ÷ {row['best']} {over_best:.3f}")
    rows = [known[str(cell)] for cell in there if str(cell) in known]
    if len(rows) < len(there):
        progress(f"{len(there) - len(rows)} of {len(there)} cells are left")
    report.add(f"Real models as processes, {rounds} rounds a cell", COLUMNS, rows)
    report.goals += goals(rows)
    report.notes += notes(rows)


@contextmanager
def pairs_there(wanted: set[str], note: Callable[[str], None]) -> Iterator[Mapping[str, Models]]:
    """Yield those of the `wanted` pairs that are available, by name, and call `note` for each of
    the others. GGUF files are made of the demo pair, and last as long as the context is open."""
    pairs: dict[str, Models] = {}
    with TemporaryDirectory() as folder:
        if SMOLLM2 in wanted:
            target = ROOT / "models" / "real" / "smollm2"
            draft = target.with_name("smollm2-draft")
            if target.is_dir() and draft.is_dir():
                pairs[SMOLLM2] = Models(str(draft), str(target), draft_dtype="int8")
            else:
                note(f"Without {SMOLLM2}: there is no {target} with its draft; 'make real-pair'.")
        if DEMO_GGUF in wanted:
            pairs[DEMO_GGUF] = _gguf_of(Models(), Path(folder))
        if LARGE in wanted:
            draft, target = (ROOT / "models" / "large" / file.name for file in LARGE_PAIR)
            if target.is_file() and draft.is_file():
                pairs[LARGE] = Models(str(draft), str(target))
            else:
                note(f"Without {LARGE}: there is no {target} with its draft; 'make large-pair'.")
        yield pairs


def _gguf_of(models: Models, folder: Path) -> Models:
    """Write both models as GGUF files, and return the pair that llama.cpp computes from them; keys
    and values are in float32, as by default."""
    progress("writing GGUF files")
    draft, target = (
        write_gguf(Path(source), folder / f"{Path(source).name}.gguf", kind=GGUF_KIND)
        for source in (models.draft, models.target)
    )
    return Models(str(draft), str(target))


Round = Mapping[str, Generated]
"""The answers to one question, by preset."""


def measured_rounds(cell: RealCell, models: Models, rounds: int, seed: int) -> list[Round]:
    """Start a suite for the cell, and return its rounds; the seed chooses the questions."""
    warm_up, *texts = random.Random(seed).sample(prompts(max(QUESTIONS, rounds + 1)), rounds + 1)
    cores = len(usable_cores())
    count = {Load.QUIET: 0, Load.BUSY: 1, Load.ENDED: cores, Load.COMING: cores}[cell.load]
    pulse_s = PULSE_S if cell.load is Load.COMING else None
    with ExitStack() as load:
        loops = load.enter_context(busy_loops(count, pulse_s=pulse_s))
        with running_suite(
            models,
            with_link=cell.rtt_s > 0,
            shares_cores=True,
            target_threads=0,
            keeps_prefixes=False,
            cloud_draft=DRAFTING in presets_of(cell),
        ) as suite:
            if suite.link is not None:
                suite.link.set(cell.rtt_s, None)
            warm = load.close if cell.load is Load.ENDED else _nothing
            begin = _nothing if pulse_s is None else partial(rest_first, loops)
            asked = _ask_all(suite, cell, warm_up, texts, warm=warm, begin=begin)
            answered: list[Round] = run_loop(asked)
    return answered


async def _ask_all(
    suite: Suite,
    cell: RealCell,
    warm_up: str,
    texts: Sequence[str],
    *,
    warm: Callable[[], None],
    begin: Callable[[], None],
) -> list[Round]:
    """Ask for all answers, and return the rounds. Call `warm` between the first answers and the
    rounds, and `begin` as an answer begins. One client asks for all: a new one would have to
    connect, which takes as long as some answers."""
    sampling = SamplingParams(temperature=cell.temperature)
    async with AggregatorClient(suite.aggregator) as client:

        async def ask(text: str, preset: str, tokens: int) -> Generated:
            await asyncio.sleep(SETTLED_S)
            (request,) = requests([text], preset, None, tokens, seed=0, sampling=sampling)
            begin()
            return await client.generate(request, ANSWER_TIMEOUT_S)

        presets = presets_of(cell)
        for preset in presets:
            if cell.pair != LARGE:  # there the first answer counts
                await ask(warm_up, preset, WARM_UP_TOKENS)
        warm()
        return [
            {preset: await ask(text, preset, cell.tokens) for preset in order_of(number, presets)}
            for number, text in enumerate(texts)
        ]


def presets_of(cell: RealCell) -> tuple[str, ...]:
    """Return the presets that a cell compares: an answer of the large pair takes seconds."""
    return (ALONE, CHOSEN) if cell.pair == LARGE else PRESETS


def order_of(number: int, presets: tuple[str, ...] = PRESETS) -> tuple[str, ...]:
    """Return the order of the presets in round `number`, from 0: another one is first each time,
    and every second round goes backwards, or each preset would always follow the same one."""
    first = number % len(presets)
    order = (*presets[first:], *presets[:first])
    return order[:1] + order[:0:-1] if number % 2 else order


def _nothing() -> None:
    """Leave the load as it is."""


def cell_row(cell: RealCell, rounds: Sequence[Round]) -> Row:
    """Return the figures of a cell. `times_s`: of each answer by preset, in the order of the
    rounds; `answers`: their other figures, and what `auto` chose."""
    presets = presets_of(cell)
    others = [name for name in presets if name != CHOSEN]
    times_s = {name: [round_[name].duration_s for round_ in rounds] for name in presets}
    best = min(others, key=lambda name: paired_ratio(times_s, name, ALONE))
    chosen = [round_[CHOSEN] for round_ in rounds]
    tokens, drafted = total(chosen, "tokens"), total(chosen, "drafted")
    schedules = [summary_of(answer).choice.schedule for answer in chosen]
    same = [
        round_[name].token_ids == round_[ALONE].token_ids
        for round_ in rounds
        for name in presets
        if name != ALONE
    ]
    over_alone = paired_ratio(times_s, CHOSEN, ALONE)
    over_cloud = max(paired_ratio(times_s, CHOSEN, name) for name in others if name not in FIXED)
    row = make_row(
        preset=CHOSEN,
        rtt_s=cell.rtt_s,
        tokens_per_s=tokens / sum(times_s[CHOSEN]),
        speedup_over_ar=1 / over_alone,
        acceptance_rate=total(chosen, "accepted") / drafted if drafted else None,
        target_passes_per_token=total(chosen, "target_passes") / tokens,
    )
    return row | {
        "cell": str(cell),
        "pair": cell.pair,
        "tokens": cell.tokens,
        "temperature": cell.temperature,
        "load": cell.load.value,
        "auto_over_ar": over_alone,
        "auto_over_cloud": over_cloud,
        "best": best,
        "auto_over_best": paired_ratio(times_s, CHOSEN, best),
        "drafted_per_token": drafted / tokens,
        "chosen": max(set(schedules), key=schedules.count),
        "same_text": sum(same) / len(same),
        "same_bits": all(
            summary_of(answer).same_bits for round_ in rounds for answer in round_.values()
        ),
        **{f"{name}_s": median(times_s[name]) for name in presets},
        "times_s": times_s,
        "answers": {name: [answer_figures(round_[name]) for round_ in rounds] for name in presets},
    }


def paired_ratio(times_s: Mapping[str, Sequence[float]], ours: str, theirs: str) -> float:
    """Return the median over the rounds of one preset's time ÷ the other's for the same
    question."""
    pairs = zip(times_s[ours], times_s[theirs], strict=True)
    return median(one / other for one, other in pairs)


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals, each for the worst cell and so for every cell; none without any cell."""
    if not rows:
        return []
    limits = []
    for figure, words, limit in (
        ("auto_over_cloud", "auto ÷ the faster of ar and cloud-draft", OVER_ALONE),
        ("auto_over_best", "auto ÷ best fixed preset", OVER_BEST),
    ):
        worst = max(rows, key=lambda row: row[figure])
        name = f"{words}, time of an answer, worst of {len(rows)} cells ({worst['cell']})"
        limits.append(Goal(name, worst[figure], limit, "at most"))
    exact = [row for row in rows if row["same_bits"]]
    if not exact:
        return limits
    least = min(exact, key=lambda row: row["same_text"])
    name = f"share of texts equal to ar's, least of {len(exact)} cells ({least['cell']})"
    return [*limits, Goal(name, least["same_text"], 1.0, "at least")]


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Yield notes on what the figures are, and on which cells miss a goal."""
    yield (
        "Columns in s: median time of an answer. Ratios: medians over the rounds, within which all"
        " presets answer the same question. best: of ar and the fixed presets. chosen: the schedule"
        " that most answers of auto ended with; --json has each answer's figures and estimates."
    )
    if any(not row["same_bits"] for row in rows):
        yield (
            "Where same_bits is False, logits depend in their last bits on how many tokens a pass"
            " has, and no goal asks for equal texts."
        )
    for figure, words, limit in (
        ("auto_over_cloud", "the faster of ar and cloud-draft", OVER_ALONE),
        ("auto_over_best", "the best fixed preset", OVER_BEST),
    ):
        missed = [f"{row['cell']} ({row[figure]:.3f})" for row in rows if row[figure] > limit]
        if missed:
            yield f"auto takes more than {limit:g} times as long as {words}: {', '.join(missed)}."
