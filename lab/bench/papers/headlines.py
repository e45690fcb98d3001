"""What the five papers claim in their abstracts and conclusions, and where ours stands beside it.

The one list of headlines. Each names rows of the report's tables, so that its figures are computed
and never typed in; only `printed` is the paper's. `why` says what makes the two differ, in words
that hold whatever ours come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from lab.bench.papers.cloud_drafts import SPEEDUP
from lab.bench.papers.dragon_figures import PAPERS_OWN
from lab.bench.papers.dragon_timings import HARDWARE
from lab.bench.papers.paper_table import Figures, FilledRow, Label, PaperTable, filled_rows

FORMULA = "formula or exact arithmetic"
VIRTUAL = "virtual time"
PROCESSES = "processes"
CLOUD_DRAFTS = "a cloud that drafts, virtual time"
COLUMNS = (FORMULA, VIRTUAL, CLOUD_DRAFTS, PROCESSES)
NO_ROW = "–"
NOT_RUN = "not run yet"


Where = Mapping[str, Label | tuple[Label, ...]]
"""What labels have to be: one value, or one of several."""


@dataclass(frozen=True, slots=True)
class Place:
    """Rows of a table, and a figure of theirs: the lowest and the highest is shown. `figures`:
    several are multiplied."""

    table: str
    figures: tuple[str, ...]
    where: Where
    form: str = ".2f"

    def rows(self, rows: Sequence[FilledRow]) -> list[FilledRow]:
        """Return the rows that the place means."""
        return [row for row in rows if all(_is(row.labels[n], v) for n, v in self.where.items())]

    def words(self, rows: Sequence[FilledRow]) -> str:
        """Return the range of the figures in words, such as "0.94 to 1.37"; NO_ROW where none of
        the rows has the figure."""
        found = []
        for row in self.rows(rows):
            figures = [figure for name in self.figures if (figure := row.ours[name]) is not None]
            if len(figures) == len(self.figures):
                found.append(prod(figures))
        return span(found, self.form) if found else NO_ROW


def _is(label: Label, wanted: Label | tuple[Label, ...]) -> bool:
    return label in wanted if isinstance(wanted, tuple) else label == wanted


@dataclass(frozen=True, slots=True)
class Headline:
    """`printed`: the paper's figures, as its text has them. `cloud_drafts`: in the same setting and
    unit, a cloud that drafts for itself, where the claim is over the target alone."""

    paper: str
    claim: str
    printed: tuple[float, ...]
    why: str
    formula: Place | None = None
    virtual: Place | None = None
    processes: Place | None = None
    cloud_drafts: Place | None = None

    @property
    def places(self) -> tuple[Place | None, ...]:
        """By COLUMNS."""
        return (self.formula, self.virtual, self.cloud_drafts, self.processes)


_DSSD: Where = {"method": ("DSSD 6.7B", "DSSD 13B")}
_DSD: Where = {"method": "DSD 6.7B"}
_DSSD_CELLS: Where = {"table": "2", "method": ("DSSD 6.7B", "DSSD 13B")}
_DSD_CELLS: Where = {"table": "2", "method": "DSD 6.7B"}
_JETSON: Where = {"pair": "Vicuna-68m/Llama2-7B", "client": "Jetson"}


def _cloud_drafts(paper: str, where: Where) -> Place:
    return Place(f"{paper}-cloud-drafts", (SPEEDUP,), where)


HEADLINES = (
    Headline(
        "DSSD",
        "DSSD is 1.5 to 2.4 times as fast as the target alone",
        (1.5, 2.4),
        "The printed speedups need 4.1 tokens a round (31 rounds for 128 tokens), where the "
        "printed α = 0.61 gives 2.5 by the paper's own equation. Processes have SmolLM2's "
        "acceptance, at top-k 10. All have the fitted T_LLM: with one that an H800 can have, DSSD "
        "is slower than the target alone.",
        Place("dssd-table-2", ("speedup",), _DSSD),
        Place("dssd-virtual-time", ("speedup",), _DSSD_CELLS),
        Place("dssd-processes", ("speedup",), _DSSD_CELLS),
        cloud_drafts=_cloud_drafts("dssd", {}),
    ),
    Headline(
        "DSSD",
        "DSD stays at 1 times or lower (its Table 2 has 0.43 to 1.51)",
        (0.43, 1.51),
        "As above; a distribution has 100,544 bytes at 16 bits here, where the paper counts 61,269 "
        "a round.",
        Place("dssd-table-2", ("speedup",), _DSD),
        Place("dssd-virtual-time", ("speedup",), _DSD_CELLS),
        Place("dssd-processes", ("speedup",), _DSD_CELLS),
        cloud_drafts=_cloud_drafts("dssd", {"target": "6.7B"}),
    ),
    Headline(
        "DSSD",
        "13B with another GPU at the device: up to 1.8 times",
        (1.8,),
        "1.8 rounds the 1.75 that the paper's text tells; its Table 3 has 1.58 at most.",
        Place("dssd-table-3", ("speedup",), {"method": "DSSD 13B"}),
        Place("dssd-virtual-time", ("speedup",), {"table": "3", "method": "DSSD 13B"}),
        Place("dssd-processes", ("speedup",), {"table": "3", "method": "DSSD 13B"}),
        cloud_drafts=_cloud_drafts("dssd", {"target": "13B"}),
    ),
    Headline(
        "DSSD",
        "DSSD sends less than 50 bytes up a round",
        (50.0,),
        "Ours adds the round's position and prefix hash, by which late frames are dropped.",
        virtual=Place("dssd-bytes", ("up, bytes",), {"method": "DSSD"}, ".0f"),
    ),
    Headline(
        "DSSD",
        "DSD sends 61,269 bytes up a round",
        (61269.0,),
        "By the paper's equation 4 eight distributions of 50,272 tokens take 804,352 bytes; the "
        "printed figure follows from no equation.",
        virtual=Place("dssd-bytes", ("up, bytes",), {"method": "DSD"}, ",.0f"),
    ),
    Headline(
        "DSSD",
        "A draft length of 6 is best at 20 ms and 100 Mbit/s",
        (6.0,),
        "The sixth draft is accepted with α^6, 5 % at α = 0.61: too seldom to be worth its step by "
        "the paper's own cost model.",
        Place("dssd-optimum", ("best γ, 6.7B",), {"NTT, ms": 20.0, "Mbit/s": 100.0}, ".0f"),
    ),
    Headline(
        "PicoSpec",
        "Up to 2.9 times as fast as the target alone (Llama pair, HumanEval)",
        (2.9,),
        "The accepted length is the paper's in virtual time; processes have the demo pair's "
        "acceptance, which is no task of the paper.",
        virtual=Place(
            "picospec-table-1",
            ("speedup over AR",),
            {"method": "PicoSpec", "pair": "Llama", "task": "HumanEval"},
        ),
        processes=Place(
            "picospec-processes",
            ("speedup over AR",),
            {"method": "PicoSpec", "pair": "Llama"},
        ),
        cloud_drafts=_cloud_drafts("picospec", {"pair": "Llama", "task": "HumanEval"}),
    ),
    Headline(
        "PicoSpec",
        "The Qwen pair is 1.13 to 1.45 times as fast",
        (1.13, 1.45),
        "The paper's tokens a second are more than its own accepted length explains: 20.19 a "
        "second in rounds of 148.84 ms are 3.0 tokens a round, not 2.50.",
        virtual=Place(
            "picospec-table-1", ("speedup over AR",), {"method": "PicoSpec", "pair": "Qwen"}
        ),
        processes=Place(
            "picospec-processes",
            ("speedup over AR",),
            {"method": "PicoSpec", "pair": "Qwen"},
        ),
        cloud_drafts=_cloud_drafts("picospec", {"pair": "Qwen"}),
    ),
    Headline(
        "PicoSpec",
        "Vanilla speculation slows the Qwen pair down (0.44 to 0.58)",
        (0.44, 0.58),
        "It waits for whole distributions; their size and the link decide.",
        virtual=Place(
            "picospec-table-1", ("speedup over AR",), {"method": "Vanilla Spec.", "pair": "Qwen"}
        ),
        processes=Place(
            "picospec-processes",
            ("speedup over AR",),
            {"method": "Vanilla Spec.", "pair": "Qwen"},
        ),
        cloud_drafts=_cloud_drafts("picospec", {"pair": "Qwen"}),
    ),
    Headline(
        "PicoSpec",
        "Split inference is slower than the cloud alone (0.53 to 0.66)",
        (0.53, 0.66),
        "The paper does not say how hidden states travel; ours has two bytes a number.",
        virtual=Place("picospec-table-1", ("speedup over AR",), {"method": "Split Inf."}),
        cloud_drafts=_cloud_drafts("picospec", {}),
    ),
    Headline(
        "FSD",
        "Llama2 with a Jetson: 35 % faster than the cloud alone (1.35 times)",
        (1.35,),
        "The formula has the printed τ of each task; virtual time and processes have SmolLM2's "
        "own acceptance. The abstract calls it a reduction of latency by 35 %; 1.35 "
        "times as fast is 26 % less.",
        Place("fsd-table-6", ("AR → SD",), _JETSON),
        Place("fsd-table-6-averages", ("AR → SD",), _JETSON),
        Place("fsd-processes", ("AR → SD",), _JETSON),
        cloud_drafts=_cloud_drafts("fsd", _JETSON),
    ),
    Headline(
        "FSD",
        "Pre-drafting adds 11 % (1.11 times)",
        (1.11,),
        "The formula counts a hit's drafts as ready; in fact an exit's token comes late in the "
        "pass, and drafting from it takes time.",
        Place("fsd-table-6", ("SD → FSD",), _JETSON),
        Place("fsd-table-6-averages", ("SD → FSD",), _JETSON),
        Place("fsd-processes", ("SD → FSD",), _JETSON),
    ),
    Headline(
        "FSD",
        "The robot: 21 % faster than the cloud alone (0.90 × 1.34)",
        (21.0, 0.90, 1.34),
        "By the printed times of Table 8a alone the first factor is not below 1.",
        Place("fsd-table-8", ("AR → SD", "SD → FSD"), {}),
    ),
    Headline(
        "FSD",
        "The cloud's bill falls by 52 %, to 217 dollars (Groq)",
        (52.0, 217.0),
        "Drafts are not billed in it; where a provider bills them as input it is more.",
        Place("fsd-table-1", ("edge-cloud SD",), {"provider": "Groq"}, ".0f"),
    ),
    Headline(
        "TSLT",
        "K = 320 of 32,000 tokens keep 0.85 of the mass",
        (0.85,),
        "The draft models here are SmolLM2's and Qwen2.5-Coder-0.5B; the paper's has 68M "
        "parameters.",
        Place("tslt-figure-3", ("mass",), {"K": 320.0}),
    ),
    Headline(
        "TSLT",
        "Several candidates are always faster than one (MC ÷ SC above 1)",
        (),
        "The formula counts a pass over a tree as long as over a chain, with step times that are "
        "assumed.",
        Place("tslt-figures-5-6", ("MC ⟨2,2,2⟩ ÷ SC",), {}),
    ),
    Headline(
        "DRAGON",
        "Documents on both sides gain 1.4 to 1.9 times what the best baseline gains",
        (1.4, 1.9),
        "Another model (SmolLM2-135M) and other documents; the table says which context the "
        "baseline has.",
        Place("dragon-figure-5", ("ratio of gains",), {}),
    ),
    Headline(
        "DRAGON",
        "42.4 % less time a token than waiting for every token, at 300 ms",
        (42.4,),
        "How much waiting can be hidden depends on how often the two sides draw the same, and so "
        "on models and documents: the demo pair in virtual time, SmolLM2 by processes.",
        virtual=Place(
            "dragon-figure-6",
            ("dragon",),
            {"saved over": "drdg-tw", "steps": HARDWARE},
            ".1f",
        ),
        processes=Place(
            "dragon-figure-6-smollm2",
            ("saved over drdg-tw, %",),
            {"method": "dragon"},
            ".1f",
        ),
    ),
    Headline(
        "DRAGON",
        "49.5 % less than aggregating after the whole sequence",
        (49.5,),
        "The paper's baseline sends all its distributions at the end; ours sends its tokens.",
        virtual=Place(
            "dragon-figure-6",
            ("dragon",),
            {"saved over": "drdg-sw", "steps": HARDWARE},
            ".1f",
        ),
    ),
    Headline(
        "DRAGON",
        "15.6 to 20.3 % more time a token than the device alone",
        (15.6, 20.3),
        "A mean over added latencies of 0 to 300 ms. Nearly all of it is in the longest ones, for "
        "the device alone waits for nobody.",
        virtual=Place(
            "dragon-figure-6-mean",
            ("longer, %",),
            {"method": "dragon", "steps": HARDWARE},
            ".1f",
        ),
    ),
    Headline(
        "DRAGON",
        "Fetching documents' text takes 8.6 times as long to the first token",
        (8.6,),
        "It follows from the declared speed of the device's prompt and the length of documents.",
        virtual=Place("dragon-figure-7", ("÷ dragon",), {"method": "drcg-text"}),
    ),
    Headline(
        "DRAGON",
        "Fetching their keys and values takes 15.3 times as long",
        (15.3,),
        "They are taken to have the paper's 114 MB, which are 290 tokens in float32 for both of "
        "its models, where it states 2 × 64.",
        virtual=Place("dragon-figure-7", ("÷ dragon",), {"method": "drcg-kv"}),
    ),
    Headline(
        "DRAGON",
        "A distribution is sent in 2,363 times fewer bytes than as JSON",
        (2363.0,),
        "How many tokens top-p 0.8 keeps depends on the model.",
        Place(
            "dragon-payload",
            ("times smaller than JSON",),
            {"what is sent": PAPERS_OWN},
            ",.0f",
        ),
    ),
)


def headline_table(
    tables: Sequence[tuple[PaperTable, Sequence[Figures] | None]], links: Mapping[str, str]
) -> Iterator[str]:
    """Yield the lines of a Markdown table. `tables`: each with our figures, or None where they are
    not computed yet; `links`: the link to each table, by its key."""
    rows_of = {
        table.key: None if ours is None else filled_rows(table, ours) for table, ours in tables
    }
    yield f"| paper | its claim | printed | {' | '.join(COLUMNS)} | why they differ |"
    yield "|" + "---|" * (5 + len(COLUMNS))
    for one in HEADLINES:
        printed = ", ".join(f"{figure:,g}" for figure in one.printed) or NO_ROW
        cells = [_linked(place, rows_of, links) for place in one.places]
        yield f"| {one.paper} | {one.claim} | {printed} | {' | '.join(cells)} | {one.why} |"


def _linked(
    place: Place | None,
    rows_of: Mapping[str, Sequence[FilledRow] | None],
    links: Mapping[str, str],
) -> str:
    if place is None:
        return NO_ROW
    rows = rows_of[place.table]
    words = NOT_RUN if rows is None else place.words(rows)
    return f"[{words}]({links[place.table]})"


def span(values: Sequence[float], form: str = ".3g") -> str:
    """Return the range of the values in words: "1.2 to 3.4", or one number where both ends are
    equal."""
    ends = (min(values), max(values))
    low, high = (
        # What is rounded to 0 has no sign.
        format(end if float(format(end, form).replace(",", "")) else 0.0, form)
        for end in ends
    )
    return low if low == high else f"{low} to {high}"
