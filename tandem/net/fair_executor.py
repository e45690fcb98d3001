"""A small pool of threads that tenants share fairly: each has a queue of its own, and the queues
are served in turn.

    compiles = FairExecutor("grammars", threads=1)
    matcher = await asyncio.wrap_future(compiles.submit("tenant-1", compile_it))

Invariants: queues are bounded, and a full one refuses; with several threads one tenant never has
all of them; a thread that has nothing to do for a while ends, and none keeps the process alive."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from tandem.core.errors import ResourceExhausted, Unavailable

Result = TypeVar("Result")

IDLE_S = 5.0
RETRY_AFTER_S = 2.0


class QueueFull(ResourceExhausted):
    """More is waiting than may; the message says of whom."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; try again in {RETRY_AFTER_S:g} s")
        self.retry_after_s = RETRY_AFTER_S


@dataclass(frozen=True, slots=True)
class _Task:
    future: Future[Any]
    work: Callable[[], Any]


class FairExecutor:
    """May be used from any thread."""

    def __init__(
        self,
        name: str,
        threads: int = 1,
        waiting: int = 64,
        waiting_of_tenant: int | None = None,
    ) -> None:
        """`name`: of what it does, in refusals and as its threads' name. `waiting`: places of the
        queues together; `waiting_of_tenant`: of one, where that is fewer. The tenant "" stands for
        all callers that cannot be told apart, and may have all places that there are."""
        self._name = name
        self._threads = threads
        self._running_of_tenant = max(1, threads - 1)
        self._waiting = waiting
        self._waiting_of_tenant = waiting if waiting_of_tenant is None else waiting_of_tenant
        self._queues: OrderedDict[str, deque[_Task]] = OrderedDict()
        self._running: Counter[str] = Counter()
        self._alive = self._idle = 0
        self._closed = False
        self._changed = threading.Condition()

    def submit(self, tenant: str, work: Callable[[], Result]) -> Future[Result]:
        """Have `work` run when it is the tenant's turn; a future that is cancelled before costs
        nothing. Raises QueueFull, which is a ResourceExhausted, and Unavailable once it is
        closed."""
        future: Future[Result] = Future()
        with self._changed:
            if self._closed:
                raise Unavailable(f"{self._name}: the service is stopping")
            self._check_room(tenant)
            self._queues.setdefault(tenant, deque()).append(_Task(future, work))
            self._changed.notify()
            if self._alive < self._threads and self._idle < self._all_waiting():
                self._alive += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        return future

    def close(self) -> None:
        """Take nothing more, and wait for what was taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while self._alive:
                self._changed.wait()

    def _check_room(self, tenant: str) -> None:
        queue = self._queues.get(tenant, ())
        most = self._waiting_of_tenant if tenant else self._waiting
        if len(queue) >= most or self._all_waiting() >= self._waiting:
            self._drop_cancelled()  # looked for only where it matters
        theirs = len(self._queues.get(tenant, ()))
        if theirs >= most:
            whose = f" of '{tenant}'" if tenant else ""
            raise QueueFull(f"{self._name}: {theirs}{whose} are waiting")
        if (everybody := self._all_waiting()) >= self._waiting:
            raise QueueFull(f"{self._name}: {everybody} are waiting")

    def _all_waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def _drop_cancelled(self) -> None:
        for tenant, queue in list(self._queues.items()):
            left = deque(task for task in queue if not task.future.cancelled())
            if left:
                self._queues[tenant] = left
            else:
                del self._queues[tenant]

    def _run(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """False once the thread is to end. No task lives on in a thread that waits."""
        if (taken := self._next()) is None:
            return False
        tenant, task = taken
        if task.future.set_running_or_notify_cancel():
            _fulfil(task)
        with self._changed:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]
            self._changed.notify()
        return True

    def _next(self) -> tuple[str, _Task] | None:
        """The oldest task of the tenant whose turn it is; None after a while without any."""
        with self._changed:
            while (tenant := self._tenant_in_turn()) is None:
                self._idle += 1
                woken = (self._closed and not self._queues) or self._changed.wait(IDLE_S)
                self._idle -= 1
                ends = self._closed and not self._queues
                if ends or (not woken and self._tenant_in_turn() is None):
                    self._alive -= 1
                    self._changed.notify_all()
                    return None
            queue = self._queues[tenant]
            task = queue.popleft()
            if queue:
                self._queues.move_to_end(tenant)
            else:
                del self._queues[tenant]
            self._running[tenant] += 1
            return tenant, task

    def _tenant_in_turn(self) -> str | None:
        most = self._running_of_tenant
        return next((each for each in self._queues if self._running[each] < most), None)


def _fulfil(task: _Task) -> None:
    try:
        result = task.work()
    except BaseException as error:  # who waits for the future gets it
        task.future.set_exception(error)
    else:
        task.future.set_result(result)
