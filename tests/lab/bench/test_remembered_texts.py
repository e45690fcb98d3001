"""`bench memory`: its tasks, and what it compares, without a suite."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.bench.harness.report import Report
from lab.bench.harness.texts import NoTexts
from lab.bench.speculation import remembered_texts
from lab.machine import this_machine

BODY = "".join(f"    value_{number} = numbers[{number}] + offset\n" for number in range(10))


def humaneval(folder: Path, count: int) -> Path:
    path = folder / "HumanEval.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        for number in range(count):
            prompt = f"def solve_{number}(numbers, offset):\n"
            problem = {"prompt": prompt, "canonical_solution": f"{BODY}    return value_{number}\n"}
            lines.write(json.dumps(problem) + "\n")
    return folder


def test_edits_are_of_the_solutions_where_these_are_there(tmp_path: Path) -> None:
    prompts = remembered_texts.edit_prompts(5, 1, humaneval(tmp_path, 12))
    assert len(prompts) == 5
    assert all("def solve_" in prompt and "with this change" in prompt for prompt in prompts)
    with pytest.raises(NoTexts, match="cannot be read"):
        remembered_texts.edit_prompts(5, 1, tmp_path / "nowhere")


def test_each_kind_of_task_has_as_many_as_are_counted() -> None:
    tasks = remembered_texts._tasks(remembered_texts.COUNTS, 1, None)
    assert {name: len(prompts) for name, prompts in tasks.items()} == remembered_texts.COUNTS
    first, second = tasks["documents"][:2]
    assert isinstance(first, str)
    assert isinstance(second, str)
    shared = first.split("Document: ")[2].split("\n\nQuestion")[0]
    assert shared in second, "a document that was found before"


def answered(tokens: list[int], duration_s: float, accepted: int) -> Any:
    summary = SimpleNamespace(
        **{"drafted": 10, "accepted": 5, "target_passes": 4, "uplink_bytes": 9},
        **{"downlink_bytes": 9, "full_distribution_requests": 0},
        **{"accepted_memory_tokens": accepted, "rejected_memory_tokens": 1},
    )
    times = {"duration_s": duration_s, "ttft_s": 0.1, "last_commit_s": duration_s}
    return SimpleNamespace(token_ids=tokens, summary=summary, **times)


def test_ways_are_compared_by_tokens_per_second_and_texts() -> None:
    report = Report("memory", 1, True, this_machine(), "bench memory --quick")
    ways = [remembered_texts._Way(False), remembered_texts._Way(True)]
    ways[0].answers = [answered([1, 2, 3, 4], 2.0, 0), answered([1, 2], 2.0, 0)]
    ways[1].answers = [answered([1, 2, 3, 4], 1.0, 2), answered([1, 5], 1.0, 1)]
    off, on = remembered_texts._compared(report, "edits", ways)
    assert (off["memory"], on["memory"], on["ratio"]) == ("off", "on", 2.0)
    assert on["same_text"] == 0.5
    assert (off["accepted_memory"], on["accepted_memory"]) == (0, 3)
    (goal,) = report.goals
    assert (goal.figure, goal.met) == (2.0, True)
