"""One forward pass of the target, as the cloud's machine asks for it. Invariant: a frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.core.tree import depths
from tandem.specdec.early_verdicts import EarlyJudge
from tandem.specdec.judge import DraftTree, Judge


@dataclass(frozen=True, slots=True)
class VerifyWork:
    """A forward pass: roll the KV back to `keep`, feed `token_ids`, return the last
    `logits_to_keep` distributions.

    The last `drafts` of the fed tokens are drafts; what precedes them is committed. `judge` judges
    them by these distributions; `early` by those of early exits, None where none is read. With
    `parents` they are nodes of a tree, as in `tandem.core.tree`. With `path` the KV holds a tree
    after its first `keep` tokens, of which these nodes are kept in place of a rollback."""

    keep: int
    token_ids: tuple[int, ...]
    logits_to_keep: int
    drafts: int
    judge: Judge
    early: EarlyJudge | None = None
    parents: tuple[int, ...] | None = None
    path: tuple[int, ...] = ()

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
        """The fed tokens that the wanted distribution in `row` follows, its node's own last."""
        node = len(self.token_ids) - self.logits_to_keep + row
        if self.parents is None:
            return self.token_ids[: node + 1]
        path = list[int]()
        while node >= 0:
            path.append(self.token_ids[node])
            node = self.parents[node]
        return tuple(reversed(path))

    def contexts(self, before: tuple[int, ...]) -> list[tuple[int, ...]]:
        """What each wanted distribution follows, where the KV holds the tokens `before`."""
        return [(*before, *self.fed_before(row)) for row in range(self.logits_to_keep)]


def tree_pass(
    tree: DraftTree, keep: int, path: tuple[int, ...], unfed: tuple[int, ...], judge: Judge
) -> VerifyWork:
    """The pass over a tree after the committed token that is `unfed`, if one is."""
    before = len(unfed)
    shifted = (parent + before for parent in tree.parents)
    return VerifyWork(
        keep,
        (*unfed, *tree.token_ids),
        logits_to_keep=len(tree.token_ids) + before,
        drafts=len(tree.token_ids),
        judge=judge,
        parents=(*(-1 for _ in unfed), *shifted),
        path=path,
    )
