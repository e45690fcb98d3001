"""What DRAGON's figures show: each sentence is chosen by the rows, and its numbers are theirs."""

from __future__ import annotations

from itertools import pairwise

from lab.bench.papers.rows import FilledRow, Rows, of_all, span

EVEN = 0.01
"""Less than this share apart is the same, where figures are of runs."""
LEVEL = 0.01


def slower_side(rows: Rows, cloud_ms: float) -> str:
    even = rows.where({"α device": 0.5, "α cloud": 0.5})
    right = even.count(
        lambda row: (row.mine("ΔZ, ms") > 0) == (row.labels["device step, ms"] < cloud_ms)
    )
    moved = rows.count(lambda row: row.mine("ΔZ, ms") * row.mine("by the printed eq. 8, ms") < 0)
    shape = (
        "At equal rates the slower side aggregates, as in the paper."
        if right == len(even)
        else f"At equal rates the slower side aggregates in {of_all(right, len(even))} rows only."
    )
    count = of_all(moved, len(rows))
    return f"{shape} By the printed equation 8 the other side would, in {count} rows."


def overlap(rows: Rows, cloud_ms: float, rtt_ms: float) -> str:
    late = [row for row in rows if row.labels["device step, ms"] >= cloud_ms + rtt_ms]
    one = sum(abs(row.mine("speedup") - 1) < LEVEL for row in late)
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
    sent, written = cut.mine("bytes"), cut.mine("times smaller than JSON") * cut.mine("bytes")
    left = written / (cut.theirs["times smaller than JSON"] or 1.0)
    how = "fewer" if sent < left else "no fewer"
    return (
        f"JSON takes {written:,.0f} bytes here, a 2,363rd of which are {left:.0f}; ours sends "
        f"{sent:.0f} with the paper's cut, {how}; coupled, {coupled.mine('bytes'):.0f}."
    )


def gains(rows: Rows) -> str:
    sentences = []
    for row in (row for row in rows if row.ours["DRAGON, %"] is not None):
        ours, context, side = (row.mine(f"{name}, %") for name in _GAINS)
        ratio = row.ours["ratio of gains"]
        times = "" if ratio is None else f" ({ratio:.2f} times as much)"
        sentences.append(
            f"{row.labels['model']} on {row.labels['texts']}: DRAGON gains {ours:.1f} % of "
            f"perplexity, one context {context:.1f} %{times}, one side {side:.1f} %."
        )
    real = [row.mine("DRAGON, %") for row in rows.where({"model": "SmolLM2-135M"})]
    demo = [row.mine("DRAGON, %") for row in rows.where({"model": "demo pair"})]
    sentences += _ratios_beside_the_papers(rows)
    if max(real) > max(demo) > 0:
        sentences.append(
            f"A model that has read much gains up to {max(real) / max(demo):.1f} times as much by "
            "its documents as the demo pair, which never read documents before a text."
        )
    return " ".join(sentences) or "No model and no texts for it are here."


_GAINS = ("DRAGON", "one context", "one side")


def _ratios_beside_the_papers(rows: Rows) -> list[str]:
    least = min(row.printed("ratio of gains") for row in rows if any(row.theirs.values()))
    witness, demo = (
        rows.where({"model": model}).ours("ratio of gains")
        for model in ("SmolLM2-135M", "demo pair")
    )
    sentences = []
    if witness and max(witness) < least:
        sentences.append(
            f"SmolLM2's ratios, {span(witness, '.2f')}, are below the paper's {least:g}, although "
            "its contexts are as long as the paper's."
        )
    if demo and max(demo) >= least:
        sentences.append(
            f"The demo pair's, {span(demo, '.2f')}, reach it only because one context gains it so "
            "little."
        )
    return sentences


def curve(rows: Rows) -> str:
    sentences = []
    for texts in rows.values("texts"):
        there = [row for row in rows.where({"texts": texts}) if row.ours["DRAGON"] is not None]
        if not there:
            continue
        ours = [row.mine("DRAGON") for row in there]
        best = there[ours.index(min(ours))].labels["documents a side"]
        falls = all(later <= earlier for earlier, later in pairwise(ours))
        end = (
            "falls with every further document"
            if falls
            else f"is least with {best:g} documents a side"
        )
        last = there[-1]
        others = {name: last.mine(name) for name in last.ours if name != "DRAGON"}
        nearest = min(others, key=lambda name: others[name])
        sentences.append(
            f"On {texts} DRAGON's perplexity {end}, from {ours[0]:.2f} to {ours[-1]:.2f} with "
            f"{last.labels['documents a side']:g}; the best baseline, {nearest}, then has "
            f"{others[nearest]:.2f}."
        )
    return " ".join(sentences) or "The model is not here."


def reweighing(rows: Rows) -> str:
    again = Rows([row for row in rows if row.ours["more a stretch, ms"] is not None])
    ways = [row.mine("more a stretch, ms") / row.mine("way between the sides, ms") for row in again]
    dearest = max(again, key=lambda row: row.mine("s a token"))
    last = max(rows.values("every, tokens"))
    never = rows.where({"every, tokens": last, "added, s": dearest.labels["added, s"]})
    slower = 100 * (dearest.mine("s a token") / never.ours("s a token")[0] - 1)
    every = dearest.labels["every, tokens"]
    added_s = dearest.labels["added, s"]
    return (
        f"A stretch costs up to {max(ways):.2f} times the way between the sides; at most, every "
        f"{every:g} tokens with {added_s:g} s added, a token takes {slower:.0f} % longer than "
        "without."
    )


def reweighing_gain(rows: Rows) -> str:
    gain = "gain over never, %"
    sentences = []
    for model in rows.values("model"):
        there = [row for row in rows.where({"model": model}) if row.ours[gain] is not None]
        if not there:
            continue
        best = max(there, key=lambda row: row.mine(gain))
        most = best.mine(gain)
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
        f"Over the longest way {most:g} sides make {many.mine(coupled) / few.mine(coupled):.2f} "
        f"times the tokens a second of {least:g}, and "
        f"{many.mine(coupled) / many.mine(waiting):.2f} times those of sides that wait for every "
        "token."
    )


def saved(rows: Rows) -> str:
    sentences = []
    for row in rows:
        words = [f"{name} {_less(figure)}" for name, figure in row.ours.items() if figure]
        over = row.labels["saved over"]
        steps = row.labels["steps"]
        sentences.append(f"Beside {over} ({steps}) {' and '.join(words)}.")
    return " ".join(sentences)


def over_device_alone(rows: Rows) -> str:
    (row,) = (row for row in rows if row.theirs["longer, %"] is not None)
    ours, printed = row.mine("longer, %"), row.printed("longer, %")
    at_rest, longest = row.mine("without any added, %"), row.mine("at 300 ms, %")
    which = "more" if ours > printed else "no more"
    return (
        f"DRAGON takes {ours:.1f} % longer than the device alone in the mean, {which} than the "
        f"paper's {printed:g} %: {at_rest:.1f} % without any added latency, {longest:.1f} % with "
        "300 ms. Every refused draft of the cloud costs a round trip, so the mean follows the "
        "acceptance, which is the demo pair's here."
    )


def _less(percent: float) -> str:
    return f"saves {percent:.0f} %" if percent >= 0 else f"takes {-percent:.0f} % longer"


def sequence_wise(rows: Rows) -> str:
    (paper,) = (row for row in rows if row.theirs["dragon saves, %"] is not None)
    steps = rows.where({"steps": paper.labels["steps"]})
    near = min(
        steps,
        key=lambda row: abs(row.mine("dragon saves, %") - paper.printed("dragon saves, %")),
    )
    return (
        f"Cut as in the paper, an answer's distributions are {paper.mine('kB an answer'):.1f} kB, "
        f"and DRAGON {_less(paper.mine('dragon saves, %'))}. Nearest to the printed "
        f"{paper.printed('dragon saves, %'):g} % comes what is sent {near.labels['what is sent']} "
        f"({near.mine('kB an answer'):,.0f} kB): {_less(near.mine('dragon saves, %'))}."
    )


def first_tokens(rows: Rows) -> str:
    printed = Rows([row for row in rows if row.theirs["÷ dragon"] is not None])
    ours, theirs = _slowest_first(printed, ours=True), _slowest_first(printed, ours=False)
    if ours == theirs:
        return f"The order of the methods is the paper's: {', '.join(ours)}."
    return f"Slowest first: {', '.join(ours)}; in the paper {', '.join(theirs)}."


def _slowest_first(rows: Rows, ours: bool) -> list[str]:
    def times(row: FilledRow) -> float:
        return -(row.mine("÷ dragon") if ours else row.printed("÷ dragon"))

    return [str(row.labels["method"]) for row in sorted(rows, key=times)]


def scheduler(rows: Rows) -> str:
    fixed = ("device", "cloud", "random")
    quotients = {
        (row.labels["steps"], row.labels["added, s"]): row.mine("dragon")
        / min(row.mine(name) for name in fixed)
        for row in rows
    }
    good = sum(one <= 1 + EVEN for one in quotients.values())
    grows = all(
        _falls([quotients[steps, added] for added in rows.values("added, s")])
        for steps in rows.values("steps")
    )
    end = ", and the more so the longer the link" if grows else ""
    expecting = [100 * (row.mine("by eq. 5") / row.mine("dragon") - 1) for row in rows]
    return (
        f"The scheduler is as fast as the best fixed side or faster in {of_all(good, len(rows))} "
        f"rows ({span(list(quotients.values()), '.2f')} times its time){end}. {_by_eq_5(expecting)}"
    )


def _by_eq_5(longer: list[float]) -> str:
    """Say how much longer answers take by eq. 5's expectation. `longer`: than by outcomes, in
    percent."""
    if max(longer) <= 100 * EVEN:
        return "By eq. 5's expectation it is no slower."
    return (
        f"By eq. 5's expectation, the paper's estimate, it takes up to {max(longer):.0f} % longer: "
        "the next token's time hangs on whose draft was refused just now, which an outcome tells "
        "and an expectation does not."
    )


def pipelines(rows: Rows) -> str:
    ours = "units a token"
    formula = "by the paper's formula"
    apart = {
        str(row.labels["figure"]): row.mine(ours) / row.mine(formula) - 1
        for row in rows
        if abs(row.mine(ours) / row.mine(formula) - 1) > LEVEL
    }
    if not apart:
        return "The machines take what the paper's formulas say in all four cases."
    others = "; ".join(f"{words} takes {_times(1 + by)}" for words, by in apart.items())
    return f"The machines take what the paper's formulas say, but: {others}."


def _times(quotient: float) -> str:
    return f"{quotient:.2f} times as long"


def snapshot(rows: Rows) -> str:
    there = [row for row in rows if row.ours["ΔZ, ms"] is not None]
    places = [row.mine("at the cloud next") for row in there]
    moves = sum(one != other for one, other in pairwise([0.0, *places]))
    follow = sum((row.mine("ΔZ, ms") > 0) == bool(row.mine("at the cloud next")) for row in there)
    return (
        f"The aggregating side moves {moves} times in {len(there)} tokens; it is the one that the "
        f"sign of ΔZ says after {of_all(follow, len(there))} of them, and else stays, since a move "
        "must save two milliseconds."
    )


def _falls(values: list[float]) -> bool:
    return all(later <= earlier + EVEN for earlier, later in pairwise(values))
