"""One judge for chains, trees and early exits: it walks from the first position on, from draft to
accepted draft, and ends with the first rejection, the last draft or the token that ends the text.

Invariant: lazy. A position's target distribution is asked for only once all drafts before it are
accepted, and none after the first rejection. Frozen, so that it may judge on the engine thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tandem.core.distribution import Distribution
from tandem.core.probs import Array
from tandem.core.tree import children, depths
from tandem.specdec.messages import Draft
from tandem.specdec.rules import AcceptanceRule, PayloadRule, Proposal, Replacement, TargetProbs

DistributionAt = Callable[[int], Array | Distribution]


@dataclass(frozen=True, slots=True)
class Step:
    """The drafts for the position after a node: their nodes, and what is proposed."""

    nodes: tuple[int, ...]
    proposal: Proposal


Steps = Mapping[int, Step]
"""By the node before; -1 is the last committed token. In a chain node i follows node i - 1."""


def chain_steps(proposals: Iterable[Proposal]) -> Steps:
    """The drafts of a chain, one for each position."""
    return {index - 1: Step((index,), proposal) for index, proposal in enumerate(proposals)}


@dataclass(frozen=True, slots=True)
class DraftTree:
    """A tree that was checked on intake (`check_draft`)."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    steps: Steps

    @classmethod
    def of(cls, draft: Draft) -> DraftTree:
        """Of a frame whose distributions, if any, are one per expanded node."""
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


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge found. `path`: the accepted nodes, with their `token_ids`. `targets`: the target
    of each position that was judged: those of the path and, unless the text is complete, of the
    position after it. `replacement`: what a rejection, if any, brings for that one."""

    path: tuple[int, ...]
    token_ids: tuple[int, ...]
    targets: tuple[TargetProbs, ...]
    replacement: Replacement | None = None

    @property
    def next_target(self) -> TargetProbs | None:
        """Of the position after the path; None where the text is complete, or nobody asked."""
        return self.targets[-1] if len(self.targets) > len(self.path) else None


@dataclass(frozen=True, slots=True)
class Judge:
    """The drafts of one pass, which follow the committed text from position `base` on. `frontier`:
    the target of position `base`, where an earlier pass gave it. `eos`, `length_limit`: what ends
    the text. `bonus`: whether the position after the last draft is asked for too."""

    base: int
    steps: Steps
    rule: AcceptanceRule
    payloads: PayloadRule
    eos: frozenset[int] = frozenset()
    length_limit: int = sys.maxsize
    frontier: TargetProbs | None = None
    bonus: bool = True

    def judge(self, distribution_at: DistributionAt) -> Judgement:
        """`distribution_at(row)`: the target's of a row of logits, after sampling settings."""
        path, token_ids, targets = list[int](), list[int](), list[TargetProbs]()
        node, replacement = -1, None
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
        return Judgement(tuple(path), tuple(token_ids), tuple(targets), replacement)

    def row(self, node: int) -> int:
        """Which row of the pass's logits follows a node; -1 for the frontier known before."""
        return node + 1 - (self.frontier is not None)

    def _target(self, node: int, position: int, distribution_at: DistributionAt) -> TargetProbs:
        if node < 0 and self.frontier is not None:
            return self.frontier
        return self.rule.prepare(distribution_at(self.row(node)), position)
