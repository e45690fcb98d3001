"""Traces: read, written, applied over and over, and drawn in the shapes of access networks."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tandem.core.errors import InvalidArgument
from tandem.netem.link_model import shape_from
from tandem.netem.link_trace import LinkTrace, TraceRow, read_trace
from tandem.netem.trace_shapes import SHAPES, shaped_trace

ROWS = (TraceRow(0.0, 1.0, 10.0, 40.0), TraceRow(2.0, 4.0, 20.0, 100.0))


def test_columns_stand_in_any_order_and_others_are_passed_over(tmp_path: Path) -> None:
    lines = "rtt_ms, time_s,cell,down_mbps,up_mbps\n40,0,a,10,1\n\n100,2,b,20,4\n"
    (tmp_path / "trace.csv").write_text(lines)
    assert read_trace(tmp_path / "trace.csv") == LinkTrace(ROWS)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("", "has no column time_s, up_mbps"),
        ("time_s,up_mbps,down_mbps\n", "has no column rtt_ms"),
        ("time_s,up_mbps,down_mbps,rtt_ms\n", "has no rows"),
        ("time_s,up_mbps,down_mbps,rtt_ms\n0,1,1,x\n", "line 2 must have a number"),
        ("time_s,up_mbps,down_mbps,rtt_ms\n0,1,1\n", "line 2 must have a number"),
        ("time_s,up_mbps,down_mbps,rtt_ms\n0,1,nan,1\n", "line 2 has a number that is not finite"),
        ("time_s,up_mbps,down_mbps,rtt_ms\n1,1,1,1\n", "must begin at time 0"),
        ("time_s,up_mbps,down_mbps,rtt_ms\n0,1,1,1\n0,1,1,1\n", "does not follow 0"),
        ("time_s,up_mbps,down_mbps,rtt_ms\n0,1,1,1\n1e-9,1,1,1\n", "does not follow 0 by 0.001"),
        ("time_s,up_mbps,down_mbps,rtt_ms\n0,0,1,1\n", "up_mbps at 0 s must be"),
        ("time_s,up_mbps,down_mbps,rtt_ms\n0,1,1,-1\n", "rtt_ms at 0 s must be"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, lines: str, why: str) -> None:
    (tmp_path / "trace.csv").write_text(lines)
    with pytest.raises(InvalidArgument, match=why) as refused:
        read_trace(tmp_path / "trace.csv")
    assert refused.value.field == "trace"


def test_a_trace_begins_again_a_rows_time_after_its_last_row() -> None:
    moments = [moment for moment, _ in islice(LinkTrace(ROWS).moments(), 5)]
    assert moments == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_a_row_replaces_bandwidth_and_delay_and_keeps_jitter_and_losses() -> None:
    shape = ROWS[1].applied_to(shape_from(0.01, 50, 0.002, loss=0.1, loss_burst=2))
    assert (shape.up.bytes_per_s, shape.down.bytes_per_s) == (0.5e6, 2.5e6)
    assert shape.up.delay_s == shape.down.delay_s == 0.05
    assert (shape.up.jitter_s, shape.down.loss, shape.down.loss_burst) == (0.002, 0.1, 2)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_a_function_of_its_seed(name: str) -> None:
    trace = shaped_trace(name, 3, seconds=60)
    assert trace == shaped_trace(name, 3, seconds=60)
    assert trace != shaped_trace(name, 4, seconds=60)
    assert 55 <= trace.period_s <= 61


def test_the_shapes_differ_as_their_networks_do() -> None:
    means = {
        name: [
            sum(getattr(row, field) for row in trace.rows) / len(trace.rows)
            for field in ("up_mbps", "down_mbps", "rtt_ms")
        ]
        for name in SHAPES
        for trace in [shaped_trace(name, 1)]
    }
    assert means["wifi"][2] < means["satellite"][2] < means["lte"][2]
    assert means["satellite"][0] < means["satellite"][1] / 5
    assert means["lte"][0] < means["lte"][1] / 3
