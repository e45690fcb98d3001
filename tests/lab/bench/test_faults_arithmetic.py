"""What `bench soak` calls growth, and what `bench overload` reads from answers and metrics."""

from __future__ import annotations

import random
from math import inf

import pytest

from lab.bench.faults.overload import Pace, Phase, goals, lag_buckets, worst_quantile
from lab.bench.faults.process_samples import of_metrics
from lab.bench.faults.slopes import BLOCKS, trend_of

MIB = 2.0**20
TIMES = [6.0 * number for number in range(300)]
"""Half an hour."""


def noisy(level: float, per_h: float, noise: float) -> list[float]:
    source = random.Random(1)
    return [level + per_h * t / 3600 + source.gauss(0, noise) for t in TIMES]


@pytest.mark.parametrize(
    ("figure", "values", "grows"),
    [
        ("rss_bytes", noisy(300 * MIB, 0.0, MIB), False),
        ("rss_bytes", noisy(300 * MIB, 40 * MIB, MIB), True),
        ("rss_bytes", noisy(300 * MIB, 2 * MIB, 0.0), False),  # below 1 % an hour
        ("rss_bytes", noisy(300 * MIB, 40 * MIB, 200 * MIB), False),  # cannot be told
        ("rss_bytes", [t * MIB for t in TIMES[:150]] + [900 * MIB] * 150, False),  # warm-up
        ("kv_bytes", noisy(1000.0, 100.0, 10.0), True),
        ("kv_bytes", [65_536.0 * (number // 25) for number in range(300)], True),  # not freed
        ("kv_bytes", [65_536.0 * (number == 299) for number in range(300)], False),  # ends late
        ("kv_bytes", [0.0] * 300, False),
        ("descriptors", [30.0] * 200 + [31.0] * 100, False),  # one more
        ("descriptors", noisy(30.0, 20.0, 0.3), True),
        ("label_values", noisy(180.0, -40.0, 1.0), False),
        ("label_values", [180.0] * 170 + [182.0] * 60 + [185.0] * 70, False),  # late statuses
        ("label_values", [180.0 + number // 10 for number in range(300)], True),  # one a minute
    ],
)
def test_what_grows(figure: str, values: list[float], grows: bool) -> None:
    assert trend_of(figure, TIMES, values).grows is grows


def test_a_slope_is_a_share_of_the_mean_per_hour() -> None:
    trend = trend_of("rss_bytes", TIMES, noisy(300 * MIB, 30 * MIB, 0.0))
    assert trend.slope_per_h == pytest.approx(0.1, rel=0.05)
    assert trend.margin_per_h < 1e-6
    assert trend.growth == pytest.approx(7.5 * MIB, rel=0.02)
    with pytest.raises(ValueError, match="at least 24"):
        trend_of("rss_bytes", TIMES[:20], [1.0] * 20)
    assert BLOCKS == 12


PAGE = """# HELP tandem_kv_bytes KV memory held by sessions.
tandem_kv_bytes{model="a",side="cloud"} 1000.0
tandem_document_kv_bytes{side="cloud"} 24.0
tandem_kv_budget_bytes{side="cloud"} 1e9
process_open_fds 31.0
"""


def requests(count: int, label: str) -> str:
    return "".join(f'tandem_requests_total{{{label}="{number}"}} 1.0\n' for number in range(count))


def test_label_values_and_bytes_of_keys_and_values_are_read_from_a_metrics_page() -> None:
    """Four names, a model and a side."""
    found = of_metrics(PAGE)
    assert found == {"label_values": 6.0, "kv_bytes": 1000.0, "document_kv_bytes": 24.0}


def test_a_series_for_each_request_grows_and_late_ones_of_known_values_do_not() -> None:
    both = [("stream", "OK"), ("spec", "UNAVAILABLE"), ("stream", "UNAVAILABLE"), ("spec", "OK")]
    series = [
        f'tandem_requests_total{{preset="{preset}",status="{status}",le="{number}"}} 1.0\n'
        for number, (preset, status) in enumerate(both)
    ]
    late = [of_metrics("".join(series[: 2 + number // 100])) for number in range(300)]
    leaking = [of_metrics(requests(number, "session")) for number in range(300)]
    bounded = [of_metrics(requests(min(number, 60), "position")) for number in range(300)]

    def grows(samples: list[dict[str, float]]) -> bool:
        return trend_of("label_values", TIMES, [each["label_values"] for each in samples]).grows

    assert [grows(late), grows(leaking), grows(bounded)] == [False, True, False]


def test_a_request_that_failed_has_waited_for_ever() -> None:
    phase = Phase("greedy", ttfts_s=[0.1] * 96)
    assert phase.ttft_s(0.95) == 0.1
    for _ in range(8):
        phase.failed("UNAVAILABLE")
    assert phase.ttft_s(0.5) == 0.1
    assert phase.ttft_s(0.95) == inf
    alone = Phase("nobody", ttfts_s=[0.06], lag_p99_s=0.05)
    assert [goal.met for goal in goals([alone, phase])] == [False, True]
    assert [goal.met for goal in goals([alone, Phase("idle", ttfts_s=[0.1])])] == [True, True]


def test_the_lag_of_the_worst_service_between_two_readings() -> None:
    def page(counts: tuple[int, int, int]) -> str:
        rows = zip(("0.01", "0.1", "+Inf"), counts, strict=True)
        name = "tandem_event_loop_lag_seconds_bucket"
        return "\n".join(f'{name}{{side="cloud",le="{bound}"}} {n}.0' for bound, n in rows)

    before = {"drafter": lag_buckets(page((900, 950, 1000)))}
    after = {"drafter": lag_buckets(page((900 + 99, 950 + 100, 1000 + 100)))}
    assert worst_quantile(before, after, 0.99) == 0.01
    assert worst_quantile(before, after, 0.999) == 0.1
    assert worst_quantile({}, {**after, "verifier": {0.01: 0.0, inf: 10.0}}, 0.99) == inf
    assert worst_quantile(before, before, 0.99) is None
    assert lag_buckets('tandem_other_bucket{le="1"} 3.0') == {}


def test_a_slower_pace_stretches_passes_and_pauses_alike_and_says_so() -> None:
    models = {"verifier": {"model": "a"}, "drafter": {"model": "b"}}
    as_is, slower = Pace(30.0), Pace(30.0, slower=3.0)
    for name in models:
        usual, stretched = as_is.settings(models)[name], slower.settings(models)[name]
        assert stretched["model"] == models[name]["model"]
        for setting in ("pace-first-s", "pace-further-s"):
            assert stretched[setting] == pytest.approx(3 * float(str(usual[setting])))
    assert slower.think_s == pytest.approx(3 * as_is.think_s)
    assert as_is.label == ""
    assert "× 3" in slower.label
