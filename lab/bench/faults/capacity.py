"""`bench capacity`: how many sessions one verifier holds where a p95 of TPOT is promised, by who
drafts: nobody (`ar`), the cloud (`cloud-draft`), the edges (`coupled`, `stream`), or both.

In virtual time, with one verifier whose sessions decode all the time.
Beside each cell stands what theory allows drafting at the edge to gain over drafting in the cloud,
and once what SpecEdge reports. `--real` measures two points with processes instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from lab.bench.faults.capacity_cells import (
    ARMS,
    CLOUD,
    EDGE_STEPS_S,
    EDGES,
    LIMITS_S,
    RTTS_S,
    SHARES,
    TARGETS,
    Cell,
    bound_at,
    grid,
)
from lab.bench.faults.capacity_real import measure_real
from lab.bench.harness.models import Models
from lab.bench.harness.report import Report, Row, counted, make_row

SESSIONS = 16
SPECEDGE = 2.22
"""Times the server's throughput of a server that does everything itself, as SpecEdge's abstract
reports (Park et al., arXiv 2505.17052). Their models and hardware; not measured here."""
MIDDLE = Cell("memory", 0.040, 0.8)
"""The cell in which one more thing is varied."""
COLUMNS = (
    *("target", "rtt_s", "declared", *ARMS),
    *("edge_over_cloud", "bound", "bound_at_load", "most"),
)
SPEED_COLUMNS = ("target", "rtt_s", "declared", *ARMS, "edge_over_cloud", "bound_at_load")


def run(report: Report, models: Models, tpot_ms: float = 100.0, real: bool = False) -> None:
    """Measure the `real` points, or search the grid in virtual time.

    Args:
        report: takes rows, tables and notes.
        models: of the real points.
        tpot_ms: the promise: 95 % of the answers have at most this TPOT.
        real: only the processes."""
    if real:
        measure_real(report, models, tpot_ms / 1e3)
        return
    tpot_s = tpot_ms / 1e3
    cells = grid(report.quick, tpot_s)
    rows = [capacity_row(cell, report.seed) for cell in counted(cells, str)]
    report.add(
        f"Simulated: sessions that one verifier holds at p95 TPOT ≤ {tpot_ms:g} ms", COLUMNS, rows
    )
    report.add(
        f"Simulated: tokens/s of {SESSIONS} sessions together",
        SPEED_COLUMNS,
        [speed_row(cell, report.seed) for cell in cells],
    )
    if not report.quick:
        _add_variations(report, tpot_s)
    report.notes += notes(rows)


def _add_variations(report: Report, tpot_s: float) -> None:
    middle = replace(MIDDLE, tpot_s=tpot_s)
    by_share = [
        capacity_row(replace(middle, share=share), report.seed) | {"share": share}
        for share in counted(SHARES, lambda share: f"a cloud's draft step {share:.3g} of a pass")
    ]
    report.add(
        f"Simulated: {middle}, by a draft step in the cloud ÷ a pass",
        ("share", *COLUMNS[3:]),
        by_share,
    )
    by_limit = [
        capacity_row(replace(middle, tpot_s=limit_s), report.seed) | {"tpot_limit_s": limit_s}
        for limit_s in counted(LIMITS_S, lambda limit_s: f"TPOT ≤ {limit_s * 1e3:g} ms")
    ]
    report.add("Simulated: the same by the limit", ("tpot_limit_s", *COLUMNS[3:]), by_limit)
    steps = product(SHARES[1:], EDGE_STEPS_S, RTTS_S[:2])
    by_step = [
        speed_row(replace(middle, share=share, draft_s=draft_s, rtt_s=rtt_s), report.seed)
        | {"share": share, "draft_s": draft_s}
        for share, draft_s, rtt_s in steps
    ]
    report.add(
        f"Simulated: tokens/s of {SESSIONS} sessions, bound by {middle.target}, acceptance"
        f" {middle.rate:g}, by draft steps in the cloud (÷ a pass) and at the edges (seconds)",
        ("share", "draft_s", "rtt_s", *ARMS, "edge_over_cloud", "bound_at_load"),
        by_step,
    )


def capacity_row(cell: Cell, seed: int) -> Row:
    """Return the row of a cell: the sessions that each arm holds, and under `figures` what each arm
    reaches with that many. `bound_at_load` follows from the share of its time that `cloud-draft`
    spends on draft steps while it holds as many sessions as it can."""
    held = {arm: cell.capacity(arm, seed) for arm in ARMS}
    sessions = {arm: capacity.sessions for arm, capacity in held.items()}
    most = max(sessions.values())
    return (
        _row(cell, seed)
        | sessions
        | _over_cloud(sessions)
        | {
            "bound": cell.bound,
            "bound_at_load": bound_at(held[CLOUD].figures.drafting_share),
            "most": ", ".join(arm for arm in ARMS if sessions[arm] == most) if most else "nobody",
            "figures": {
                arm: {
                    "tpot_p95_s": capacity.figures.tpot_p95_s,
                    "tokens_per_s": capacity.figures.tokens_per_s,
                    "tokens_per_round": capacity.figures.tokens_per_round,
                    "sessions_per_pass": capacity.figures.sessions_per_pass,
                    "drafting_share": capacity.figures.drafting_share,
                    "busy": capacity.figures.busy,
                }
                for arm, capacity in held.items()
            },
        }
    )


def speed_row(cell: Cell, seed: int) -> Row:
    """Return the row of a cell: the tokens/s of SESSIONS sessions at once with each arm."""
    figures = {arm: cell.together(arm, SESSIONS, seed) for arm in ARMS}
    speeds = {arm: figures[arm].tokens_per_s for arm in ARMS}
    bound = bound_at(figures[CLOUD].drafting_share)
    tpots = {f"{arm} tpot_p95_s": figures[arm].tpot_p95_s for arm in ARMS}
    return _row(cell, seed) | speeds | _over_cloud(speeds) | {"bound_at_load": bound} | tpots


def _row(cell: Cell, seed: int) -> Row:
    pacing = TARGETS[cell.target].to_json() | {"draft_s": cell.draft_s}
    pacing |= {"cloud_draft_share": cell.share}
    named = {"target": cell.target, "declared": cell.rate, "tpot_limit_s": cell.tpot_s}
    return make_row(pacing=pacing, rtt_s=cell.rtt_s, seed=seed) | named


def _over_cloud(figures: dict[str, Any]) -> dict[str, float | None]:
    """Return what the better of EDGES reaches, relative to a cloud that drafts."""
    cloud = figures[CLOUD]
    edge = max(figures[arm] for arm in EDGES)
    return {"edge_over_cloud": edge / cloud if cloud else None}


def notes(rows: Sequence[Row]) -> list[str]:
    """Return notes on what is declared, which arm holds most sessions by that, and what others
    report."""
    most = Counter(row["most"] for row in rows)
    wins = "; ".join(f"{arms} in {count}" for arms, count in most.most_common())
    ratios = [row["edge_over_cloud"] for row in rows if row["edge_over_cloud"] is not None]
    gain = f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "no ratio"
    return [
        "Virtual time. Declared: a pass takes 72 ms, and 0.5 ms (memory) or 9 ms (compute) for each"
        " further row; a draft step at an edge 24 ms, and no two edges share a device; a"
        " draft step in the cloud 1/15 of a pass over as many rows. The cloud drafts in step for"
        " all sessions and judges them in one pass, which is the best it can do. Nobody sends"
        " prompts.",
        f"Most sessions: {wins} of {len(rows)} cells. The better of the edges' arms holds {gain}"
        " times as many as cloud-draft.",
        "bound: 1 + γ·t_draft/t_verify of arXiv 2606.25091, γ = 4, for a pass over one session."
        " bound_at_load: the same by the time that cloud-draft spends on draft steps with as many"
        " sessions as it holds, where more rows make a pass longer. Edges can exceed that,"
        " as a cloud whose steps are dear drafts fewer tokens than they do.",
        f"SpecEdge reports {SPECEDGE} times the server's throughput over a server that drafts and"
        " verifies (arXiv 2505.17052). That is their figure, of other models and GPUs, and was not"
        " measured here.",
        "Drafts at the edge win by what drafting costs the cloud, and lose by what the edge's step"
        " and the link add to a token. Where a further row costs much, every draft costs capacity.",
    ]
