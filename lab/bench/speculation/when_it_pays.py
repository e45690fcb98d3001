"""`bench when-it-pays`: where drafting at the edge is faster than all that a cloud does alone.

A map over round trip, sessions that share one verifier, and how often a draft is right. Each cell
compares the fastest preset that drafts at the edge with the fastest of a cloud without an edge: one
token at a time (`ar`), or with its own draft model (`cloud-draft`); and with `ar` alone, where the
cloud has no draft model.

Step times, link and acceptance are declared. Edge and cloud have the same draft model, and every
session has an edge to itself. In the cloud a draft step takes all sessions at once, and as long for
many as for one. Cells are simulated as `bench capacity` simulates them, without bandwidth."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from lab.bench.harness.baselines import ALONE, CLOUD_DRAFT
from lab.bench.harness.models import Models
from lab.bench.harness.report import Report, Row, counted, make_row
from lab.bench.harness.results import RESULTS
from lab.simulation.sessions_held import together
from lab.simulation.shared_verifier import VerifierPlan
from tandem.core.errors import InvalidArgument
from tandem.specdec.presets import PRESETS, Preset

RTTS_S = (0.0, 0.030, 0.100, 0.300)
QUICK_RTTS_S = (0.0, 0.100)
SESSIONS = (1, 4, 16, 64)
QUICK_SESSIONS = (1, 16)
RATES = (0.3, 0.5, 0.7, 0.9)
QUICK_RATES = (0.5, 0.9)
MOST_CLOUD_DRAFTS = 16
EDGE_PRESETS = ("stream", "coupled")
CLOUD_PRESETS = (ALONE, CLOUD_DRAFT)
EDGE = "edge"
CLOUD = "cloud"
WITH_DRAFT = "over_cloud"
WITHOUT_DRAFT = "over_cloud_without_draft"
TITLES = {
    WITH_DRAFT: "The cloud has the draft model, too",
    WITHOUT_DRAFT: "The cloud has no draft model",
}
"""By the figures that are shown."""
WINS = 1.05
LOSES = 0.95
"""What is in between counts as equal."""
COLUMNS = ("declared", "rtt_s", "sessions", EDGE, CLOUD, WITH_DRAFT, WITHOUT_DRAFT)
BEGIN = "<!-- map: begin -->"
END = "<!-- map: end -->"
KEPT = RESULTS / "when-it-pays.json"
"""The page's raw rows."""
AS_ABOVE = "as above"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Declared seconds: of a draft step at the edge and in the cloud, of a pass over one token, and
    of each further token in it, of any session."""

    draft_s: float
    cloud_draft_s: float
    verify_first_s: float
    verify_further_s: float


@dataclass(frozen=True, slots=True)
class Cell:
    """A place on the map. `rate`: how often a draft is right."""

    rate: float
    rtt_s: float
    sessions: int


def run(
    report: Report,
    models: Models,
    page: Path | None = None,
    draft_ms: float = 24.0,
    cloud_draft_ms: float | None = None,
    verify_ms: float = 72.0,
    verify_further_ms: float = 0.5,
) -> None:
    """Fill the report, a row for each cell; `models` are not used, since acceptance is declared.
    `page`: also keep the rows, with those of other times, and write the map into this page."""
    cloud_ms = draft_ms / 5 if cloud_draft_ms is None else cloud_draft_ms
    times = StepTimes(draft_ms / 1e3, cloud_ms / 1e3, verify_ms / 1e3, verify_further_ms / 1e3)
    cells = cells_of(report.quick)
    rows = [cell_row(cell, times, report.seed) for cell in counted(cells, str)]
    report.add("Drafts of the edge ÷ the best of the cloud, tokens/s together", COLUMNS, rows)
    report.notes += [
        f"A draft step at the edge {draft_ms:g} ms, in the cloud {cloud_ms:g} ms for all sessions"
        f" at once, a pass {verify_ms:g} ms and {verify_further_ms:g} ms for each further token of"
        " any session.",
        f"{WITHOUT_DRAFT}: the cloud has no draft model.",
    ]
    if page is not None:
        maps = {AS_ABOVE: rows} | {
            words: [cell_row(cell, changed, report.seed) for cell in counted(cells, str)]
            for words, changed in other_times(times).items()
        }
        write_page(page, maps, report.command, times, report.machine.commit)


def cells_of(quick: bool) -> list[Cell]:
    """Return the map's cells; for a quick run those of its corners."""
    rates = QUICK_RATES if quick else RATES
    rtts_s = QUICK_RTTS_S if quick else RTTS_S
    sessions = QUICK_SESSIONS if quick else SESSIONS
    return [Cell(rate, rtt_s, count) for rate, rtt_s, count in product(rates, rtts_s, sessions)]


def other_times(times: StepTimes) -> dict[str, StepTimes]:
    """Return what the map is also computed for, by words: one time of it changed."""
    further_s = times.verify_first_s / 24
    return {
        f"draft step in the cloud {times.draft_s * 1e3:g} ms, as at the edge": replace(
            times, cloud_draft_s=times.draft_s
        ),
        f"draft step at the edge {times.cloud_draft_s * 1e3:g} ms, as in the cloud": replace(
            times, draft_s=times.cloud_draft_s
        ),
        f"each further token of a pass {further_s * 1e3:g} ms": replace(
            times, verify_further_s=further_s
        ),
    }


def cell_row(cell: Cell, times: StepTimes, seed: int) -> Row:
    """Return what is fastest in a cell, at the edge and in the cloud, and how they compare."""
    speeds = {name: speed(name, cell, times, seed) for name in (*EDGE_PRESETS, *CLOUD_PRESETS)}
    edge = max(EDGE_PRESETS, key=lambda name: speeds[name])
    cloud = max(CLOUD_PRESETS, key=lambda name: speeds[name])
    return make_row(
        preset=edge,
        seed=seed,
        rtt_s=cell.rtt_s,
        tokens_per_s=speeds[edge],
        speedup_over_ar=speeds[edge] / speeds[ALONE],
        declared=cell.rate,
        sessions=cell.sessions,
        speeds=speeds,
    ) | {
        EDGE: edge,
        CLOUD: cloud,
        WITH_DRAFT: speeds[edge] / speeds[cloud],
        WITHOUT_DRAFT: speeds[edge] / speeds[ALONE],
    }


def speed(name: str, cell: Cell, times: StepTimes, seed: int) -> float:
    """Return the tokens per second of all sessions together. The cloud drafts as many tokens as are
    worth their time."""
    preset: Preset = PRESETS[name]
    if name == CLOUD_DRAFT:
        preset = preset.with_draft_length(MOST_CLOUD_DRAFTS)
    plan = VerifierPlan(
        preset,
        sessions=cell.sessions,
        rtt_s=cell.rtt_s,
        acceptance_rate=cell.rate,
        seed=seed,
        **asdict(times),
    )
    return together(plan, cell.sessions).tokens_per_s


def write_page(
    page: Path,
    maps: Mapping[str, Sequence[Row]],
    command: str,
    times: StepTimes,
    commit: str,
) -> None:
    """Keep the rows, and write the map into a page. Raises InvalidArgument for a page without its
    marks."""
    rows = {words: [_rounded(row) for row in of_map] for words, of_map in maps.items()}
    kept = {"command": command, "commit": commit, "declared": asdict(times), "maps": rows}
    page.write_text(page_with(page.read_text(encoding="utf-8"), rows), encoding="utf-8")
    lines = json.dumps(kept, ensure_ascii=False).replace('{"preset"', '\n{"preset"')
    KEPT.write_text(lines + "\n", encoding="utf-8")


def page_with(text: str, maps: Mapping[str, Sequence[Row]]) -> str:
    """Return a page with these maps between its marks."""
    if BEGIN not in text or END not in text:
        raise InvalidArgument("page", f"has no lines {BEGIN!r} and {END!r}")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{chr(10).join(_lines(maps))}\n\n{END}{after}"


def _rounded(row: Row) -> Row:
    """Return the figures of a row that are there, with four decimals."""

    def rounded(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: rounded(one) for name, one in value.items()}
        return round(value, 4) if isinstance(value, float) else value

    return {name: rounded(value) for name, value in row.items() if value is not None}


def _lines(maps: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    rows = maps[AS_ABOVE]
    for figure, title in TITLES.items():
        ratios = [row[figure] for row in rows]
        wins, loses = sum(one >= WINS for one in ratios), sum(one < LOSES for one in ratios)
        yield (
            f"**{title}.** Of {len(ratios)} cells ({min(ratios):.2f} to {max(ratios):.2f} times as"
            f" fast) drafts of the edge are faster in {wins}, equal within 5 % in"
            f" {len(ratios) - wins - loses}, and slower in {loses}."
        )
        yield ""
        yield from _table(rows, figure)
        yield ""
    counts = Counter(row[EDGE] for row in rows).most_common()
    words = ", ".join(f"`{name}` in {count}" for name, count in counts)
    yield f"The fastest of the presets that draft at the edge: {words}."
    yield ""
    yield f"| step times | {' | '.join(f'{title}: edge faster in' for title in TITLES.values())} |"
    yield "|---|---|---|"
    for words, of_map in maps.items():
        cells = [
            f"{sum(one >= WINS for one in ratios)} of {len(ratios)} cells"
            f" ({min(ratios):.2f} to {max(ratios):.2f})"
            for ratios in ([row[figure] for row in of_map] for figure in TITLES)
        ]
        yield f"| {words} | {' | '.join(cells)} |"


def _table(rows: Sequence[Row], figure: str) -> Iterator[str]:
    """Yield a table with round trips below each other, sessions side by side; a gain of the edge is
    bold."""
    heads = [f"{count} session{'s' * (count > 1)}" for count in SESSIONS]
    yield f"| acceptance | round trip | {' | '.join(heads)} |"
    yield "|" + "---|" * (2 + len(SESSIONS))
    at = {(row["declared"], row["rtt_s"], row["sessions"]): row[figure] for row in rows}
    for rate, rtt_s in product(RATES, RTTS_S):
        ratios = [at[rate, rtt_s, count] for count in SESSIONS]
        cells = [f"**{one:.2f}**" if one >= WINS else f"{one:.2f}" for one in ratios]
        yield f"| {rate:g} | {rtt_s * 1e3:g} ms | {' | '.join(cells)} |"
