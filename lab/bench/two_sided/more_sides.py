"""`bench more-sides`: tokens a second of answers from documents on 2, 3 and 5 sides.

Two documents a side, prompts of held-out text, temperature 1, one link to each side but the device.
Virtual time through the real state machines: the demo pair gives the distributions, the draft model
those of the device; the time of a decoding step is declared. Beside the coupled form, the same coin
with sides that wait for every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from lab.bench.harness.plots import panels
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.suite import Models
from lab.bench.two_sided.dragon_corpus import QUERY_TOKENS, Window, read_windows
from lab.bench.two_sided.dragon_probs import SideDistributions
from lab.simulation.two_sided_answer import SimulatedSide, TwoSidedAnswer, simulate_two_sided
from tandem.backends.interface import Engine
from tandem.backends.torch.loading import load_engine, load_tokenizer
from tandem.core.probs import SamplingParams
from tandem.netem.link_model import link_from
from tandem.two_sided.many_sides import preset_of_sides
from tandem.two_sided.protocol.messages import AggregationRequest
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS, AggregationPreset

SIDES = (2, 3, 5)
DOCUMENTS = 2
TOKENS = 24
RTT_S = (0.002, 0.05, 0.1, 0.3)
QUICK_RTT_S = (0.002, 0.1)
QUESTIONS = 12
QUICK_QUESTIONS = 3
STEP_S = 0.060
COUPLED = "dragon-coupled"
WAITING = "waiting for every token"
COLUMNS = (*("preset", "sides", "rtt_s", "tokens_per_s", "tpot_s", "ttft_s"), "acceptance_rate")


@dataclass(frozen=True, slots=True)
class ManySided:
    """A prompt, and the distributions of what follows it on each side, by the sides' numbers."""

    prompt_ids: tuple[int, ...]
    sides: tuple[SideDistributions, ...]


def run(report: Report, models: Models, peps: Path) -> None:
    """Report every method, number of sides and link."""
    count = QUICK_QUESTIONS if report.quick else QUESTIONS
    windows = read_windows(peps, load_tokenizer(models.target), max(SIDES), report.seed)[:count]
    device, cloud = load_engine(models.draft), load_engine(models.target)
    questions = [many_sided(window, device, cloud) for window in windows]
    rows = []
    for rtt_s in QUICK_RTT_S if report.quick else RTT_S:
        for sides in SIDES:
            progress(f"{sides} sides, {rtt_s * 1e3:g} ms")
            for name, preset in methods(sides).items():
                answers = [
                    answer(preset, question, sides, rtt_s, report.seed + number)
                    for number, question in enumerate(questions)
                ]
                rows.append(_row(name, sides, rtt_s, answers, report.seed))
    for question in questions:
        for side in question.sides:
            side.close()
    report.add(f"{len(questions)} answers of {TOKENS} tokens a cell, virtual time", COLUMNS, rows)
    report.goals += goals(rows)
    report.notes += [
        f"Steps of {STEP_S * 1e3:g} ms at every side are declared, not measured; the same round "
        "trip to each; distributions are the demo pair's (draft at the device).",
        "Answers of different numbers of sides have different distributions: each has two "
        "documents more than the one before.",
    ]


def methods(sides: int) -> dict[str, AggregationPreset]:
    """Return the presets for this many sides, by the names that they have here."""
    coupled = preset_of_sides(AGGREGATION_PRESETS["dragon-coupled"], sides)
    return {COUPLED: coupled, WAITING: replace(coupled, ahead=1)}


def many_sided(window: Window, device: Engine, cloud: Engine) -> ManySided:
    """Return a question whose best documents are dealt out two by two: to the cloud, the device and
    the further sides."""
    ranked = window.documents
    places = (1, 0, *range(2, max(SIDES)))
    owned = [
        [replace(one, rank=rank) for rank, one in enumerate(ranked[start : start + DOCUMENTS], 1)]
        for start in (DOCUMENTS * place for place in places)
    ]
    engines = (device, *[cloud] * (max(SIDES) - 1))
    sides = tuple(
        SideDistributions(engine, documents, SamplingParams())
        for engine, documents in zip(engines, owned, strict=True)
    )
    return ManySided(window.token_ids[:QUERY_TOKENS], sides)


def answer(
    preset: AggregationPreset, question: ManySided, sides: int, rtt_s: float, seed: int
) -> TwoSidedAnswer:
    """Return the answer to one question in virtual time."""
    first, *others = question.sides[:sides]
    request = AggregationRequest(
        session=seed % 2**32,
        prompt_ids=question.prompt_ids,
        vocabulary_hash="demo",
        vocabulary_size=len(first(question.prompt_ids)),
        sampling=SamplingParams(),
        seed=seed,
        max_tokens=TOKENS,
        preset=preset,
        ignore_eos=True,
    )
    cloud, *more = (
        (
            SimulatedSide(distributions, distributions.log_mass, STEP_S),
            link_from(rtt_s, seed=seed + number),
        )
        for number, distributions in enumerate(others)
    )
    device = SimulatedSide(first, first.log_mass, STEP_S)
    return simulate_two_sided(request, device, *cloud, others=more)


def _row(name: str, sides: int, rtt_s: float, answers: Sequence[TwoSidedAnswer], seed: int) -> Row:
    mean_s = tpot_s(answers)
    return make_row(
        preset=name,
        rtt_s=rtt_s,
        seed=seed,
        tpot_s=mean_s,
        tokens_per_s=1 / mean_s,
        ttft_s=fmean(one.commits[0][0] for one in answers),
        sides=sides,
        acceptance_rate=acceptance_rate(answers),
    )


def tpot_s(answers: Sequence[TwoSidedAnswer]) -> float:
    """Return the seconds a token after the first, as a mean over the answers."""
    return fmean((one.commits[-1][0] - one.commits[0][0]) / (TOKENS - 1) for one in answers)


def acceptance_rate(answers: Sequence[TwoSidedAnswer]) -> float:
    """Return the acceptance rate of all sides' drafts."""
    stats = [one.stats[0] for one in answers]
    drafted = sum(sum(counters.drafted.values()) for counters in stats)
    return sum(sum(counters.accepted.values()) for counters in stats) / drafted


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return the goals: drafting ahead pays on the longest link, and more sides cost little."""
    longest = max(row["rtt_s"] for row in rows)
    at = {
        (row["preset"], row["sides"]): row["tokens_per_s"]
        for row in rows
        if row["rtt_s"] == longest
    }
    words = f"{longest * 1e3:g} ms round trip"
    ahead = Goal(
        f"tokens/s of 5 sides ÷ those waiting for every token, {words}",
        *(at[COUPLED, 5] / at[WAITING, 5], 1.5, "at least"),
    )
    more = Goal(
        f"tokens/s of 5 sides ÷ those of 2, {words}",
        *(at[COUPLED, 5] / at[COUPLED, 2], 0.5, "at least"),
    )
    return [ahead, more]


def draw(report: Report, folder: Path) -> None:
    panels(
        folder / "more-sides.png",
        [row | {"documents": DOCUMENTS} for row in report.rows],
        x="rtt_s",
        y="tokens_per_s",
        columns="preset",
        lines="documents",
        by="sides",
        title="Tokens a second of 2, 3 and 5 sides over the round trip (virtual time)",
    )
