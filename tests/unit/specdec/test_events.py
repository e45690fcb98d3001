"""The running totals of a request, and what an event leaves unsaid."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.core.sparse_payload import FullPayload
from tandem.specdec.edge_stats import EdgeStats
from tandem.specdec.messages import Committed, Opened, Work
from tandem.specdec.observers import Settled
from tests.virtual_time.cases import model_pair, preset
from tests.virtual_time.lockstep import request_for


def tell(stats: EdgeStats, right: int, work: Work, now: float = 0.0) -> None:
    """Count a message that settles drafts, of which so many are right, and the next is not."""
    message = Committed(1, 0, 0, accepted=right, token_ids=(2,), work=work)
    stats.on_committed(message, Settled.by(message, (1,) * right), (), now)


@pytest.mark.parametrize(
    ("sent", "accepted", "token_ids", "judged", "expected"),
    [
        ((5, 6, 7), 2, (8,), 3, (2, True, True)),  # a draft is refused
        ((5, 6, 7), 3, (8,), 3, (3, False, False)),  # all stand
        ((5, 6, 7), 2, (7,), 2, (3, False, False)),  # the cloud was ahead, and agrees
        ((5, 6, 7), 2, (8,), 2, (2, True, False)),  # or not
        ((5, 6, 7), 0, (5, 6, 9), 0, (2, True, False)),
        ((), 0, (5,), 0, (0, False, False)),
        ((5,), 0, (6, 7), 1, (0, True, True)),
    ],
)
def test_each_position_with_a_draft_in_flight_says_whether_it_was_right(
    sent: tuple[int, ...],
    accepted: int,
    token_ids: tuple[int, ...],
    judged: int,
    expected: tuple[int, bool, bool],
) -> None:
    message = Committed(1, 0, 0, accepted, token_ids, Work(drafts=judged))
    settled = Settled.by(message, sent)
    assert (settled.right, settled.departs, settled.refused) == expected
    assert settled.count == expected[0] + expected[1]


def test_a_draft_whose_place_the_edge_draws_was_not_right() -> None:
    payload = FullPayload(np.ones(1, dtype=np.float32))
    settled = Settled.by(Committed(1, 0, 0, 1, draw_from=payload), (5, 6))
    assert (settled.right, settled.departs, settled.refused) == (1, True, True)


def test_passes_are_counted_over_streams() -> None:
    """The cloud counts from the start of each stream."""
    stats = EdgeStats()
    stats.on_connected(0.0)
    tell(stats, 2, Work(target_passes=2))
    tell(stats, 0, Work(target_passes=3))
    stats.on_connected(0.0)
    tell(stats, 1, Work(verify_s=0.5, queue_s=0.25, target_passes=2))
    assert stats.target_passes == 5
    assert (stats.rounds, stats.accepted, stats.resumes) == (2, 3, 1)
    assert (stats.verify_s, stats.queue_s) == (0.5, 0.25)


@pytest.mark.parametrize(("ignore_eos", "expected"), [(False, {3}), (True, set())])
def test_draft_ends(ignore_eos: bool, expected: set[int]) -> None:
    request = request_for(preset("dsd"), model_pair(5), ends=frozenset({3}))
    params = replace(request.params, ignore_eos=ignore_eos)
    changed = replace(request, params=params)
    assert changed.draft_ends == expected


def test_only_the_first_stream_tells_what_was_kept_of_the_prompt() -> None:
    """A later one finds what this very request computed, which spared it nothing."""
    stats = EdgeStats(prompt_tokens=8)
    for cached in (5, 40):
        stats.on_connected(0.0)
        terms = Opened(1, 8, 0, 8, frozenset(), "scripted", cached_tokens=cached)
        stats.on_opened(terms)
        assert stats.cached_tokens == 5
    other = EdgeStats(prompt_tokens=8)
    other.on_connected(0.0)
    other.on_opened(terms)
    assert other.cached_tokens == 8, "the prompt is no longer than that"


@pytest.mark.parametrize("name", ["same_bits", "batch_invariant"])
def test_the_same_bits_are_promised_where_every_cloud_so_far_promises_them(name: str) -> None:
    stats = EdgeStats()
    told = [getattr(stats, name)]
    for promised in (True, True, False, True):
        stats.on_connected(0.0)
        promises: dict[str, Any] = {name: promised}
        terms = Opened(1, 8, 0, 8, frozenset(), "scripted")
        stats.on_opened(replace(terms, **promises))
        told.append(getattr(stats, name))
    assert told == [None, True, True, False, False]
