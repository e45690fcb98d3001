"""What PicoSpec's tables show: each sentence is chosen by the rows, and its numbers are theirs."""

from __future__ import annotations

from statistics import fmean

from lab.bench.papers.rows import FilledRow, Rows, of_all, span

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
            f"{of_all(faster, len(split))}, since a frame costs nothing here but its way over the "
            "link."
        )
    return " ".join(sentences)


def _order(rows: Rows, ours: bool) -> list[str]:
    def speed(row: FilledRow) -> float:
        return row.mine("speedup over AR") if ours else row.printed("speedup over AR")

    return [str(row.labels["method"]) for row in sorted(rows, key=speed)]


def ablation(rows: Rows) -> str:
    variants = [name for name in rows.values("configuration") if name != WHOLE]
    ours, printed = ({name: _lost(rows, name, mine) for name in variants} for mine in (True, False))
    words = "; ".join(
        f"{name} {span(ours[name], '+.0f')} % (paper {span(printed[name], '+.0f')} %)"
        for name in variants
    )
    sentences = [f"What leaving a part out does to tokens/s: {words}."]
    sentences += [
        why for name, why in _WHY_LESS.items() if fmean(ours[name]) > fmean(printed[name]) + CLEAR
    ]
    fast = "w/o Fast-verify"
    if fmean(ours[fast]) < fmean(printed[fast]) - CLEAR:
        sentences.append(f"{fast} ours loses more: its passes then wait for all four drafts.")
    return " ".join(sentences)


CLEAR = 5.0
"""Percent points of tokens/s."""
_WHY_LESS = {
    "w/o Para-draft": "Without Para-draft ours loses less, since it still verifies drafts as they "
    "arrive; and where few are accepted, most drafts beyond the round are thrown away anyway.",
    "w/o Split-rej": "Without Split-rej ours loses less, since a draft's distribution travels "
    "while the next is drafted, and an edge's time to serialise it is not declared.",
}


def _lost(rows: Rows, variant: str, ours: bool) -> list[float]:
    """Return by how many percent tokens/s change against the whole method, for each task; `ours`:
    our figures, else the printed ones."""

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
    words = f"Ours is best at γ = {ours:g}, {apart:.0f} % faster than at the paper's {printed:g}"
    if ours < printed:
        return f"{words}."
    return (
        f"{words}: drafts are verified as they arrive, so a longer round waits no longer, and the "
        "rate that the printed accepted length asks for rises with γ."
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
