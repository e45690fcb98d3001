"""Whose turn it is, whose work a small pool of threads does next, and whose it refuses."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest

from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.net.fair_shares import ACTIVE_S
from tandem.net.quotas import HolderRefused
from tandem.net.tenant import Tenant
from tandem.net.turns import FairExecutor, Turn, Turns

DEADLINE_S = 60.0
GREEDY = Tenant("greedy")


def asked(turns: Turns[str], tenant: Tenant | str, count: int, now: float = 0.0) -> list[Turn[str]]:
    """Add items called by their tenant and number."""
    tenant = Tenant(tenant) if isinstance(tenant, str) else tenant
    return [
        turns.add(tenant, f"{tenant.caller}{tenant.id.decode()}{number}", now)[0]
        for number in range(count)
    ]


def given(turns: Turns[str], now: float = 0.0) -> list[str]:
    """Return what gets its turn now."""
    items = list[str]()
    while (turn := turns.following(now)) is not None:
        items.append(turn.item)
    return items


def served(turns: Turns[str], now: float = 0.0) -> list[str]:
    """Return the order in which all that wait are served, one after the other."""
    items = list[str]()
    while (turn := turns.following(now)) is not None:
        items.append(turn.item)
        turns.leave(turn)
    return items


@pytest.mark.parametrize("at_once", [1, 2, 4, 16])
def test_one_key_alone_gets_every_worker_and_every_place(at_once: int) -> None:
    turns = Turns[str]("places", at_once, 4)
    asked(turns, "edge-1", at_once + 4)
    assert len(given(turns)) == at_once
    with pytest.raises(ResourceExhausted, match=f"all {at_once + 4} places are in use"):
        turns.add(Tenant("edge-1"), "more", 0.0)


def test_turns_that_are_long_may_be_kept_from_one_alone() -> None:
    """Eight uploads of one tenant took all eight turns for minutes, and another's was refused."""
    turns = Turns[str]("places", 8, 64, of_one=4)
    asked(turns, Tenant("front", b"alice"), 20)
    assert len(given(turns)) == 4
    asked(turns, Tenant("front", b"bob"), 1, now=2 * ACTIVE_S)
    assert given(turns, now=2 * ACTIVE_S) == ["frontbob0"]
    asked(turns, Tenant(""), 9)
    assert len(given(turns, now=4 * ACTIVE_S)) == 3, "callers without keys share nothing out"


def test_turns_go_round_whoever_asked_for_more() -> None:
    turns = Turns[str]("places", 1, 64)
    for tenant, count in (("greedy", 5), ("a", 2), ("b", 1)):
        asked(turns, tenant, count)
    assert served(turns) == [
        "greedy0",
        "a0",
        "b0",
        "greedy1",
        "a1",
        "greedy2",
        "greedy3",
        "greedy4",
    ]


def test_tenants_of_one_caller_share_its_turns() -> None:
    turns = Turns[str]("places", 1, 64)
    for tenant in (Tenant("edge", b"x"), Tenant("edge", b"y")):
        asked(turns, tenant, 2)
    asked(turns, "other", 4)
    assert served(turns) == [
        *("edgex0", "other0", "edgey0", "other1"),
        *("edgex1", "other2", "edgey1", "other3"),
    ]


def test_of_one_tenant_the_smallest_priority_goes_first() -> None:
    turns = Turns[str]("places", 1, 8)
    for tenant, priority in (("a", 1), ("a", 0), ("b", 5), ("a", -2), ("a", 0)):
        turns.add(Tenant(tenant), f"{tenant}{priority}", 0.0, priority)
    assert served(turns) == ["a-2", "b5", "a0", "a0", "a1"]


def test_while_others_are_active_one_leaves_turns_to_them() -> None:
    """With a quarter kept, three honest callers of eight slots queued behind each other."""
    turns = Turns[str]("places", 8, 24)
    for turn in [each for name in ("one", "two", "three") for each in asked(turns, name, 1)]:
        turns.following(0.0)
        turns.leave(turn)
    asked(turns, "greedy", 12, now=1.0)
    assert len(given(turns, now=1.0)) == 5
    for name in ("one", "two", "three"):
        asked(turns, name, 1, now=2.0)
    assert sorted(given(turns, now=2.0)) == ["one0", "three0", "two0"], "nobody of them waits"


def test_a_key_that_comes_back_after_idling_is_next() -> None:
    turns = Turns[str]("places", 2, 8)
    greedy = asked(turns, "greedy", 6)
    assert given(turns) == ["greedy0", "greedy1"]
    asked(turns, "sleeper", 2, now=ACTIVE_S + 1)
    assert given(turns, now=ACTIVE_S + 1) == []
    turns.leave(greedy[0])
    assert given(turns, now=ACTIVE_S + 1) == ["sleeper0"]
    turns.leave(greedy[1])
    assert given(turns, now=ACTIVE_S + 1) == ["greedy2"]


@pytest.mark.parametrize(("at_once", "waiting"), [(16, 16), (4, 16), (1, 10)])
def test_a_queue_full_of_one_tenant_s_refuses_nobody_else(at_once: int, waiting: int) -> None:
    turns = Turns[str]("places", at_once, waiting)
    asked(turns, "greedy", at_once + waiting)
    given(turns)
    out = list[Turn[str]]()
    for number in range(9):
        _, lost = turns.add(Tenant(f"honest-{number}"), "honest", 1.0)
        assert lost is not None
        out.append(lost)
    assert [lost.item for lost in out] == [
        f"greedy{number}" for number in reversed(range(at_once + waiting))
    ][:9]
    words = (
        "fair-share limit reached: 'greedy' holds the most places, and others are waiting;"
        " try again in 1 s"
    )
    assert str(turns.refusal(out[0])) == words
    with pytest.raises(HolderRefused, match=r"'greedy' holds \d+ of \d+ places"):
        turns.add(GREEDY, "more", 2.0)


def test_a_tenant_s_queue_gives_way_to_another_of_the_same_caller() -> None:
    turns = Turns[str]("places", 1, 3)
    asked(turns, Tenant("edge", b"greedy"), 4)
    given(turns)
    _, lost = turns.add(Tenant("edge", b"honest"), "honest", 1.0)
    assert lost is not None
    assert lost.item == "edgegreedy3"


def test_who_has_as_much_takes_no_place_of_another() -> None:
    turns = Turns[str]("places", 1, 3)
    asked(turns, "a", 2)
    asked(turns, "b", 2)
    with pytest.raises(HolderRefused, match="'b' holds 2 of 4 places"):
        turns.add(Tenant("b"), "more", 0.0)
    with pytest.raises(ResourceExhausted, match="all 4 places are in use"):
        turns.add(Tenant(""), "nobody's", 0.0)


def test_leaving_twice_gives_back_once() -> None:
    turns = Turns[str]("places", 1, 1)
    first, second = asked(turns, "a", 2)
    assert given(turns) == ["a0"]
    for turn in (first, first, second, second):
        turns.leave(turn)
    assert (turns.running, turns.waiting) == (0, 0)
    asked(turns, "a", 2)
    assert given(turns) == ["a0"]


@contextmanager
def busy(executor: FairExecutor, tenant: Tenant = GREEDY) -> Iterator[None]:
    """A thread of it is at work for `tenant`, until the end of the block."""
    began, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert goes_on.wait(DEADLINE_S)

    executor.submit(tenant, work)
    assert began.wait(DEADLINE_S)
    try:
        yield
    finally:
        goes_on.set()


def test_one_key_reaches_every_thread() -> None:
    executor = FairExecutor("test", threads=3)
    together = threading.Barrier(4, timeout=DEADLINE_S)
    for _ in range(3):
        executor.submit(GREEDY, together.wait)
    together.wait()


def test_a_thread_is_left_to_who_asked_of_late() -> None:
    executor = FairExecutor("test", threads=2)
    assert executor.submit(Tenant("honest"), lambda: "first").result(DEADLINE_S) == "first"
    with busy(executor):
        more = executor.submit(GREEDY, lambda: "later")
        assert executor.submit(Tenant("honest"), lambda: "now").result(DEADLINE_S) == "now"
        assert not more.done()
    assert more.result(DEADLINE_S) == "later"


def test_a_thread_is_left_to_who_is_active_elsewhere() -> None:
    """Short prompts are tokenised on the event loop, while another's long ones took all threads."""
    executor = FairExecutor("test", threads=2)
    executor.note(Tenant("honest"))
    with busy(executor):
        more = executor.submit(GREEDY, lambda: "later")
        assert executor.submit(Tenant("honest"), lambda: "now").result(DEADLINE_S) == "now"
        assert not more.done()


def test_a_full_queue_refuses_and_says_when_to_come_again() -> None:
    executor = FairExecutor("grammars", waiting=3)
    with busy(executor):
        waiting = [executor.submit(GREEDY, lambda: 1) for _ in range(3)]
        with pytest.raises(ResourceExhausted, match="all 4 places for grammars are in use"):
            executor.submit(GREEDY, lambda: 1)
        honest = executor.submit(Tenant("honest"), lambda: 2)
        with pytest.raises(HolderRefused, match="'greedy' holds the most places for grammars"):
            waiting.pop().result(DEADLINE_S)
        assert waiting.pop().cancel(), "whose place is free then"
        waiting.append(executor.submit(Tenant("another"), lambda: 1))
    assert honest.result(DEADLINE_S) == 2
    assert [each.result(DEADLINE_S) for each in waiting] == [1, 1]


def test_what_is_raised_is_for_who_waits_and_the_thread_goes_on() -> None:
    executor = FairExecutor("test")
    failing: Future[object] = executor.submit(Tenant(""), lambda: list[int]()[0])
    with pytest.raises(IndexError):
        failing.result(DEADLINE_S)
    assert executor.submit(Tenant(""), lambda: 2).result(DEADLINE_S) == 2


def test_closing_waits_for_what_was_taken_and_takes_nothing_more() -> None:
    executor = FairExecutor("test", threads=2)
    assert executor.submit(Tenant("a"), lambda: 0).result(DEADLINE_S) == 0
    with busy(executor):
        last = executor.submit(GREEDY, lambda: 1)
    executor.close()
    assert last.result(0) == 1
    with pytest.raises(Unavailable, match="stopping"):
        executor.submit(Tenant("a"), lambda: 0)


def test_closing_does_not_wait_for_ever() -> None:
    """One stuck embedding held up a retriever's stop until it was killed."""
    executor = FairExecutor("test")
    with busy(executor):
        began_s = time.monotonic()
        executor.close(within_s=0.05)
        assert time.monotonic() - began_s < DEADLINE_S / 2


def test_many_tasks_of_many_tenants_are_all_done_and_leave_nothing() -> None:
    executor = FairExecutor("test", threads=4, waiting=1000)
    done: list[Future[int]] = [
        executor.submit(Tenant(f"edge-{number % 3}", bytes([number % 7])), lambda: 1)
        for number in range(500)
    ]
    kept = [each for number, each in enumerate(done) if number % 5 or not each.cancel()]
    assert sum(each.result(DEADLINE_S) for each in kept) == len(kept) >= 400
    executor.close()
    assert (executor._turns.running, executor._turns.waiting) == (0, 0)
