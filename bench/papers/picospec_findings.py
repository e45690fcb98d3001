"""What PicoSpec's tables show: each sentence is chosen by the rows, and its numbers are theirs."""

from __future__ import annotations

from bench.papers.rows import FilledRow, Rows, of_all, span

WHOLE = "picospec"


def methods(rows: Rows) -> str:
    pairs = [(pair, task) for pair in rows.values("pair") for task in rows.values("task")]
    cells = [rows.where({"pair": pair, "task": task}) for pair, task in pairs]
    same = sum(_order(cell, ours=True) == _order(cell, ours=False) for cell in cells)
    full = rows.where({"method": "PicoSpec"})
    ahead = full.count(lambda row: row.mine("speedup over AR") > 1)
    sentences = [
        f"The four methods have the printed order in {of_all(same, len(cells))} cells; PicoSpec is "
        f"faster than the target alone in {of_all(ahead, len(full))}."
    ]
    fewer = full.count(lambda row: row.mine("tokens a pass") < row.printed("tokens a pass"))
    if fewer:
        sentences.append(
            "Its tokens a pass are fewer than the paper's accepted length in "
            f"{of_all(fewer, len(full))}: ours verifies drafts as they arrive, in more passes, and "
            "a round whose drafts are all accepted has no bonus token."
        )
    split = rows.where({"method": "Split Inf."})
    faster = split.count(lambda row: row.mine("speedup over AR") > row.printed("speedup over AR"))
    if faster:
        sentences.append(
            "Split inference is faster than printed in "
            f"{of_all(faster, len(split))}, since the cost model has no overhead but the link."
        )
    return " ".join(sentences)


def _order(rows: Rows, ours: bool) -> list[str]:
    def speed(row: FilledRow) -> float:
        return row.mine("speedup over AR") if ours else row.printed("speedup over AR")

    return [str(row.labels["method"]) for row in sorted(rows, key=speed)]


def ablation(rows: Rows) -> str:
    sentences = []
    for variant in rows.values("configuration"):
        if variant != WHOLE:
            ours, printed = _lost(rows, variant, ours=True), _lost(rows, variant, ours=False)
            sentences.append(f"{variant} {span(ours, '+.0f')} % (paper {span(printed, '+.0f')} %)")
    return f"What leaving a part out does to tokens/s: {'; '.join(sentences)}."


def _lost(rows: Rows, variant: str, ours: bool) -> list[float]:
    """In percent, for each task."""

    def rate(row: FilledRow) -> float:
        return row.mine("tokens/s") if ours else row.printed("tokens/s")

    whole = {row.labels["task"]: rate(row) for row in rows.where({"configuration": WHOLE})}
    left = rows.where({"configuration": variant})
    return [100 * (rate(row) / whole[row.labels["task"]] - 1) for row in left]


def best_draft_length(rows: Rows) -> str:
    ours = rows.best("tokens/s", "γ")
    printed = max(rows, key=lambda row: row.printed("tokens/s")).labels["γ"]
    if ours == printed:
        return f"γ = {ours:g} is best, as in the paper."
    apart = 100 * (max(rows.ours("tokens/s")) / rows.where({"γ": printed}).ours("tokens/s")[0] - 1)
    return (
        f"Ours is best at γ = {ours:g}, {apart:.0f} % faster than at the paper's {printed:g}: "
        "drafts are verified as they arrive, so a longer round waits for no more than its tail."
        if ours > printed
        else f"Ours is best at γ = {ours:g}, {apart:.0f} % faster than at the paper's {printed:g}: "
        "a draft that is thrown away after a rejection takes the edge's time."
    )


def processes(rows: Rows) -> str:
    simulated = "tokens/s, virtual time"
    percent = [100 * row.mine("tokens/s") / row.mine(simulated) for row in rows]
    groups = [rows.where({"tables": table}) for table in rows.values("tables")]
    same = sum(one.best("tokens/s", "method") == one.best(simulated, "method") for one in groups)
    fastest = ", ".join(
        f"{one.best('tokens/s', 'method')} ({table})"
        for table, one in zip(rows.values("tables"), groups, strict=True)
    )
    return (
        f"Processes reach {span(percent, '.0f')} % of virtual time's tokens/s: they also pay for "
        "gRPC, for the models' own work on this machine, and for what else it does. Fastest are "
        f"{fastest}; virtual time says the same in {of_all(same, len(groups))} groups of rows."
    )
