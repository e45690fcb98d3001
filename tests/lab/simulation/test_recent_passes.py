"""What a verifier publishes of its load."""

from concurrent.futures import ThreadPoolExecutor

from lab.simulation.recent_passes import COUNT_S, RecentPasses


def test_medians_of_what_was_seen() -> None:
    recent = RecentPasses()
    assert (recent.pass_s(0.0), recent.queue_s(0.0)) == (0.0, 0.0)
    for pass_s in (0.02, 0.9, 0.03):
        recent.passed(pass_s, 1.0)
        recent.waited(pass_s / 10, 1.0)
    assert (recent.pass_s(2.0), recent.queue_s(2.0)) == (0.03, 0.003)


def test_an_idle_engine_makes_nobody_wait() -> None:
    recent = RecentPasses()
    recent.waited(0.5, 1.0)
    assert recent.queue_s(1.0 + COUNT_S) == 0.5
    assert recent.queue_s(1.1 + COUNT_S) == 0.0


def test_slow_passes_are_not_held_against_an_engine_that_is_idle_since() -> None:
    """Few passes, most of them over prompts: no edge came to that cloud again."""
    recent = RecentPasses()
    for pass_s in (0.9, 0.4, 1.5):
        recent.passed(pass_s, 1.0)
    assert recent.pass_s(1.0 + COUNT_S) == 0.9
    assert recent.pass_s(1.1 + COUNT_S) == 0.4
    recent.passed(0.7, 10.0)
    assert recent.pass_s(10.0) == 0.7


def test_threads_add_while_others_read() -> None:
    recent = RecentPasses()

    def add() -> None:
        for number in range(20_000):
            recent.passed(0.02, number / 1e3)
            recent.waited(0.01, number / 1e3)

    with ThreadPoolExecutor() as pool:
        adding = [pool.submit(add) for _ in range(3)]
        while not all(each.done() for each in adding):
            assert recent.pass_s(20.0) in (0.0, 0.02)
            assert recent.queue_s(20.0) in (0.0, 0.01)
        for each in adding:
            each.result()
