"""Figures of real two-sided answers, from what their summaries say."""

from __future__ import annotations

import pytest

from lab.bench.two_sided.dragon_latency import Times
from lab.bench.two_sided.dragon_real import PRESETS, _row
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


@pytest.mark.parametrize("name", PRESETS)
def test_a_row_has_what_summaries_say(name: str) -> None:
    row = _row(AGGREGATION_PRESETS[name], TIMES, 0.3, [answer((20, 11), (20, 10))], seed=1)
    assert row["tpot_s"] == pytest.approx(0.1)
    assert row["uplink_bytes_per_token"] == 20
    assert row["device_acceptance"] == pytest.approx(11 / 20)
    assert row["cloud_acceptance"] == pytest.approx(10 / 20)
