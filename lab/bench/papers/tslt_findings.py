"""What TSLT's theorem and figures show: each sentence is chosen by the rows."""

from __future__ import annotations

from lab.bench.papers.rows import Rows, of_all, span

FLOAT32 = 1e-5
"""What float32 may add to a difference that a theorem bounds."""
LEVEL = 0.01


def bound_holds(rows: Rows) -> str:
    worst = max(rows.ours("largest |β̂ − β| − bound"))
    holds = (
        "The bound holds at every position, but for what float32 rounds."
        if worst <= FLOAT32
        else f"The bound is exceeded, by up to {worst:.2g}."
    )
    empty = [row for row in rows if row.mine("bound, median") > 1]
    if not empty:
        return f"{holds} It says something for every candidate."
    first = min(row.labels["candidate"] for row in empty)
    return (
        f"{holds} Its median exceeds 1, which says nothing, in {of_all(len(empty), len(rows))} "
        f"rows, from candidate {first:g} on: each further one multiplies it by 2 ÷ Z and more."
    )


def mass_kept(rows: Rows) -> str:
    less = [row for row in rows if row.mine("same share") < row.mine("same K") - LEVEL]
    if not less:
        return "The same share keeps as much as the same K."
    ks = ", ".join(f"{row.labels['K of 32,000']:g}" for row in less)
    return (
        f"The same share of our small vocabulary keeps less than the same K (K = {ks}): it is an "
        "eighth as many tokens."
    )


def candidates(rows: Rows) -> str:
    one, two, three = (rows.ours(name) for name in ("SC-DSD", "MC-DSD, two", "MC-DSD, three"))
    above = sum(a <= b <= c for a, b, c in zip(one, two, three, strict=True))
    tenth, all_, thousandth = (
        rows.where({"K of 32,000": kept}).ours("SC-DSD")[0] for kept in (3_200.0, 32_000.0, 32.0)
    )
    gain = max(b - a for a, b in zip(one, two, strict=True))
    return (
        f"More candidates are accepted at least as often in {of_all(above, len(rows))} rows; a "
        f"second one adds at most {gain:.3f}. A tenth of the vocabulary reaches "
        f"{tenth / all_:.1%} of the whole's rate, a thousandth {thousandth / all_:.1%}."
    )


def several_candidates_pay(rows: Rows) -> str:
    at_depth = [row for row in rows if row.mine("MC ⟨2,2,2⟩ ÷ SC") > 1]
    against_best = rows.count(lambda row: row.mine("MC ÷ best SC, dear nodes") > 1)
    cells = ", ".join(
        f"K = {kept:g} from {min(r.labels['uplink, Mbit/s'] for r in group):g} Mbit/s"
        for kept in rows.values("K of 32,000")
        if (group := [row for row in at_depth if row.labels["K of 32,000"] == kept])
    )
    where = f" ({cells})" if cells else ""
    return (
        f"At equal depth MC beats SC in {of_all(len(at_depth), len(rows))} cells{where}: where the "
        "link carries a tree's seven distributions for little. Against a chain of the best length, "
        f"once each node adds to the pass, it does in {of_all(against_best, len(rows))}."
    )


def fitted_k(rows: Rows) -> str:
    ks = rows.ours("best K")
    rises = ks == sorted(ks)
    gain = [row.mine("speedup") / row.mine("K = all") for row in rows]
    how = "rises with the uplink" if rises and ks[-1] > ks[0] else "does not rise with every uplink"
    return (
        f"The best K {how}, from {min(ks):g} to {max(ks):g}; against sending whole distributions "
        f"it is {span(gain, '.2f')} times as fast."
    )
