"""PicoSpec's four tables: its methods, and its parts left out one by one, over drafts that are
accepted as often as the paper's were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lab.analysis.cost_models import LinkTimes, expected_tokens_per_round
from lab.bench.papers.paper_table import Basis, Figures, Labels, PaperRow, PaperTable, Plot
from lab.bench.papers.testbed import Testbed
from lab.bench.speculation.methods_ablations import picospec_variants
from lab.simulation.answer_figures import answers_figures
from tandem.control.conditions import PairTimes
from tandem.specdec.presets import PRESETS, Preset
from tandem.testing.simulation.answer import Conditions, SimulatedAnswer
from tandem.testing.simulation.model_times import ModelTimes

DRAFT_LENGTH = 4
MBPS = 100.0
SPLIT_LAYERS = 3
SPLIT_HALF = replace(PRESETS["split"], uplink_precision="float16")
"""Split inference with states of two bytes a number, as the paper's models have."""
EDGE_BYTES_PER_S = 200e9
"""Memory bandwidth of the edge: a layer's step cannot be faster than reading its weights."""


@dataclass(frozen=True, slots=True)
class PaperPair:
    """Step times from the paper's own figures: the target's from Table 1's autoregressive rows, the
    draft's from the last column of Tables 2 to 4, the round trip from their T_rtt less the pass."""

    times: PairTimes
    rtt_s: float
    vocabulary: int
    layers: int
    weights_bytes: float
    hidden_bytes: float

    @property
    def conditions(self) -> Conditions:
        times = self.times
        models = ModelTimes(times.draft_s, times.verify_first_s, times.verify_further_s)
        return Conditions(models, self.rtt_s, MBPS, padded_vocabulary=self.vocabulary)

    @property
    def split_times(self) -> ModelTimes:
        """Of the target cut after `SPLIT_LAYERS` layers, with hidden states of two bytes a
        number: those layers at the edge, and the rest of a pass in the cloud."""
        share = SPLIT_LAYERS / self.layers
        times = self.times
        return ModelTimes(
            times.draft_s,
            (1 - share) * times.verify_first_s,
            (1 - share) * times.verify_further_s,
            layers_s=share * self.weights_bytes / EDGE_BYTES_PER_S,
            hidden_size=int(self.hidden_bytes) // 2,
        )

    @property
    def link(self) -> LinkTimes:
        return LinkTimes(self.rtt_s, MBPS * 1e6 / 8, MBPS * 1e6 / 8)


PAIRS = {
    "Qwen": PaperPair(PairTimes(0.0243, 0.0720, 0.003), 0.036, 151_936, 64, 65e9, 5120 * 2),
    "Llama": PaperPair(PairTimes(0.0428, 0.1456, 0.004), 0.033, 128_256, 80, 141e9, 8192 * 2),
}
ACCEPTED = {
    ("Qwen", "GSM8K"): 2.50,
    ("Qwen", "HumanEval"): 1.88,
    ("Llama", "GSM8K"): 4.29,
    ("Llama", "HumanEval"): 4.90,
}
"""Table 1's last row, an input of ours too: tokens of a round."""

# (method, pair, task) -> speedup, tokens/s where the paper has them.
_TABLE_1: dict[tuple[str, str, str], tuple[float, float | None]] = {
    ("Autoregressive", "Qwen", "GSM8K"): (1.00, 13.89),
    ("Autoregressive", "Qwen", "HumanEval"): (1.00, 14.18),
    ("Autoregressive", "Llama", "GSM8K"): (1.00, 6.87),
    ("Autoregressive", "Llama", "HumanEval"): (1.00, 6.86),
    ("Vanilla Spec.", "Qwen", "GSM8K"): (0.58, None),
    ("Vanilla Spec.", "Qwen", "HumanEval"): (0.44, 6.24),
    ("Vanilla Spec.", "Llama", "GSM8K"): (1.35, None),
    ("Vanilla Spec.", "Llama", "HumanEval"): (1.45, None),
    ("Split Inf.", "Qwen", "GSM8K"): (0.54, None),
    ("Split Inf.", "Qwen", "HumanEval"): (0.53, None),
    ("Split Inf.", "Llama", "GSM8K"): (0.63, None),
    ("Split Inf.", "Llama", "HumanEval"): (0.66, None),
    ("PicoSpec", "Qwen", "GSM8K"): (1.45, 20.19),
    ("PicoSpec", "Qwen", "HumanEval"): (1.13, 16.04),
    ("PicoSpec", "Llama", "GSM8K"): (2.51, 17.22),
    ("PicoSpec", "Llama", "HumanEval"): (2.90, 19.88),
}
# (configuration, task) -> tokens/s, TTFT, TPOT, T_rtt and drafting time in ms.
TABLE_2 = {
    ("w/o Para-draft", "GSM8K"): (11.92, 148.96, 251.76, 119.81, 123.91),
    ("w/o Fast-verify", "GSM8K"): (17.87, 150.32, 166.56, 106.56, 97.30),
    ("w/o Split-rej", "GSM8K"): (12.62, 154.68, 233.30, 166.98, 100.96),
    ("picospec", "GSM8K"): (20.19, 143.99, 148.84, 87.35, 97.46),
    ("w/o Para-draft", "HumanEval"): (10.25, 177.90, 252.92, 119.03, 124.08),
    ("w/o Fast-verify", "HumanEval"): (13.86, 164.84, 187.07, 109.14, 97.16),
    ("w/o Split-rej", "HumanEval"): (10.23, 164.82, 251.73, 168.27, 99.98),
    ("picospec", "HumanEval"): (16.04, 155.11, 160.88, 78.04, 97.17),
}
TABLE_3 = {
    ("w/o Para-draft", "GSM8K"): (12.51, 305.46, 390.35, 194.68, 190.56),
    ("w/o Fast-verify", "GSM8K"): (16.64, 297.40, 287.74, 189.32, 170.93),
    ("w/o Split-rej", "GSM8K"): (12.12, 303.17, 389.76, 283.79, 173.69),
    ("picospec", "GSM8K"): (17.22, 295.58, 272.89, 166.46, 171.05),
    ("w/o Para-draft", "HumanEval"): (13.60, 342.68, 380.89, 186.60, 189.68),
    ("w/o Fast-verify", "HumanEval"): (19.67, 346.16, 263.94, 182.32, 171.64),
    ("w/o Split-rej", "HumanEval"): (14.29, 344.35, 366.93, 281.84, 173.60),
    ("picospec", "HumanEval"): (19.88, 369.02, 272.93, 182.96, 172.41),
}
# Draft length -> tokens/s, accepted length, TTFT, TPOT, T_rtt and drafting time in ms.
_TABLE_4 = {
    3: (19.06, 2.03, 146.55, 129.15, 82.11, 73.41),
    4: (20.19, 2.50, 143.99, 148.84, 87.35, 97.46),
    5: (18.12, 2.84, 143.39, 189.17, 88.76, 121.40),
    6: (17.12, 3.10, 143.26, 219.28, 88.07, 145.40),
}
_WAITING = ("T_rtt + T_verify, ms", "T_verify, ms")
_COLUMNS = ("tokens/s", "TTFT, ms", "round, ms", *_WAITING, "drafting, ms")
_TIMES = "; ".join(
    f"{name}: {1e3 * one.times.draft_s:g} ms, {1e3 * one.times.verify_first_s:g} ms and "
    f"{1e3 * one.times.verify_further_s:g} ms for a further token, round trip "
    f"{1e3 * one.rtt_s:g} ms"
    for name, one in PAIRS.items()
)
DECLARED = (
    f"Draft step and target pass are the paper's ({_TIMES}), {MBPS:g} Mbit/s; drafts are accepted "
    "at the rate that gives the paper's accepted length by its equation 5. T_rtt is the round trip "
    "with the messages' own time on the link, T_verify the declared pass over γ drafts."
)
_COLUMN_NOTE = (
    "The column heads are lost in the text at hand; their figures say what they are: the last one "
    "grows by 24 ms a draft, so it is the drafting time; the one before it, with drafting, makes a "
    "round without Para-draft, so it holds the target's pass as well as the round trip, and "
    "T_verify alone is not printed; and the paper's TPOT × tokens/s is 3 and more, so it is the "
    "time of a round."
)


def tables() -> tuple[PaperTable, ...]:
    """Return the tables in the paper's order."""
    return (_table_1(), _ablation(2, "Qwen", TABLE_2), _ablation(3, "Llama", TABLE_3), _table_4())


def _table_1() -> PaperTable:
    rows = tuple(
        PaperRow(
            where, (*printed, ACCEPTED[where[1:]] if where[0] == "PicoSpec" else None, None, None)
        )
        for where, printed in _TABLE_1.items()
    )
    return PaperTable(
        key="picospec-table-1",
        paper="PicoSpec",
        place="Table 1, section 4.2",
        title="Methods by pair and task",
        labels=("method", "pair", "task"),
        figures=("speedup over AR", "tokens/s", "tokens a pass", *_WAITING),
        rows=rows,
        basis=Basis.VIRTUAL_TIME,
        declared=DECLARED
        + " Split inference is `split` with float16 states: three layers at the edge, a step of "
        "which takes as long as reading their weights at 200 GB/s, and the rest of the target's "
        "pass in the cloud; the paper says nothing of how its hidden states travel, and its models "
        "have two bytes a number. Vanilla sends float16 distributions.",
        printed="The tasks are rates of acceptance here, since none of the four models is. The "
        "paper's tokens/s are more than its accepted length explains: 20.19/s × 148.84 ms (Table "
        "2) are 3.0 tokens a round, not 2.50.",
        compute=_methods,
        plots=(),
    )


def _ablation(
    number: int, pair: str, printed: Mapping[tuple[str, str], tuple[float, ...]]
) -> PaperTable:
    return PaperTable(
        key=f"picospec-table-{number}",
        paper="PicoSpec",
        place=f"Table {number}, section 4.3",
        title=f"Each part left out, {pair} pair",
        labels=("configuration", "task"),
        figures=_COLUMNS,
        rows=tuple(PaperRow(where, _spread(figures)) for where, figures in printed.items()),
        by_line=True,
        basis=Basis.VIRTUAL_TIME,
        declared=DECLARED,
        printed=_COLUMN_NOTE + " Without Para-draft the paper drafts five tokens a round, ours "
        "four. Fast-verify hides a part of the pass from the paper's figure, where ours counts all "
        "of it. Without Split-rej ours sends the whole distribution of every draft, in float16. "
        "TTFT in ours is the link and the pass over a prompt of three tokens, and one more pass "
        "where the first draft is accepted.",
        compute=lambda testbed, labels: _ablated(testbed, pair, labels),
    )


def _table_4() -> PaperTable:
    columns = ("tokens/s", "tokens a pass", *_COLUMNS[1:])
    return PaperTable(
        key="picospec-table-4",
        paper="PicoSpec",
        place="Table 4, section 4.4",
        title="Draft length, Qwen pair on GSM8K",
        labels=("γ",),
        figures=columns,
        rows=tuple(PaperRow((float(n),), _spread(figures)) for n, figures in _TABLE_4.items()),
        by_line=True,
        basis=Basis.VIRTUAL_TIME,
        declared=DECLARED,
        printed=_COLUMN_NOTE
        + " The printed accepted lengths need another rate for each γ, from 0.55 to 0.71; each "
        "row has its own here. The paper's T_rtt does not grow with γ, its round does by more than "
        "the drafting.",
        compute=_by_length,
        plots=(Plot("γ", "tokens/s"),),
    )


def _spread(printed: tuple[float, ...]) -> Figures:
    """Return the printed figures with an empty place for T_verify before the drafting time."""
    return (*printed[:-1], None, printed[-1])


def acceptance_for(accepted_length: float, draft_length: int) -> float:
    """Return the acceptance rate at which equation 5 gives this many tokens a round, by bisection;
    at most 1."""
    low = 0.0
    high = 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if expected_tokens_per_round(middle, draft_length) < accepted_length:
            low = middle
        else:
            high = middle
    return high


def _methods(testbed: Testbed, labels: Labels) -> Figures:
    method, name, task = map(str, labels)
    pair = PAIRS[name]
    alone_s = pair.times.verify_first_s
    if method == "Autoregressive":
        tpot_s = _tpot_s(testbed.declared_answers(PRESETS["ar"], pair.conditions, 0.0))
        return alone_s / tpot_s, 1 / tpot_s, None, None, 1e3 * alone_s
    if method == "Split Inf.":
        conditions = replace(pair.conditions, times=pair.split_times)
        tpot_s = _tpot_s(testbed.declared_answers(SPLIT_HALF, conditions, 0.0))
        return alone_s / tpot_s, 1 / tpot_s, None, None, None
    half = replace(PRESETS["dsd"], uplink_precision="float16")
    preset = half if method == "Vanilla Spec." else PRESETS["picospec"]
    answers = _answers(testbed, preset, pair, ACCEPTED[name, task], DRAFT_LENGTH)
    tpot_s = _tpot_s(answers)
    tokens = _round_tokens(answers) if method == "PicoSpec" else None
    return alone_s / tpot_s, 1 / tpot_s, tokens, *_waiting_ms(answers, pair, DRAFT_LENGTH)


def _ablated(testbed: Testbed, name: str, labels: Labels) -> Figures:
    variant, task = map(str, labels)
    pair = PAIRS[name]
    preset = picospec_variants(PRESETS["picospec"].with_draft_length(DRAFT_LENGTH))[variant]
    preset = replace(preset, uplink_precision="float16")
    answers = _answers(testbed, preset, pair, ACCEPTED[name, task], DRAFT_LENGTH)
    return _timed(answers, pair, DRAFT_LENGTH, ACCEPTED[name, task])


def _by_length(testbed: Testbed, labels: Labels) -> Figures:
    length = int(float(labels[0]))
    pair = PAIRS["Qwen"]
    accepted = _TABLE_4[length][1]
    answers = _answers(testbed, PRESETS["picospec"], pair, accepted, length)
    rate, *rest = _timed(answers, pair, length, accepted)
    return (rate, _round_tokens(answers), *rest)


def _answers(
    testbed: Testbed, preset: Preset, pair: PaperPair, accepted_length: float, draft_length: int
) -> list[SimulatedAnswer]:
    rate = acceptance_for(accepted_length, draft_length)
    chosen = preset.with_draft_length(draft_length)
    return testbed.declared_answers(chosen, pair.conditions, rate)


def _timed(
    answers: Sequence[SimulatedAnswer], pair: PaperPair, draft_length: int, accepted_length: float
) -> Figures:
    """Return our figures for the paper's columns. A round lasts as long as the paper's accepted
    length takes, since passes that begin as drafts arrive are no rounds."""
    figures = answers_figures(answers)
    tpot_s = float(figures["tpot_s"])
    ttft_ms = 1e3 * float(figures["ttft_s"])
    waiting_ms = _waiting_ms(answers, pair, draft_length)
    drafting_ms = 1e3 * draft_length * pair.times.draft_s
    return 1 / tpot_s, ttft_ms, 1e3 * tpot_s * accepted_length, *waiting_ms, drafting_ms


def _waiting_ms(
    answers: Sequence[SimulatedAnswer], pair: PaperPair, draft_length: int
) -> tuple[float, float]:
    """Return how many ms a round waits after its last draft, and how many of these are the target's
    pass."""
    rounds = sum(one.stats.rounds for one in answers)
    up = sum(one.uplink_bytes for one in answers) / rounds
    down = sum(one.downlink_bytes for one in answers) / rounds
    verify_s = pair.times.verify_s(draft_length)
    return 1e3 * (pair.link.communication_s(up, down) + verify_s), 1e3 * verify_s


def _tpot_s(answers: Sequence[SimulatedAnswer]) -> float:
    return float(answers_figures(answers)["tpot_s"])


def _round_tokens(answers: Sequence[SimulatedAnswer]) -> float:
    return sum(len(one.token_ids) for one in answers) / sum(one.stats.rounds for one in answers)
