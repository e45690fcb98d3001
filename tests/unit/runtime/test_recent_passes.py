"""What a verifier publishes of its load."""

from tandem.runtime.recent_passes import WAITS_COUNT_S, RecentPasses


def test_medians_of_what_was_seen() -> None:
    recent = RecentPasses()
    assert (recent.pass_s, recent.queue_s(0.0)) == (0.0, 0.0)
    for pass_s in (0.02, 0.9, 0.03):
        recent.passed(pass_s)
        recent.waited(pass_s / 10, 1.0)
    assert (recent.pass_s, recent.queue_s(2.0)) == (0.03, 0.003)


def test_an_idle_engine_makes_nobody_wait() -> None:
    recent = RecentPasses()
    recent.waited(0.5, 1.0)
    assert recent.queue_s(1.0 + WAITS_COUNT_S) == 0.5
    assert recent.queue_s(1.1 + WAITS_COUNT_S) == 0.0
