"""A judge whose logits are in another process: what goes there, and what comes back.

Invariant: what `whole` makes of a reading is, to the last bit, what the judge itself finds in the
same logits, but for the targets of accepted drafts, in whose place their tokens stand. Draft
distributions stay here; of the target's at most one comes back: that of the refused draft, which
its replacement is drawn from, or that of the position after all drafts. Where the rule takes tokens
alone, and at temperature 0, that is a token id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tandem.core.distribution import LogitsDistribution
from tandem.core.probs import Array, SamplingParams, one_hot
from tandem.specdec.judge import Judge, Judgement, Step, chain_steps
from tandem.specdec.rules import PayloadRule, Proposal, Replacement, TargetProbs


@dataclass(frozen=True, slots=True)
class RemoteJudge:
    """Of a chain, whose caller asks for no log-probabilities: those need whole distributions."""

    judge: Judge
    sampling: SamplingParams
    vocabulary_size: int

    @property
    def reader(self) -> LogitsReader:
        """What goes to the logits. The first draft stays here where its target is known before."""
        judge = self.judge
        steps = [judge.steps[node - 1] for node in range(len(judge.steps))]
        known = judge.frontier is not None
        light = chain_steps(_without_probs(step.proposal) for step in steps[known:])
        postponed = Postponed(judge.rule, judge.payloads.rng)
        base = judge.base + known
        rest = replace(judge, base=base, steps=light, frontier=None, payloads=postponed)
        return LogitsReader(rest, self.sampling)

    def whole(self, reading: RemoteReading) -> Judgement:
        """The judgement of the whole chain, with what a rejection brings."""
        judge = self.judge
        if judge.frontier is None:
            return self._finished(reading, ())
        only: Mapping[int, Step] = {-1: judge.steps[-1]}
        first = replace(judge, steps=only, bonus=False).judge(_no_row)
        ended = judge.base + 1 >= judge.length_limit or judge.eos.intersection(first.token_ids)
        if first.replacement is not None or ended:
            return first
        return self._finished(reading, first.token_ids)

    def _finished(self, reading: RemoteReading, first: tuple[int, ...]) -> Judgement:
        token_ids = (*first, *reading.token_ids)
        path = tuple(range(len(token_ids)))
        if reading.next is None:
            return Judgement(path, token_ids, token_ids)
        target, judge = self._target(reading.next), self.judge
        replacement = None
        if reading.refused:
            proposal = judge.steps[len(path) - 1].proposal
            replacement = judge.payloads.payload(target, proposal, judge.base + len(path))
        return Judgement(path, token_ids, (*token_ids, target), replacement)

    def _target(self, found: TargetProbs) -> TargetProbs:
        if isinstance(found, int) and not self.judge.rule.drafter_invariant:
            return one_hot(self.vocabulary_size, found)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class RemoteReading:
    """The accepted tokens, and the target of the position after them, where one was asked for; at
    temperature 0 its token. `refused`: the draft there is not that target's."""

    token_ids: tuple[int, ...]
    next: TargetProbs | None
    refused: bool


@dataclass(frozen=True, slots=True)
class LogitsReader:
    """Reads logits [rows, V] where they are."""

    judge: Judge
    sampling: SamplingParams

    def __call__(self, logits: Array) -> RemoteReading:
        found = self.judge.judge(lambda row: LogitsDistribution(logits[row], self.sampling))
        following = found.next_target
        if self.sampling.greedy and isinstance(following, np.ndarray):
            following = int(following.argmax())
        return RemoteReading(found.token_ids, following, found.replacement is not None)


class Postponed(PayloadRule):
    """Only that there was a rejection: its payload is made elsewhere."""

    __slots__ = ()
    kind = int

    def payload(self, target: TargetProbs, proposal: Proposal, position: int) -> Replacement:
        return -1


def _without_probs(proposal: Proposal) -> Proposal:
    """A single draft is judged by its probability alone."""
    if proposal.draft_probs is None:
        return proposal
    (token_id,) = proposal.token_ids
    return Proposal(proposal.token_ids, draft_prob=proposal.draft_probs[token_id])


def _no_row(row: int) -> Array:
    raise AssertionError("the frontier is known")
