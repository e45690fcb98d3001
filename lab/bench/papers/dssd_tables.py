"""DSSD's tables and figures of its text, and the draft length that is best over its links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import linear_regression

from lab.analysis.cost_models import (
    LinkTimes,
    Prediction,
    dsd,
    dssd,
    rejection_probability,
)
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable
from lab.bench.papers.testbed import Testbed
from lab.simulation.answer_figures import answers_figures
from tandem.control.conditions import PairTimes
from tandem.specdec.presets import PRESETS
from tandem.testing.simulation.answer import Conditions, SimulatedAnswer
from tandem.testing.simulation.model_times import ModelTimes

TOKENS = 128
TOP_K = 10
VOCABULARY = 50_272
HALF_PRECISION_BYTES = 2
NTT_MS = (0.0, 20.0, 50.0)
MBPS = (10.0, 50.0, 100.0)
SEARCHED_LENGTHS = range(1, 17)
LABELS = ("NTT, ms", "Mbit/s", "γ", "method")
METHODS = ("DSD 6.7B", "DSSD 6.7B", "DSSD 13B")
FITTED_LENGTH = 8
MISPRINTED_S = 9.21
"""T_com of one cell of Table 2: ten times what its link and its neighbours ask for."""

Cell = tuple[float, float, float]
"""NTT in ms, Mbit/s, γ."""
Line = tuple[tuple[float, float], ...]
"""For each of METHODS T_com in s and the speedup."""

RATES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.99)
# Draft length -> 1 − α^γ and T_comm in ms for each of RATES.
TABLE_1 = {
    2: ((0.75, 26.00), (0.64, 25.12), (0.51, 24.08), (0.36, 22.88), (0.19, 21.52), (0.02, 20.16)),
    4: ((0.94, 27.50), (0.87, 26.96), (0.76, 26.08), (0.59, 24.72), (0.34, 22.75), (0.04, 20.32)),
    6: ((0.98, 27.88), (0.95, 27.63), (0.88, 27.06), (0.74, 25.90), (0.47, 23.75), (0.06, 20.47)),
    8: ((1.00, 27.97), (0.98, 27.87), (0.94, 27.54), (0.83, 26.66), (0.57, 24.56), (0.08, 20.62)),
}
TABLE_1_LINK = LinkTimes(0.020, 100e6 / 8, 100e6 / 8)
TABLE_1_VOCABULARY = 50_000
"""A rounded one: with OPT's 50,272 the first cell would read 26.03 ms, not 26.00."""
TABLE_2: dict[Cell, Line] = {
    (0, 100, 8): ((3.91, 1.51), (0.01, 2.28), (1.40, 1.67)),
    (20, 100, 8): ((4.60, 1.41), (0.62, 2.31), (9.21, 1.72)),
    (50, 10, 8): ((41.44, 0.43), (1.55, 2.19), (2.30, 1.62)),
    (20, 50, 8): ((8.59, 1.24), (0.62, 2.22), (0.92, 1.77)),
    (50, 50, 8): ((9.52, 1.08), (1.55, 1.97), (2.30, 1.70)),
    (50, 10, 6): ((8.12, 1.16), (0.40, 1.57), (2.01, 1.97)),
}
# (NTT ms, Mbit/s, γ, which of two rows) -> the speedups.
TABLE_3 = {
    (0, 100, 8, ""): (0.88, 0.98, 1.17),
    (20, 100, 8, "first of two rows"): (0.85, 0.92, 1.13),
    (20, 50, 8, ""): (0.72, 0.92, 1.12),
    (20, 100, 4, ""): (1.10, 1.11, 1.44),
    (20, 100, 6, ""): (1.12, 1.14, 1.58),
    (20, 100, 8, "second of two rows"): (0.93, 1.04, 1.30),
}


@dataclass(frozen=True, slots=True)
class PaperPair:
    """`ratio`: c, draft step ÷ target pass. Only `target_s` is not printed: `fitted_target_s`."""

    acceptance_rate: float
    ratio: float
    target_s: float

    @property
    def times(self) -> PairTimes:
        return PairTimes(self.ratio * self.target_s, self.target_s)


def fitted_target_s(methods: Sequence[str], rows: Mapping[Cell, Line] = TABLE_2) -> float:
    """Return the seconds of a pass of the target that its rows of Table 2 ask for.

    T tokens take the target alone T·T_LLM, so 1 ÷ speedup = (rounds·(γ·c + 1))/T + T_com/(T·T_LLM):
    the slope of a line by least squares over the rows of one γ, without the misprint. `methods`:
    those with this target.
    """
    points = [
        (communication_s, 1 / speedup)
        for (_, _, length), line in rows.items()
        for method, (communication_s, speedup) in zip(METHODS, line, strict=True)
        if method in methods and length == FITTED_LENGTH and communication_s != MISPRINTED_S
    ]
    slope, _ = linear_regression(*zip(*points, strict=True))
    return 1 / (TOKENS * slope)


PAIRS = {
    "6.7B": PaperPair(0.61, 0.1, fitted_target_s(("DSD 6.7B", "DSSD 6.7B"))),
    "13B": PaperPair(0.53, 0.05, fitted_target_s(("DSSD 13B",))),
}
"""By target: acceptance rate (Table 2's head) and c (section 4.2). The draft model is the same in
both, and c · T_LLM is within a few percent: 17 ms."""
TARGET_WORDS = " and ".join(
    f"{pair.target_s * 1e3:.0f} ms ({size})" for size, pair in PAIRS.items()
)
H800_BYTES_PER_S = 3.35e12
READ_PAIRS = {
    size: replace(pair, target_s=1e9 * float(size[:-1]) * HALF_PRECISION_BYTES / H800_BYTES_PER_S)
    for size, pair in PAIRS.items()
}
"""With a pass as short as the memory of the paper's GPU allows."""
READ_WORDS = " and ".join(
    f"{pair.target_s * 1e3:.1f} ms ({size})" for size, pair in READ_PAIRS.items()
)


def tables() -> tuple[PaperTable, ...]:
    """Return the tables in the paper's order."""
    return (_table_1(), _bytes(), _table_2(), _table_3(), _virtual_time(), _optimum())


def _table_1() -> PaperTable:
    rows = tuple(
        PaperRow((float(length), rate), printed)
        for length, line in TABLE_1.items()
        for rate, printed in zip(RATES, line, strict=True)
    )
    return PaperTable(
        key="dssd-table-1",
        paper="DSSD",
        place="Table 1, section 3.1",
        title="Probability of a rejection, and expected time on the link",
        labels=("γ", "α"),
        figures=("1 − α^γ", "T_comm, ms"),
        rows=rows,
        declared="20 ms, 100 Mbit/s, 16 bits, 50,000 tokens: what the printed cells ask for.",
        formula=_rejections,
    )


def _rejections(labels: Labels) -> Figures:
    length, rate = int(float(labels[0])), float(labels[1])
    predicted = dssd(
        PAIRS["6.7B"].times,  # of which T_comm does not depend
        TABLE_1_LINK,
        acceptance_rate=rate,
        draft_length=length,
        vocabulary_size=TABLE_1_VOCABULARY,
        precision_bytes=HALF_PRECISION_BYTES,
    )
    return rejection_probability(rate, length), predicted.communication_s * 1e3


def _table_2() -> PaperTable:
    rows = [
        PaperRow((*map(float, where), method), (*figures, None))
        for where, line in TABLE_2.items()
        for method, figures in zip(METHODS, line, strict=True)
    ]
    return PaperTable(
        key="dssd-table-2",
        paper="DSSD",
        place="Table 2, section 4.1",
        title="Homogeneous pair: communication time of an answer, speedup over the target alone",
        labels=LABELS,
        figures=("T_com, s", "speedup", "speedup with an H800's T_LLM"),
        rows=tuple(rows),
        declared="Equations 6 to 15 with the printed α and c, float16 distributions of "
        f"{VOCABULARY:,} tokens and {TOKENS} tokens an answer. **T_LLM is fitted to the rows it is "
        f"compared with:** the paper prints none, and its rows of γ = {FITTED_LENGTH} ask for "
        f"{TARGET_WORDS}, which no H800 takes. The last column has a T_LLM that one can have, "
        "computed, not measured: half-precision weights read once at its 3.35 TB/s, "
        f"{READ_WORDS}.",
        printed="The printed DSSD times are rounds × NTT with 31 rounds for 128 tokens: 4.1 tokens "
        "a round, where α = 0.61 gives 2.5 by equation 9. 9.21 s is ten times what its row asks "
        "for.",
        formula=_homogeneous,
    )


def _table_3() -> PaperTable:
    return PaperTable(
        key="dssd-table-3",
        paper="DSSD",
        place="Table 3, section 4.2",
        title="Heterogeneous pair: speedup over the target alone",
        labels=LABELS,
        figures=("speedup",),
        rows=tuple(
            PaperRow((float(ntt), float(mbps), float(length), method), (figure,))
            for (ntt, mbps, length, _), line in TABLE_3.items()
            for method, figure in zip(METHODS, line, strict=True)
        ),
        declared="As for Table 2: section 4.2 gives the same c, 0.1 and 0.05, for this pair of "
        "GPUs. So Tables 2 and 3 exclude each other: same c, α and link, other speedups.",
        printed="The cell of 20 ms, 100 Mbit/s and γ = 8 stands there twice, with other figures; "
        "its text has 1.75 at most for 13B.",
        formula=lambda labels: (_predict(str(labels[3]), labels).speedup_over_ar,),
    )


def printed_speedups() -> dict[Labels, float]:
    """Return the speedups over the target alone of Tables 2 and 3, by table, cell and method; of
    the cell that Table 3 has twice the second ones."""
    second: dict[Labels, float] = {
        ("2", *map(float, where), method): figures[1]
        for where, line in TABLE_2.items()
        for method, figures in zip(METHODS, line, strict=True)
    }
    third: dict[Labels, float] = {
        ("3", float(ntt), float(mbps), float(length), method): figure
        for (ntt, mbps, length, _), line in TABLE_3.items()
        for method, figure in zip(METHODS, line, strict=True)
    }
    return second | third


def _virtual_time() -> PaperTable:
    return PaperTable(
        key="dssd-virtual-time",
        paper="DSSD",
        place="Tables 2 and 3, by the state machines",
        title="Speedup over the target alone",
        labels=("table", *LABELS),
        figures=("speedup",),
        rows=tuple(PaperRow(labels, (figure,)) for labels, figure in printed_speedups().items()),
        basis=Basis.VIRTUAL_TIME,
        declared=f"Table 2's fitted T_LLM; drafts accepted at the printed α; with k = {TOP_K} ours "
        f"sends {TOP_K} entries after a rejection.",
        printed="Of the cell that Table 3 has twice its second figures.",
        compute=_simulated_speedup,
    )


def _bytes() -> PaperTable:
    return PaperTable(
        key="dssd-bytes",
        paper="DSSD",
        place="Section 4.1, the text below Table 2",
        title="Bytes of a round at γ = 8",
        labels=("method",),
        figures=("up, bytes", "down, bytes"),
        rows=(
            PaperRow(("DSD",), (61_269.0, None)),
            PaperRow(("DSSD",), (50.0, None)),
        ),
        basis=Basis.VIRTUAL_TIME,
        declared=f"Serialized messages of whole answers, float16 distributions of {VOCABULARY:,} "
        f"tokens, α = {PAIRS['6.7B'].acceptance_rate:g}; after a rejection ours sends {TOP_K} "
        "entries, where equation 8 counts a distribution.",
        printed="It prints “less than 50” for DSSD.",
        compute=_round_bytes,
    )


def _optimum() -> PaperTable:
    rows = []
    for ntt in NTT_MS:
        for mbps in MBPS:
            named = (ntt, mbps) == (20.0, 100.0)
            theirs = (6.0 if named else None, None, 6.0 if named else None, None)
            rows.append(PaperRow((ntt, mbps), theirs))
    return PaperTable(
        key="dssd-optimum",
        paper="DSSD",
        place="Section 4.2, interior optimum of γ",
        title="The draft length of most tokens per second",
        labels=("NTT, ms", "Mbit/s"),
        figures=("best γ, 6.7B", "its speedup, 6.7B", "best γ, 13B", "its speedup, 13B"),
        rows=tuple(rows),
        declared="As for Table 2; γ from 1 to 16.",
        formula=_best_lengths,
    )


def _homogeneous(labels: Labels) -> Figures:
    method = str(labels[3])
    predicted = _predict(method, labels)
    rounds = TOKENS / predicted.tokens_per_round
    on_h800 = _predict(method, labels, READ_PAIRS)
    return rounds * predicted.communication_s, predicted.speedup_over_ar, on_h800.speedup_over_ar


def _round_bytes(testbed: Testbed, labels: Labels) -> Figures:
    answers = _answers(testbed, f"{labels[0]} 6.7B", (20.0, 100.0, 8.0))
    rounds = sum(one.stats.rounds for one in answers)
    return (
        sum(one.uplink_bytes for one in answers) / rounds,
        sum(one.downlink_bytes for one in answers) / rounds,
    )


def _best_lengths(labels: Labels) -> Figures:
    figures: list[float] = []
    for method in METHODS[1:]:
        speedups = {n: _predict(method, (*labels, n)).speedup_over_ar for n in SEARCHED_LENGTHS}
        best = max(speedups, key=lambda n: speedups[n])
        figures += [float(best), speedups[best]]
    return tuple(figures)


def _predict(method: str, labels: Labels, pairs: Mapping[str, PaperPair] = PAIRS) -> Prediction:
    """Return what the paper's formulas predict for a method; `labels` begin with NTT in ms, Mbit/s
    and γ."""
    ntt_ms, mbps, length = (float(one) for one in labels[:3])
    kind, size = method.split()
    pair = pairs[size]
    rate = mbps * 1e6 / 8
    model = dsd if kind == "DSD" else dssd
    return model(
        pair.times,
        LinkTimes(ntt_ms / 1e3, rate, rate),
        acceptance_rate=pair.acceptance_rate,
        draft_length=int(length),
        vocabulary_size=VOCABULARY,
        precision_bytes=HALF_PRECISION_BYTES,
    )


def _simulated_speedup(testbed: Testbed, labels: Labels) -> Figures:
    method = str(labels[4])
    tpot_s = float(answers_figures(_answers(testbed, method, labels[1:4]))["tpot_s"])
    return (PAIRS[method.split()[1]].target_s / tpot_s,)


def _answers(testbed: Testbed, method: str, labels: Labels) -> list[SimulatedAnswer]:
    """Return the answers of a method, simulated once, as several tables ask for the same."""
    where = tuple(float(one) for one in labels[:3])
    return testbed.once(("dssd", method, where), lambda: _simulated(testbed, method, *where))


def _simulated(
    testbed: Testbed, method: str, ntt_ms: float, mbps: float, length: float
) -> list[SimulatedAnswer]:
    kind, size = method.split()
    pair = PAIRS[size]
    times = ModelTimes(pair.times.draft_s, pair.target_s, 0.0)
    conditions = Conditions(times, ntt_ms / 1e3, mbps, padded_vocabulary=VOCABULARY)
    dsd_half = replace(PRESETS["dsd"], uplink_precision="float16")
    short = replace(PRESETS["dssd"], payload_top=TOP_K, payload_tail_draws=0)
    preset = (dsd_half if kind == "DSD" else short).with_draft_length(int(length))
    return testbed.declared_answers(preset, conditions, pair.acceptance_rate)
