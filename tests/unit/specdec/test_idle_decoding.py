"""When a cloud goes on alone and when it waits for drafts, by what its passes brought."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.specdec.choices import Schedule
from tandem.specdec.messages import Verdict
from tests.virtual_time.cases import scheduled
from tests.virtual_time.cloud_frames import V, draft_after, opened_cloud, own_tokens, pass_of

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
