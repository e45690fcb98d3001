"""`bench quantised`: one model in float32, bfloat16, int8 and int4, and as llama.cpp computes a
GGUF file, where one is named: its cross-entropy on held-out text, and how near its distributions
stay to float32's. Exactness is with respect to the model in that precision; the table says what is
given up for it. `bench steps` has the times."""

from __future__ import annotations

from pathlib import Path

from lab.bench.harness.models import Models
from lab.bench.harness.pair_distributions import Sums, distributions_along, texts
from lab.bench.harness.report import Report, Row, make_row, progress
from tandem.backends.factory import load_model
from tandem.backends.interface import Engine
from tandem.backends.model_source import ModelChoice
from tandem.backends.torch.loading import load_engine

EXACT = "float32"
DTYPES = (EXACT, "bfloat16", "int8", "int4")
COLUMNS = ("dtype", "tokens", "cross_entropy", "more_than_float32", "overlap", "top1_agreement")


def run(report: Report, models: Models, gguf: Path | None) -> None:
    """Fill the report with a row for each precision, compared with float32 over the same
    positions."""
    engines: dict[str, Engine] = {
        dtype: load_engine(models.target, dtype=dtype, drafts=True) for dtype in DTYPES
    }
    if gguf is not None:
        engines["gguf"] = load_model(ModelChoice(str(gguf), engine="llamacpp")).engine
    sums = {dtype: Sums() for dtype in engines}
    for _, token_ids in texts(models, report.quick):
        progress("held-out text")
        exact = distributions_along(engines[EXACT], token_ids)
        for dtype, engine in engines.items():
            narrow = exact if dtype == EXACT else distributions_along(engine, token_ids)
            sums[dtype].add(exact, narrow, token_ids[1:])
    rows = [fit_row(dtype, sum_.row("all", report.seed)) for dtype, sum_ in sums.items()]
    report.add("Held-out text, temperature 1", COLUMNS, rows)
    report.notes.append(
        "overlap: mean of Σ min(float32's probability, this one's), which is how often rejection"
        " sampling would keep a token of the one as the other's."
    )


def fit_row(dtype: str, row: Row) -> Row:
    """Return the figures of a precision; in `row` float32 is the target, and it is the draft."""
    return make_row(
        dtype=dtype,
        seed=row["seed"],
        tokens=row["tokens"],
        cross_entropy=row["draft_cross_entropy"],
        more_than_float32=row["draft_cross_entropy"] - row["target_cross_entropy"],
        overlap=row["acceptance_rate"],
        top1_agreement=row["top1_agreement"],
    )
