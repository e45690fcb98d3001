"""`bench quantised`: one model in float32, bfloat16, int8 and int4, and as llama.cpp computes a
GGUF file, where one is named: its decoding step, its cross-entropy on held-out text, and how near
its distributions stay to float32's. Of such a file llama.cpp's own loop is measured too.

Steps are the processor time of one thread on one core, in short bursts that take turns, so that
whatever else the machine does meets all alike: a ratio is the median over the turns of what two
bursts of one turn took. llama.cpp's own loop has keys and values in half precision, and is held
against the engine with such ones. Exactness is with respect to the model in that
precision; the table says what is given up for it. With `--target` of a real model, which `make
real-pair` makes: small matrices of a demo model lie in the processor's cache, and gain less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch

from lab.bench.harness.report import Goal, Report, Row, counted, make_row, progress
from lab.bench.harness.suite import Models
from lab.bench.speculation.bare_products import bare_steps
from lab.bench.speculation.demo_pair import Sums, distributions_along, texts
from lab.bench.speculation.draft_step import engine_steps, random_ids
from lab.bench.speculation.llamacpp_loop import own_steps
from lab.machine import pinned, usable_cores
from tandem.backends.factory import load_model
from tandem.backends.interface import Engine
from tandem.backends.model_source import ModelChoice
from tandem.backends.torch.loading import load_engine

DTYPES = ("float32", "bfloat16", "int8", "int4")
STEP_LIMITS = {"int8": 0.45, "int4": 0.40}
OWN_LOOP_LIMIT = 1.1
GGUF = "gguf"
GGUF_HALF = "gguf, KV float16"
OWN_LOOP = "llama.cpp's own loop"
PRODUCTS = "the products alone, {}"
Bursts = dict[str, list[list[float]]]
"""Of each implementation, the steps of each turn."""
CONTEXT = 128
WARM_UP_BURSTS = 2
STEP_COLUMNS = ("dtype", "step_median_s", "step_fastest_s", "step_ratio")
FIT_COLUMNS = ("dtype", "tokens", "cross_entropy", "more_than_float32", "overlap", "top1_agreement")


def run(report: Report, models: Models, gguf: Path | None) -> None:
    """Fill the report; the goals are for the decoding steps."""
    engines: dict[str, Engine] = {
        dtype: load_engine(models.target, dtype=dtype, drafts=True) for dtype in DTYPES
    }
    if gguf is not None:
        choice = ModelChoice(str(gguf), engine="llamacpp")
        engines[GGUF] = load_model(choice).engine
        engines[GGUF_HALF] = load_model(replace(choice, dtype="float16")).engine
    measured = _measured(engines, models.target, gguf)
    with pinned(usable_cores()[0]):
        bursts = _bursts(measured, engines, 8 if report.quick else 24, report.seed)
    rows = step_rows(bursts, report.seed)
    report.add(f"Decoding step after {CONTEXT} tokens, one thread", STEP_COLUMNS, rows)
    for name, limit in STEP_LIMITS.items():
        bare = paired_ratio(bursts, PRODUCTS.format(name), PRODUCTS.format("float32"))
        goal = f"decoding step, {name} ÷ float32 (of the matrix products alone: {bare:.2f})"
        report.goals.append(Goal(goal, paired_ratio(bursts, name, "float32"), limit, "at most"))
    if OWN_LOOP in bursts:
        goal = "decoding step, GGUF with KV float16 ÷ llama.cpp's own loop"
        ratio = paired_ratio(bursts, GGUF_HALF, OWN_LOOP)
        report.goals.append(Goal(goal, ratio, OWN_LOOP_LIMIT, "at most"))
    fits = _fits(engines, models, report.quick, report.seed)
    report.add("Held-out text, temperature 1", FIT_COLUMNS, fits)
    report.notes.append(
        "overlap: mean of Σ min(float32's probability, this one's), which is how often rejection"
        " sampling would keep a token of the one as the other's."
    )


def _measured(
    engines: Mapping[str, Engine], target: str, gguf: Path | None
) -> dict[str, Callable[[list[int]], list[float]]]:
    """Return, for each implementation by name, a function that measures a burst."""
    measured = {dtype: partial(engine_steps, engine) for dtype, engine in engines.items()}
    bare = {
        PRODUCTS.format(dtype): bare_steps(target, dtype) for dtype in ("float32", *STEP_LIMITS)
    }
    if gguf is None:
        return measured | bare
    return measured | bare | {OWN_LOOP: own_steps(gguf, CONTEXT)}


def _bursts(
    measured: Mapping[str, Callable[[list[int]], list[float]]],
    engines: Mapping[str, Engine],
    turns: int,
    seed: int,
) -> Bursts:
    torch.set_num_threads(1)
    token_ids = random_ids(
        CONTEXT, min(engine.vocabulary_size for engine in engines.values()), seed
    )
    bursts: Bursts = {dtype: [] for dtype in measured}
    with torch.inference_mode():
        for turn in counted(range(-WARM_UP_BURSTS, turns), lambda turn: "decoding steps"):
            for dtype, steps in measured.items():
                taken = steps(token_ids)
                bursts[dtype] += [taken] if turn >= 0 else []
    return bursts


def step_rows(bursts: Bursts, seed: int) -> list[Row]:
    """Return one row for each implementation; `step_ratio` is to float32."""
    return [
        make_row(
            part="step",
            dtype=dtype,
            seed=seed,
            step_median_s=median(map(median, turns)),
            step_fastest_s=min(map(min, turns)),
            step_ratio=paired_ratio(bursts, dtype, "float32"),
        )
        for dtype, turns in bursts.items()
    ]


def paired_ratio(bursts: Bursts, ours: str, theirs: str) -> float:
    """Return the median over the turns of one's median step ÷ the other's in the same turn: load
    that comes and goes between turns changes neither side alone."""
    pairs = zip(bursts[ours], bursts[theirs], strict=True)
    return median(median(mine) / median(other) for mine, other in pairs)


def _fits(engines: Mapping[str, Engine], models: Models, quick: bool, seed: int) -> list[Row]:
    """Return a row for each precision, compared with float32 over the same positions."""
    sums = {dtype: Sums() for dtype in engines}
    for _, token_ids in texts(models, quick):
        progress("held-out text")
        exact = distributions_along(engines["float32"], token_ids)
        for dtype, engine in engines.items():
            narrow = exact if dtype == "float32" else distributions_along(engine, token_ids)
            sums[dtype].add(exact, narrow, token_ids[1:])
    return [_fit(dtype, sum_.row("all", seed)) for dtype, sum_ in sums.items()]


def _fit(dtype: str, row: Row) -> Row:
    more = row["draft_cross_entropy"] - row["target_cross_entropy"]
    return make_row(
        part="fit",
        dtype=dtype,
        seed=row["seed"],
        tokens=row["tokens"],
        cross_entropy=row["draft_cross_entropy"],
        more_than_float32=more,
        overlap=row["acceptance_rate"],
        top1_agreement=row["top1_agreement"],
    )
