"""Whose work a small pool of threads does next, and whose it refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager

import pytest

from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.net.fair_executor import FairExecutor, QueueFull
from tandem.net.tenant import Tenant

DEADLINE_S = 60.0
GREEDY = Tenant("greedy")


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


def test_tenants_are_served_in_turn_whoever_asked_for_more() -> None:
    executor, done = FairExecutor("test"), list[str]()
    with busy(executor):
        asked: list[Future[None]] = [
            executor.submit(Tenant(tenant), lambda name=f"{tenant}{number}": done.append(name))  # type: ignore[misc]
            for tenant, count in (("greedy", 5), ("a", 2), ("b", 1))
            for number in range(count)
        ]
    wait(asked, DEADLINE_S)
    assert done == ["greedy0", "a0", "b0", "greedy1", "a1", "greedy2", "greedy3", "greedy4"]


def test_one_tenant_never_has_all_threads() -> None:
    executor = FairExecutor("test", threads=2)
    with busy(executor):
        more = executor.submit(Tenant("greedy"), lambda: "later")
        assert executor.submit(Tenant("honest"), lambda: "now").result(DEADLINE_S) == "now"
        assert not more.done()
    assert more.result(DEADLINE_S) == "later"


def test_a_full_queue_refuses_its_tenant_and_says_when_to_come_again() -> None:
    executor = FairExecutor("grammars", waiting=3, waiting_of_tenant=2)
    with busy(executor):
        waiting = [executor.submit(Tenant("greedy"), lambda: 1) for _ in range(2)]
        with pytest.raises(
            QueueFull, match="grammars: 2 of 'greedy' are waiting; try again"
        ) as full:
            executor.submit(Tenant("greedy"), lambda: 1)
        assert isinstance(full.value, ResourceExhausted)
        assert full.value.retry_after_s > 0
        waiting.append(executor.submit(Tenant("honest"), lambda: 1))
        with pytest.raises(QueueFull, match="grammars: 3 are waiting"):
            executor.submit(Tenant("another"), lambda: 1)
        assert waiting[0].cancel(), "whose place is free then"
        waiting.append(executor.submit(Tenant("another"), lambda: 1))
    assert [each.result(DEADLINE_S) for each in waiting[1:]] == [1, 1, 1]


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
        last = executor.submit(Tenant("greedy"), lambda: 1)
    executor.close()
    assert last.result(0) == 1
    with pytest.raises(Unavailable, match="stopping"):
        executor.submit(Tenant("a"), lambda: 0)


def test_a_caller_who_makes_up_tenants_gets_no_more_turns_and_half_of_the_places() -> None:
    executor, done = FairExecutor("test", waiting=8), list[str]()
    with busy(executor):
        made_up = [
            executor.submit(Tenant("edge-1", bytes([number])), lambda: done.append("edge-1"))
            for number in range(4)
        ]
        with pytest.raises(QueueFull, match="test: 4 of 'edge-1' are waiting"):
            executor.submit(Tenant("edge-1", b"another"), lambda: None)
        honest = [
            executor.submit(Tenant("edge-2", b"x"), lambda: done.append("edge-2")) for _ in range(2)
        ]
    wait([*made_up, *honest], DEADLINE_S)
    assert done == ["edge-1", "edge-2", "edge-1", "edge-2", "edge-1", "edge-1"]


def test_tenants_of_one_caller_are_served_in_turn() -> None:
    executor, done = FairExecutor("test"), list[bytes]()
    with busy(executor):
        asked = [
            executor.submit(Tenant("edge", tenant), lambda tenant=tenant: done.append(tenant))  # type: ignore[misc]
            for tenant in (b"a", b"a", b"a", b"b")
        ]
    wait(asked, DEADLINE_S)
    assert done == [b"a", b"b", b"a", b"a"]
