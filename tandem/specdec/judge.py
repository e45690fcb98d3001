"""One judge for chains, trees and early exits: it walks from the first position on, from draft to
accepted draft, and ends with the first rejection, the last draft or the token that ends the text.

Invariant: lazy. A position's target distribution is asked for only once all drafts before it are
accepted, and none after the first rejection. Frozen, so that it may judge on the engine thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping

from tandem.core.distribution import Distribution
from tandem.core.frozen import frozen
from tandem.core.probs import Array
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
        node, position = -1, self.base
        rule, replacement = self.rule, None
        while (step := self.steps.get(node)) is not None or self.bonus:
            if (row := self.row(node)) < 0:
                target = self.known[node + 1]
            else:
                target = rule.prepare(distribution_at(row), position)
            targets.append(target)
            if step is None:
                break
            proposal = step.proposal
            index = rule.accepted(target, proposal, position)
            if index is None:
                replacement = self.payloads.payload(target, proposal, position)
                break
            node, token_id = step.nodes[index], proposal.token_ids[index]
            path.append(node)
            token_ids.append(token_id)
            position += 1
            if token_id in self.eos or position >= self.length_limit:
                break
        return Verification(tuple(path), tuple(token_ids), tuple(targets), replacement)

    def row(self, node: int) -> int:
        """Return the row of the pass's logits that follows a node; below 0 where its target was
        known before."""
        return node + 1 - len(self.known)


@frozen
class Preparation:
    """Judges nothing (PreVerify: PicoSpec, §3.2): the idle cloud feeds the first drafts of a chunk
    before that is whole, and only reads the targets of `rows` positions from `base` on."""

    base: int
    rows: int
    rule: AcceptanceRule

    def judge(self, distribution_at: DistributionAt) -> Verification:
        """Return the targets, with an empty path. `distribution_at` is as for `Judge`."""
        targets = (
            self.rule.prepare(distribution_at(row), self.base + row) for row in range(self.rows)
        )
        return Verification((), (), tuple(targets))
