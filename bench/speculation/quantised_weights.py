"""`bench quantised`: one model in float32, bfloat16, int8 and int4, and as llama.cpp computes a
GGUF file, where one is named: its decoding step, its cross-entropy on held-out text, and how near
its distributions stay to float32's. Of such a file llama.cpp's own loop is measured too.

Steps are the processor time of one thread on one core, in short bursts that take turns, so that
whatever else the machine does meets all alike. Exactness is with respect to the model in that
precision; the table says what is given up for it. With `--target` of a real model, which `make
real-pair` makes: small matrices of a demo model lie in the processor's cache, and gain less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median

import torch

from bench.harness.machine import pinned, usable_cores
from bench.harness.report import Goal, Report, Row, counted, make_row, progress
from bench.harness.suite import Models
from bench.speculation.demo_pair import Sums, distributions_along, texts
from bench.speculation.draft_step import engine_steps, random_ids
from tandem.backends.factory import load_model
from tandem.backends.interface import Engine
from tandem.backends.model_source import ModelChoice
from tandem.backends.torch.loading import load_engine

DTYPES = ("float32", "bfloat16", "int8", "int4")
STEP_LIMITS = {"int8": 0.45, "int4": 0.40}
OWN_LOOP_LIMIT = 1.1
GGUF, OWN_LOOP = "gguf", "llama.cpp's own loop"
CONTEXT, WARM_UP_BURSTS = 128, 2
STEP_COLUMNS = ("dtype", "step_median_s", "step_fastest_s", "step_ratio")
FIT_COLUMNS = ("dtype", "tokens", "cross_entropy", "more_than_float32", "overlap", "top1_agreement")


def run(report: Report, models: Models, gguf: Path | None) -> None:
    """The goals are those of the steps."""
    engines: dict[str, Engine] = {
        dtype: load_engine(models.target, dtype=dtype, drafts=True) for dtype in DTYPES
    }
    if gguf is not None:
        engines[GGUF] = load_model(ModelChoice(str(gguf), engine="llamacpp")).engine
    with pinned(usable_cores()[0]):
        steps = _steps(engines, gguf, 6 if report.quick else 20, report.seed)
    report.add(f"Decoding step after {CONTEXT} tokens, one thread", STEP_COLUMNS, steps)
    rows = _fits(engines, models, report.quick, report.seed)
    report.add("Held-out text, temperature 1", FIT_COLUMNS, rows)
    for row in steps:
        if (limit := STEP_LIMITS.get(row["dtype"])) is not None:
            name = f"decoding step, {row['dtype']} ÷ float32"
            report.goals.append(Goal(name, row["step_ratio"], limit, "at most"))
    medians = {row["dtype"]: row["step_median_s"] for row in steps}
    if OWN_LOOP in medians:
        ratio = medians[GGUF] / medians[OWN_LOOP]
        name = "decoding step, GGUF ÷ llama.cpp's own loop"
        report.goals.append(Goal(name, ratio, OWN_LOOP_LIMIT, "at most"))
    report.notes.append(
        "overlap: mean of Σ min(float32's probability, this one's), which is how often rejection"
        " sampling would keep a token of the one as the other's."
    )


def _steps(engines: Mapping[str, Engine], gguf: Path | None, bursts: int, seed: int) -> list[Row]:
    torch.set_num_threads(1)
    measured: dict[str, Callable[[list[int]], list[float]]] = {
        dtype: partial(engine_steps, engine) for dtype, engine in engines.items()
    }
    if gguf is not None:
        from bench.speculation.llamacpp_loop import own_steps  # needs the extra

        measured[OWN_LOOP] = own_steps(gguf, CONTEXT)
    token_ids = random_ids(CONTEXT, min(each.vocabulary_size for each in engines.values()), seed)
    durations: dict[str, list[float]] = {dtype: [] for dtype in measured}
    with torch.inference_mode():
        for burst in counted(range(-WARM_UP_BURSTS, bursts), lambda burst: "decoding steps"):
            for dtype, steps in measured.items():
                taken = steps(token_ids)
                durations[dtype] += taken if burst >= 0 else []
    whole = median(durations["float32"])
    return [
        make_row(
            part="step",
            dtype=dtype,
            seed=seed,
            step_median_s=median(some),
            step_fastest_s=min(some),
            step_ratio=median(some) / whole,
        )
        for dtype, some in durations.items()
    ]


def _fits(engines: Mapping[str, Engine], models: Models, quick: bool, seed: int) -> list[Row]:
    """Each precision beside float32, over the same positions."""
    sums = {dtype: Sums() for dtype in engines}
    for _, token_ids in texts(models, quick):
        progress("held-out text")
        exact = distributions_along(engines["float32"], token_ids)
        for dtype, engine in engines.items():
            narrow = exact if dtype == "float32" else distributions_along(engine, token_ids)
            sums[dtype].add(exact, narrow, token_ids[1:])
    return [_fit(dtype, each.row("all", seed)) for dtype, each in sums.items()]


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
