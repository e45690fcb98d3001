"""The edge's draft engine in virtual time: concurrent tasks, one packed pass a step. Invariant: as
in a real engine, a sequence is what its KV cache was fed, and a task that joins while a pass runs
waits for the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tandem.core.errors import ProtocolError
from tandem.core.probs import Array
from tandem.core.tree import check_path
from tandem.specdec.drafting import draw_draft, probs_to_draft_from
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Drafted, DraftTask
from tandem.specdec.rounds.tree_drafting import TreeGrowth

ProbsOf = Callable[[tuple[int, ...]], Array]


class SimulatedKv:
    """The KV cache of one session, as the token ids that were fed."""

    def __init__(self, token_ids: tuple[int, ...] = ()) -> None:
        self.token_ids = token_ids
        self._tree: list[tuple[int, ...]] = []
        self._parents: list[int] = []

    def rollback(self, length: int) -> None:
        if length > len(self.token_ids):
            raise ProtocolError(f"KV of {len(self.token_ids)} tokens", f"keep {length}")
        self.token_ids = self.token_ids[:length]
        self._drop_tree()

    def feed(self, token_ids: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """Commit a chain, or hold a tree."""
        if not token_ids:
            raise ProtocolError("a pass", "no tokens to feed")
        self._drop_tree()
        if parents is None:
            self.token_ids += tuple(token_ids)
        else:
            self.grow(token_ids, parents)

    def grow(self, token_ids: Sequence[int], parents: Sequence[int]) -> None:
        """Add nodes to the tree."""
        for token_id, parent in zip(token_ids, parents, strict=True):
            above = self._tree[parent] if parent >= 0 else ()
            self._tree.append((*above, token_id))
            self._parents.append(parent)

    def context(self, node: int) -> tuple[int, ...]:
        """Return what the distribution after a node of the tree follows, itself included."""
        return (*self.token_ids, *self._tree[node])

    def rewind(self, keep: int, path: tuple[int, ...]) -> None:
        """Rewind like `tandem.runtime.session_jobs.rewind`."""
        if not path:
            self.rollback(keep)
            return
        if len(self.token_ids) != keep:
            raise ProtocolError(f"KV of {len(self.token_ids)} tokens", f"a tree after {keep}")
        check_path(self._parents, path)
        self.token_ids += self._tree[path[-1]]
        self._drop_tree()

    def _drop_tree(self) -> None:
        self._tree = []
        self._parents = []

    def check(self, context: Sequence[int]) -> None:
        """Raise ProtocolError unless exactly `context` has been fed."""
        if self.token_ids != tuple(context):
            raise ProtocolError(f"KV of {self.token_ids}", f"context {tuple(context)}")


@dataclass(slots=True, eq=False)
class _Job:
    work: DraftTask
    context: tuple[int, ...]
    kv: SimulatedKv
    kept: int
    started: bool = False
    last: int = -1
    count: int = 0
    waiting: list[Drafted] = field(default_factory=list)
    waiting_s: float = 0.0
    growth: TreeGrowth | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """Tokens of a task that are ready, as `EdgeMachine.drafted` takes them."""

    work: DraftTask
    drafts: list[Drafted]
    kv_length: int
    draft_s: float


class SimulatedDrafts:
    """`start` and `interrupt` tasks; when `pass_due` says so, take a `step` after `step_s`."""

    def __init__(self, edge: EdgeMachine, probs: ProbsOf, step_s: float) -> None:
        self.step_s = step_s
        self._edge = edge
        self.probs = probs
        self._kv = SimulatedKv()
        self._jobs: list[_Job] = []
        self._passing: list[_Job] = []
        self.pass_number = 0

    @property
    def under_way(self) -> bool:
        """True if a pass is under way."""
        return bool(self._passing)

    @property
    def jobs_under_way(self) -> int:
        """Return how many tasks the pass is over."""
        return len(self._passing)

    def start(self, work: DraftTask) -> None:
        kv = SimulatedKv(self._kv.token_ids) if work.branch else self._kv
        job = _Job(work, self._edge.context(work), kv, work.keep)
        if work.expansion:
            job.growth = TreeGrowth(work, self._edge.rule)
        self._jobs.append(job)

    def interrupt(self, work: DraftTask) -> None:
        """Drop a task. A pass without any task left ends at once, and the next may start."""
        for job in self._jobs:
            if job.work is work:
                self._jobs.remove(job)
                if job.started or job.kv is self._kv:
                    job.kv.rollback(job.kept)  # a no-op if nothing was fed since
        if not any(job in self._jobs for job in self._passing):
            self._passing = []
            self.pass_number += 1

    def begin_pass(self) -> int | None:
        """Start a pass over all tasks, if there are any and none is under way; its number."""
        if self._passing or not self._jobs:
            return None
        self._passing = list(self._jobs)
        self.pass_number += 1
        return self.pass_number

    def end_pass(self, number: int) -> list[Report]:
        """Return the tokens that are ready once pass `number` is over; none if it was cut short."""
        if number != self.pass_number:
            return []
        jobs, self._passing = self._passing, []
        reports = [self._advance(job) for job in jobs if job in self._jobs]
        return [report for report in reports if report is not None]

    def _advance(self, job: _Job) -> Report | None:
        """Draft one token, or a tree's next layer, from distributions in wire precision."""
        self._feed(job)
        if job.growth is not None:
            return self._grow(job, job.growth)
        drafted = self._draw(job, self.probs(job.kv.token_ids))
        job.last = drafted.token_id
        job.count += 1
        job.waiting.append(drafted)
        job.waiting_s += self.step_s
        ended = job.count == job.work.count or job.last in job.work.ends or drafted.ends_chunk
        if not ended and not job.work.stepwise:
            return None
        report = Report(job.work, job.waiting, len(job.kv.token_ids), job.waiting_s)
        job.waiting = []
        job.waiting_s = 0.0
        job.kept = report.kv_length
        if ended:
            self._jobs.remove(job)
        return report

    def _feed(self, job: _Job) -> None:
        if job.started:
            if job.growth is None:
                job.kv.feed((job.last,))
            else:
                newest = [job.growth.nodes[node] for node in job.growth.newest]
                token_ids = tuple(node.token_id for node in newest)
                job.kv.grow(token_ids, tuple(node.parent for node in newest))
            return
        job.started = True
        job.kv.rewind(job.work.keep, job.work.path)
        job.kv.feed(job.work.token_ids)
        job.kv.check(job.context)

    def _grow(self, job: _Job, growth: TreeGrowth) -> Report | None:
        preset, kv = self._edge.request.preset, job.kv
        contexts = [kv.context(node) for node in growth.newest] or [kv.token_ids]
        distributions = [probs_to_draft_from(self.probs(context), preset) for context in contexts]
        job.waiting_s += self.step_s
        if not growth.grow(distributions):
            return None
        self._jobs.remove(job)
        return Report(job.work, growth.nodes, len(kv.token_ids), job.waiting_s)

    def _draw(self, job: _Job, whole_probs: Array) -> Drafted:
        work = job.work
        rule = self._edge.rule
        preset = self._edge.request.preset
        # A real job asks the logits, which there are none of here: equal at temperature 1.
        threshold = preset.confidence_threshold
        unsure = threshold > 0 and float(whole_probs.max()) < threshold
        position = work.position + job.count
        token, probs = draw_draft(whole_probs, preset, rule.propose, position)
        if not work.alternatives:
            return Drafted(token, probs, ends_chunk=unsure)
        runners_up = rule.top_alternatives(whole_probs, token, position, work.alternatives)
        return Drafted(token, probs, runners_up, ends_chunk=unsure)
