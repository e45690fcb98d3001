"""What one session's cloud drafts itself, in virtual time: a token a step. Invariant: as in a real
engine, a sequence is what its KV cache was fed."""

from __future__ import annotations

from tandem.specdec.cloud import CloudMachine
from tandem.specdec.events import Drafted, DraftTask
from tandem.testing.simulation.simulated_drafts import ProbsOf, SimulatedKv


class SimulatedCloudDrafts:
    """Calls `drafted` of the session's machine once a task is done."""

    def __init__(self, cloud: CloudMachine, probs_of: ProbsOf) -> None:
        """Start with nothing drafted. `probs_of`: from the ids of a context to the distribution of
        the cloud's draft model."""
        self._cloud = cloud
        self._probs_of = probs_of
        self._kv = SimulatedKv()
        self._task: DraftTask | None = None
        self._drafts: list[Drafted] = []
        self._began = False

    def follow(self) -> None:
        """Take up what the machine asks for now. A text is computed at once."""
        while (task := self._cloud.draft_task()) is not self._task:
            self._task = task
            self._drafts = []
            self._began = False
            if task is not None and not task.count:
                self._feed(task)
                self._task = None
                self._cloud.drafted(task, [], len(self._kv.token_ids))

    @property
    def under_way(self) -> bool:
        """True if a token is to be drafted."""
        return self._task is not None

    def step(self) -> None:
        """Draft the next token."""
        if (task := self._task) is None:
            return
        if self._began:
            self._kv.feed((self._drafts[-1].token_id,))
        else:
            self._began = True
            self._feed(task)
            self._kv.check(self._cloud.committed.since(0))
        self._drafts.append(draw(self._cloud, self._probs_of, self._kv.token_ids))
        whole = len(self._drafts) == task.count
        if whole or self._drafts[-1].token_id in task.ends:
            self._task = None
            self._cloud.drafted(task, self._drafts, len(self._kv.token_ids))

    def _feed(self, task: DraftTask) -> None:
        self._kv.rollback(task.keep)
        self._kv.feed(task.token_ids)


def draw(cloud: CloudMachine, probs_of: ProbsOf, context: tuple[int, ...]) -> Drafted:
    """Return the cloud's own draft after a context, by its draft model (`probs_of`)."""
    probs = probs_of(context)
    return Drafted(cloud.rule.propose(probs, len(context)), probs)
