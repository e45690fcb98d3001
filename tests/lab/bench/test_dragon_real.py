"""Figures of real two-sided answers, from what their summaries say."""

from __future__ import annotations

import pytest

from lab.bench.two_sided.dragon_prediction import Times
from lab.bench.two_sided.dragon_real import PRESETS, _agreement, _row, efficiency_goals
from tandem.generation.client import Generated
from tandem.two_sided.protocol.presets import AGGREGATION_PRESETS
from tandem_api.common.v1.generation_pb2 import SideSummary, Summary

TIMES = Times(0.06, 0.06, 0.3)


def answer(device: tuple[int, int], cloud: tuple[int, int], tokens: int = 20) -> Generated:
    """Drafted and accepted of each side; a token every 0.1 s."""
    sides = [SideSummary(drafted=drafted, accepted=good) for drafted, good in (device, cloud)]
    summary = Summary(device=sides[0], cloud=sides[1], side_moves=2, uplink_bytes=400)
    return Generated(
        token_ids=list(range(tokens)),
        summary=summary,
        ttft_s=0.5,
        last_commit_s=0.5 + 0.1 * (tokens - 1),
    )


def test_agreement_is_of_the_drafts_that_did_not_count() -> None:
    """20 tokens: each is a draft of its own side; of 16 drafts of the other side 12 were it."""
    assert _agreement([answer((20, 18), (16, 14))]) == pytest.approx(12 / 16)
    assert _agreement([answer((20, 20), (0, 0))]) == 0.0


@pytest.mark.parametrize("name", PRESETS)
def test_a_row_sets_what_was_measured_beside_what_was_to_be_expected(name: str) -> None:
    row = _row(AGGREGATION_PRESETS[name], TIMES, 0.3, [answer((20, 11), (20, 10))], seed=1)
    assert row["tpot_s"] == pytest.approx(0.1)
    assert row["uplink_bytes_per_token"] == 20
    assert row["efficiency"] == pytest.approx(row["predicted_tpot_s"] / 0.1)
    assert 0.06 <= row["predicted_tpot_s"] <= 0.36
    (goal,) = efficiency_goals([row])
    assert goal.figure == row["efficiency"]
