"""The number of threads follows what passes take: virtual machines with so many free processors."""

from collections.abc import Callable

from tandem.backends.llamacpp.adaptive_threads import AdaptiveThreads, halvings

PASS_S = 0.1


def quiet(processors: int) -> Callable[[int], float]:
    """Seconds of a pass on free processors: fewer threads take longer; waiting ones spin."""

    def pass_s(threads: int) -> float:
        return PASS_S / threads if threads <= processors else PASS_S * threads

    return pass_s


def run(threads: AdaptiveThreads, pass_s: Callable[[int], float], passes: int) -> float:
    """Run passes over one token; return their seconds."""
    total_s = 0.0
    for _ in range(passes):
        took_s = pass_s(threads.choose(1))
        threads.took(1, took_s)
        total_s += took_s
    return total_s


def test_a_quiet_machine_gives_all_its_processors_and_trials_cost_little() -> None:
    threads = AdaptiveThreads(halvings(4))
    total_s = run(threads, quiet(4), 1000)
    assert threads.current == 4
    assert total_s < 1.02 * 1000 * quiet(4)(4)


def test_other_programs_take_processors_away_and_give_them_back() -> None:
    threads = AdaptiveThreads(halvings(4))
    run(threads, quiet(4), 100)
    run(threads, quiet(2), 100)
    assert threads.current == 2
    run(threads, quiet(1), 100)
    assert threads.current == 1
    run(threads, quiet(4), 300)
    assert threads.current == 4


def test_a_number_that_was_asked_for_is_kept() -> None:
    threads = AdaptiveThreads([3])
    run(threads, quiet(1), 100)
    assert threads.current == threads.choose(1) == 3


def test_after_a_pause_all_are_used_again() -> None:
    threads = AdaptiveThreads(halvings(4))
    run(threads, quiet(1), 100)
    assert threads.choose(1, paused_s=0.1) == 1
    assert threads.choose(1, paused_s=1.0) == 4
