"""`bench capacity --real`: sessions on one verifier as processes, by who drafts.

The demo pair computes, and every pass and step lasts as long as is declared: the target's as one
that reading its weights bounds, a draft step in the cloud as the given share of it. Target and
draft model of the verifier take turns, as on one accelerator. One drafter stands for all edges:
its step takes as long for 16 sessions as for one, as if each had a device of its own. All times are
dilated, so that the machine's own work counts less, and told in undilated time. Each session asks
again as soon as it is answered.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.bench.faults.capacity_cells import (
    ALONE,
    ARMS,
    CLOUD,
    CLOUD_SHARE,
    EDGES,
    TARGETS,
    bound_at,
    plan_of,
)
from lab.bench.faults.chat_load import Turn, load_figures
from lab.bench.harness.models import Models, Pacing
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.suite import Suite, running_suite
from lab.bench.harness.texts import prompts
from lab.bench.harness.workload import ANSWER_TIMEOUT_S, requests, summary_of
from lab.simulation.sessions_held import together
from tandem.generation.client import AggregatorClient, Generated
from tandem.net.process import run_loop
from tandem.specdec.presets import PRESETS


@dataclass(frozen=True, slots=True)
class Point:
    """What is declared. `share`: a draft step in the cloud ÷ a pass over one row."""

    name: str
    share: float
    rtt_s: float


POINTS = (Point("light, far", CLOUD_SHARE, 0.040), Point("heavy, near", 1 / 3, 0.0))
"""A draft step that takes the cloud a fifth of an edge's time, with the edges 40 ms away; and one
that takes it as long as an edge, with the edges beside it."""
PACING = TARGETS["memory"]
COUNTS = (4, 16, 32)
QUICK_COUNTS = (16,)
SATURATED = 16
QUICK_ARMS = (ALONE, CLOUD, "stream")
DILATION = 3.0
WARM_S = 1.5
PHASE_S = 12.0
QUICK_PHASE_S = 4.0
TOKENS = (16, 40)
"""Of an answer, at least and at most: sessions that end together would begin together."""
PROMPT = 12
"""Characters of a prompt: what the arms share would hide what they differ in."""
ROOM = 128
PATIENT = ("--dead-after-s", "30", "--give-up-after-s", "40")
"""On a machine that others use, a service may be silent for longer than a cloud that is lost."""
GAIN = 1.3
"""What edges that draft are to gain over a cloud that drafts, where the verifier is saturated."""
OUT_OF_STEP = 0.8
"""Of the simulated tokens/s, relative to what the cloud alone reaches of its own."""
COLUMNS = (
    *("point", "preset", "sessions", "tokens_per_s", "simulated_tokens_per_s"),
    *("over_cloud_draft", "bound_at_load", "tpot_p95_s", "holds", "answers", "failed"),
    *("accepted_share", "edge_busy", "cloud_busy"),
)


@dataclass(slots=True)
class Asked:
    """The turns of all sessions, and their answers."""

    turns: list[Turn] = field(default_factory=list)
    answers: list[Generated] = field(default_factory=list)


def measure_real(report: Report, models: Models, tpot_s: float) -> None:
    """Fill the report: a row for each point, number of sessions and arm. `tpot_s`: the promise."""
    rows: list[Row] = []
    for point in POINTS:
        rows += _measured(report, models, point, tpot_s)
    phase_s = QUICK_PHASE_S if report.quick else PHASE_S
    report.add(
        f"Processes paced by declared times, {phase_s:g} s each; p95 TPOT ≤ {tpot_s * 1e3:g} ms;"
        f" all times ÷ {DILATION:g}",
        COLUMNS,
        rows,
    )
    report.goals += goals(rows)
    report.notes += notes(rows)


def _measured(report: Report, models: Models, point: Point, tpot_s: float) -> Iterator[Row]:
    counts, arms = (QUICK_COUNTS, QUICK_ARMS) if report.quick else (COUNTS, ARMS)
    phase_s = QUICK_PHASE_S if report.quick else PHASE_S
    slow = Pacing(*(DILATION * seconds for seconds in PACING.to_json().values()))
    step_s = point.share * slow.verify_first_s
    cloud = ("--cloud-draft", models.draft, "--pace-cloud-draft-s", str(step_s))
    room = ("--max-sessions", str(ROOM))
    with running_suite(
        models,
        slow,
        with_link=True,
        keeps_prefixes=False,
        verifier_options=(*cloud, *room),
        drafter_options=(*room, *PATIENT),
        aggregator_options=("--max-running", str(ROOM)),
    ) as suite:
        assert suite.link is not None, "a link was asked for"
        suite.link.set(point.rtt_s * DILATION, None)
        for sessions in counts:
            figures = {}
            for arm in arms:
                progress(f"{point.name}, {sessions} sessions, {arm}")
                figures[arm] = run_loop(_load(suite, arm, sessions, phase_s, report.seed))
            yield from rows_of(point, sessions, figures, tpot_s, report.seed)


async def _load(suite: Suite, arm: str, sessions: int, phase_s: float, seed: int) -> dict[str, Any]:
    """Return the figures of this many sessions after warming up, in undilated time."""
    asked, over = Asked(), asyncio.Event()
    async with AggregatorClient(suite.aggregator) as client:
        asking = [
            asyncio.create_task(_asks(client, asked, arm, chat, seed, over))
            for chat in range(sessions)
        ]
        await asyncio.sleep(WARM_S * DILATION)
        before, began_s = suite.cpu_s(), time.monotonic()
        await asyncio.sleep(phase_s * DILATION)
        after, ended_s = suite.cpu_s(), time.monotonic()
        over.set()
        await asyncio.gather(*asking)
    turns = [turn.undilated(DILATION) for turn in asked.turns]
    figures = load_figures(turns, began_s / DILATION, ended_s / DILATION, (60.0, 60.0))
    edge_s, cloud_s = (now - then for now, then in zip(after, before, strict=True))
    lasted_s = ended_s - began_s
    return figures | {
        "accepted_share": accepted_share(asked.answers),
        "edge_busy": edge_s / lasted_s,
        "cloud_busy": cloud_s / lasted_s,
    }


async def _asks(
    client: AggregatorClient, asked: Asked, arm: str, chat: int, seed: int, over: asyncio.Event
) -> None:
    """Ask again and again until `over` is set; the last answer is received to its end."""
    text = prompts(chat + 1)[chat][:PROMPT]
    source, number = random.Random(f"{seed} {chat}"), 0
    while not over.is_set():
        number += 1
        tokens, answer_seed = source.randint(*TOKENS), seed + 1000 * chat + number
        (request,) = requests([text], arm, None, tokens, answer_seed)
        turn = Turn(chat, time.monotonic())
        asked.turns.append(turn)
        async for answer in client.stream(request, ANSWER_TIMEOUT_S):
            if came := len(answer.token_ids) - len(turn.token_ids):
                turn.arrivals.append((time.monotonic(), came))
                turn.token_ids = list(answer.token_ids)
        asked.answers.append(answer)


def accepted_share(answers: Sequence[Generated]) -> float | None:
    """Return accepted ÷ judged drafts of the cloud, or of the edge where the cloud drafted none;
    None where neither drafted any."""
    summaries = [summary_of(answer) for answer in answers]
    for kind in ("cloud_", ""):
        drafted = sum(getattr(summary, f"{kind}drafted") for summary in summaries)
        if drafted:
            return float(sum(getattr(s, f"{kind}accepted") for s in summaries) / drafted)
    return None


def rate_of_chain(share: float, length: int) -> float:
    """Return the acceptance rate a of each draft by which this share of chains of `length` drafts
    is accepted, those after a rejected one included: (a + a² + …)/length."""
    low = 0.0
    high = 1.0
    for _ in range(40):
        rate = (low + high) / 2
        if sum(rate**count for count in range(1, length + 1)) / length < share:
            low = rate
        else:
            high = rate
    return (low + high) / 2


def rows_of(
    point: Point,
    sessions: int,
    figures: dict[str, dict[str, Any]],
    tpot_s: float,
    seed: int,
) -> list[Row]:
    """Return a row for each arm, with what the simulation gives for the acceptance that was
    measured with drafts of the cloud."""
    measured = figures[CLOUD]["accepted_share"] or 0.0
    rate = rate_of_chain(measured, PRESETS[CLOUD].cloud_draft_length)
    rows = []
    bound = 1.0
    for arm, found in figures.items():
        simulated = together(plan_of(arm, PACING, point.rtt_s, rate, point.share, seed), sessions)
        if arm == CLOUD:
            bound = bound_at(simulated.drafting_share)
        tpot_p95_s = found["tpot_p95_s"]
        pacing = PACING.to_json() | {"cloud_draft_share": point.share, "dilation": DILATION}
        row = make_row(
            preset=arm, pacing=pacing, rtt_s=point.rtt_s, seed=seed, acceptance_rate=rate
        )
        rows.append(
            row
            | found
            | {
                "point": point.name,
                "sessions": sessions,
                "simulated_tokens_per_s": simulated.tokens_per_s,
                "over_cloud_draft": found["tokens_per_s"] / figures[CLOUD]["tokens_per_s"],
                "holds": tpot_p95_s is not None and tpot_p95_s <= tpot_s,
            }
        )
    return [row | {"bound_at_load": bound} for row in rows]


def goals(rows: Sequence[Row]) -> list[Goal]:
    """Return a goal for each point: with SATURATED sessions, edges that draft are at least GAIN
    times as fast as a cloud that drafts."""
    found = []
    for point in dict.fromkeys(row["point"] for row in rows):
        here = [row for row in rows if row["point"] == point and row["sessions"] == SATURATED]
        best = max(row["over_cloud_draft"] for row in here if row["preset"] in EDGES)
        what = f"edge drafts ÷ cloud drafts, tokens/s of {SATURATED} sessions, {point}"
        found.append(Goal(what, best, GAIN, "at least"))
    return found


def notes(rows: Sequence[Row]) -> list[str]:
    """Return notes on what was declared, and on where the goal is out of reach of what the cloud
    saves."""
    shares = " or ".join(f"{point.share:.3g} ({point.name})" for point in POINTS)
    first_ms = PACING.verify_first_s * 1e3
    further_ms = PACING.verify_further_s * 1e3
    words = [
        "Paced processes: the ratios are those of the declared times, not of any hardware. A pass"
        f" takes {first_ms:g} ms, and {further_ms:g} ms for each further row; a draft step at the"
        f" edges {PACING.draft_s * 1e3:g} ms; a draft step in the cloud {shares} of a"
        " pass, in turns with the passes.",
        "simulated_tokens_per_s: the same in virtual time, where the cloud drafts in step, at the"
        " acceptance that was measured with cloud-draft.",
        "Where cloud_busy or edge_busy is near 1, the machine was too slow for the declared times.",
    ]
    for point in dict.fromkeys(row["point"] for row in rows):
        here = [row for row in rows if row["point"] == point and row["preset"] == CLOUD]
        bound = max(row["bound_at_load"] for row in here)
        if bound < GAIN:
            words.append(
                f"{point}: a cloud that drafts in step needs"
                f" {1 - 1 / bound:.0%} of its time for that. Edges that draft the same tokens gain"
                f" at most {bound:.2f} times by taking it over, so {GAIN:g} is out of reach."
            )
    return words + _out_of_step(rows)


def _out_of_step(rows: Sequence[Row]) -> list[str]:
    """Return a note for each row in which a cloud that drafts was far slower than in virtual time,
    where it drafts in step for all sessions."""
    words = []
    for row in rows:
        reached, alone = _reached(row), 1.0
        for other in rows:
            here = (other["point"], other["sessions"]) == (row["point"], row["sessions"])
            if here and other["preset"] == ALONE:
                alone = _reached(other)
        if row["preset"] == CLOUD and reached < OUT_OF_STEP * alone:
            words.append(
                f"{row['point']}, {row['sessions']} sessions: cloud-draft reached {reached:.2f} of"
                f" its simulated tokens/s, where {ALONE} reached {alone:.2f}. The machine was too"
                " slow for it, or its sessions fell out of step, so that each pass judged fewer of"
                " them: gains over it are not the edges' own."
            )
    return words


def _reached(row: Row) -> float:
    return float(row["tokens_per_s"] / row["simulated_tokens_per_s"])
