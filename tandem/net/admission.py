"""The one place where a service admits work: sessions and calls, the bytes of their KV caches, what
their texts and grammars cost. Invariant: what is reserved is given back exactly once.

    admission = Admission({"sessions": 64}, kv_budget_bytes=2**31, quota=quota_of(settings))
    with admission.reserve(kv_bytes, tenant) as reservation:
        ...
        reservation.tokens = 500
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext

from grpc import StatusCode

from tandem.core.errors import ResourceExhausted
from tandem.net.fair_shares import FairShares, Rates
from tandem.net.quotas import NO_QUOTA, HolderRefused, Quota, Refusal
from tandem.net.scopes import current_caller
from tandem.net.status import Rejected
from tandem.net.tenant import Tenant, paying_tenant
from tandem.net.turns import Turn, Turns
from tandem.settings import ServiceSettings
from tandem.telemetry.metrics import HolderSeries

SESSIONS = "sessions"
KV = "bytes of KV cache"
OPEN = "open"
"""Sessions and calls of every kind."""

MINUTE_S = 60.0
NO_CONTEXT = nullcontext()
GRAMMAR_DEBT_S = 60.0
"""Grammars under way cost what they cost, and their tenant waits no longer than that for them."""

TENANTS_OF_CALLER = 3
"""So many tenants' worth of grammars have all tenants of one caller together."""


class Reservation:
    """Capacity reserved for one session or call; `tokens` is set to its usage when it ends."""

    def __init__(self, admission: Admission, tenant: Tenant, quota: Quota) -> None:
        self.kv_bytes = 0
        self.tokens = 0
        self._admission = admission
        self._tenant = tenant
        self._quota = quota

    def take_more(self, kv_bytes: int) -> None:
        """Take `kv_bytes` bytes more, once the length of the session's text is known. Raises
        ResourceExhausted."""
        with self._admission.refusals_counted(self._tenant):
            self._admission.take_kv(self._tenant, self._quota, kv_bytes)
        self.kv_bytes += kv_bytes

    def take_spare(self, kv_bytes: int, leaving: float) -> bool:
        """Take `kv_bytes` bytes more for what the session can do without, if there is room for them
        and a share of all memory, `leaving`, stays free; return whether it was so. No refusal is
        counted: nobody is refused anything."""
        admission = self._admission
        if admission.kv_free_bytes - kv_bytes < leaving * admission.kv_budget_bytes:
            return False
        try:
            admission.take_kv(self._tenant, self._quota, kv_bytes)
        except ResourceExhausted:
            return False
        self.kv_bytes += kv_bytes
        return True

    def spend_grammar(self, tenant: Tenant, seconds: float) -> None:
        """Count the time for computing a grammar of the tenant, useful or not."""
        self._admission.spend_grammar(tenant, self._quota, seconds)


class Admission:
    """Shares a service's capacity out to its tenants; used on the event loop only."""

    def __init__(
        self,
        places: Mapping[str, int],
        kv_budget_bytes: int = 2**62,
        quota: Quota = NO_QUOTA,
        series: HolderSeries | None = None,
    ) -> None:
        """Start with everything free. `places`: how many there are of each kind, by the name that
        refusals call it."""
        self.kv_budget_bytes = kv_budget_bytes
        self._shares = FairShares({**places, KV: kv_budget_bytes})
        self._rates = Rates()
        self._quota = quota
        self._series = series
        self.on_change: Callable[[], None] = lambda: None
        """Called when a session has taken its room, or given it back."""

    @property
    def sessions(self) -> int:
        return self._shares.used[SESSIONS]

    def claim(self, caller: str) -> float:
        """Return the caller's sessions relative to an even share among all that have some; 1 for
        callers without keys."""
        return self._shares.claim(caller, SESSIONS)

    @property
    def kv_bytes(self) -> int:
        return self._shares.used[KV]

    def kv_tokens(self, bytes_per_token: int) -> int:
        """Return how many tokens the budget holds, for all sessions together; 0 where they need no
        memory."""
        return min(self.kv_budget_bytes // bytes_per_token, 2**32 - 1) if bytes_per_token else 0

    @property
    def kv_free_bytes(self) -> int:
        return self.kv_budget_bytes - self.kv_bytes

    @contextmanager
    def reserve(
        self,
        kv_bytes: int = 0,
        tenant: Tenant | None = None,
        *,
        place: str = SESSIONS,
        grammar: bool = False,
    ) -> Iterator[Reservation]:
        """Reserve a place for the current caller while the context is open, for one of its tenants
        if that is given. Raises ResourceExhausted saying which limit was met. `grammar`: whether
        the session follows one."""
        tenant = tenant or paying_tenant()
        caller = Tenant(tenant.caller)
        quota = self.quota()
        reservation = Reservation(self, tenant, quota)
        now = time.monotonic()
        with self.refusals_counted(tenant):
            self.check_quota(tenant, quota, place, grammar=grammar)
            self._shares.check(tenant, place, 1, now)
            if kv_bytes:
                self.take_kv(tenant, quota, kv_bytes)
        reservation.kv_bytes = kv_bytes
        self._rates.spend(("requests", caller), 1, quota.requests_per_minute / MINUTE_S, now)
        self._change(tenant, place, 1)
        try:
            yield reservation
        finally:
            held_bytes, reservation.kv_bytes = reservation.kv_bytes, 0
            self._shares.take(tenant, KV, -held_bytes)
            per_s = quota.tokens_per_minute / MINUTE_S
            self._rates.spend(("tokens", caller), reservation.tokens, per_s, time.monotonic())
            self._change(tenant, place, -1)

    def take_kv(self, tenant: Tenant, quota: Quota, kv_bytes: int) -> None:
        """Take bytes for a session of the tenant. Raises ResourceExhausted."""
        caller = Tenant(tenant.caller)
        left = quota.kv_bytes - self._shares.held_by(caller, KV)
        if quota.kv_bytes and kv_bytes > left:
            why = f"quota reached: {kv_bytes} {KV} needed, {left} of {quota.kv_bytes} left"
            raise HolderRefused("kv", f"{why} to {caller.shown}")
        self._shares.check(tenant, KV, kv_bytes, time.monotonic(), kind="kv")
        self._shares.take(tenant, KV, kv_bytes)
        self.on_change()

    def quota(self) -> Quota:
        """Return the current caller's."""
        return current_caller().quota.over(self._quota)

    def check_quota(
        self, tenant: Tenant, quota: Quota, place: str, *, grammar: bool = False
    ) -> None:
        """Check that the quota leaves one place more. Raises HolderRefused."""
        caller = Tenant(tenant.caller)
        self._check_rate("requests", caller, quota.requests_per_minute, "requests")
        self._check_rate("tokens", caller, quota.tokens_per_minute, "tokens")
        if grammar:
            for who, most, kind in _grammar_payers(tenant, quota):
                self._check_rate("grammars", who, most, "s of computing grammars", of=kind)
        held = self._shares.held_by(caller, place)
        if quota.sessions and held >= quota.sessions:
            why = f"quota reached: {caller.shown} holds {held} of its {quota.sessions} {place}"
            raise HolderRefused("sessions", why)

    def _check_rate(
        self, kind: Refusal, who: Tenant, per_minute: int, what: str, of: str = ""
    ) -> None:
        per_s = per_minute / MINUTE_S
        if (wait_s := self._rates.wait_s((of or kind, who), per_s, time.monotonic())) > 0:
            why = f"rate limit reached: {who.shown} has used its {per_minute} {what} per minute"
            raise HolderRefused(kind, why, wait_s)

    def spend_grammar(self, tenant: Tenant, quota: Quota, seconds: float) -> None:
        """Count the time for computing a grammar of the tenant."""
        now = time.monotonic()
        for who, most, kind in _grammar_payers(tenant, quota):
            self._rates.spend((kind, who), seconds, most / MINUTE_S, now, GRAMMAR_DEBT_S)

    @contextmanager
    def refusals_counted(self, tenant: Tenant) -> Iterator[None]:
        """Count the refusal that is raised while the context is open."""
        try:
            yield
        except HolderRefused as error:
            if self._series is not None:
                self._series.refused(tenant.caller, error.kind)
            raise

    def _change(self, tenant: Tenant, place: str, count: int) -> None:
        self._shares.take(tenant, place, count)
        self._shares.take(tenant, OPEN, count)
        self.on_change()
        if self._series is not None:
            held = self._shares.held_by(Tenant(tenant.caller), OPEN)
            self._series.holds(tenant.caller, held)


def _grammar_payers(tenant: Tenant, quota: Quota) -> list[tuple[Tenant, int, str]]:
    """Return who pays for a tenant's grammars, with the limit of each and what it is of. A caller
    says itself whom it asks for, so that all its tenants together have a limit too."""
    most = quota.grammar_s_per_minute
    payers = [(tenant, most, "grammars")]
    if tenant.id:
        caller = Tenant(tenant.caller)
        payers.append((caller, most * TENANTS_OF_CALLER, "grammars of all tenants"))
    return payers


def quota_of(settings: ServiceSettings) -> Quota:
    """Return the default quota of a holder from the service's settings."""
    return Quota(
        sessions=settings.quota_sessions,
        kv_bytes=settings.quota_kv_bytes,
        requests_per_minute=settings.quota_requests_per_minute,
        tokens_per_minute=settings.quota_tokens_per_minute,
        grammar_s_per_minute=settings.quota_grammar_s_per_minute,
    )


class Slots:
    """Places for requests that may wait for their turn; used on the event loop only."""

    def __init__(
        self,
        admission: Admission,
        place: str,
        running: int,
        waiting: int,
        of_one: int | None = None,
    ) -> None:
        """Start with all slots free. `place` is what refusals call one. `of_one`: as of `Turns`."""
        self._admission = admission
        self._place = place
        self._turns = Turns[asyncio.Future[None]](place, running, waiting, of_one=of_one)

    @property
    def running(self) -> int:
        return self._turns.running

    @property
    def waiting(self) -> int:
        return self._turns.waiting

    @asynccontextmanager
    async def slot(
        self,
        timeout_s: float,
        *,
        tenant: Tenant | None = None,
        priority: int = 0,
        waits: AbstractContextManager[object] = NO_CONTEXT,
    ) -> AsyncIterator[Reservation]:
        """Wait for a slot, inside `waits`, and hold it. Raises ResourceExhausted when all is taken
        or the tenant has its share, Rejected when none comes free in time."""
        tenant = tenant or paying_tenant()
        admission = self._admission
        with admission.refusals_counted(tenant):
            # Who has used up its quota takes nobody's place.
            admission.check_quota(tenant, admission.quota(), self._place)
            turn = self._placed(tenant, priority)
        try:
            with admission.reserve(tenant=tenant, place=self._place) as reservation:
                self._give()
                with waits, admission.refusals_counted(tenant):
                    await _within(timeout_s, turn.item)
                yield reservation
        finally:
            self._turns.leave(turn)
            self._give()

    def _placed(self, tenant: Tenant, priority: int) -> Turn[asyncio.Future[None]]:
        future = asyncio.get_running_loop().create_future()
        turn, out = self._turns.add(tenant, future, time.monotonic(), priority)
        if out is not None and not out.item.done():
            out.item.set_exception(self._turns.refusal(out))
        return turn

    def _give(self) -> None:
        """Give all turns that may be given. One that was cancelled in this very moment is given
        back by who asked for it."""
        while (turn := self._turns.following(time.monotonic())) is not None:
            if not turn.item.done():
                turn.item.set_result(None)


async def _within(timeout_s: float, turn: asyncio.Future[None]) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await turn
    except TimeoutError:
        why = "no slot was free before the request's deadline"
        raise Rejected(StatusCode.DEADLINE_EXCEEDED, why) from None
