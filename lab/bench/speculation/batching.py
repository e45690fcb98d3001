"""`bench batching`: many concurrent sessions on one verifier against the same requests in turn.

Unpaced demo pair, draft length 4, one drafter process on the edge's core, one verifier on the
cloud's. The figure is tokens per second over the wall time of all requests; the texts of the
concurrent run must be those of the run in turn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from lab.bench.harness.models import Models
from lab.bench.harness.report import Goal, Report, Row, progress
from lab.bench.harness.suite import Suite, running_suite
from lab.bench.harness.texts import prompts
from lab.bench.harness.workload import all_at_once, answers_row, one_after_another, requests, total
from tandem.generation.client import Generated
from tandem.generation.request import GenerationRequest
from tandem.net.process import run_loop

SCALING_LIMIT = 2.2
DRAFT_LENGTH = 4
SESSIONS = 8
PRESETS = ("coupled", "dssd", "ar")
COLUMNS = (
    "preset",
    "sessions",
    "tokens_per_s",
    "scaling",
    "same_texts",
    "tpot_s",
    "acceptance_rate",
    "edge_busy",
    "cloud_busy",
    "queue_s_per_round",
)


def run(report: Report, models: Models) -> None:
    """Fill the report with a row for each preset and number of sessions. The goal for the speed is
    that of the best preset that drafts."""
    max_tokens = 96 if report.quick else 256
    counts = (1, SESSIONS) if report.quick else (1, 2, 4, SESSIONS)
    rows: list[Row] = []
    with running_suite(models) as suite:
        for preset in PRESETS:
            wanted = requests(prompts(SESSIONS), preset, DRAFT_LENGTH, max_tokens, report.seed)
            run_loop(one_after_another(suite, wanted[:1]))  # warm
            rows += _scale(suite, preset, wanted, counts)
    for row in rows:
        row["seed"] = report.seed
    report.add(f"Concurrent sessions, unpaced, draft length {DRAFT_LENGTH}", COLUMNS, rows)
    drafting = [row for row in rows if row["sessions"] == SESSIONS and row["preset"] != "ar"]
    best = max(drafting, key=lambda row: row["scaling"])
    report.goals += [
        Goal(
            f"{SESSIONS} sessions ÷ 1, tokens/s, {best['preset']}",
            best["scaling"],
            SCALING_LIMIT,
            "at least",
        ),
        *(
            Goal(f"texts unchanged by batching, {preset}", unchanged, SESSIONS, "at least")
            for preset, unchanged in _unchanged(rows).items()
        ),
    ]
    report.notes.append(
        "edge_busy and cloud_busy are processor time over wall time of that side's core: where "
        "cloud_busy is near 1 the verifier is the bound, where edge_busy is, drafting is."
    )


def _unchanged(rows: Sequence[Row]) -> dict[str, int]:
    """Return the fewest unchanged texts of each preset."""
    return {
        preset: min(row["same_texts"] for row in rows if row["preset"] == preset)
        for preset in PRESETS
    }


def _scale(
    suite: Suite, preset: str, wanted: Sequence[GenerationRequest], counts: Sequence[int]
) -> list[Row]:
    """Answer all requests once for each of the `counts`, that many at a time, and return a row for
    each."""
    alone: list[Generated] = []
    rows: list[Row] = []
    for count in counts:
        progress(f"{preset}, {count} sessions")
        before, started_s = suite.cpu_s(), time.perf_counter()
        answers: list[Generated] = []
        for first in range(0, len(wanted), count):
            answers += run_loop(all_at_once(suite, wanted[first : first + count]))
        wall_s = time.perf_counter() - started_s
        edge_s, cloud_s = (now - then for now, then in zip(suite.cpu_s(), before, strict=True))
        alone = alone or answers
        row = answers_row(preset, DRAFT_LENGTH if preset != "ar" else None, answers)
        row["tokens_per_s"] = row["tokens"] / wall_s
        first_rate = rows[0]["tokens_per_s"] if rows else row["tokens_per_s"]
        rows.append(
            row
            | {
                "sessions": count,
                "scaling": row["tokens_per_s"] / first_rate,
                "same_texts": sum(
                    one.token_ids == other.token_ids
                    for one, other in zip(alone, answers, strict=True)
                ),
                "queue_s_per_round": total(answers, "queue_s") / (total(answers, "rounds") or 1),
                "edge_busy": edge_s / wall_s,
                "cloud_busy": cloud_s / wall_s,
            }
        )
    return rows
