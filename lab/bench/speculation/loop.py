"""What the two machines of a session cost beside the models: processor time of Python per committed
token, with no codec, stream, engine or logits.

A script takes the place of the models: it says which drafts are right, and the clock moves by
declared times. Edge and cloud take turns: the edge drafts all that it wants to, its frames arrive,
the cloud runs one pass, and what that brings arrives at the edge. Each machine's calls are recorded
and then repeated on fresh machines of its own kind, as a whole and without the other one; the
fastest repetition counts. Invariant: only processor time of this process is read, so that what else
the machine does hardly counts."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

from lab.bench.harness.models import ROOT, Models
from lab.bench.harness.report import Goal, Report, Row, make_row, progress
from lab.bench.harness.suite import clean_environment
from tandem.core.distribution import Candidates
from tandem.core.errors import InvalidArgument
from tandem.core.hashing import hash_words, unit
from tandem.core.probs import Array
from tandem.core.tokens import PrefixedTokens
from tandem.specdec.cloud import CloudMachine
from tandem.specdec.cloud_checks import CloudModel
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import (
    NO_PROBS,
    Drafted,
    DraftTask,
    EdgeOutput,
    EdgeRequest,
    Interrupt,
    Send,
)
from tandem.specdec.liveness import Liveness, LivenessTimes, LostCloud, Phase
from tandem.specdec.messages import CloudMessage, EdgeMessage, GenerationParams, Open, Work
from tandem.specdec.presets import PRESETS

MEASURED = ("ar", "coupled", "stream", "auto")
TOKENS = 512
QUICK_TOKENS = 48
PROMPT_TOKENS = 64
ACCEPTANCE = 0.8
HASHED_IDS = 100_000
REPETITIONS = 9
QUICK_REPETITIONS = 2
TURNS = 5
QUICK_TURNS = 1

DRAFT_S = 0.005
VERIFY_S = 0.040
ONE_WAY_S = 0.010
"""Declared times, by the script's clock."""

VOCABULARY_SIZE = 50_000
MOST_PREFIX_MS = 5.0
"""Goal: time of a prefix hash."""

M = TypeVar("M")
Call = Callable[[M, list[DraftTask | None]], Any]


def run(report: Report, models: Models, against: str | None = None) -> None:
    """Measure the machines; with `against`, also those of that commit, by its own bench."""
    measure_machines(report)
    if against is not None:
        compare(report, against)


def measure_machines(report: Report) -> None:
    """Add what the machines of this checkout cost."""
    tokens = QUICK_TOKENS if report.quick else TOKENS
    repetitions = QUICK_REPETITIONS if report.quick else REPETITIONS
    rows = []
    for preset in MEASURED:
        progress(f"machines, {preset}")
        rows.append(machine_row(Script(report.seed), preset, tokens, repetitions))
    columns = ("edge_us_per_token", "cloud_us_per_token", "machines_us_per_token")
    report.add(
        "Processor time of the machines per committed token, µs, and frames of drafts",
        ("preset", *columns, "frames_up_per_token"),
        rows,
    )
    hashed = make_row(
        part="prefix hash", ids=HASHED_IDS, prefix_hash_ms=prefix_hash_ms(repetitions)
    )
    report.add("Prefix hash of a text", ("ids", "prefix_hash_ms"), [hashed])
    took_ms = hashed["prefix_hash_ms"]
    report.goals.append(Goal("ms for a prefix hash", took_ms, MOST_PREFIX_MS, "at most"))


def machine_row(script: Script, preset: str, tokens: int, repetitions: int) -> Row:
    """Return the row of one preset, for an answer of `tokens` tokens."""
    answer = ScriptedAnswer(script, preset, tokens)
    answer.run()
    edge_us = 1e6 * fastest_s(answer.edge, repetitions) / tokens
    cloud_us = 1e6 * fastest_s(answer.cloud, repetitions) / tokens
    return make_row(
        part="machines",
        preset=preset,
        edge_us_per_token=edge_us,
        cloud_us_per_token=cloud_us,
        machines_us_per_token=edge_us + cloud_us,
        frames_up_per_token=answer.frames_up / tokens,
    )


def prefix_hash_ms(repetitions: int) -> float:
    """Return the milliseconds that the hash of a text takes when a session opens."""
    ids = tuple(hash_words(number) % VOCABULARY_SIZE for number in range(HASHED_IDS))
    return 1e3 * min(seconds(lambda: PrefixedTokens(ids)) for _ in range(repetitions))


def seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds that `work` takes, without collecting garbage, as `timeit`
    does."""
    collects = gc.isenabled()
    gc.disable()
    try:
        started_s = time.process_time()
        work()
        return time.process_time() - started_s
    finally:
        if collects:
            gc.enable()


@dataclass(slots=True)
class Recording(Generic[M]):
    """The calls that one machine was given, to be repeated on a fresh one. Tasks are compared by
    identity, so that a call names one by its number among those that this machine gave."""

    make: Callable[[], M]
    machine: M
    tasks: list[DraftTask | None] = field(default_factory=list)
    calls: list[Call[M]] = field(default_factory=list)

    @classmethod
    def of(cls, make: Callable[[], M]) -> Recording[M]:
        return cls(make, make())

    def call(self, call: Call[M]) -> Any:
        self.calls.append(call)
        return call(self.machine, self.tasks)

    def repeat(self) -> None:
        """Make a machine, and call it as the recorded one was."""
        machine = self.make()
        tasks: list[DraftTask | None] = []
        for call in self.calls:
            call(machine, tasks)


def fastest_s(recording: Recording[M], repetitions: int) -> float:
    """Return the processor seconds of the fastest repetition, after one that warms up."""
    return min([seconds(recording.repeat) for _ in range(repetitions + 1)][1:])


@dataclass(frozen=True, slots=True)
class Script:
    """The text that the target writes, and what is drafted in its place."""

    seed: int

    def token(self, position: int, choice: int = 0) -> int:
        """Return the token of the text at a position; another one for each other `choice`."""
        return (hash_words(self.seed, position) + choice) % VOCABULARY_SIZE

    def draft(self, task: DraftTask, position: int) -> Drafted:
        """Return the draft at a position, and as runners-up other tokens: the text's own among them
        where the draft is not."""
        right = unit(hash_words(self.seed, position, 1)) < ACCEPTANCE
        others = [choice for choice in range(5) if choice != 1 - right][: task.alternatives]
        runners_up = tuple((self.token(position, choice), 0.5**choice) for choice in others)
        return Drafted(self.token(position, 1 - right), NO_PROBS, runners_up)

    def prompt_ids(self) -> tuple[int, ...]:
        return tuple(map(self.token, range(PROMPT_TOKENS)))


@dataclass(frozen=True, slots=True)
class _Decided:
    """The distribution whose coupled token is the script's."""

    script: Script

    @property
    def probs(self) -> Array:
        raise AssertionError("no distribution is computed")

    def coupled_token(self, seed: int, position: int) -> int:
        return self.script.token(position)

    def coupled_candidates(self, seed: int, position: int, count: int) -> Candidates:
        raise AssertionError("no distribution is computed")


@dataclass(slots=True)
class _Started:
    """A draft task under way at the edge, by its number, and how many tokens it has brought."""

    number: int
    task: DraftTask
    drafts: list[Drafted] = field(default_factory=list)
    reported: int = 0

    @property
    def complete(self) -> bool:
        return len(self.drafts) == self.task.count


class ScriptedAnswer:
    """One answer of both machines, in turns."""

    def __init__(self, script: Script, preset: str, tokens: int) -> None:
        """Begin an answer of exactly `tokens` tokens."""
        self.frames_up = 0
        self._script = script
        self._now = 0.0
        self._started: list[_Started] = []
        self._up: list[EdgeMessage] = []
        self._down: list[CloudMessage] = []
        request = EdgeRequest(
            session=1,
            prompt_ids=script.prompt_ids(),
            vocabulary_hash="scripted",
            vocabulary_size=VOCABULARY_SIZE,
            params=GenerationParams(max_tokens=tokens, seed=script.seed, ignore_eos=True),
            preset=PRESETS[preset],
        )
        self.edge = Recording.of(
            lambda: EdgeMachine(request, Liveness(LostCloud.FAIL, LivenessTimes(), now=0.0))
        )
        self._connect()
        opening = self._up.pop()
        assert isinstance(opening, Open), "a stream begins with Open"
        self.cloud = Recording.of(lambda: CloudMachine(opening, _MODEL, has_draft_model=False))
        self._down += self.cloud.call(lambda cloud, tasks: [cloud.opened()])

    def run(self) -> None:
        """Answer to the end."""
        while self.edge.machine.phase is not Phase.DONE:
            before = len(self.edge.machine.committed), len(self._down)
            self._draft()
            self._receive_at_cloud()
            self._pass()
            self._receive_at_edge()
            assert before != (len(self.edge.machine.committed), 0), "both ends wait"

    def _connect(self) -> None:
        now = self._now
        self._apply(self.edge.call(lambda edge, tasks: edge.connect(now)))

    def _draft(self) -> None:
        """Draft all that the edge wants, a token of every task at a time."""
        self._start()
        while self._started:
            self._now += DRAFT_S
            for started in list(self._started):
                if started in self._started:
                    self._step(started)
            self._start()

    def _start(self) -> None:
        now = self._now

        def work(edge: EdgeMachine, tasks: list[DraftTask | None]) -> DraftTask | None:
            tasks.append(edge.work(now))
            return tasks[-1]

        while (task := self.edge.call(work)) is not None:
            self._started.append(_Started(len(self.edge.tasks) - 1, task))

    def _step(self, started: _Started) -> None:
        task = started.task
        position = task.position + len(started.drafts)
        started.drafts.append(self._script.draft(task, position))
        if started.complete:
            self._started.remove(started)
        elif not task.stepwise:
            return
        drafts = started.drafts[started.reported :]
        started.reported = len(started.drafts)
        number, now = started.number, self._now
        if task.branch and not started.complete:

            def predrafted(edge: EdgeMachine, tasks: list[DraftTask | None]) -> bool:
                branch = tasks[number]
                assert branch is not None, "a task was begun"
                return edge.predrafted(branch, drafts)

            if self.edge.call(predrafted):
                return
        draft_s = DRAFT_S * len(drafts)

        def drafted(edge: EdgeMachine, tasks: list[DraftTask | None]) -> list[EdgeOutput]:
            done = tasks[number]
            assert done is not None, "a task was begun"
            return edge.drafted(done, drafts, position, draft_s, now)

        self._apply(self.edge.call(drafted))

    def _receive_at_cloud(self) -> None:
        self._now += ONE_WAY_S
        frames, self._up = self._up, []
        for frame in frames:
            self._down += self.cloud.call(_received_by_cloud(frame))

    def _pass(self) -> None:
        """Run the pass that is due, if any."""
        decided = _Decided(self._script)
        cost = Work(verify_s=VERIFY_S)

        def run(cloud: CloudMachine, tasks: list[DraftTask | None]) -> list[CloudMessage]:
            drafting = cloud.draft_task()
            assert drafting is None, "no draft model is there, and nothing to look up"
            if (work := cloud.work()) is None:
                return []
            return cloud.complete(work.judge.judge(lambda row: decided), cost)

        self._down += self.cloud.call(run)
        self._now += VERIFY_S

    def _receive_at_edge(self) -> None:
        self._now += ONE_WAY_S
        now = self._now
        messages, self._down = self._down, []
        for message in messages:
            self._apply(self.edge.call(_received_by_edge(message, now)))

    def _apply(self, outputs: Sequence[EdgeOutput]) -> None:
        for output in outputs:
            match output:
                case Send(message):
                    self._up.append(message)
                    # Of older commits too, which call them otherwise.
                    self.frames_up += hasattr(message, "token_ids")
                case Interrupt(task):
                    self._started = [one for one in self._started if one.task is not task]


def _received_by_cloud(frame: EdgeMessage) -> Call[CloudMachine]:
    return lambda cloud, tasks: cloud.receive(frame)


def _received_by_edge(message: CloudMessage, now: float) -> Call[EdgeMachine]:
    return lambda edge, tasks: edge.receive(message, now)


_MODEL = CloudModel(
    model_name="scripted",
    vocabulary_hash="scripted",
    vocabulary_size=VOCABULARY_SIZE,
    context_length=1 << 20,
    eos_token_ids=frozenset(),
    row_share=0.05,
)


def compare(report: Report, commit: str) -> None:
    """Add how this checkout's times relate to those of a commit, each by its own bench in its own
    processes, in turn: medians of the ratios over the turns."""
    flags = ("--seed", str(report.seed), *(("--quick",) if report.quick else ()))
    turns = []
    with checked_out(commit) as before:
        for turn in range(QUICK_TURNS if report.quick else TURNS):
            progress(f"turn {turn + 1}: {commit}, then this checkout")
            turns.append((figures_of(before, flags), figures_of(ROOT, flags)))
    rows = [ratio_row(name, commit, turns) for name in turns[0][0] if name in turns[0][1]]
    report.add(
        f"Relative to {commit}: medians over {len(turns)} turns",
        ("figure", "before", "now", "ratio_to_before"),
        rows,
    )


Figures = dict[str, float]


def ratio_row(name: str, commit: str, turns: Sequence[tuple[Figures, Figures]]) -> Row:
    """Return how one figure of now relates to the same one before, over all turns."""
    pairs = [(before[name], now[name]) for before, now in turns]
    return make_row(
        part="compared",
        figure=name,
        against=commit,
        before=median(before for before, _ in pairs),
        now=median(now for _, now in pairs),
        ratio_to_before=median(now / before if before else 1.0 for before, now in pairs),
    )


def figures_of(checkout: Path, flags: Sequence[str]) -> Figures:
    """Return what the bench of a checkout measures in a process of its own, by figure and preset.
    Raises InvalidArgument("against") where it has no such bench, or that fails."""
    paths = os.pathsep.join(map(str, (checkout, checkout / "gen", checkout / "lab")))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lab.bench.main", "loop", "--json", *flags],
        cwd=checkout,
        env=clean_environment() | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InvalidArgument("against", f"its bench failed: {last}")
    rows = json.loads(done.stdout)["rows"]
    return {
        f"{name}, {row['preset']}" if row["preset"] else name: figure
        for row in rows
        for name, figure in row.items()
        if name.endswith(("_us_per_token", "_ms", "frames_up_per_token"))
    }


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check a commit out into a folder of its own, which is there while the context is open. Raises
    InvalidArgument("against") if this checkout has no such commit."""
    with tempfile.TemporaryDirectory(prefix="tandem-loop-") as folder:
        tree = Path(folder, "checkout")
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            subprocess.run(
                [sys.executable, "tools/build_protos.py"], cwd=tree, check=True, capture_output=True
            )
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InvalidArgument("against", done.stderr.strip())
