"""`bench cuts`: the link is cut in the middle of answers, and their text stays what it was.

Real processes, paced so that an answer takes seconds, with the link emulator between drafter and
verifier. Each request runs once undisturbed and once under a cut at a random moment; both must give
the same tokens. A cut lets nothing through, as a dead radio does: the connections stay open, and it
is the edge that has to notice.

A resumed session feeds its prompt and answer again in one pass, whose float32 rounding differs
from the passes it replaces by some 1e-7: with a chance of about one in a million per token that
changes a draw, and the texts part company. Such a difference would show here; it is not excused.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from lab.bench.harness.plots import bars
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.suite import LinkController, Models, Pacing, running_suite
from lab.bench.harness.texts import prompts
from lab.bench.harness.workload import ANSWER_TIMEOUT_S, summary_of
from tandem.generation.client import AggregatorClient, Generated
from tandem.generation.request import GenerationRequest
from tandem.net.process import run_loop
from tandem.net.status import Rejected
from tandem.specdec.choices import CloudDrafts
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import GenerationParams
from tandem.specdec.presets import PRESETS

PACING = Pacing(draft_s=0.004, verify_first_s=0.010, verify_further_s=0.001)
RTT_S = 0.030
AT_ONCE = 19
PROMPTS = 100
NOTICE_LIMIT_S = 3.0
MAX_TRIES = 6
COLUMNS = (
    "preset",
    "lost_cloud",
    "cut_s",
    "answers",
    "cut_answers",
    "same_texts",
    "tokens",
    "resumes",
    "links_lost",
    "loss_noticed_max_s",
    "unverified_tokens",
)


@dataclass(frozen=True, slots=True)
class CutPlan:
    """How many answers to interrupt, for how many seconds; the last group goes on at the edge."""

    short: int = 190
    short_s: float = 1.0
    long: int = 10
    long_s: float = 20.0
    alone: int = 5
    max_tokens: int = 64


QUICK = CutPlan(short=38, long=5, long_s=14.0)
"""The edge gives a lost cloud up after 10 s."""


@dataclass(slots=True)
class Trial:
    """One request, undisturbed and cut."""

    request: GenerationRequest
    cut_s: float
    uncut: Generated
    cut: Generated | None = None
    error: str = ""
    interrupted: bool = False
    tries: int = 0

    @property
    def verified(self) -> int:
        """Tokens before the first that the target never saw."""
        assert self.cut is not None
        return min(self.cut.unverified, default=len(self.cut.token_ids))

    @property
    def same(self) -> bool:
        """The same tokens and text; from the first unverified one on, other tokens marked so."""
        if self.cut is None or len(self.cut.token_ids) != len(self.uncut.token_ids):
            return False
        if self.cut.token_ids[: self.verified] != self.uncut.token_ids[: self.verified]:
            return False
        if self.cut.unverified:
            return self.cut.unverified == list(range(self.verified, len(self.cut.token_ids)))
        return self.cut.text == self.uncut.text


def run(report: Report, models: Models) -> None:
    """Fill the report. The goals are exact: one differing text is a fault."""
    plan = QUICK if report.quick else CutPlan()
    with running_suite(models, PACING, with_link=True) as suite:
        assert suite.link is not None, "a link was asked for"
        trials = run_loop(cut_answers(suite.aggregator, suite.link, plan, report.seed))
    report.add(
        f"Answers cut at random moments, paced pair, round trip {RTT_S * 1e3:g} ms",
        COLUMNS,
        _rows(trials, report.seed),
    )
    report.goals += goals(trials, plan)
    report.notes += [
        f"{trial.request.preset}, seed {trial.request.seed}, {trial.cut_s:g} s: "
        f"{trial.error or _difference(trial)}"
        for trial in trials
        if not trial.same
    ]


async def cut_answers(target: str, link: LinkController, plan: CutPlan, seed: int) -> list[Trial]:
    """Return a trial for every answer of the plan, at most `AT_ONCE` of them under one cut. An
    answer that was complete before its cut came is tried again."""
    source = random.Random(f"cuts {seed}")
    link.set(RTT_S, None)
    trials: list[Trial] = []
    async with AggregatorClient(target) as client:
        for group in _groups(plan, seed):
            trials += await _cut_group(client, link, group, source)
    return trials


def goals(trials: Sequence[Trial], plan: CutPlan) -> list[Goal]:
    """Return the goals that every run must meet."""
    goals_ = []
    for wanted, cut_s, policy in (
        (plan.short, plan.short_s, LostCloud.WAIT),
        (plan.long, plan.long_s, LostCloud.WAIT),
        (plan.alone, plan.long_s, LostCloud.EDGE),
    ):
        group = [t for t in trials if (t.cut_s, t.request.lost_cloud) == (cut_s, policy)]
        words = f"cut of {cut_s:g} s, {policy}"
        met = sum(trial.interrupted for trial in group)
        same = sum(trial.same and trial.interrupted for trial in group)
        goals_.append(Goal(f"answers interrupted by a {words}", met, wanted, "at least"))
        goals_.append(Goal(f"texts equal to uncut ones, {words}", same, wanted, "at least"))
    noticed = [_loss_noticed_s(t) for t in trials if t.interrupted and t.cut_s > NOTICE_LIMIT_S]
    if noticed:
        goals_.append(
            Goal("loss noticed after (s), worst", max(noticed), NOTICE_LIMIT_S, "at most")
        )
    if plan.alone:
        marked = sum(bool(t.cut and t.cut.unverified) for t in trials)
        goals_.append(Goal("answers completed at the edge", marked, plan.alone, "at least"))
    return goals_


def _loss_noticed_s(trial: Trial) -> float:
    """Return the seconds until the loss was noticed; infinity where it went unnoticed."""
    if trial.cut is None or not summary_of(trial.cut).links_lost:
        return float("inf")
    return float(summary_of(trial.cut).loss_noticed_s)


def _groups(plan: CutPlan, seed: int) -> list[list[tuple[GenerationRequest, float]]]:
    """Return batches of requests, each request with the length of its cut in seconds."""
    texts = prompts(PROMPTS)
    presets = [
        name for name, preset in PRESETS.items() if preset.cloud_drafts is not CloudDrafts.MODEL
    ]
    total = plan.short + plan.long + plan.alone
    wanted = [
        GenerationRequest(
            prompt=texts[number % len(texts)],
            preset=presets[number % len(presets)],
            params=GenerationParams(
                max_tokens=plan.max_tokens, seed=seed + number, ignore_eos=True
            ),
            lost_cloud=LostCloud.WAIT if number < plan.short + plan.long else LostCloud.EDGE,
            no_memory=True,  # the uncut answer would be drafted from, and over before the cut
        )
        for number in range(total)
    ]
    timed = [
        (request, plan.short_s if number < plan.short else plan.long_s)
        for number, request in enumerate(wanted)
    ]
    ends = [*range(0, plan.short, AT_ONCE), plan.short, plan.short + plan.long, total]
    return [timed[first:last] for first, last in pairwise(ends) if first < last]


async def _cut_group(
    client: AggregatorClient,
    link: LinkController,
    group: Sequence[tuple[GenerationRequest, float]],
    source: random.Random,
) -> list[Trial]:
    """Return the trials of one batch: each request runs undisturbed, then all run under one cut.
    Answers that were complete before the cut are tried again."""
    cut_s = group[0][1]
    progress(f"{len(group)} answers, cut of {cut_s:g} s")
    uncut = await asyncio.gather(
        *(
            client.generate(replace(request, lost_cloud=LostCloud.WAIT), ANSWER_TIMEOUT_S)
            for request, _ in group
        )
    )
    trials = [
        Trial(request, cut_s, alone) for (request, cut_s), alone in zip(group, uncut, strict=True)
    ]
    waiting = deque(trials)
    for _ in range(MAX_TRIES):
        if not waiting:
            break
        now = list(waiting)
        shortest_s = min(trial.uncut.duration_s for trial in now)
        # What goes on at the edge shall have begun before.
        earliest = 0.4 if now[0].request.lost_cloud is LostCloud.EDGE else 0.0
        await _under_a_cut(client, link, now, source.uniform(earliest, 0.8) * shortest_s)
        waiting = deque(trial for trial in now if not trial.interrupted)
    return trials


async def _under_a_cut(
    client: AggregatorClient, link: LinkController, trials: Sequence[Trial], after_s: float
) -> None:
    """Ask for all answers at once; cut the link `after_s` later for as long as the trials say."""
    answers = [asyncio.create_task(_answer(client, trial)) for trial in trials]
    await asyncio.sleep(after_s)
    link.cut()
    began_s = time.monotonic()
    try:
        await asyncio.sleep(trials[0].cut_s)
    finally:
        link.restore()
    for trial, ended_s in zip(trials, await asyncio.gather(*answers), strict=True):
        trial.interrupted = ended_s > began_s
        trial.tries += 1


async def _answer(client: AggregatorClient, trial: Trial) -> float:
    """Fill in the trial's cut answer, and return when it ended."""
    try:
        trial.cut = await client.generate(trial.request, ANSWER_TIMEOUT_S)
    except Rejected as error:
        trial.cut = None
        trial.error = f"{error.code.name} {error}"
    return time.monotonic()


def _rows(trials: Sequence[Trial], seed: int) -> list[Row]:
    rows = []
    kinds = dict.fromkeys((t.cut_s, t.request.lost_cloud, t.request.preset) for t in trials)
    for cut_s, policy, preset in kinds:
        group = [
            t
            for t in trials
            if (t.cut_s, t.request.lost_cloud, t.request.preset) == (cut_s, policy, preset)
        ]
        summaries = [summary_of(t.cut) for t in group if t.cut is not None]
        rows.append(
            make_row(
                preset=preset,
                pacing=PACING.to_json(),
                rtt_s=RTT_S,
                seed=seed,
                lost_cloud=str(policy),
                cut_s=cut_s,
                answers=len(group),
                cut_answers=sum(trial.interrupted for trial in group),
                same_texts=sum(trial.same for trial in group),
                tokens=sum(summary.tokens for summary in summaries),
                resumes=sum(summary.resumes for summary in summaries),
                links_lost=sum(summary.links_lost for summary in summaries),
                loss_noticed_max_s=max((s.loss_noticed_s for s in summaries), default=None),
                unverified_tokens=sum(summary.unverified_tokens for summary in summaries),
            )
        )
    return rows


def _difference(trial: Trial) -> str:
    """Return words that say where the two answers part."""
    assert trial.cut is not None
    theirs = trial.uncut.token_ids
    ours = trial.cut.token_ids
    pairs = enumerate(zip(theirs, ours, strict=False))
    first = next((n for n, (one, other) in pairs if one != other), min(len(theirs), len(ours)))
    return f"differs from token {first} on, of {len(theirs)} and {len(ours)}"


def draw(report: Report, folder: Path) -> None:
    noticed = {
        f"{row['preset']} {row['lost_cloud']}": row["loss_noticed_max_s"]
        for row in report.rows
        if row["cut_s"] > NOTICE_LIMIT_S
    }
    bars(
        folder / "cuts.png",
        noticed,
        ylabel="s",
        title="Slowest notice of a lost link",
        limit=NOTICE_LIMIT_S,
    )
