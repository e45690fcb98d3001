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
from tandem.core.randomness import RandomSource
from tandem.core.sparse_payload import FullPayload
from tandem.core.tree import children, depths
from tandem.specdec.choices import RejectionPayload
from tandem.specdec.messages import Drafts, EarlyVerdict, Frame, TokenLogprob
from tandem.specdec.presets import VerifySettings
from tandem.specdec.rules import (
    AcceptanceRule,
    PayloadRule,
    Proposal,
    Replacement,
    TargetProbs,
    payload_rule,
)

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


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree that was checked on intake (`check_draft`)."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    steps: Steps

    @classmethod
    def of(cls, draft: Drafts) -> DraftTree:
        """Create it from a frame whose distributions, if any, are one per expanded node."""
        assert draft.parents is not None, "a tree has parents"
        steps = {}
        for index, (node, nodes) in enumerate(children(draft.parents).items()):
            token_ids = tuple(draft.token_ids[child] for child in nodes)
            probs = None if draft.distributions is None else draft.distributions[index]
            steps[node] = Step(tuple(nodes), Proposal(token_ids, draft_probs=probs))
        return cls(draft.token_ids, draft.parents, steps)

    @property
    def layers(self) -> int:
        return max(depths(self.parents)) + 1


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


@frozen
class Preparation:
    """Judges nothing: the pass only reads the targets of `rows` positions from `base` on, for a
    judge of drafts that have not all arrived."""

    base: int
    rows: int
    rule: AcceptanceRule

    def judge(self, distribution_at: DistributionAt) -> Verification:
        """Return the targets, with an empty path. `distribution_at` is as for `Judge`."""
        targets = (
            self.rule.prepare(distribution_at(row), self.base + row) for row in range(self.rows)
        )
        return Verification((), (), tuple(targets))


EARLY_TOP = 32
"""Most entries of an early payload: it is a guess, and not worth the bytes of a whole one."""


@frozen
class EarlyJudge:
    """Judges the drafts of one pass by its early exits: what the verdict will probably be.

    FSD §3, steps 2 and 3: every exit judges the drafts as the pass itself will, with the same
    random numbers, so that its verdict is the final one wherever its distributions are. The judge
    is the pass's own but for smaller payloads. Early verdicts change nothing on either side but
    what is drafted ahead. `temperatures`, of all exits of the model, calibrate how sure each is;
    empty: 1."""

    frame: Frame
    exits: tuple[int, ...]
    judge: Judge
    temperatures: tuple[float, ...] = ()

    def temperature(self, exit_index: int) -> float:
        """Return what an exit's logits are divided by before its confidence is read."""
        return self.temperatures[exit_index] if self.temperatures else 1.0

    def verdict(
        self,
        exit_index: int,
        distribution_at: DistributionAt,
        confidence_at: Callable[[int], float],
    ) -> EarlyVerdict | None:
        """Return the verdict of exit `exit_index`, or None if nothing follows.

        Args:
            exit_index: which of the target's exits this is.
            distribution_at: the exit's distribution in a row of the pass, after sampling settings.
            confidence_at: how sure the exit is in a row, in [0, 1]."""
        judge = self.judge
        verification = judge.judge(distribution_at)
        target = verification.next_target
        accepted = len(verification.path)
        if target is None:
            return None
        row = judge.row(verification.path[-1] if accepted else -1)
        outcome = verification.replacement
        if outcome is None:
            outcome = judge.rule.target_token(target, self.frame.base + accepted)
        assert not isinstance(outcome, FullPayload), "early verdicts are small"
        return EarlyVerdict(
            session=self.frame.session,
            base=self.frame.base,
            prefix_hash=self.frame.prefix_hash,
            exit_index=exit_index,
            accepted=accepted,
            rejected=verification.replacement is not None,
            outcome=outcome,
            confidence=confidence_at(row) if row >= 0 else 1.0,
        )


def early_payload_rule(
    settings: VerifySettings, rule: AcceptanceRule, rng: RandomSource
) -> PayloadRule:
    """Return the rejection payload of early verdicts: the session's own, made small. Where the edge
    draws, it is a sparse one, whatever it is in the end."""
    payload = settings.rejection_payload
    top = min(settings.payload_top, EARLY_TOP)
    if payload is RejectionPayload.FULL_DISTRIBUTION:
        payload = RejectionPayload.LOSSLESS_SPARSE
        top = EARLY_TOP
    return payload_rule(replace(settings, rejection_payload=payload, payload_top=top), rule, rng)


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
