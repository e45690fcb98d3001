"""What each table shows, chosen by its rows. Invariant: no sentence here is true by itself; a
condition on the rows picks it, and its numbers are theirs."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

from bench.harness.report import Goal
from bench.papers.rows import FilledRow, Rows, of_all, span

PRINTED_ROUNDING = 0.005 + 1e-9
EVEN = 0.01
"""Less than this share apart is the same, where figures are of runs."""
VISIBLE = 1.0
"""Percent points of a miss rate that count."""
LEVEL = 0.01
QUEUE_COLUMNS = ("3 threads", "5 threads", "10 threads", "8 workers")
FLOAT32 = 1e-5
"""What float32 may add to a difference that a theorem bounds."""


def _of(row: FilledRow, figure: str) -> float:
    found = row.ours[figure]
    return 0.0 if found is None else found


# DSSD


def rejections(rows: Rows) -> str:
    apart = rows.count(
        lambda row: any(
            abs(_of(row, name) - printed) > PRINTED_ROUNDING
            for name, printed in row.theirs.items()
            if printed is not None
        )
    )
    if not apart:
        return f"All {len(rows)} cells agree within the printed rounding."
    return f"{apart} of {len(rows)} cells differ by more than the printed rounding."


def homogeneous(rows: Rows) -> str:
    higher = rows.count(lambda row: (row.theirs["speedup"] or 0.0) > _of(row, "speedup"))
    sparse = Rows([row for row in rows if str(row.labels["method"]).startswith("DSSD")])
    faster = sparse.count(lambda row: _of(row, "speedup, virtual time") > _of(row, "speedup"))
    return (
        f"The printed speedup is higher than equation 9's in {of_all(higher, len(rows))} cells. "
        f"In virtual time DSSD is faster than by its formula in {of_all(faster, len(sparse))}: "
        "with k = 10 a rejection sends ten entries, where the formula counts a distribution."
    )


def heterogeneous(rows: Rows) -> str:
    here = rows.where({"NTT, ms": 20.0, "Mbit/s": 100.0})
    best = {
        method: here.where({"method": method}).best("speedup", "γ")
        for method in here.values("method")
    }
    words = ", ".join(f"{length:g} for {method}" for method, length in best.items())
    return f"At 20 ms and 100 Mbit/s the model's best γ of the three is {words}."


def whole_grid(rows: Rows) -> str:
    narrow = rows.where({"Mbit/s": 10.0})
    slower = {
        method: sum(one < 1 for one in narrow.ours(method))
        for method in ("DSD 6.7B", "DSSD 6.7B", "DSSD 13B")
    }
    words = ", ".join(f"{name} in {of_all(n, len(narrow))}" for name, n in slower.items())
    return f"Slower than the target alone at 10 Mbit/s: {words} cells."


def interior_optimum(rows: Rows) -> str:
    sentences = []
    for size in ("6.7B", "13B"):
        found = rows.ours(f"best γ, {size}")
        inside = sum(1 < length < 16 for length in found)
        words = "inside 1…16" if inside == len(found) else f"inside 1…16 in {inside} cells only"
        sentences.append(f"{size}: the best γ is {span(found, 'g')}, {words}.")
    six = max(rows.ours("best γ, 6.7B")) < 6 and max(rows.ours("best γ, 13B")) < 6
    if six:
        why = "is smaller than the six that the paper finds, because a sixth draft is accepted only"
        sentences.append(f"It {why} with probability α^6 = 0.05 (0.02 for 13B).")
    return " ".join(sentences)


# PicoSpec


def methods(rows: Rows) -> str:
    pairs = [(pair, task) for pair in rows.values("pair") for task in rows.values("task")]
    cells = [rows.where({"pair": pair, "task": task}) for pair, task in pairs]
    same = sum(_order(cell, ours=True) == _order(cell, ours=False) for cell in cells)
    full = rows.where({"method": "PicoSpec"})
    ahead = full.count(lambda row: _of(row, "speedup over AR") > 1)
    fewer = full.count(lambda row: _of(row, "tokens a pass") < (row.theirs["tokens a pass"] or 0.0))
    split = rows.where({"method": "Split Inf."})
    faster = split.count(
        lambda row: _of(row, "speedup over AR") > (row.theirs["speedup over AR"] or 0.0)
    )
    return (
        f"The four methods have the printed order in {of_all(same, len(cells))} cells; PicoSpec is "
        f"faster than the target alone in {of_all(ahead, len(full))}. Its tokens a pass are fewer "
        f"than the paper's accepted length in {of_all(fewer, len(full))}: ours verifies drafts as "
        "they arrive, and a full hit has no bonus token. Split inference without any overhead is "
        f"faster than the printed one in {of_all(faster, len(split))}."
    )


def _order(rows: Rows, ours: bool) -> list[str]:
    def speed(row: FilledRow) -> float:
        return (row.ours if ours else row.theirs)["speedup over AR"] or 0.0

    return [str(row.labels["method"]) for row in sorted(rows, key=speed)]


def ablation(rows: Rows) -> str:
    whole = {row.labels["task"]: _of(row, "tokens/s") for row in rows.where(_WHOLE)}
    sentences = []
    for variant in rows.values("configuration"):
        if variant == _WHOLE["configuration"]:
            continue
        left = rows.where({"configuration": variant})
        shares = [_of(row, "tokens/s") / whole[row.labels["task"]] - 1 for row in left]
        sentences.append(f"{variant} {span([100 * one for one in shares], '+.0f')} % tokens/s")
    return "Ours by what is left out: " + "; ".join(sentences) + "."


_WHOLE = {"configuration": "picospec"}


def best_draft_length(rows: Rows) -> str:
    ours = rows.best("tokens/s", "γ")
    theirs = max(rows, key=lambda row: row.theirs["tokens/s"] or 0.0).labels["γ"]
    if ours == theirs:
        return f"γ = {ours:g} is best, as in the paper."
    return f"Ours is best at γ = {ours:g}, the paper's at {theirs:g}."


def processes(rows: Rows) -> str:
    simulated = "tokens/s, virtual time"
    percent = [100 * _of(row, "tokens/s") / _of(row, simulated) for row in rows]
    groups = [rows.where({"tables": table}) for table in rows.values("tables")]
    same = sum(one.best("tokens/s", "method") == one.best(simulated, "method") for one in groups)
    fastest = ", ".join(
        f"{one.best('tokens/s', 'method')} ({table})"
        for table, one in zip(rows.values("tables"), groups, strict=True)
    )
    return (
        f"Processes reach {span(percent, '.0f')} % of virtual time's tokens/s. Fastest are "
        f"{fastest}; in {of_all(same, len(groups))} tables virtual time says the same."
    )


# FSD


def billed_drafts(rows: Rows) -> str:
    more = [
        _of(row, "edge-cloud SD, drafts billed") / _of(row, "edge-cloud SD") - 1 for row in rows
    ]
    percent = span([100 * one for one in more], ".0f")
    return f"With the drafts billed edge-cloud SD costs {percent} % more."


def by_task(rows: Rows) -> str:
    there = Rows([row for row in rows if row.ours["τ"] is not None])
    if not there.rows:
        return "No task's texts are here."
    words = ", ".join(f"{_of(row, 'τ'):.2f} on {row.labels['task']}" for row in there)
    missing = [str(row.labels["task"]) for row in rows if row.ours["τ"] is None]
    end = f" No texts of {' and '.join(missing)}." if missing else ""
    return f"τ is {words}; most on {there.best('τ', 'task')}.{end}"


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
    accepted = rows.count(lambda row: _of(row, "τ") > (row.theirs["τ"] or 0.0))
    gained = rows.count(lambda row: _of(row, "AR → SD") > (row.theirs["AR → SD"] or 0.0))
    return (
        f"The demo pair accepts more drafts (τ) than the paper's pairs in "
        f"{of_all(accepted, len(rows))} rows, and SD gains more in {of_all(gained, len(rows))}."
    )


def queue_orders(rows: Rows) -> str:
    columns = QUEUE_COLUMNS
    least = []
    for name in columns:
        mean = {
            order: sum(rows.where({"client queue": order}).ours(name))
            for order in rows.values("client queue")
        }
        if all(mean["priority"] < mean[order] for order in mean if order != "priority"):
            least.append(name)
    by_server = max(
        abs(_of(one, name) - _of(other, name))
        for order in rows.values("client queue")
        for name in columns
        for one, other in [rows.where({"client queue": order}).rows]
    )
    spread = [max(rows.ours(name)) - min(rows.ours(name)) for name in columns]
    sentences = [
        f"The client's priority queue misses least in {of_all(len(least), len(columns))} columns."
    ]
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
        sentences.append(
            f"They are more with {' and '.join(more)}, since these exits are not trained."
        )
    return " ".join(sentences)


def queue_goal(rows: Rows) -> Goal:
    """The paper's claim: the client's priority queue misses least."""
    columns = QUEUE_COLUMNS
    means = {
        order: fmean(one for name in columns for one in part.ours(name))
        for order in rows.values("client queue")
        for part in [rows.where({"client queue": order})]
    }
    others = min(mean for order, mean in means.items() if order != "priority")
    name = "FSD Table 7: misses of the client's priority queue over the better other order's"
    return Goal(name, means["priority"] / others, 1.0, "at most")


def _all_below(rows: Rows, figure: str) -> bool:
    return all(mine < printed for mine, printed in rows.pairs(figure))


def _all_above(rows: Rows, figure: str) -> bool:
    return all(mine > printed for mine, printed in rows.pairs(figure))


def workers(rows: Rows) -> str:
    sentences = []
    for exits in rows.values("exits"):
        misses = rows.where({"exits": exits}).ours("r, %")
        falls = all(later <= earlier + VISIBLE for earlier, later in pairwise(misses))
        level = abs(misses[-1] - misses[-2]) < VISIBLE
        how = (
            "falls with the workers" if falls and misses[-1] < misses[0] else "does not fall evenly"
        )
        end = " and has levelled off at four" if level else ""
        sentences.append(f"{exits:g} exits: r {how}{end} ({span(misses)} %).")
    return " ".join(sentences)


def longer_drafts(rows: Rows) -> str:
    gains = rows.ours("SD → FSD")
    rises = gains == sorted(gains)
    below = [row.labels["γ"] for row in rows if _of(row, "AR → SD") < 1]
    first = (
        "FSD gains more over SD the longer the draft, as in the paper."
        if rises
        else "FSD's gain over SD does not rise with every draft, as the paper's does."
    )
    if below:
        return f"{first} SD is slower than the target alone from γ = {min(below):g} on."
    return f"{first} SD is nowhere slower than the target alone; the paper's is for γ > 5."


def robot(rows: Rows, most: float) -> str:
    """`most`: SD → FSD of a cache that always hits, by these times."""
    printed = rows.rows[0].theirs["SD → FSD"] or 0.0
    if printed <= most:
        return f"A cache that always hits would give {most:.3f}."
    return f"The printed {printed:g} cannot follow: a cache that always hits would give {most:.3f}."


def robot_pair(rows: Rows) -> str:
    seen, unseen = rows.rows
    right = [_of(row, "exits right, %") for row in (seen, unseen)]
    gain = [_of(row, "SD → FSD") for row in (seen, unseen)]
    how = "more often" if right[0] > right[1] + VISIBLE else "no more often"
    return (
        f"Exits that were trained with pictures say what the target will say in {right[0]:.0f} % "
        f"of the answer's tokens, {how} than those of texts alone ({right[1]:.0f} %); FSD gains "
        f"{gain[0]:.2f} and {gain[1]:.2f} over SD, and its cache misses "
        f"{_of(seen, 'r, %'):.0f} and {_of(unseen, 'r, %'):.0f} %."
    )


def rounded(rows: Rows) -> str:
    apart = max(abs(mine - printed) for mine, printed in rows.pairs("r, %"))
    if apart <= 2.5:
        return "The paper's figures are ours, rounded to 5 %."
    return f"Up to {apart:.1f} points from the printed: more than rounding to 5 % explains."


def batch_growth(rows: Rows) -> str:
    sentences = []
    for side in ("server, ms", "client, ms"):
        first, last = (
            rows.where({"batch": 1.0}).pairs(side),
            rows.where({"batch": 32.0}).pairs(side),
        )
        (one, one_printed), (many, many_printed) = first[0], last[0]
        ours, theirs = many / one, many_printed / one_printed
        how = "sooner than" if ours > theirs * (1 + EVEN) else "no sooner than"
        sentences.append(
            f"{side.split(',')[0]}: a batch of 32 takes {ours:.1f} times a batch of one (paper "
            f"{theirs:.1f}), so latency grows {how} on an A100."
        )
    return " ".join(sentences)


# TSLT


def bound_holds(rows: Rows) -> str:
    worst = max(rows.ours("largest |β̂ − β| − bound"))
    holds = (
        "The bound holds at every position, but for what float32 rounds."
        if worst <= FLOAT32
        else f"The bound is exceeded, by up to {worst:.2g}."
    )
    empty = [row for row in rows if _of(row, "bound, median") > 1]
    if not empty:
        return f"{holds} It says something for every candidate."
    first = min(row.labels["candidate"] for row in empty)
    return (
        f"{holds} Its median exceeds 1, which says nothing, in {of_all(len(empty), len(rows))} "
        f"rows, from candidate {first:g} on: each further one multiplies it by 2 ÷ Z and more."
    )


def mass_kept(rows: Rows) -> str:
    less = rows.count(lambda row: _of(row, "same share") < _of(row, "same K") - LEVEL)
    most = rows.count(lambda row: _of(row, "same share") < 1 - LEVEL)
    if less:
        return (
            f"The same share of this small vocabulary keeps less than the same K in "
            f"{of_all(less, len(rows))} rows, {most} of which keep less than all."
        )
    return "The same share keeps as much as the same K."


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
    at_depth = [row for row in rows if _of(row, "MC ⟨2,2,2⟩ ÷ SC") > 1]
    against_best = rows.count(lambda row: _of(row, "MC ÷ best SC, dear nodes") > 1)
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
    gain = [_of(row, "speedup") / _of(row, "K = all") for row in rows]
    how = "rises with the uplink" if rises and ks[-1] > ks[0] else "does not rise with every uplink"
    return (
        f"The best K {how}, from {min(ks):g} to {max(ks):g}; against sending whole distributions "
        f"it is {span(gain, '.2f')} times as fast."
    )


# DRAGON


def slower_side(rows: Rows, cloud_ms: float) -> str:
    even = rows.where({"α device": 0.5, "α cloud": 0.5})
    right = even.count(
        lambda row: (_of(row, "ΔZ, ms") > 0) == (row.labels["device step, ms"] < cloud_ms)
    )
    moved = rows.count(lambda row: _of(row, "ΔZ, ms") * _of(row, "by the printed eq. 8, ms") < 0)
    shape = (
        "At equal rates the slower side aggregates, as in the paper."
        if right == len(even)
        else f"At equal rates the slower side aggregates in {of_all(right, len(even))} rows only."
    )
    count = of_all(moved, len(rows))
    return f"{shape} By the printed equation 8 the other side would, in {count} rows."


def overlap(rows: Rows, cloud_ms: float, rtt_ms: float) -> str:
    late = [row for row in rows if row.labels["device step, ms"] >= cloud_ms + rtt_ms]
    one = sum(abs(_of(row, "speedup") - 1) < LEVEL for row in late)
    largest = all(
        max(part.ours("speedup")) <= part.ours("speedup")[0] + LEVEL
        for part in (rows.where({"α cloud": rate}) for rate in rows.values("α cloud"))
    )
    shape = "largest" if largest else "not largest"
    return (
        f"The speedup is {shape} with the shortest device step, and 1 in {of_all(one, len(late))} "
        "rows whose device step takes the cloud's and the round trip together or more."
    )


def payload(rows: Rows) -> str:
    (cut,), (coupled,) = (
        rows.where({"what is sent": name}).rows
        for name in ("top-p 0.8, as the paper", "preset dragon-coupled")
    )
    sent, written = _of(cut, "bytes"), _of(cut, "times smaller than JSON") * _of(cut, "bytes")
    left = written / (cut.theirs["times smaller than JSON"] or 1.0)
    how = "fewer" if sent < left else "no fewer"
    return (
        f"JSON takes {written:,.0f} bytes here, a 2,363rd of which are {left:.0f}; ours sends "
        f"{sent:.0f} with the paper's cut, {how}; coupled, {_of(coupled, 'bytes'):.0f}."
    )


def gains(rows: Rows) -> str:
    sentences = []
    for row in (row for row in rows if row.ours["DRAGON, %"] is not None):
        ours, context, side = (_of(row, f"{name}, %") for name in _GAINS)
        ratio = row.ours["ratio of gains"]
        times = "" if ratio is None else f" ({ratio:.2f} times as much)"
        sentences.append(
            f"{row.labels['model']} on {row.labels['texts']}: DRAGON gains {ours:.1f} % of "
            f"perplexity, one context {context:.1f} %{times}, one side {side:.1f} %."
        )
    real = [_of(row, "DRAGON, %") for row in rows.where({"model": "SmolLM2-135M"})]
    demo = [_of(row, "DRAGON, %") for row in rows.where({"model": "demo pair"})]
    sentences += _ratios_beside_the_papers(rows)
    if max(real) > max(demo) > 0:
        sentences.append(
            f"A model that has read much gains up to {max(real) / max(demo):.1f} times as much by "
            "its documents as the demo pair, which never read documents before a text."
        )
    return " ".join(sentences) or "No model and no texts for it are here."


_GAINS = ("DRAGON", "one context", "one side")


def _ratios_beside_the_papers(rows: Rows) -> list[str]:
    least = min(row.theirs["ratio of gains"] or 0.0 for row in rows if any(row.theirs.values()))
    witness, demo = (
        rows.where({"model": model}).ours("ratio of gains")
        for model in ("SmolLM2-135M", "demo pair")
    )
    sentences = []
    if witness and max(witness) < least:
        sentences.append(
            f"The witness's ratios, {span(witness, '.2f')}, are below the paper's {least:g}: its "
            "contexts of 256 tokens hold the text too and are full long before its 16 documents a "
            "side, where here one context has 256 tokens for documents alone, the best four."
        )
    if demo and max(demo) >= least:
        sentences.append(
            f"The demo pair's, {span(demo, '.2f')}, reach it only because one context gains it so "
            "little."
        )
    return sentences


def reweighing(rows: Rows) -> str:
    again = Rows([row for row in rows if row.ours["more a stretch, ms"] is not None])
    ways = [_of(row, "more a stretch, ms") / _of(row, "way between the sides, ms") for row in again]
    dearest = max(again, key=lambda row: _of(row, "s a token"))
    last = max(rows.values("every, tokens"))
    never = rows.where({"every, tokens": last, "added, s": dearest.labels["added, s"]})
    slower = 100 * (_of(dearest, "s a token") / never.ours("s a token")[0] - 1)
    every, added_s = dearest.labels["every, tokens"], dearest.labels["added, s"]
    return (
        f"A stretch costs up to {max(ways):.2f} times the way between the sides; at most, every "
        f"{every:g} tokens with {added_s:g} s added, a token takes {slower:.0f} % longer than "
        "without."
    )


def reweighing_gain(rows: Rows) -> str:
    gain, sentences = "gain over never, %", []
    for model in rows.values("model"):
        there = [row for row in rows.where({"model": model}) if row.ours[gain] is not None]
        if not there:
            continue
        best = max(there, key=lambda row: _of(row, gain))
        most = _of(best, gain)
        how = (
            f"gains up to {most:.2f} % of perplexity, every {best.labels['every, tokens']:g} tokens"
            if most >= LEVEL
            else f"gains nothing ({most:+.2f} % at best)"
        )
        sentences.append(f"Estimating anew {how} ({model}).")
    return " ".join(sentences) or "No model for it is here."


def sides(rows: Rows) -> str:
    coupled, waiting, _ = rows.rows[0].ours
    most, least = max(rows.values("sides")), min(rows.values("sides"))
    longest = rows.where({"round trip, s": max(rows.values("round trip, s"))})
    many, few = (longest.where({"sides": count}).rows[0] for count in (most, least))
    return (
        f"Over the longest way {most:g} sides make {_of(many, coupled) / _of(few, coupled):.2f} "
        f"times the tokens a second of {least:g}, and "
        f"{_of(many, coupled) / _of(many, waiting):.2f} times those of sides that wait for every "
        "token."
    )


def saved(rows: Rows) -> str:
    sentences = []
    for row in rows:
        other, steps = row.labels["saved over"], row.labels["steps"]
        words = [
            f"{name} {'saves' if figure >= 0 else 'loses'} {abs(figure):.0f} %"
            for name, figure in row.ours.items()
            if figure is not None
        ]
        sentences.append(f"Over {other} ({steps}) {' and '.join(words)}.")
    return " ".join(sentences)


def first_tokens(rows: Rows) -> str:
    printed = Rows([row for row in rows if row.theirs["÷ dragon"] is not None])
    ours, theirs = _slowest_first(printed, ours=True), _slowest_first(printed, ours=False)
    if ours == theirs:
        return f"The order of the methods is the paper's: {', '.join(ours)}."
    return f"Slowest first: {', '.join(ours)}; in the paper {', '.join(theirs)}."


def _slowest_first(rows: Rows, ours: bool) -> list[str]:
    def times(row: FilledRow) -> float:
        return -((row.ours if ours else row.theirs)["÷ dragon"] or 0.0)

    return [str(row.labels["method"]) for row in sorted(rows, key=times)]


def scheduler(rows: Rows) -> str:
    fixed = ("device", "cloud", "random")
    quotients = {
        (row.labels["steps"], row.labels["added, s"]): _of(row, "dragon")
        / min(_of(row, name) for name in fixed)
        for row in rows
    }
    good = sum(one <= 1 + EVEN for one in quotients.values())
    grows = all(
        _falls([quotients[steps, added] for added in rows.values("added, s")])
        for steps in rows.values("steps")
    )
    end = ", and the more so the longer the link" if grows else ""
    return (
        f"The scheduler is as fast as the best fixed side or faster in {of_all(good, len(rows))} "
        f"rows ({span(list(quotients.values()), '.2f')} times its time){end}."
    )


def _falls(values: list[float]) -> bool:
    return all(later <= earlier + EVEN for earlier, later in pairwise(values))
