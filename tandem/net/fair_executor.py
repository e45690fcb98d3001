"""A small pool of threads that tenants share fairly: each has its queue. Callers have their turns,
however many tenants they have, and the tenants of one caller have turns of its turns.

    compiles = FairExecutor("grammars", threads=1)
    matcher = await asyncio.wrap_future(compiles.submit(Tenant("edge-1"), compile_it))

Invariants: queues are bounded, and a full one refuses; a caller who makes up tenants has no more of
the turns, and at most half of the places; with several threads one tenant never has all of them; a
thread that has nothing to do for a while ends, and none keeps the process alive."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from tandem.core.errors import ResourceExhausted, Unavailable
from tandem.net.tenant import Tenant

Result = TypeVar("Result")

_UNKNOWN = Tenant("")
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
        niceness: int = 0,
    ) -> None:
        """Prepare to run tasks. Threads start when they are needed.

        Args:
            name: what the executor does, for refusals and as its threads' name.
            threads: how many threads there are at most.
            waiting: the places of all queues together.
            waiting_of_tenant: the places of one tenant's queue, if fewer. The caller "" stands for
                all that cannot be told apart, and may take all places.
            niceness: how far the threads give way to others, where the system can do that (Linux).
                It is for tasks that hold the interpreter's lock for moments only: a thread that
                others wait for must not give way."""
        self._name = name
        self._threads = threads
        self._running_of_tenant = max(1, threads - 1)
        self._waiting = waiting
        self._waiting_of_tenant = waiting if waiting_of_tenant is None else waiting_of_tenant
        self._niceness = niceness
        self._callers: OrderedDict[str, OrderedDict[Tenant, deque[_Task]]] = OrderedDict()
        self._running: Counter[Tenant] = Counter()
        self._alive = self._idle = 0
        self._closed = False
        self._changed = threading.Condition()

    def submit(self, tenant: Tenant, work: Callable[[], Result]) -> Future[Result]:
        """Have `work` run when it is the tenant's turn; a future that is cancelled before costs
        nothing. Raises QueueFull, which is a ResourceExhausted, and Unavailable once it is
        closed."""
        future: Future[Result] = Future()
        with self._changed:
            if self._closed:
                raise Unavailable(f"{self._name}: the service is stopping")
            self._check_room(tenant)
            queues = self._callers.setdefault(tenant.caller, OrderedDict())
            queues.setdefault(tenant, deque()).append(_Task(future, work))
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

    def _check_room(self, tenant: Tenant) -> None:
        if self._full(tenant):
            self._drop_cancelled()  # looked for only where it matters
        if why := self._full(tenant):
            raise QueueFull(f"{self._name}: {why} are waiting")

    def _full(self, tenant: Tenant) -> str:
        """Return a description of a full queue; empty if there is room."""
        queues = self._callers.get(tenant.caller, OrderedDict[Tenant, deque[_Task]]())
        theirs = len(queues.get(tenant, ()))
        of_caller = sum(map(len, queues.values()))
        whose = f" of '{tenant.caller}'" if tenant.caller else ""
        if tenant != _UNKNOWN and theirs >= self._waiting_of_tenant:
            return f"{theirs} of a tenant{whose}" if tenant.id else f"{theirs}{whose}"
        if tenant.caller and tenant.id and of_caller >= max(1, self._waiting // 2):
            return f"{of_caller}{whose}"
        everybody = self._all_waiting()
        return str(everybody) if everybody >= self._waiting else ""

    def _all_waiting(self) -> int:
        return sum(len(queue) for queues in self._callers.values() for queue in queues.values())

    def _drop_cancelled(self) -> None:
        for caller, queues in list(self._callers.items()):
            for tenant, queue in list(queues.items()):
                queues[tenant] = deque(task for task in queue if not task.future.cancelled())
                self._forget_empty(tenant, caller)

    def _forget_empty(self, tenant: Tenant, caller: str) -> None:
        queues = self._callers[caller]
        if not queues[tenant]:
            del queues[tenant]
        if not queues:
            del self._callers[caller]

    def _run(self) -> None:
        if self._niceness and sys.platform == "linux":
            with suppress(OSError):  # of this thread alone
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Run the next task; return False once the thread is to end. No task lives on in a thread
        that waits."""
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

    def _next(self) -> tuple[Tenant, _Task] | None:
        """Return the oldest task of the tenant whose turn it is; None after a while without any."""
        with self._changed:
            while (tenant := self._tenant_in_turn()) is None:
                self._idle += 1
                woken = (self._closed and not self._callers) or self._changed.wait(IDLE_S)
                self._idle -= 1
                ends = self._closed and not self._callers
                if ends or (not woken and self._tenant_in_turn() is None):
                    self._alive -= 1
                    self._changed.notify_all()
                    return None
            queues = self._callers[tenant.caller]
            task = queues[tenant].popleft()
            queues.move_to_end(tenant)
            self._callers.move_to_end(tenant.caller)
            self._forget_empty(tenant, tenant.caller)
            self._running[tenant] += 1
            return tenant, task

    def _tenant_in_turn(self) -> Tenant | None:
        most = self._running_of_tenant
        tenants = (tenant for queues in self._callers.values() for tenant in queues)
        return next((tenant for tenant in tenants if self._running[tenant] < most), None)


def _fulfil(task: _Task) -> None:
    try:
        result = task.work()
    except BaseException as error:  # who waits for the future gets it
        task.future.set_exception(error)
    else:
        task.future.set_result(result)
