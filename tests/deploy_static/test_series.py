"""The cross-check itself: it must see what it is there to see."""

from __future__ import annotations

import pytest

from tests.deploy_static.series import complaints, exported

SERIES = {
    "tandem_tokens_total": frozenset({"preset", "side", "job", "instance"}),
    "tandem_ttft_bucket": frozenset({"preset", "le", "job", "instance"}),
}


@pytest.mark.parametrize(
    ("expression", "asked"),
    [
        ("rate(tandem_tokns_total[5m])", "tandem_tokns_total"),
        ('sum(rate(tandem_tokens_total{presett=~"$preset"}[5m]))', "tandem_tokens_total{presett}"),
        ("sum by (model) (tandem_tokens_total)", "model"),
        ("tandem_tokens_total / on (preset) old_total", "old_total"),
        ('tandem_tokens_total{preset="a",le!~"b"}', "tandem_tokens_total{le}"),
        ("avg_over_time((sum by (hostname) (tandem_tokens_total))[5m:15s])", "hostname"),
    ],
)
def test_what_is_not_exported_is_named(expression: str, asked: str) -> None:
    assert [complaint.asked for complaint in complaints(expression, SERIES)] == [asked]


@pytest.mark.parametrize(
    "expression",
    [
        'sum by (preset, job) (rate(tandem_tokens_total{preset=~"$preset"}[$__rate_interval]))',
        "histogram_quantile(0.95, sum by (le) (rate(tandem_ttft_bucket[5m]))) > 1e3",
        "(sum(tandem_tokens_total) or vector(0)) / sum(tandem_tokens_total offset 5m)",
        "tandem_tokens_total and on (preset) tandem_ttft_bucket unless tandem_tokens_total",
    ],
)
def test_what_is_exported_passes(expression: str) -> None:
    assert list(complaints(expression, SERIES)) == []


def test_the_code_declares_what_it_exports() -> None:
    series = exported()
    assert series["tandem_requests_total"] >= {"preset", "model_name", "side", "status"}
    assert "le" in series["tandem_round_trip_seconds_bucket"]
    assert "le" not in series["tandem_round_trip_seconds_sum"]
    assert "tandem_round_trip_seconds" not in series
