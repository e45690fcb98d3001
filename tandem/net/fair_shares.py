"""How much of a service each tenant may have while others want it too.

Invariants: nothing here reads a clock; a refusal takes nothing; a tenant alone may have everything;
while others are active, who has nothing is refused only when nothing is free, and who has more than
an even share leaves something free for those below theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tandem.core.errors import ResourceExhausted
from tandem.net.quotas import HolderRefused, Refusal
from tandem.net.tenant import Tenant

ACTIVE_S = 60.0
"""A tenant that asked so long ago still counts as one to share with."""

KEPT_SHARE = 4
"""While others have less than their share, one of so many units is left free for them by who
exceeds its own."""

MOST_TENANTS = 1024
"""Tenants of one caller that are told apart, and those whose rates are counted: a caller may make
up any number."""


NOBODY = Tenant("")
"""All callers of a port without keys, among whom nothing is shared out."""


@dataclass(slots=True)
class _Account:
    asked_s: float = -inf
    held: Counter[str] = field(default_factory=Counter)


class FairShares:
    """Who holds how much of several resources. Callers share them with each other, and the tenants
    of one caller share what it has."""

    def __init__(self, totals: Mapping[str, int]) -> None:
        """Start with everything free. `totals`: the units of each resource, by the name that
        refusals call it; one that is not named here is unlimited."""
        self.totals = dict(totals)
        self.used = Counter[str]()
        self._peers: dict[str | None, dict[Tenant, _Account]] = {}
        """Who shares with whom: callers (None), and the tenants of each caller."""

    def held_by(self, tenant: Tenant, what: str) -> int:
        """Return how many units the tenant holds; a caller's include those of its tenants."""
        account = self._peers.get(tenant.caller if tenant.id else None, {}).get(tenant)
        return 0 if account is None else account.held[what]

    def claim(self, caller: str, what: str) -> float:
        """Return the caller's units relative to an even share among all that have some; 1 for
        callers without keys."""
        if not caller or not self.used[what]:
            return 1.0
        active = sum(1 for account in self._peers[None].values() if account.held[what])
        return self.held_by(Tenant(caller), what) * active / self.used[what]

    def check(
        self, tenant: Tenant, what: str, amount: int, now: float, *, kind: Refusal = "sessions"
    ) -> None:
        """Check that the tenant may take `amount` units, and note that it asked. Raises
        HolderRefused for more than its share, ResourceExhausted where too few are free."""
        self.note(tenant, now)
        if what not in self.totals:
            return
        for party, held, room in self._rooms(tenant, what, amount, now):
            if amount > room:
                held_of = f"{party.shown} holds {held} of {self.totals[what]} {what}"
                raise HolderRefused(kind, f"fair-share limit reached: {held_of}")
        if amount > (free := self.totals[what] - self.used[what]):
            why = f"all {self.totals[what]} {what} are in use; try again"
            if amount > 1:
                why = f"{amount} {what} needed, {free} of {self.totals[what]} free"
            raise ResourceExhausted(why)

    def note(self, tenant: Tenant, now: float) -> None:
        """Note that the tenant is active."""
        for _, account in self._accounts(tenant):
            account.asked_s = now

    def may_take(self, tenant: Tenant, what: str, now: float) -> bool:
        """Return whether the tenant may take one unit more."""
        return self.used[what] < self.totals[what] and all(
            room >= 1 for _, _, room in self._rooms(tenant, what, 1, now)
        )

    def take(self, tenant: Tenant, what: str, amount: int = 1) -> None:
        """Take units, or give them back with a negative `amount`."""
        self.used[what] += amount
        for _, account in self._accounts(tenant):
            account.held[what] += amount

    def _accounts(self, tenant: Tenant) -> list[tuple[Tenant, _Account]]:
        """Return the accounts of the tenant's caller and, where the caller names tenants, of the
        tenant."""
        parties: list[tuple[str | None, Tenant]] = [(None, Tenant(tenant.caller))]
        if tenant.id:
            parties.append((tenant.caller, tenant))
        return [(party, self._account(group, party)) for group, party in parties]

    def _account(self, group: str | None, party: Tenant) -> _Account:
        peers = self._peers.setdefault(group, {})
        if (account := peers.get(party)) is None:
            if len(peers) >= MOST_TENANTS:
                holding = {each: account for each, account in peers.items() if account.held.total()}
                peers = self._peers[group] = holding
            account = peers[party] = _Account()
        return account

    def _rooms(
        self, tenant: Tenant, what: str, amount: int, now: float
    ) -> Iterator[tuple[Tenant, int, float]]:
        """Yield the tenant's caller, and the tenant where the caller names some, with what each
        holds and how much more it may have. What a caller may have is what its tenants share."""
        total, used = self.totals[what], self.used[what]
        for party, account in self._accounts(tenant):
            held = account.held[what]
            others = [] if party == NOBODY else self._others(party, now)
            room = _room(held, [each.held[what] for each in others], total, used, amount)
            yield party, held, room
            total, used = held + int(min(total - used, room)), held

    def _others(self, party: Tenant, now: float) -> list[_Account]:
        """Return the other active ones among whom the party is."""
        peers = self._peers[party.caller if party.id else None]
        return [
            account
            for each, account in peers.items()
            if each not in (party, NOBODY)
            and (now - account.asked_s < ACTIVE_S or account.held.total())
        ]


def _room(held: int, by_others: Sequence[int], total: int, used: int, amount: int) -> float:
    """Return how many of the units that are free a party may take which holds some, and asks for
    `amount`. Who has nothing may have all, since its request may be larger than any share."""
    if not held or not by_others:
        return inf
    share = total // (1 + len(by_others))
    below = sum(max(0, max(1, share) - each) for each in by_others)
    kept = min(total // 2, max(total // KEPT_SHARE, by_others.count(0) * amount), below)
    return max(share - held, total - used - kept)


class Rates:
    """Token buckets: what tenants have used of a rate, whose unused part is kept for `burst_s`. A
    bucket may be left in debt, since what something costs may be known only afterwards."""

    def __init__(self, burst_s: float = 60.0) -> None:
        self._burst_s = burst_s
        self._paid_s: dict[Hashable, float] = {}
        """Until when each has paid by what it used (the generic cell rate algorithm), in the order
        of their last use."""

    def __len__(self) -> int:
        return len(self._paid_s)

    def wait_s(self, who: Hashable, per_s: float, now: float) -> float:
        """Return how long until one unit is there; 0 for no limit (`per_s` 0)."""
        return max(0.0, self._paid(who, now) + 1 / per_s - now) if per_s else 0.0

    def spend(
        self, who: Hashable, amount: float, per_s: float, now: float, most_debt_s: float = inf
    ) -> float:
        """Count `amount`, and return the seconds until the debt is paid, which is cancelled beyond
        `most_debt_s`."""
        if not per_s or not amount:
            return 0.0
        paid_s = min(self._paid(who, now) + amount / per_s, now + most_debt_s)
        self._paid_s.pop(who, None)
        self._paid_s[who] = paid_s
        if len(self._paid_s) > MOST_TENANTS:
            self._forget(now)
        return max(0.0, paid_s - now)

    def _paid(self, who: Hashable, now: float) -> float:
        return max(self._paid_s.get(who, -inf), now - self._burst_s)

    def _forget(self, now: float) -> None:
        """Forget who has its whole burst again, and who spent the longest ago where all are
        known."""
        owing = [(who, paid) for who, paid in self._paid_s.items() if paid > now - self._burst_s]
        self._paid_s = dict(owing[-MOST_TENANTS:])
