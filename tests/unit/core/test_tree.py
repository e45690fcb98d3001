"""Token trees as parent indices: depths, ancestors and paths, and what is no tree."""

import numpy as np
import pytest

from tandem.core.errors import InvalidArgument
from tandem.core.tree import ancestors, check_parents, check_path, children, depths, expansion_nodes

#          0   1  2  3   4
PARENTS = (-1, 0, 0, 1, -1)


def test_depths_count_from_the_last_committed_token() -> None:
    assert depths(PARENTS) == [0, 1, 1, 2, 0]


def test_ancestors_are_the_path_from_the_root() -> None:
    marks = [set(np.flatnonzero(row).tolist()) for row in ancestors(PARENTS)]
    assert marks == [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {4}]


@pytest.mark.parametrize("parents", [(0, 0, 0), (-1, 2, 0), (-2, 0, 0), (-1, 0)])
def test_a_parent_must_come_before_its_node(parents: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="parents"):
        check_parents(parents, 3)


@pytest.mark.parametrize("path", [(), (0,), (0, 1, 3), (4,), (0, 2)])
def test_paths_lead_from_a_root_downwards(path: tuple[int, ...]) -> None:
    check_path(PARENTS, path)


@pytest.mark.parametrize("path", [(1,), (0, 3), (0, 4), (5,), (-1,), (0, 1, 1)])
def test_other_node_lists_are_no_paths(path: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgument, match="indices"):
        check_path(PARENTS, path)


def test_no_path_without_a_tree() -> None:
    with pytest.raises(InvalidArgument, match="no tree"):
        check_path(None, ())


def test_children_are_listed_by_expanded_node() -> None:
    assert children((-1, -1, 0, 0, 1, -1)) == {-1: [0, 1, 5], 0: [2, 3], 1: [4]}
    assert list(children((-1, 0, -1, 2, 0))) == [-1, 0, 2]
    assert children(()) == {}


@pytest.mark.parametrize(("expansion", "nodes"), [((), 0), ((3,), 3), ((2, 2, 2), 14), ((4, 1), 8)])
def test_the_nodes_of_an_expansion(expansion: tuple[int, ...], nodes: int) -> None:
    assert expansion_nodes(expansion) == nodes


def test_nodes_that_come_after_others_may_have_those_as_parents() -> None:
    check_parents((2, 3), 2, first=3)
    for parents, first in (((3, 3), 3), ((2, 4), 3), ((0,), 0), ((-2,), 3)):
        with pytest.raises(InvalidArgument):
            check_parents(parents, len(parents), first=first)
    check_parents((-1, 0, 1), 3)
