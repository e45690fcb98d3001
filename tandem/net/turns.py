"""Whose turn it is, where only a few may be served at once and others wait.

    compiles = FairExecutor("grammars", threads=1)
    matcher = await asyncio.wrap_future(compiles.submit(Tenant("edge-1"), compile_it))

Invariants: a turn goes to the caller with the fewest, among equals to the one whose last was the
longest ago; so do the turns of one caller's tenants; then to the smallest priority, then to who
came first. A queue is bounded: where it is full, who has fewer places than another gets that of the
other's last.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.net.fair_shares import MOST_TENANTS, NOBODY, FairShares
from tandem.net.quotas import HolderRefused
from tandem.net.tenant import Tenant

Item = TypeVar("Item")
Result = TypeVar("Result")

_TURNS = "turns"
CLOSE_S = 30.0
"""What work under way gets to end when an executor is closed."""


@dataclass(frozen=True, slots=True, eq=False)
class Turn(Generic[Item]):
    """An `item` of a tenant that waits, or has its turn."""

    tenant: Tenant
    priority: int
    item: Item


class Turns(Generic[Item]):
    """`at_once` items have their turn, `waiting` more may wait. No clock, no threads."""

    def __init__(
        self, places: str, at_once: int, waiting: int, *, of_one: int | None = None
    ) -> None:
        """Start with nobody. `places` is what refusals call places in the queue. `of_one`: turns
        that one tenant may have at once, also while it is alone; None: all."""
        self._places = places
        self._at_once = at_once
        self._of_one = at_once if of_one is None else of_one
        self._shares = FairShares({places: at_once + waiting, _TURNS: at_once})
        self._waiting: dict[Tenant, list[Turn[Item]]] = {}
        self._running = set[Turn[Item]]()
        self._last_turn: dict[Tenant, int] = {}
        self._given = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def note(self, tenant: Tenant, now: float) -> None:
        """Note that the tenant is active, though it asks for no turn."""
        self._shares.note(tenant, now)

    def add(
        self, tenant: Tenant, item: Item, now: float, priority: int = 0
    ) -> tuple[Turn[Item], Turn[Item] | None]:
        """Put an item at the end of the tenant's queue. Return its turn, and that of another which
        lost its place to it. Raises HolderRefused for more than the tenant's share of the places,
        ResourceExhausted where there is none."""
        out = None
        try:
            self._shares.check(tenant, self._places, 1, now, kind="queue")
        except HolderRefused:
            raise
        except ResourceExhausted:
            if (out := self._last_of_most(tenant)) is None:
                raise
            self.leave(out)
        self._shares.take(tenant, self._places)
        turn = Turn(tenant, priority, item)
        self._waiting.setdefault(tenant, []).append(turn)
        return turn, out

    def refusal(self, out: Turn[Item]) -> HolderRefused:
        """Return the error for who lost its place."""
        why = f"{out.tenant.shown} holds the most {self._places}, and others are waiting"
        return HolderRefused("queue", f"fair-share limit reached: {why}")

    def following(self, now: float) -> Turn[Item] | None:
        """Give the next turn; None while all are taken, or kept for others."""
        if len(self._running) == self._at_once:
            return None
        able = (each for each in self._waiting if self._may_have_one_more(each, now))
        if (tenant := min(able, key=self._order, default=None)) is None:
            return None
        turn = min(self._waiting[tenant], key=lambda each: each.priority)
        self._remove(turn)
        self._running.add(turn)
        self._shares.take(tenant, _TURNS)
        self._given += 1
        for party in (Tenant(tenant.caller), tenant):
            self._last_turn.pop(party, None)
            self._last_turn[party] = self._given
        while len(self._last_turn) > 2 * MOST_TENANTS:
            del self._last_turn[next(iter(self._last_turn))]
        return turn

    def leave(self, turn: Turn[Item]) -> None:
        """Give back the place and the turn; once is enough."""
        if turn in self._running:
            self._running.remove(turn)
            self._shares.take(turn.tenant, _TURNS, -1)
        elif turn in self._waiting.get(turn.tenant, ()):
            self._remove(turn)
        else:
            return
        self._shares.take(turn.tenant, self._places, -1)

    def _may_have_one_more(self, tenant: Tenant, now: float) -> bool:
        has_all = tenant != NOBODY and self._shares.held_by(tenant, _TURNS) >= self._of_one
        return not has_all and self._shares.may_take(tenant, _TURNS, now)

    def _remove(self, turn: Turn[Item]) -> None:
        queue = self._waiting[turn.tenant]
        queue.remove(turn)
        if not queue:
            del self._waiting[turn.tenant]

    def _order(self, tenant: Tenant) -> list[tuple[int, int]]:
        """Return the sort key of who waits: turns held, and the number of the last one."""
        return [
            (self._shares.held_by(party, _TURNS), self._last_turn.get(party, 0))
            for party in (Tenant(tenant.caller), tenant)
        ]

    def _last_of_most(self, tenant: Tenant) -> Turn[Item] | None:
        """Return the last in turn of who has the most places, if `tenant` would have fewer even
        with one place more."""

        def places(whose: Tenant) -> int:
            return self._shares.held_by(whose, self._places)

        able = (each for each in self._waiting if each != NOBODY)
        most = max(able, key=lambda each: (places(Tenant(each.caller)), places(each)), default=None)
        if most is None or tenant == NOBODY:
            return None
        of = (tenant, most)
        if most.caller != tenant.caller:
            of = (Tenant(tenant.caller), Tenant(most.caller))
        if places(of[0]) + 1 >= places(of[1]):
            return None
        return max(reversed(self._waiting[most]), key=lambda turn: turn.priority)


@dataclass(frozen=True, slots=True)
class _Task:
    future: Future[Any]
    work: Callable[[], Any]


class FairExecutor:
    """A few threads that tenants take turns with; may be used from any thread. A thread lives while
    there is work, and none keeps the process alive."""

    def __init__(self, name: str, threads: int = 1, waiting: int = 64, niceness: int = 0) -> None:
        """Prepare to run tasks.

        Args:
            name: what the executor does, for refusals and as its threads' name.
            threads: how many threads there are at most.
            waiting: how many tasks may wait.
            niceness: how far the threads give way to others, where the system can do that (Linux).
                It is for tasks that hold the interpreter's lock for moments only: a thread that
                others wait for must not give way."""
        self._name = name
        self._niceness = niceness
        self._turns = Turns[_Task](f"places for {name}", threads, waiting)
        self._closed = False
        self._changed = threading.Condition()

    def submit(
        self, tenant: Tenant, work: Callable[[], Result], priority: int = 0
    ) -> Future[Result]:
        """Have `work` run when it is the tenant's turn: of its work that with the smallest
        `priority` first, then the oldest. A future that is cancelled before costs nothing. Raises
        ResourceExhausted for a full queue, and Unavailable once it is closed."""
        future: Future[Result] = Future()
        with self._changed:
            if self._closed:
                raise Unavailable(f"{self._name}: the service is stopping")
            now = time.monotonic()
            turn, out = self._turns.add(tenant, _Task(future, work), now, priority)
            following = self._turns.following(now)
        if out is not None:
            with suppress(InvalidStateError):  # cancelled in this very moment
                out.item.future.set_exception(self._turns.refusal(out))
        future.add_done_callback(lambda _: self._leave(turn))
        if following is not None:
            run = partial(self._run, following)
            threading.Thread(target=run, name=self._name, daemon=True).start()
        return future

    def note(self, tenant: Tenant) -> None:
        """Note that the tenant is active, though its work is done elsewhere: others leave room."""
        with self._changed:
            self._turns.note(tenant, time.monotonic())

    def close(self, within_s: float = CLOSE_S) -> None:
        """Take nothing more, and wait for what was taken, but no longer than `within_s`."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._turns.running, within_s)

    def _leave(self, turn: Turn[_Task]) -> None:
        """Give back the place of a task that was cancelled before its turn."""
        with self._changed:
            if turn.item.future.cancelled():
                self._turns.leave(turn)

    def _run(self, turn: Turn[_Task] | None) -> None:
        """Run a task, and those whose turn comes after it."""
        if self._niceness and sys.platform == "linux":
            os.nice(self._niceness)  # of this thread alone
        while turn is not None:
            if turn.item.future.set_running_or_notify_cancel():
                _fulfil(turn.item)
            with self._changed:
                self._turns.leave(turn)
                turn = self._turns.following(time.monotonic())
                self._changed.notify_all()


def _fulfil(task: _Task) -> None:
    try:
        result = task.work()
    except BaseException as error:  # who waits for the future gets it
        task.future.set_exception(error)
    else:
        task.future.set_result(result)
