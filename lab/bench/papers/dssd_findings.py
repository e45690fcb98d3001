"""What DSSD's tables show: each sentence is chosen by the rows, and its numbers are theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.bench.papers.rows import Rows, of_all, span

PRINTED_ROUNDING = 0.005 + 1e-9
PRINTED_BEST = 6.0
"""The draft length that the paper finds best."""


def rejections(rows: Rows) -> str:
    apart = rows.count(
        lambda row: any(
            abs(row.mine(name) - printed) > PRINTED_ROUNDING
            for name, printed in row.theirs.items()
            if printed is not None
        )
    )
    if not apart:
        return f"All {len(rows)} cells agree within the printed rounding."
    return f"{apart} of {len(rows)} cells differ by more than the printed rounding."


def homogeneous(rows: Rows) -> str:
    higher = rows.count(lambda row: row.printed("speedup") > row.mine("speedup"))
    sentences = [
        "The printed speedup is higher than the paper's own equations give in "
        f"{of_all(higher, len(rows))} cells."
    ]
    sparse = Rows([row for row in rows if str(row.labels["method"]).startswith("DSSD")])
    faster = sparse.count(lambda row: row.mine("speedup, virtual time") > row.mine("speedup"))
    if faster:
        sentences.append(
            f"In virtual time DSSD is faster than by its formula in {of_all(faster, len(sparse))}: "
            "with k = 10 a rejection sends ten entries, where the formula counts a distribution."
        )
    return " ".join(sentences)


def heterogeneous(rows: Rows) -> str:
    here = rows.where({"NTT, ms": 20.0, "Mbit/s": 100.0})
    best = {
        method: here.where({"method": method}).best("speedup", "γ")
        for method in here.values("method")
    }
    words = ", ".join(f"{length:g} for {method}" for method, length in best.items())
    same = sum(length == PRINTED_BEST for length in best.values())
    end = (
        "as in the paper"
        if same == len(best)
        else f"where the paper has {PRINTED_BEST:g} for all: see the interior optimum below"
    )
    return f"At 20 ms and 100 Mbit/s the model's best γ of the three is {words}, {end}."


def contradicted(rows: Rows, in_table: Mapping[tuple[Any, ...], float | None]) -> str:
    """Say in how many cells the paper's text and its Table 3 agree, and in how many ours is nearer
    to the table. `in_table`: what Table 3 prints for some of these rows, by their labels."""
    both = [
        (row.mine("speedup"), row.printed("speedup"), printed)
        for row in rows
        if (printed := in_table.get(tuple(row.labels.values()))) is not None
    ]
    same = sum(text == table for _, text, table in both)
    nearer = sum(abs(ours - table) < abs(ours - text) for ours, text, table in both)
    return (
        f"The paper's text and its Table 3 agree in {of_all(same, len(both))} cells that both "
        f"name; ours is nearer to the table in {of_all(nearer, len(both))}."
    )


def whole_grid(rows: Rows) -> str:
    narrow = rows.where({"Mbit/s": 10.0})
    slower = {
        method: sum(one < 1 for one in narrow.ours(method))
        for method in ("DSD 6.7B", "DSSD 6.7B", "DSSD 13B")
    }
    words = ", ".join(f"{name} in {of_all(n, len(narrow))}" for name, n in slower.items())
    return f"At 10 Mbit/s slower than the target alone: {words} cells."


def interior_optimum(rows: Rows, rates: Mapping[str, float]) -> str:
    """Say where the best γ of each target lies, and why it is smaller than the paper's. `rates`:
    each target's acceptance rate."""
    sentences = []
    for size in rates:
        lengths = rows.ours(f"best γ, {size}")
        inside = sum(1 < length < 16 for length in lengths)
        words = "inside 1…16" if inside == len(lengths) else f"inside 1…16 in {inside} cells only"
        sentences.append(f"{size}: the best γ is {span(lengths, 'g')}, {words}.")
    if all(max(rows.ours(f"best γ, {size}")) < PRINTED_BEST for size in rates):
        sixth = " and ".join(f"{rate**6:.2f} ({size})" for size, rate in rates.items())
        sentences.append(
            f"All are smaller than the {PRINTED_BEST:g} that the paper finds, because a sixth "
            f"draft is accepted with probability α^6 = {sixth} only."
        )
    return " ".join(sentences)


def bytes_of_a_round(rows: Rows) -> str:
    (whole,) = rows.where({"method": "DSD"}).rows
    (split,) = rows.where({"method": "DSSD"}).rows
    up, printed = whole.mine("up, bytes"), whole.printed("up, bytes")
    sentences = [
        f"DSD's {printed:,.0f} bytes do not follow from equation 4, which gives "
        f"{whole.mine('by equation 4 or 8'):,.0f}: ours are {up:,.0f}."
    ]
    if split.mine("up, bytes") > split.printed("up, bytes"):
        sentences.append(
            f"DSSD's {split.mine('up, bytes'):.0f} bytes up hold more than the eight ids and "
            "probabilities that the paper counts: the round's position and prefix hash, "
            "by which frames that come late are dropped."
        )
    return " ".join(sentences)
