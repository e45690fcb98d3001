"""Trees at the edge: what is drafted, sent, committed and kept; verdicts no honest cloud sends."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.errors import ProtocolError
from tandem.core.randomness import SeededRandom
from tandem.core.sparse_payload import FullPayload
from tandem.core.tokens import PrefixMismatch
from tandem.specdec.edge import EdgeMachine
from tandem.specdec.events import Commit, Drafted, DraftTask, EdgeOutput, Interrupt
from tandem.specdec.liveness import LostCloud
from tandem.specdec.messages import Committed, Drafts, Open, Work
from tandem.specdec.proposers import DraftSource
from tandem.specdec.rounds.tree_drafting import TreeGrowth
from tandem.specdec.rules import acceptance_rule
from tests.virtual_time.cases import preset, tree
from tests.virtual_time.edge_frames import (
    PROBS,
    connected,
    draft,
    drafts_in_flight,
    drafts_of,
    sent,
    task_of,
    tokens_of,
    verdict_of,
)
from tests.virtual_time.machine_state import state_of

TREE = tree((2, 2))
#         0   1   2   3   4   5
TOKENS = (0, 1, 1, 2, 0, 2)
PARENTS = (-1, -1, 0, 0, 1, 1)


def drafted_edge(**options: Any) -> EdgeMachine:
    """An edge whose first tree is in flight."""
    edge = connected(TREE, **options)
    work = task_of(edge)
    send_tree(edge, work)
    return edge


def send_tree(edge: EdgeMachine, work: DraftTask) -> list[EdgeOutput]:
    nodes = [
        Drafted(token, PROBS, parent=parent) for token, parent in zip(TOKENS, PARENTS, strict=True)
    ]
    return edge.drafted(work, nodes, work.position, 0.01, 0.0)


def verdict(
    edge: EdgeMachine,
    path: tuple[int, ...],
    outcome: int | None,
    **changes: Any,
) -> Committed:
    tokens = tuple(TOKENS[node] for node in path if node < len(TOKENS))
    tokens += () if outcome is None else (outcome,)
    frame = {
        "session": edge.request.session,
        "base": len(edge.committed),
        "prefix_hash": edge.committed.prefix_with(tokens),
        "accepted": len(path),
        "token_ids": () if outcome is None else (outcome,),
        "work": Work(drafts=len(TOKENS)),
        "path": path,
    }
    return Committed(**{**frame, **changes})


def test_a_tree_goes_up_whole_with_one_distribution_per_expanded_node() -> None:
    edge = connected(TREE)
    work = task_of(edge)
    assert (work.count, work.expansion, work.path) == (2, (2, 2), ())
    assert edge.work(0.0) is None
    (frame,) = sent(send_tree(edge, work))
    assert isinstance(frame, Drafts)
    assert (frame.token_ids, frame.parents, frame.end_of_chunk) == (TOKENS, PARENTS, True)
    assert frame.distributions is not None
    assert frame.distributions.shape == (3, len(PROBS))
    assert edge.work(0.0) is None
    assert edge.stats.drafted == 2


@pytest.mark.parametrize(
    ("path", "outcome", "rejected", "committed", "kept", "fed"),
    [
        ((1, 5), 0, False, (1, 2, 0), (1,), (2, 0)),
        ((0, 2), 2, False, (0, 1, 2), (0,), (1, 2)),
        ((1,), 1, True, (1, 1), (1,), (1,)),
        ((), 2, True, (2,), (), (2,)),
    ],
)
def test_the_path_is_committed_and_its_keys_and_values_kept(
    path: tuple[int, ...],
    outcome: int,
    rejected: bool,
    committed: tuple[int, ...],
    kept: tuple[int, ...],
    fed: tuple[int, ...],
) -> None:
    """The last layer was never fed; the bonus or recovered token neither."""
    edge = drafted_edge()
    outputs = edge.receive(verdict(edge, path, outcome), 0.1)
    tokens = [token for out in outputs if isinstance(out, Commit) for token in out.token_ids]
    assert tuple(tokens) == committed
    assert edge.stats.accepted == len(path)
    assert len(edge.stats.acceptance_histogram) == 1 + len(path) + rejected
    work = task_of(edge, 0.2)
    assert (work.keep, work.path, work.token_ids) == (2, kept, fed)
    assert work.position == 2 + len(committed)


def test_a_remembered_branch_was_not_fed_and_leaves_no_path() -> None:
    """It is judged like any tree; what was accepted of it is fed with the next task."""
    edge = connected(tree((2, 2)), max_tokens=12)
    task = task_of(edge)
    drafts = [
        replace(drafted, parent=index - 1)
        for index, drafted in enumerate(drafts_of(0, 1, source=DraftSource.MEMORY))
    ]
    edge.drafted(task, drafts, task.keep, 0.0, 0.0)
    assert edge.kv_length == task.keep == 0
    verdict = replace(verdict_of(edge, 2, outcome=2), path=(0, 1))
    edge.receive(verdict, 0.0)
    assert edge.committed.since(2) == (0, 1, 2)
    following = task_of(edge)
    assert (following.keep, following.path) == (0, ())
    assert following.token_ids == (1, 2, 0, 1, 2)
    assert edge.stats.accepted_memory_tokens == 2


def test_an_interrupted_task_gives_no_path_away() -> None:
    """Whether it ran is not known: the KV is rolled back to what surely stands."""
    edge = drafted_edge()
    edge.receive(verdict(edge, (1, 5), 0), 0.1)
    task = task_of(edge, 0.2)
    assert Interrupt(task) in edge.receive(tokens_of(edge, 2), 0.25)
    again = task_of(edge, 0.3)
    assert (again.keep, again.path, again.token_ids) == (2, (), (1, 2, 0, 2))


BAD: dict[str, tuple[tuple[int, ...], int | None, dict[str, Any]]] = {
    "a node that is no root": ((2,), 0, {}),
    "not a child": ((0, 4), 0, {}),
    "below a leaf": ((1, 5, 0), 0, {}),
    "no such node": ((0, 9), 0, {"prefix_hash": 0}),
    "twice the same": ((1, 1), 0, {}),
    "another count": ((1, 5), 0, {"accepted": 1}),
    "no path": ((), 0, {"accepted": 1}),
    "nothing committed": ((), None, {}),
    "a distribution of a tree": ((1,), None, {"draw_from": FullPayload(PROBS)}),
    "another text": ((1, 5), 0, {"prefix_hash": 5}),
    "another base": ((1, 5), 0, {"base": 3}),
    "a foreign token": ((1,), 99, {}),
}


@pytest.mark.parametrize("case", BAD)
def test_a_verdict_that_no_honest_cloud_sends_changes_nothing(case: str) -> None:
    path, outcome, changes = BAD[case]
    edge = drafted_edge()
    before = state_of(edge)
    with pytest.raises((ProtocolError, PrefixMismatch)):
        edge.receive(verdict(edge, path, outcome, **changes), 0.1)
    assert state_of(edge) == before
    edge.receive(verdict(edge, (1, 5), 0), 0.2)
    assert edge.committed.since(2) == (1, 2, 0)


def test_a_chain_s_verdict_has_no_path() -> None:
    edge = connected(preset("coupled", 2))
    draft(edge, 0, 1)
    with pytest.raises(ProtocolError):
        edge.receive(replace(verdict_of(edge, 2), path=(0, 1)), 0.1)


def test_a_tree_is_sent_again_on_a_fresh_stream() -> None:
    edge = drafted_edge()
    edge.lost(0.1)
    opening, frame = sent(edge.connect(0.2))
    assert isinstance(opening, Open)
    assert (frame.token_ids, frame.parents) == (TOKENS, PARENTS)
    edge.receive(verdict(edge, (0,), 2), 0.3)
    assert edge.committed.since(2) == (0, 2)


def test_the_clouds_own_token_voids_the_tree() -> None:
    edge = drafted_edge()
    edge.receive(tokens_of(edge, 2), 0.1)
    assert edge.committed.since(2) == (2,)
    assert drafts_in_flight(edge) == ()
    work = task_of(edge, 0.2)
    assert (work.keep, work.path, work.token_ids) == (2, (), (2,))


def test_alone_the_first_branch_is_the_answer_and_drafting_no_longer_branches() -> None:
    edge = drafted_edge(lost_cloud=LostCloud.EDGE)
    outputs = edge.lost(20.0)
    (commit,) = [out for out in outputs if isinstance(out, Commit)]
    assert (commit.token_ids, commit.unverified) == ((0, 1), True)
    work = task_of(edge, 20.0)
    assert work.expansion == (1,) * 8
    assert (work.keep, work.token_ids) == (2, (0, 1))


def newest_parents(growth: TreeGrowth) -> tuple[int, ...]:
    return tuple(growth.nodes[node].parent for node in growth.newest)


def test_each_expanded_node_sends_the_distribution_after_it() -> None:
    edge = connected(tree((2, 1)))
    work = task_of(edge)
    after_text, after_first, after_second = np.eye(3, dtype=np.float32) * 0.5 + PROBS / 2
    nodes = [
        *(Drafted(token, after_text) for token in (0, 1)),
        Drafted(1, after_first, parent=0),
        Drafted(2, after_second, parent=1),
    ]
    (frame,) = sent(edge.drafted(work, nodes, work.position, 0.01, 0.0))
    assert frame.parents == (-1, -1, 0, 1)
    np.testing.assert_array_equal(frame.distributions, [after_text, after_first, after_second])


def test_a_tree_grows_to_its_last_layer_or_until_all_have_ended() -> None:
    rule = acceptance_rule(tree((2, 2)), 1, SeededRandom(1))
    for ends, complete in ((frozenset[int](), False), (frozenset({0, 1, 2}), True)):
        growth = TreeGrowth(DraftTask(0, (1,), 2, 2, ends, expansion=(2, 2)), rule)
        assert growth.width == 2
        assert not growth.grow([PROBS])
        assert len(growth.newest) == 2
        assert newest_parents(growth) == (-1, -1)
        assert growth.grow([PROBS, PROBS])
        assert (len(growth.newest) == 0) is complete
    deeper = TreeGrowth(DraftTask(0, (1,), 2, 3, frozenset({0, 1, 2}), expansion=(1, 1, 1)), rule)
    assert not deeper.grow([PROBS])
    assert deeper.grow([PROBS]), "nothing is left to expand"
