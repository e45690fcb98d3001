"""Step times: a row for each kind of pass, by both implementations."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from lab.bench.harness.models import Models
from lab.bench.harness.report import Report
from lab.bench.speculation import device_steps
from lab.bench.speculation.device_steps import BY_HUGGING_FACE, DTYPES, Plan
from lab.machine import this_machine
from tests.unit.backends.gguf_files import draft_gguf

TOKENS = (1, 3)


def new_report() -> Report:
    return Report("steps", 1, True, this_machine(), "bench steps --quick")


def test_every_kind_of_pass_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shortest(device: str, seed: int) -> Plan:
        return Plan(device, seed, tokens=TOKENS, context=8, passes=1)

    monkeypatch.setattr(device_steps, "quick_plan", shortest)
    draft = Models().draft
    report = new_report()
    device_steps.run(report, Models(draft=draft, target=draft))
    assert [table.title.split(":")[0] for table in report.tables] == ["target", "draft"]
    for table in report.tables:
        kinds = [(row["engine"], row["dtype"], row["tokens"]) for row in table.rows]
        wanted = {("tandem", dtype, tokens) for dtype in DTYPES for tokens in TOKENS}
        wanted |= {("transformers", dtype, 1) for dtype in BY_HUGGING_FACE}
        assert sorted(kinds) == sorted(wanted)
        assert all(0 < row["pass_fastest_s"] <= row["pass_median_s"] for row in table.rows)


def test_llama_cpp_computes_a_gguf_file_as_usual_and_batch_invariant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shortest = partial(Plan, tokens=TOKENS, context=8, passes=1)
    monkeypatch.setattr(device_steps, "quick_plan", shortest)
    draft = str(draft_gguf(tmp_path, "Q8_0"))
    report = new_report()
    device_steps.run(report, Models(draft=draft, target=draft))
    for table in report.tables:
        kinds = [(row["engine"], row["dtype"], row["tokens"]) for row in table.rows]
        assert kinds == [
            ("llamacpp", how, tokens)
            for how in ("as usual", "batch-invariant")
            for tokens in TOKENS
        ]
