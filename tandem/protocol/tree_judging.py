"""The cloud's side of a draft tree: the pass it needs, and the walk down the path that stands.

Invariant: at each node of the path its candidates are judged by the law after that node, and by no
other; the walk ends with the first position at which none stands, or with a leaf. Must not import
asyncio, grpc, torch or time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandem.core.laws import Array
from tandem.core.tree import children, depths
from tandem.protocol.messages import Draft
from tandem.protocol.rules import AcceptanceRule, TargetLaw
from tandem.protocol.verify_work import VerifyWork


class ProposedTree:
    """A tree that was checked on intake (`check_draft`)."""

    def __init__(self, draft: Draft) -> None:
        assert draft.parents is not None, "a tree has parents"
        self.token_ids = draft.token_ids
        self.parents = draft.parents
        self.layers = max(depths(draft.parents)) + 1
        self._candidates = children(draft.parents)
        order = {node: index for index, node in enumerate(self._candidates)}
        laws = draft.laws
        self._laws = {} if laws is None else {node: laws[order[node]] for node in order}

    def candidates(self, node: int) -> list[int]:
        """The nodes that stand for the position after `node`."""
        return self._candidates.get(node, [])

    def draft_probs(self, node: int) -> Array | None:
        """The law that they were drawn from, where the uplink carries it."""
        return self._laws.get(node)


@dataclass(frozen=True, slots=True)
class JudgedTree:
    """The accepted nodes from the root down; whether all candidates after them were refused; the
    token that follows, None when the text is complete."""

    path: tuple[int, ...]
    rejected: bool
    token: int | None


def tree_pass(
    tree: ProposedTree, keep: int, path: tuple[int, ...], unfed: tuple[int, ...]
) -> VerifyWork:
    """The pass that brings a tree's judgement on: the tree after the one committed token that is
    not `unfed`, or a longer text first, whose own mask costs less."""
    if len(unfed) > 1:
        return VerifyWork(keep, unfed, wanted=1, drafts=0, path=path)
    nodes, before = len(tree.token_ids), len(unfed)
    shifted = (parent + before for parent in tree.parents)
    return VerifyWork(
        keep,
        (*unfed, *tree.token_ids),
        wanted=nodes + before,
        drafts=nodes,
        parents=(*(-1 for _ in unfed), *shifted),
        path=path,
    )


def judge_tree(
    tree: ProposedTree,
    target_laws: Sequence[TargetLaw],
    rule: AcceptanceRule,
    base: int,
    commit: Callable[[int, TargetLaw], bool],
) -> JudgedTree:
    """Walk down from position `base`. target_laws[i + 1] is the law after node i, target_laws[0]
    the one after the committed text. `commit` takes each token that is final with its law, and
    answers whether the text is complete with it."""
    path: list[int] = []
    while True:
        node = path[-1] if path else -1
        law, position = target_laws[node + 1], base + len(path)
        nodes = tree.candidates(node)
        if not nodes:
            token = rule.own_token(law, position)
            commit(token, law)
            return JudgedTree(tuple(path), rejected=False, token=token)
        token_ids = [tree.token_ids[candidate] for candidate in nodes]
        index, token = rule.choose(law, token_ids, tree.draft_probs(node), position)
        complete = commit(token, law)
        if index is None:
            return JudgedTree(tuple(path), rejected=True, token=token)
        path.append(nodes[index])
        if complete:
            return JudgedTree(tuple(path), rejected=False, token=None)
