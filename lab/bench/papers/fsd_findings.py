"""What FSD's tables show: each sentence is chosen by the rows, and its numbers are theirs."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

from lab.bench.harness.report import Goal
from lab.bench.papers.rows import Rows, of_all, span

PRINTED_ROUNDING = 0.005 + 1e-9
EVEN = 0.01
"""Less than this share apart is the same, where figures are of runs."""
VISIBLE = 1.0
"""Percent points of a miss rate that count."""
QUEUE_COLUMNS = ("3 threads", "5 threads", "10 threads")
MACHINES = {"server, ms": "the A100's", "client, ms": "the Jetson's"}


def billed_drafts(rows: Rows) -> str:
    more = [
        row.mine("edge-cloud SD, drafts billed") / row.mine("edge-cloud SD") - 1
        for row in rows
        if row.mine("edge-cloud SD")
    ]
    percent = span([100 * one for one in more], ".0f")
    return f"With the drafts billed edge-cloud SD costs {percent} % more."


def exits_of_own_target(rows: Rows) -> str:
    share = "%"
    last_row = rows.rows[-1]
    if last_row.ours[share] is None:
        return "The target has no exits here."
    printed = [one for row in rows if (one := row.theirs[share]) is not None]
    words = (
        f"The exits of the target that is here hold {last_row.mine(share):.1f} % of its parameters"
    )
    if last_row.mine(share) <= max(printed):
        return f"{words}, the paper's {span(printed)} %."
    why = "the smaller a model, the more adapters of a given rank weigh"
    return f"{words}, more than the paper's {span(printed)} %: {why}."


def calibration(rows: Rows) -> str:
    before, after = rows.ours("error before, %"), rows.ours("error after, %")
    if not before:
        return "The exits that are here, if any, are not calibrated."
    better = sum(late < early for early, late in zip(before, after, strict=True))
    return (
        f"Their confidence is wrong by {span(before)} % on average as it is, and by {span(after)} "
        f"% once divided by its temperature: less for {of_all(better, len(before))}."
    )


def ratios(rows: Rows) -> str:
    pairs = rows.pairs("c")
    apart = [f"{printed:g}" for ours, printed in pairs if abs(ours - printed) > PRINTED_ROUNDING]
    if not apart:
        return "The printed ratios c follow from the printed times."
    return f"The printed ratios c follow from the printed times, but for {', '.join(apart)}."


def by_task(rows: Rows, exit_share: float) -> str:
    """Say what τ is for each task, and how deep in the pass the exit lies that is right first.
    `exit_share`: how deep the printed average exit of GSM8K lies, in percent."""
    there = Rows([row for row in rows if row.ours["τ"] is not None])
    if not there.rows:
        return "No task's texts are here."
    words = ", ".join(f"{row.mine('τ'):.2f} on {row.labels['task']}" for row in there)
    sentences = [f"τ is {words}; most on {there.best('τ', 'task')}."]
    if any(mine > printed for mine, printed in there.pairs("τ")):
        sentences.append(
            "A draft that is distilled from its target on these kinds of text, as the demo pair's "
            "is, is accepted more often than the paper's."
        )
    deep = there.ours("average exit, % of the pass")
    if deep:
        sentences.append(
            f"The exit that is right first lies {span(deep, '.0f')} % deep in the pass; the "
            f"paper's average on GSM8K, of more exits, {exit_share:.0f} %."
        )
    missing = [str(row.labels["task"]) for row in rows if row.ours["τ"] is None]
    if missing:
        sentences.append(f"No texts of {' and '.join(missing)} are here.")
    return " ".join(sentences)


def speeds_by_task(rows: Rows) -> str:
    there = Rows([row for row in rows if row.ours["τ"] is not None])
    if not there.rows:
        return "No task's texts are here."
    faster = there.best("AR → SD", "task")
    sentences = [f"SD gains most on {faster} (τ {there.where({'task': faster}).ours('τ')[0]:.2f})."]
    gains = there.ours("SD → FSD")
    if not gains:
        return f"{sentences[0]} {NO_EXITS}"
    missed = there.ours("r, %")
    sentences.append(
        f"FSD gains {span(gains, '.2f')} over SD, and its cache misses {span(missed, '.0f')} %: a "
        "branch counts once all its drafts are there."
    )
    return " ".join(sentences)


def by_client(rows: Rows) -> str:
    words = []
    for figure in ("AR → SD", "SD → FSD"):
        above = sum(mine > printed for mine, printed in rows.pairs(figure))
        words.append(f"{figure} in {of_all(above, len(rows))}")
    apart = {
        client: max(
            mine / printed for mine, printed in rows.where({"client": client}).pairs("AR → SD")
        )
        for client in rows.values("client")
    }
    most = max(apart, key=lambda client: apart[client])
    return f"Table 4 gives more than is printed for {', '.join(words)} cells, most on the {most}."


def demo_pair_accepts(rows: Rows) -> str:
    accepted = rows.count(lambda row: row.mine("τ") > row.printed("τ"))
    gained = rows.count(lambda row: row.mine("AR → SD") > row.printed("AR → SD"))
    words = (
        f"The demo pair accepts more drafts (τ) than the paper's pairs in "
        f"{of_all(accepted, len(rows))} rows, and SD gains more in {of_all(gained, len(rows))}."
    )
    if not (gains := [mine / printed for mine, printed in rows.pairs("SD → FSD")]):
        return f"{words} The target that is here has no exits, which FSD needs."
    missed = rows.count(lambda row: row.mine("r, %") > row.printed("r, %"))
    return (
        f"{words} The cache misses more often than printed in {of_all(missed, len(rows))}. "
        f"SD → FSD is {span(gains, '.2f')} times the printed: unlike in the formula an exit's "
        "token comes late in the pass, and drafting from it takes time."
    )


NO_EXITS = "The target that is here has no exits."


def queue_orders(rows: Rows) -> str:
    columns = QUEUE_COLUMNS
    if not rows.ours(columns[0]):
        return NO_EXITS
    least = []
    as_few = []
    for name in columns:
        mean = {
            order: sum(rows.where({"client queue": order}).ours(name))
            for order in rows.values("client queue")
        }
        others = min(mean[order] for order in mean if order != "priority")
        if mean["priority"] < others:
            least.append(name)
        elif mean["priority"] == others:
            as_few.append(name)
    by_server = max(
        abs(one.mine(name) - other.mine(name))
        for order in rows.values("client queue")
        for name in columns
        for one, other in [rows.where({"client queue": order}).rows]
    )
    spread = [max(rows.ours(name)) - min(rows.ours(name)) for name in columns]
    ties = f", and as few as another in {' and '.join(as_few)}" if as_few else ""
    count = of_all(len(least), len(columns))
    sentences = [f"The client's priority queue misses least in {count} columns{ties}."]
    if by_server < VISIBLE:
        why = "our early verdicts weigh tens of bytes and do not queue even on this link"
        sentences.append(f"The server's order changes at most {by_server:.1f} points: {why}.")
    else:
        sentences.append(f"The server's order changes up to {by_server:.1f} points.")
    if spread[-1] < spread[0]:
        sentences.append("The order matters less the more workers there are.")
    printed = [name for name in columns if rows.pairs(name)]
    fewer = [name for name in printed if _all_below(rows, name)]
    if fewer:
        why = "outcomes that several exits share are drafted for once"
        sentences.append(f"Misses are fewer than printed with {' and '.join(fewer)}: {why}.")
    more = [name for name in printed if _all_above(rows, name)]
    if more:
        why = "a branch counts as a hit only once all its drafts are there"
        sentences.append(f"Misses are more than printed with {' and '.join(more)}: {why}.")
    return " ".join(sentences)


QUEUE_GOAL = (
    "FSD Table 7: misses of the client's priority queue less the better other order's, points"
)


def queue_goal(rows: Rows) -> Goal:
    """Return the goal that the paper claims: the client's priority queue misses least."""
    columns = [name for name in QUEUE_COLUMNS if rows.ours(name)]
    if not columns:
        return Goal("FSD Table 7: no figures, as the target has no exits", 0.0, 0.0, "at most")
    means = {
        order: fmean(one for name in columns for one in part.ours(name))
        for order in rows.values("client queue")
        for part in [rows.where({"client queue": order})]
    }
    others = min(mean for order, mean in means.items() if order != "priority")
    return Goal(QUEUE_GOAL, means["priority"] - others, 0.0, "at most")


def _all_below(rows: Rows, figure: str) -> bool:
    return all(mine < printed for mine, printed in rows.pairs(figure))


def _all_above(rows: Rows, figure: str) -> bool:
    return all(mine > printed for mine, printed in rows.pairs(figure))


def workers(rows: Rows) -> str:
    sentences = []
    for exits in rows.values("exits"):
        misses = rows.where({"exits": exits}).ours("r, %")
        if not misses:
            continue
        falls = all(later <= earlier + VISIBLE for earlier, later in pairwise(misses))
        level = abs(misses[-1] - misses[-2]) < VISIBLE
        how = (
            "falls with the workers" if falls and misses[-1] < misses[0] else "does not fall evenly"
        )
        end = " and has levelled off at four" if level else ""
        if max(misses) - min(misses) < VISIBLE:
            how = "is the same with every number of workers"
            end = ""
        sentences.append(f"{exits:g} exits: r {how}{end} ({span(misses)} %).")
    return " ".join(sentences) or NO_EXITS


def longer_drafts(rows: Rows) -> str:
    gains = rows.ours("SD → FSD")
    rises = gains == sorted(gains)
    below = [row.labels["γ"] for row in rows if row.mine("AR → SD") < 1]
    first = (
        "FSD gains more over SD the longer the draft, as in the paper."
        if rises
        else "FSD's gain over SD does not rise with every draft, as the paper's does."
    )
    if below:
        return f"{first} SD is slower than the target alone from γ = {min(below):g} on."
    return f"{first} SD is nowhere slower than the target alone; the paper's is for γ > 5."


def robot(rows: Rows, most: float) -> str:
    """Say how fast SD is by the robot's times, and whether the printed SD → FSD is possible.
    `most`: SD → FSD by these times with a cache that always hits."""
    (row,) = rows
    faster, printed = row.mine("AR → SD"), row.printed("SD → FSD")
    sentences = [
        f"By the robot's own times SD is {faster:.2f} times as fast as the target alone, where the "
        f"paper measured {row.printed('AR → SD'):.2f}: what they leave out it does not say."
    ]
    how = "cannot follow: a cache" if printed > most else "is possible: a cache"
    sentences.append(f"The printed SD → FSD {how} that always hits would give {most:.3f}.")
    return " ".join(sentences)


def robot_pair(rows: Rows) -> str:
    seen, unseen = rows.rows
    right = [row.mine("exits right, %") for row in (seen, unseen)]
    gain = [row.mine("SD → FSD") for row in (seen, unseen)]
    how = "more often" if right[0] > right[1] + VISIBLE else "no more often"
    return (
        f"Exits that were trained with pictures say what the target will say in {right[0]:.0f} % "
        f"of the answer's tokens, {how} than those of texts alone ({right[1]:.0f} %); FSD gains "
        f"{gain[0]:.2f} and {gain[1]:.2f} over SD, and its cache misses "
        f"{seen.mine('r, %'):.0f} and {unseen.mine('r, %'):.0f} %. A pair that knows one task "
        f"agrees otherwise (τ {seen.mine('τ'):.2f}) than the paper's ({seen.printed('τ'):.2f})."
    )


def rounded(rows: Rows) -> str:
    apart = max(abs(mine - printed) for mine, printed in rows.pairs("r, %"))
    if apart <= 2.5:
        return "The paper's figures are ours, rounded to 5 %."
    return f"Up to {apart:.1f} points from the printed: more than rounding to 5 % explains."


def batch_growth(rows: Rows) -> str:
    sentences = []
    for side, machine in MACHINES.items():
        ((one, one_printed),) = rows.where({"batch": 1.0}).pairs(side)
        ((many, many_printed),) = rows.where({"batch": 32.0}).pairs(side)
        ours = many / one
        theirs = many_printed / one_printed
        how = "more than" if ours > theirs * (1 + EVEN) else "no more than"
        sentences.append(
            f"{side.split(',')[0].capitalize()}: a batch of 32 takes {ours:.1f} times as long as a "
            f"batch of one, {how} {machine} {theirs:.1f} times."
        )
    why = "A processor of few cores has no idle units that a larger batch could use."
    grows = "more than" in " ".join(sentences).replace("no more than", "")
    return " ".join([*sentences, why] if grows else sentences)
