"""`bench overhead`: what running a pair over two machines costs beside the models themselves.

Four parts: a token from a row of logits, the draft step against Hugging Face's, the round overhead
in a working pair, and efficiency on a paced pair behind an emulated link.
"""

from __future__ import annotations

from pathlib import Path

from lab.bench.harness.plots import bars, grouped_lines
from lab.bench.harness.report import Goal, Report
from lab.bench.harness.suite import Models
from lab.bench.speculation.efficiency import MBPS, PACING, measure_efficiency
from lab.bench.speculation.round_overhead import measure_round_overhead
from lab.bench.speculation.row_cost import COUPLED, VOCABULARY, measure_row_cost

STEP_RATIO_LIMIT = 0.6
ROUND_OVERHEAD_LIMIT_S = 350e-6
EFFICIENCY_LIMIT = 0.95
ROW_LIMIT_S = 150e-6


def run(report: Report, models: Models) -> None:
    """Fill the report with all four parts."""
    _row_cost(report)
    _efficiency(report, models)
    _round_overhead(report, models)
    _draft_step(report, models)  # last: it loads torch and pins this process


def _row_cost(report: Report) -> None:
    rows = measure_row_cost(report.seed, 100 if report.quick else 500)
    title = f"A row of {VOCABULARY:,} logits, one core"
    report.add(title, ("kind", "row_median_s", "row_fastest_s", "rows"), rows)
    (coupled,) = (row["row_median_s"] for row in rows if row["kind"] == COUPLED)
    report.goals.append(Goal("a coupled row (s)", coupled, ROW_LIMIT_S, "at most"))


def _efficiency(report: Report, models: Models) -> None:
    # 60 tokens at the slowest preset take about 9 s paced; three links, four presets.
    answers, max_tokens = (1, 60) if report.quick else (4, 96)
    rows = measure_efficiency(models, answers, max_tokens, report.seed)
    report.add(
        f"Efficiency, paced pair (draft {PACING.draft_s * 1e3:g} ms, verify "
        f"{PACING.verify_first_s * 1e3:g} + {PACING.verify_further_s * 1e3:g} ms), {MBPS:g} Mbit/s",
        (
            "preset",
            "rtt_s",
            "tokens_per_s",
            "tpot_s",
            "predicted_tpot_s",
            "efficiency",
            "speedup_over_ar",
            "acceptance_rate",
            "full_distribution_requests",
        ),
        rows,
    )
    worst = min(row["efficiency"] for row in rows)
    report.goals.append(Goal("efficiency, worst row", worst, EFFICIENCY_LIMIT, "at least"))


def _round_overhead(report: Report, models: Models) -> None:
    answers, max_tokens = (2, 96) if report.quick else (8, 256)
    rows = measure_round_overhead(models, answers, max_tokens, report.seed)
    report.add(
        "round overhead in a working pair, unpaced, loopback, one core a side",
        (
            "preset",
            "draft_length",
            "round_overhead_median_s",
            "bare_round_trip_s",
            "bare_tcp_s",
            "draft_step_s",
            "verify_step_s",
            "tokens_per_s",
            "acceptance_rate",
            "edge_cpu_s_per_token",
            "cloud_cpu_s_per_token",
        ),
        rows,
    )
    report.notes.append(
        "bare_round_trip_s is a floor on this machine: a bare gRPC stream between two pinned "
        "processes "
        "that read through as many bytes as the models have weights, without any code of ours; "
        "bare_tcp_s the same over a plain socket, without gRPC and threads."
    )
    for row in rows:
        if row["round_overhead_median_s"] is not None:
            name = f"round overhead, {row['preset']} (s)"
            report.goals.append(
                Goal(name, row["round_overhead_median_s"], ROUND_OVERHEAD_LIMIT_S, "at most")
            )


def _draft_step(report: Report, models: Models) -> None:
    from lab.bench.speculation.draft_step import measure_draft_step  # torch is loaded only here

    rows = measure_draft_step(models.draft, 20 if report.quick else 150, 200, report.seed)
    columns = (
        "implementation",
        "step_median_s",
        "step_fastest_s",
        "steps",
        "context",
        "step_ratio",
    )
    report.add("Draft step, one thread, float32, taking turns", columns, rows)
    ratio = rows[0]["step_ratio"]
    report.goals.append(Goal("draft step ÷ DynamicCache step", ratio, STEP_RATIO_LIMIT, "at most"))


def draw(report: Report, folder: Path) -> None:
    efficiency = [row for row in report.rows if row.get("part") == "efficiency"]
    overheads = [row for row in report.rows if row.get("round_overhead_median_s") is not None]
    grouped_lines(
        folder / "efficiency.png",
        efficiency,
        x="rtt_s",
        y="efficiency",
        title="Predicted ÷ measured TPOT, paced pair",
        limit=EFFICIENCY_LIMIT,
    )
    bars(
        folder / "round_overhead.png",
        {row["preset"]: 1e6 * row["round_overhead_median_s"] for row in overheads},
        ylabel="median round overhead, µs",
        title="Round time minus model time",
        limit=1e6 * ROUND_OVERHEAD_LIMIT_S,
    )
