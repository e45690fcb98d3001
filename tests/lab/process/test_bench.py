"""Experiments that start services of their own, as `tandem bench` does: quick ones, whole."""

from __future__ import annotations

import pytest

from lab.bench.harness.baselines import ALONE
from lab.bench.harness.models import Models
from lab.bench.harness.report import Report, Row
from lab.bench.speculation import auto_real, prompt_set
from lab.bench.speculation.auto_real import PRESETS, RealRun, measure_real
from lab.bench.speculation.named_prompts import PROMPTS
from lab.bench.speculation.prompt_set import ARMS, COMPARED, GREEDY, OWN
from lab.machine import this_machine


def test_each_prompt_is_answered_by_processes_in_both_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_set, "PROMPTS", PROMPTS[:2])
    monkeypatch.setattr(prompt_set, "QUICK_TOKENS", 12)
    monkeypatch.setattr(prompt_set, "SETTLED_S", 0.0)
    report = Report("prompts", 1, True, this_machine(), "")
    prompt_set.run(report, Models(), rounds=1, rtt_ms=20.0)
    rows, summaries = report.rows[:4], report.rows[4:]
    assert [(row["preset"], row["over"]) for row in summaries] == [*COMPARED, *COMPARED]
    greedy, own = summaries[0], summaries[len(COMPARED)]
    assert [row["prompt"] for row in rows] == 2 * [prompt.name for prompt in PROMPTS[:2]]
    assert [row["sampling"] for row in rows] == [GREEDY, GREEDY, OWN, OWN]
    assert all(len(row["times_s"][preset]) == 1 for row in rows for preset in ARMS)
    assert min(min(row["times_s"][ALONE]) for row in rows) > 0.020, "the link was in between"
    assert greedy["mean"] == pytest.approx((rows[0]["ratio"] + rows[1]["ratio"]) / 2)
    assert (own["sampling"], own["prompts"]) == (OWN, 2)
    assert report.met, "all write what the cloud alone writes"


def test_a_cell_with_real_processes_a_link_and_load_that_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One processor is loaded, not all: other tests run beside this one."""
    monkeypatch.setattr(auto_real, "usable_cores", lambda: [0])
    report = Report("auto", 1, True, this_machine(), "")
    name = "demo-gguf:40ms:48:t0:ended"
    measure_real(report, RealRun(rounds=2, only=(name,)))
    row: Row
    (row,) = report.rows
    assert row["cell"] == name
    assert {len(row["times_s"][preset]) for preset in PRESETS} == {2}
    assert min(row["times_s"]["coupled"]) > 6 * 0.040, "each of its rounds waits for the link"
    assert [each["tokens"] for each in row["answers"]["auto"]] == [48, 48]
    assert row["same_bits"] is False, "Q8_0 rounds activations"
