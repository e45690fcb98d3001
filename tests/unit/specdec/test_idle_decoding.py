"""When a cloud goes on alone and when it waits for drafts, by what its passes brought."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.specdec.choices import Schedule
from tandem.specdec.messages import Verdict, Work
from tests.virtual_time.cases import scheduled
from tests.virtual_time.cloud_frames import (
    MODELS,
    V,
    draft_after,
    opened_cloud,
    own_tokens,
    pass_of,
)
from tests.virtual_time.lockstep import judgement_for

IDLE = replace(scheduled("coupled", Schedule(4, 2, decode_when_idle=True)), idle_weight=0.5)
"""Goes on alone as long as a pass over drafts brings two tokens, as is assumed at first."""


@pytest.mark.parametrize(("accepted", "waits"), [(0, False), (1, False), (2, True)])
def test_drafts_are_waited_for_where_they_bring_more_than_their_passes(
    accepted: int, waits: bool
) -> None:
    right = own_tokens(IDLE, 5)
    cloud = opened_cloud(IDLE)
    pass_of(cloud)
    assert cloud.work() is not None, "two tokens a pass are assumed"
    cloud = opened_cloud(IDLE)
    pass_of(cloud)
    drafts = tuple(t if n < accepted else (t + 1) % V for n, t in enumerate(right[1:3]))
    assert cloud.receive(draft_after(cloud, drafts)) == []
    (verdict,) = pass_of(cloud)
    assert isinstance(verdict, Verdict)
    assert verdict.accepted == accepted
    assert (cloud.work() is None) == waits


def test_a_draft_that_comes_too_late_leaves_the_next_distribution_as_it_is() -> None:
    """A draft says that more come soon while a pass runs alone: that one's distribution is kept.
    The next draft contradicts a token that stands already, and ends the epoch, not the text."""
    preset = scheduled(
        "coupled", Schedule(8, 2, verify_on_arrival=True, decode_when_idle=True, bonus=True)
    )
    right = own_tokens(preset, 4)
    cloud = opened_cloud(preset)
    before = draft_after(cloud, right[:1], hold=True)
    late = draft_after(cloud, ((right[1] + 1) % V,), right[:1], hold=True)
    pass_of(cloud)
    pass_of(cloud)
    work = cloud.work()
    assert work is not None
    assert cloud.receive(before) == []
    assert cloud.complete(judgement_for(MODELS, cloud, work), Work()) == []
    assert cloud.receive(late) == []
    assert cloud.receive(draft_after(cloud, right[2:4])) == []
    (verdict,) = pass_of(cloud)
    assert isinstance(verdict, Verdict)
    assert verdict.accepted == 2
    assert cloud.committed.since(2)[:4] == right
