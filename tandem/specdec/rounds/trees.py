"""A tree of drafts as it arrives at the cloud."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.core.tree import children, depths
from tandem.specdec.judge import Step, Steps
from tandem.specdec.messages import Drafts
from tandem.specdec.rules import Proposal


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
