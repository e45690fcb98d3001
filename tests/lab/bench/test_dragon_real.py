"""Figures of real two-sided answers, from what their summaries say."""

from __future__ import annotations

import pytest

from lab.bench.papers.dragon_smollm2 import saved
from lab.bench.two_sided.dragon_real import acceptance_of
from tandem.generation.client import Generated
from tandem.two_sided.protocol.mixture import Side
from tandem_api.common.v1.generation_pb2 import SideSummary, Summary


def answer(device: tuple[int, int], cloud: tuple[int, int], step_s: float = 0.1) -> Generated:
    """Twenty tokens; drafted and accepted of each side."""
    sides = [SideSummary(drafted=drafted, accepted=good) for drafted, good in (device, cloud)]
    return Generated(
        token_ids=list(range(20)),
        summary=Summary(device=sides[0], cloud=sides[1]),
        ttft_s=0.5,
        last_commit_s=0.5 + step_s * 19,
    )


def test_acceptance_is_of_all_answers_drafts() -> None:
    done = [answer((20, 11), (20, 10)), answer((10, 10), (0, 0))]
    assert acceptance_of(done, Side.DEVICE) == pytest.approx(21 / 30)
    assert acceptance_of(done, Side.CLOUD) == pytest.approx(10 / 20)
    assert acceptance_of(done[1:], Side.CLOUD) is None


def test_what_is_saved_has_an_error_over_questions() -> None:
    waiting = [answer((1, 1), (1, 1), step_s) for step_s in (0.2, 0.4)]
    alike = [answer((1, 1), (1, 1), step_s) for step_s in (0.1, 0.2)]
    assert saved(alike, waiting) == pytest.approx((50.0, 0.0))
    other = [answer((1, 1), (1, 1), step_s) for step_s in (0.1, 0.3)]
    share, error = saved(other, waiting)
    assert share == pytest.approx(100 * (1 - 0.4 / 0.6))
    assert error == pytest.approx(12.5)
