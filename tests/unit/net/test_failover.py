"""Which of several services calls go to."""

from __future__ import annotations

import random

from tandem.net.failover import FAILURES, SUCCESSES, Failover

A, B, C = "a:1", "b:1", "c:1"


def healthy(*addresses: str) -> Failover:
    order = Failover(addresses)
    for address in addresses:
        order.answered(address, serving=True)
    return order


def come_back(order: Failover, address: str) -> None:
    for _ in range(SUCCESSES):
        order.answered(address, serving=True)


def test_calls_go_to_the_first_that_is_healthy() -> None:
    order = healthy(A, B, C)
    assert order.choose() == A
    assert order.choose({A}) == B
    order.answered(A, serving=False)
    assert order.choose() == B
    assert order.ranked() == [B, C, A]
    order.answered(A, serving=True)
    assert order.choose() == A


def test_where_none_is_healthy_the_one_that_failed_first_is_tried_next() -> None:
    order = healthy(A, B, C)
    for now, address in enumerate((B, C, A)):
        order.lost(address, float(now))
    assert order.ranked() == [B, C, A]
    for _ in range(FAILURES):
        order.unanswered(B, 5.0)
    assert order.choose() == C, "the other does not even answer"
    assert order.choose({A, B, C}) == C, "all refused: any, as before"
    order.answered(C, serving=False)
    assert order.choose() == A, "the other says that it does not serve"


def test_of_a_new_list_those_that_stay_keep_their_health() -> None:
    order = healthy(A, B)
    order.lost(A, 1.0)
    order.replace((A, C, B))
    assert order.addresses == (A, C, B)
    assert order.choose() == B
    order.answered(C, serving=True)
    assert order.choose() == C
    for gone in ("x:1",):
        order.lost(gone, 2.0)
        order.answered(gone, serving=True)
        order.unanswered(gone, 3.0)
        assert not order.is_healthy(gone)
    assert order.addresses == (A, C, B)


def test_the_first_healthy_one_is_chosen_whatever_has_happened() -> None:
    source, addresses = random.Random(3), (A, B, C)
    order = Failover(addresses)
    for step in range(2000):
        address = source.choice(addresses)
        match source.randrange(4):
            case 0:
                order.lost(address, float(step))
            case 1:
                order.unanswered(address, float(step))
            case 2:
                order.answered(address, serving=source.random() < 0.7)
            case _:
                come_back(order, address)
        working = [each for each in addresses if order.is_healthy(each)]
        assert order.choose() == (working or order.ranked())[0]
        assert sorted(order.ranked()) == sorted(addresses)
