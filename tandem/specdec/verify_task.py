"""A forward pass of the target, as the cloud's machine asks for it."""

from __future__ import annotations

from tandem.core.frozen import frozen
from tandem.core.probs import Array
from tandem.core.tree import depths
from tandem.specdec.judge import Judge, Preparation
from tandem.specdec.logprobs import PromptReader
from tandem.specdec.rounds.exits import EarlyJudge


@frozen
class VerifyTask:
    """A forward pass: roll the KV back to `keep`, feed `token_ids`, return the last
    `logits_to_keep` distributions.

    The last `drafts` of the fed tokens are drafts; what precedes them is committed, but for the
    last `prepared` that the KV holds, which are drafts as well. `judge` judges all of them by these
    distributions, or reads the distributions for a later judge; `early` by those of early exits,
    None where none is read. With `parents` they are nodes of a tree, as in `tandem.core.tree`. With
    `path` the KV holds a tree after its first `keep` tokens, of which these nodes are kept in place
    of a rollback. The logits of all fed tokens go through `prompt_reader`, if there is one: this
    pass feeds the prompt. `hidden`: what the edge's layers put out for the fed tokens, where the
    session is split; the pass begins with layer `first_layer`. `by_cloud`: the drafts are the
    cloud's own."""

    keep: int
    token_ids: tuple[int, ...]
    logits_to_keep: int
    drafts: int
    judge: Judge | Preparation
    early: EarlyJudge | None = None
    parents: tuple[int, ...] | None = None
    path: tuple[int, ...] = ()
    prepared: tuple[int, ...] = ()
    hidden: Array | None = None
    first_layer: int = 0
    prompt_reader: PromptReader | None = None
    by_cloud: bool = False

    @property
    def kept(self) -> int:
        """Tokens that the KV holds before any is fed."""
        return self.keep + len(self.path)

    @property
    def positions(self) -> list[int]:
        """The position of each wanted distribution."""
        count = len(self.token_ids)
        steps = range(count) if self.parents is None else depths(self.parents)
        return [self.kept + step + 1 for step in steps][count - self.logits_to_keep :]

    def fed_before(self, row: int) -> tuple[int, ...]:
        """Return the fed tokens that the wanted distribution in `row` follows, its node's own
        last."""
        node = len(self.token_ids) - self.logits_to_keep + row
        if self.parents is None:
            return self.token_ids[: node + 1]
        path = list[int]()
        while node >= 0:
            path.append(self.token_ids[node])
            node = self.parents[node]
        return tuple(reversed(path))

    def contexts(self, before: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the text before each wanted distribution, if the KV holds the tokens `before`."""
        return [(*before, *self.fed_before(row)) for row in range(self.logits_to_keep)]
