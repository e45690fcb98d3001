"""FSD's tables by its own cost model and prices, and its queues in virtual time."""

from __future__ import annotations

from functools import partial

from lab.analysis.api_prices import (
    RequestLoad,
    TokenPrices,
    autoregressive_cost,
    speculative_cost,
)
from lab.bench.papers.fsd_printed import (
    PRICES,
    ROBOT,
    TABLE_5,
    TABLE_6,
    TABLE_6_AVERAGES,
    HardwareTimes,
)
from lab.bench.papers.fsd_runs import (
    NARROW_MBPS,
    averages,
    by_exits_and_workers,
    by_queue_order,
    exits_trained,
)
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable

QUEUE_COLUMNS = ("3 threads", "5 threads", "10 threads")
DRAFT_LENGTH = 4
TOKENS = 200
LOAD = RequestLoad(1_000_000, 100, 500)
TOKENS_PER_ROUND = 2.5
LARGER_C = 0.3


def tables() -> tuple[PaperTable, ...]:
    """Return the tables in the paper's order."""
    return (
        *(_prices(), _exits(), _benchmarks(), _averages(), _queues(), _threads(), _robot()),
        _landscape(),
    )


def _prices() -> PaperTable:
    return PaperTable(
        key="fsd-table-1",
        paper="FSD",
        place="Table 1, section 1",
        title="Dollars for a million requests of 100 + 500 tokens",
        labels=("provider", "draft/target"),
        figures=("cloud AR", "cloud SD", "edge-cloud SD", "edge-cloud SD, drafts billed"),
        rows=tuple(PaperRow(names, (*dollars, None)) for names, (_, _, *dollars) in PRICES.items()),
        by_line=True,
        declared="The printed prices are the input: dollars for 10⁶ tokens of each model, γ = 4, "
        "2.5 tokens a round.",
        printed="The printed columns bill a verification as one output token; the last one bills "
        "the drafts of every pass as input as well, as a provider of tokens would.",
        formula=_dollars,
    )


def _dollars(labels: Labels) -> Figures:
    pairs = PRICES[str(labels[0]), str(labels[1])][:2]
    draft, target = TokenPrices(*pairs[0]), TokenPrices(*pairs[1])
    speculative = partial(
        speculative_cost,
        target,
        LOAD,
        tokens_per_round=TOKENS_PER_ROUND,
        draft_length=DRAFT_LENGTH,
    )
    alone = autoregressive_cost(target, LOAD)
    return alone, speculative(draft=draft), speculative(), speculative(drafts_as_input=True)


def _exits() -> PaperTable:
    printed = {
        "Vicuna-7B": (31.0, 101.0, 1.48),
        "Vicuna-13B": (39.0, 158.0, 1.20),
        "Llama-2-7B": (31.0, 101.0, 1.48),
    }
    theirs = {name: (*figures, None, None) for name, figures in printed.items()}
    return PaperTable(
        key="fsd-table-2",
        paper="FSD",
        place="Table 2, section 4",
        title="Early exits that were trained",
        labels=("model",),
        figures=(
            *("exits", "parameters, 10⁶", "of the model's, %"),
            *("agreement of the first, %", "of the last, %"),
        ),
        rows=tuple(
            PaperRow((name,), figures)
            for name, figures in (theirs | {"SmolLM2-135M": (None,) * 5}).items()
        ),
        basis=Basis.DISTRIBUTIONS,
        declared="Of SmolLM2-135M those that `make real-pair` trains or fetches: agreement is how "
        "often an exit's likeliest token is the model's, on held-out text.",
        compute=exits_trained,
        downloads=True,
    )


def _benchmarks() -> PaperTable:
    rows = tuple(
        PaperRow((task, *hardware, tokens, miss), (sd, fsd))
        for task, line in TABLE_6.items()
        for hardware, sd, fsd, tokens, miss in zip(TABLE_5, *line, strict=True)
    )
    return PaperTable(
        key="fsd-table-6",
        paper="FSD",
        place="Table 6, section 4.2, from Tables 4 and 5",
        title="Speedups by task, pair and client",
        labels=("task", "pair", "client", "τ (input)", "r, % (input)"),
        figures=("AR → SD", "SD → FSD"),
        rows=rows,
        declared="Table 4's formulas with the times of Table 5, n = 200 tokens, and the printed "
        "τ and r of each cell as inputs; a cache hit takes no time (T_r = 0).",
        printed="The printed speedups do not follow from the printed times. SD → FSD would be "
        "lower with T_r > 0, as threads must synchronise, and where drafts from an exit are not "
        "ready when the pass ends, which the next table counts. NQ's 1.12% is taken as 1.12x. "
        "Table 9 has T_q of 17.94 ms where Table 5 has 497 for the same model and GPU, and T_p of "
        "7.76 ms for 83.5.",
        formula=_by_formula,
    )


def _by_formula(labels: Labels) -> Figures:
    _, pair, client, tokens, miss = labels
    return _speedups(TABLE_5[str(pair), str(client)], float(tokens), float(miss) / 100)


def _speedups(times: HardwareTimes, tokens: float, miss_rate: float) -> tuple[float, float]:
    """Return AR → SD and SD → FSD for an answer of TOKENS tokens (Table 4)."""
    alone = 2 * times.link_ms + TOKENS * times.verify_ms
    plain = 2 * times.link_ms + times.drafting_ms + times.verify_ms
    fast = 2 * times.link_ms + miss_rate * times.drafting_ms + times.verify_ms
    return alone / (TOKENS / tokens * plain), plain / fast


def _averages() -> PaperTable:
    return PaperTable(
        key="fsd-table-6-averages",
        paper="FSD",
        place="Table 6, averages",
        title="The same hardware with SmolLM2",
        labels=("pair", "client"),
        figures=("AR → SD", "SD → FSD", "τ", "r, %"),
        rows=tuple(PaperRow(where, line) for where, line in TABLE_6_AVERAGES.items()),
        basis=Basis.VIRTUAL_TIME,
        declared="Step times and round trips of Table 5 are declared, 100 Mbit/s; distributions "
        "are those of SmolLM2-135M, its draft model and its ten trained exits, at temperature 1. "
        "SD is `dssd`, FSD `fsd` with all exits, both with γ = 4.",
        printed="Its clients follow 7 to 30 of 31 and 39 exits. AR → SD of Vicuna-160m/13B on RTX "
        "is printed 0.94; its six cells average 0.81.",
        compute=averages,
        downloads=True,
    )


def _queues() -> PaperTable:
    printed = {
        ("priority", "priority"): (79.85, 62.93, 27.57),
        ("priority", "FIFO"): (80.40, 63.48, 27.73),
        ("random", "priority"): (82.32, 63.25, 26.92),
        ("random", "FIFO"): (84.56, 65.36, 27.68),
        ("FIFO", "priority"): (82.61, 64.43, 27.69),
        ("FIFO", "FIFO"): (85.43, 65.67, 27.84),
    }
    return PaperTable(
        key="fsd-table-7",
        paper="FSD",
        place="Table 7, section 4.3",
        title="Cache miss rate by the order of the queues, %",
        labels=("client queue", "server queue"),
        figures=QUEUE_COLUMNS,
        rows=tuple(PaperRow(where, line) for where, line in printed.items()),
        basis=Basis.VIRTUAL_TIME,
        declared="SmolLM2-135M with its ten trained exits; 1, 2 and 3 workers, as many for them as "
        "the paper's for 31 exits. A branch whose drafts are not all there when the verdict comes "
        "is a miss. Draft step 25.5 ms, pass 442 ms, round trip 84 ms (Table 5's RTX), "
        f"{NARROW_MBPS:g} Mbit/s, so that messages of exits have to wait, too.",
        printed="The paper's caption calls r a response time; its text, and these figures, a miss "
        "rate. Its claim that the client's priority queue is always best does not hold in its own "
        "column of ten threads, where random with the server's priority misses least (26.92).",
        compute=by_queue_order,
        downloads=True,
    )


def _threads() -> PaperTable:
    rows = tuple(
        PaperRow((float(exits), float(workers)), (None, None))
        for exits in (1, 5, 10)
        for workers in (1, 3)
    )
    return PaperTable(
        key="fsd-figure-4a",
        paper="FSD",
        place="Figure 4a, section 4.3",
        title="Exits and workers",
        labels=("exits", "workers"),
        figures=("SD → FSD", "r, %"),
        rows=rows,
        basis=Basis.VIRTUAL_TIME,
        declared="As for Table 7, but with the deepest so many exits and 100 Mbit/s.",
        printed="The paper has 1 to 30 threads and sees misses fall and level off after about 15.",
        compute=by_exits_and_workers,
        downloads=True,
    )


def _robot() -> PaperTable:
    return PaperTable(
        key="fsd-table-8",
        paper="FSD",
        place="Table 8, section 4.4",
        title="The robot: speedups from its own times",
        labels=("τ (input)", "r, % (input)"),
        figures=("AR → SD", "SD → FSD"),
        rows=(PaperRow((2.92, 55.63), (0.90, 1.34)),),
        declared="Table 4 with Table 8a's times (288, 620, 120 ms) and 8b's τ and r.",
        formula=_robot_by_formula,
    )


def _robot_by_formula(labels: Labels) -> Figures:
    tokens, miss = (float(one) for one in labels)
    return _speedups(ROBOT, tokens, miss / 100)


def _landscape() -> PaperTable:
    printed = {4.0: 10.0, 7.0: 25.0, 10.0: 35.0}
    return PaperTable(
        key="fsd-figure-6",
        paper="FSD",
        place="Figure 6, appendix B, equation 9",
        title="Largest miss rate for a speedup of 2 at c = 0.3",
        labels=("γ",),
        figures=("r, %",),
        rows=tuple(PaperRow((length,), (rate,)) for length, rate in printed.items()),
        declared="Equation 9 solved for r.",
        printed="The paper also reads more than 5x off the figure at c > 0.5 and r < 10 %. At r = "
        "10 % that takes γ·c = 8; c = 0.5 and γ = 10 give 5, and by equation 9 a speedup of 4.",
        formula=lambda labels: (_miss_rate_for(2.0, float(labels[0]) * LARGER_C),),
    )


def _miss_rate_for(speedup: float, relative_drafting: float) -> float:
    """Return the miss rate r in percent at which (γc + 1)/(r·γc + 1) = speedup; `relative_drafting`
    is γc."""
    return 100 * ((relative_drafting + 1) / speedup - 1) / relative_drafting
