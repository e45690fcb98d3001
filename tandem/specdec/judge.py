"""One judge for chains, trees, early exits and logits in another process: it walks from the first
position on, from draft to accepted draft, and ends with the first rejection, the last draft or the
token that ends the text.

Invariant: lazy. A position's target distribution is asked for only once all drafts before it are
accepted, and none after the first rejection. Frozen, so that it may judge on the engine thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tandem.core.distribution import Distribution, LogitsDistribution
from tandem.core.frozen import frozen
from tandem.core.probs import Array, SamplingParams, one_hot
from tandem.specdec.messages import TokenLogprob
from tandem.specdec.rules import AcceptanceRule, PayloadRule, Proposal, Replacement, TargetProbs

DistributionAt = Callable[[int], Array | Distribution]


@frozen
class Step:
    """The drafts for the position after a node: their nodes, and what is proposed."""

    nodes: tuple[int, ...]
    proposal: Proposal


Steps = Mapping[int, Step]
"""By the node before; -1 is the last committed token. In a chain node i follows node i - 1."""


def chain_steps(proposals: Iterable[Proposal]) -> Steps:
    """Return the drafts of a chain, one for each position."""
    return {index - 1: Step((index,), proposal) for index, proposal in enumerate(proposals)}


@frozen
class Verification:
    """Result of a verification. `path`: the accepted nodes, with their `token_ids`. `targets`: the
    target of each position that was judged: those of the path and, unless the text is complete, of
    the position after it. `replacement`: what a rejection, if any, brings for that one."""

    path: tuple[int, ...]
    token_ids: tuple[int, ...]
    targets: tuple[TargetProbs, ...]
    replacement: Replacement | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Where the pass was asked for them."""

    @property
    def next_target(self) -> TargetProbs | None:
        """The target of the position after the path; None if the text is complete or it was not
        requested."""
        return self.targets[-1] if len(self.targets) > len(self.path) else None


@frozen
class Judge:
    """The drafts of one pass, which follow the committed text from position `base` on. `known`: the
    targets of the first positions, where earlier passes gave them: of `base` alone, or in a chain
    of several. `eos`, `length_limit`: what ends the text. `bonus`: whether the position after the
    last draft is asked for too."""

    base: int
    steps: Steps
    rule: AcceptanceRule
    payloads: PayloadRule
    eos: frozenset[int] = frozenset()
    length_limit: int = sys.maxsize
    known: tuple[TargetProbs, ...] = ()
    bonus: bool = True

    def judge(self, distribution_at: DistributionAt) -> Verification:
        """Judge the drafts. `distribution_at(row)` returns the target's distribution at a row of
        logits, after sampling settings."""
        path = list[int]()
        token_ids = list[int]()
        targets = list[TargetProbs]()
        node = -1
        replacement = None
        while (step := self.steps.get(node)) is not None or self.bonus:
            position = self.base + len(path)
            targets.append(self._target(node, position, distribution_at))
            if step is None:
                break
            index = self.rule.accepted(targets[-1], step.proposal, position)
            if index is None:
                replacement = self.payloads.payload(targets[-1], step.proposal, position)
                break
            node = step.nodes[index]
            path.append(node)
            token_ids.append(step.proposal.token_ids[index])
            if token_ids[-1] in self.eos or position + 1 >= self.length_limit:
                break
        return Verification(tuple(path), tuple(token_ids), tuple(targets), replacement)

    def row(self, node: int) -> int:
        """Return the row of the pass's logits that follows a node; below 0 where its target was
        known before."""
        return node + 1 - len(self.known)

    def _target(self, node: int, position: int, distribution_at: DistributionAt) -> TargetProbs:
        if node + 1 < len(self.known):
            return self.known[node + 1]
        return self.rule.prepare(distribution_at(self.row(node)), position)


@dataclass(frozen=True, slots=True)
class RemoteJudge:
    """A judge whose logits are in another process: what goes there, and what comes back.

    It judges chains, for a caller who asks for no log-probabilities: those need whole
    distributions. Draft distributions stay here; of the target's at most one comes back: that of
    the refused draft, which its replacement is drawn from, or that of the position after all
    drafts. Where the rule takes tokens alone, and at temperature 0, that is a token id.

    Invariant: what `whole` makes of a reading is, to the last bit, what the judge itself finds in
    the same logits, but for the targets of accepted drafts, in whose place their tokens stand."""

    judge: Judge
    sampling: SamplingParams
    vocabulary_size: int

    @property
    def reader(self) -> LogitsReader:
        """Return the reader to send to the logits. The first drafts stay here where their targets
        are known before."""
        judge = self.judge
        steps = [judge.steps[node - 1] for node in range(len(judge.steps))]
        known = len(judge.known)
        light = chain_steps(_without_probs(step.proposal) for step in steps[known:])
        postponed = Postponed(judge.rule, judge.payloads.rng)
        base = judge.base + known
        rest = replace(judge, base=base, steps=light, known=(), payloads=postponed)
        return LogitsReader(rest, self.sampling)

    def whole(self, reading: RemoteReading) -> Verification:
        """Return the verification of the whole chain, with what a rejection brings."""
        judge = self.judge
        known = len(judge.known)
        if not known:
            return self._finished(reading, ())
        only: Steps = {node: judge.steps[node] for node in range(-1, known - 1)}
        first = replace(judge, steps=only, bonus=False).judge(_no_row)
        end = judge.base + len(first.path)
        ended = end >= judge.length_limit or judge.eos.intersection(first.token_ids)
        if first.replacement is not None or ended:
            return first
        return self._finished(reading, first.token_ids)

    def _finished(self, reading: RemoteReading, first: tuple[int, ...]) -> Verification:
        token_ids = (*first, *reading.token_ids)
        path = tuple(range(len(token_ids)))
        if reading.next is None:
            return Verification(path, token_ids, token_ids)
        target = self._target(reading.next)
        judge = self.judge
        replacement = None
        if reading.refused:
            proposal = judge.steps[len(path) - 1].proposal
            replacement = judge.payloads.payload(target, proposal, judge.base + len(path))
        return Verification(path, token_ids, (*token_ids, target), replacement)

    def _target(self, target: TargetProbs) -> TargetProbs:
        if isinstance(target, int) and not self.judge.rule.drafter_invariant:
            return one_hot(self.vocabulary_size, target)
        return target


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
        verification = self.judge.judge(lambda row: LogitsDistribution(logits[row], self.sampling))
        following = verification.next_target
        if self.sampling.greedy and isinstance(following, np.ndarray):
            following = int(following.argmax())
        return RemoteReading(
            verification.token_ids, following, verification.replacement is not None
        )


class Postponed(PayloadRule):
    """Only that there was a rejection: its payload is made elsewhere."""

    __slots__ = ()
    kind = int

    def payload(self, target: TargetProbs, proposal: Proposal, position: int) -> Replacement:
        return -1


def _without_probs(proposal: Proposal) -> Proposal:
    """Return a proposal without distributions: a single draft is judged by its probability
    alone."""
    if proposal.draft_probs is None:
        return proposal
    (token_id,) = proposal.token_ids
    return Proposal(proposal.token_ids, draft_prob=proposal.draft_probs[token_id])


def _no_row(row: int) -> Array:
    raise AssertionError("these targets are known")
