"""`bench bytes`: serialized bytes of a round per preset, beside the figures the papers print.

Real machines, codecs and messages; synthetic Zipf-like distributions over a vocabulary of 151,936
(that of Qwen 3), draft length 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from lab.bench.harness.models import Models
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.zipf_distributions import ZipfDistributions
from lab.bench.wire.wire_rounds import CountedRequest, RoundBytes, count_rounds
from tandem.specdec.presets import PRESETS, Preset

VOCABULARY_SIZE = 151_936
DRAFT_LENGTH = 8
EXPONENT = 1.5
NOISE = 0.6
DSSD_UPLINK_LIMIT = 120
ANSWER_LIMIT = 700
COUPLED_LIMIT = 64
PAYLOAD_TOPS = (16, 64, 256)
EXPONENTS = (1.2, 1.5, 2.0)

COLUMNS = (
    "preset",
    "variant",
    "uplink_bytes_per_round",
    "uplink_bytes_per_round_max",
    "uplink_bytes_two_trips_max",
    "downlink_bytes_per_round",
    "downlink_bytes_per_round_max",
    "payload_bytes_max",
    "full_distribution_rate",
    "acceptance_rate",
    "rounds",
)


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """Bytes of a round as a paper has them; `None` where it says nothing."""

    paper: str
    place: str
    method: str
    uplink_bytes_per_round: int | None
    downlink_bytes_per_round: str | None
    computed: bool = False
    """By us from the paper's formula and parameters; else printed there."""


# DSSD's 61,269 bytes do not follow from its eq. 4 (draft length · vocabulary · bits), which gives
# 8 · 50,272 · 2 = 804,352 bytes for the OPT models of that section in half precision.
PAPER_FIGURES = (
    PaperFigure("DSSD", "§4.1, below Table 2", "DSD", 61_269, None),
    PaperFigure("DSSD", "§4.1, below Table 2", "DSSD (printed: fewer than)", 50, None),
    PaperFigure("DSSD", "§2.2 eq. 4, OPT, 16 bit", "DSD", 8 * 50_272 * 2, None, True),
    PaperFigure("DSSD", "§3 eq. 8, OPT, 16 bit", "DSSD", None, f"{50_272 * 2} when rejected", True),
    PaperFigure("PicoSpec", "§3.3", "probabilities (printed: fewer than)", 50, "lossy top-K"),
    PaperFigure(
        "TSLT",
        "§5, Table 1: 0.5 Mbit a distribution",
        "DSD, draft length 8",
        8 * 62_500,
        None,
        True,
    ),
    PaperFigure("TSLT", "§5.1, K = 320, 16 + 15 bit", "TSLT", 8 * 320 * 31 // 8, None, True),
)


def run(report: Report, models: Models) -> None:
    """Count the rounds of every preset; the pair given plays no part here."""
    tokens = 80 if report.quick else 600
    rows = [count(preset, variant, EXPONENT, tokens, report.seed) for preset, variant in _presets()]
    report.add(
        f"Bytes of a round, draft length {DRAFT_LENGTH}, vocabulary {VOCABULARY_SIZE:,}",
        COLUMNS,
        rows,
    )
    report.goals += goals(rows)
    _sparse_payloads(report, tokens)
    printed = [make_row(**_printed(figure)) for figure in PAPER_FIGURES]
    columns = ("paper", "place", "method", "basis", "uplink_bytes_per_round", "downlink")
    report.add("The papers' figures", columns, printed)
    report.notes.append(
        "A round that asks for the full distribution takes a second trip; it stands in a column "
        "of its own."
    )
    report.notes.append(
        f"Distributions are synthetic: probability ∝ rank^-{EXPONENT:g}, draft logits with "
        f"Gaussian noise "
        f"{NOISE:g}. Bytes are of the serialized messages; gRPC adds 5 to each."
    )


def goals(rows: Sequence[Row]) -> list[Goal]:
    """The promised sizes, each against the largest round that took one trip."""
    dssd = next(row for row in rows if row["preset"] == "dssd")
    coupled = next(row for row in rows if row["preset"] == "coupled")
    up = "uplink_bytes_per_round_max"
    down = "downlink_bytes_per_round_max"
    return [
        Goal("dssd uplink, largest round (bytes)", dssd[up], DSSD_UPLINK_LIMIT, "at most"),
        Goal(
            f"lossless sparse payload, M = {dssd['payload_top']} (bytes)",
            dssd["payload_bytes_max"],
            ANSWER_LIMIT,
            "at most",
        ),
        Goal("coupled uplink, largest round (bytes)", coupled[up], COUPLED_LIMIT, "at most"),
        Goal("coupled downlink, largest round (bytes)", coupled[down], COUPLED_LIMIT, "at most"),
    ]


def count(preset: Preset, variant: str, exponent: float, tokens: int, seed: int) -> Row:
    """Return one row: a request of `tokens` tokens, its rounds summed up."""
    progress(f"{preset.name}, {variant}, exponent {exponent:g}")
    distributions = ZipfDistributions(VOCABULARY_SIZE, exponent, NOISE, seed)
    return _row(preset, variant, exponent, seed, count_rounds(preset, distributions, tokens, seed))


def _presets() -> list[tuple[Preset, str]]:
    dsd, dssd = _long("dsd"), _long("dssd")
    return [
        (replace(dsd, uplink_precision="float32"), "float32 distributions"),
        (dsd, "float16 distributions"),
        (_long("dssd-full"), "full distribution on rejection"),
        (dssd, f"sparse, M = {dssd.payload_top}, R = {dssd.payload_tail_draws}"),
        (_long("coupled"), "ids only"),
    ]


def _long(name: str) -> Preset:
    return PRESETS[name].with_draft_length(DRAFT_LENGTH)


def _sparse_payloads(report: Report, tokens: int) -> None:
    """How often the sparse payload needs the full distribution, by its size and the distributions'
    tail."""
    dssd = _long("dssd")
    rows = [
        count(replace(dssd, payload_top=top), f"sparse, M = {top}", exponent, tokens, report.seed)
        for exponent in EXPONENTS
        for top in PAYLOAD_TOPS
    ]
    columns = (
        "exponent",
        "payload_top",
        "payload_bytes_max",
        "downlink_bytes_per_round",
        "rejections",
        "full_distribution_requests",
        "full_distribution_rate",
    )
    report.add(
        "Lossless sparse payloads: requests for the full distribution per rejection", columns, rows
    )


def _row(preset: Preset, variant: str, exponent: float, seed: int, run: CountedRequest) -> Row:
    rounds = run.rounds
    rejections = sum(round_.rejected for round_ in rounds)
    requests = sum(round_.needed_full_distribution for round_ in rounds)
    return make_row(
        preset=preset.name,
        variant=variant,
        draft_length=DRAFT_LENGTH,
        seed=seed,
        acceptance_rate=run.accepted / run.drafted,
        target_passes_per_token=len(rounds) / run.tokens,
        uplink_bytes_per_token=_sum(rounds, "uplink") / run.tokens,
        downlink_bytes_per_token=_sum(rounds, "downlink") / run.tokens,
        uplink_bytes_per_round=fmean(round_.uplink for round_ in rounds),
        uplink_bytes_per_round_max=max(r.uplink for r in rounds if not r.needed_full_distribution),
        uplink_bytes_two_trips_max=max(
            (r.uplink for r in rounds if r.needed_full_distribution), default=None
        ),
        downlink_bytes_per_round=fmean(round_.downlink for round_ in rounds),
        downlink_bytes_per_round_max=max(round_.downlink for round_ in rounds),
        payload_bytes_max=max(round_.answer for round_ in rounds) or None,
        payload_top=preset.payload_top,
        exponent=exponent,
        rounds=len(rounds),
        rejections=rejections,
        full_distribution_requests=requests,
        full_distribution_rate=requests / rejections if rejections else None,
    )


def _sum(rounds: Sequence[RoundBytes], name: str) -> int:
    return sum(getattr(round_, name) for round_ in rounds)


def _printed(figure: PaperFigure) -> Row:
    return {
        "paper": figure.paper,
        "place": figure.place,
        "method": figure.method,
        "uplink_bytes_per_round": figure.uplink_bytes_per_round,
        "basis": "computed" if figure.computed else "printed",
        "downlink": figure.downlink_bytes_per_round,
    }
