"""What each holder of a key may take of a service, so that nobody can crowd the others out.

    shares = FairShares(Room(places=64, kv_bytes=2**31), Quota(tokens_per_minute=100_000))
    shares.take("edge-1", kv_bytes=2**20, now=0.0)      # or ResourceExhausted, saying when to retry
    shares.give_back("edge-1", kv_bytes=2**20, tokens=500, now=4.0)

Invariants: nothing here reads a clock; a refusal takes nothing; who holds less than its share of
the places is refused only when none is free, and a quarter of them is given to nobody else.
"""

from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Literal, Self

from tandem.core.errors import InvalidArgument, ResourceExhausted

KEPT_SHARE = 4
"""One place of so many is kept for holders below their share."""

FRESH_S = 60.0
"""A holder that asked so long ago still counts as one to share with."""

BUSY_RETRY_S = 1.0
"""When to try again where that depends on others."""

GRAMMAR_DEBT_MINUTES = 1.0
"""Grammars under way cost what they cost, and their tenant waits no longer than that for them."""

TENANTS_OF_HOLDER = 3
"""So many tenants' worth of grammars have all tenants of one holder together."""

_ALL_TENANTS = b"all tenants of a holder; longer than an id may be"

MOST_TENANTS = 1024
"""Whose grammars are counted at once; those that owe nothing are forgotten first."""

Refusal = Literal["sessions", "kv", "requests", "tokens", "grammars", "extraction"]


@dataclass(frozen=True, slots=True)
class Quota:
    """Most that one holder may take; 0: no limit but its fair share."""

    sessions: int = 0
    kv_bytes: int = 0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    grammar_s_per_minute: int = 0
    """Seconds of computing that its grammars may take. Only what asks for a grammar is refused
    when they are spent."""
    documents: int = 0
    document_bytes: int = 0
    """These two are what a holder may have stored, and kept by the retriever (0: as its settings
    say), not by `FairShares`."""

    @classmethod
    def parse(cls, words: dict[str, str]) -> Self:
        """Parse NAME=VALUE fields; missing ones are 0. Raises InvalidArgument naming the field."""
        known = {field_.name for field_ in fields(cls)}
        for name, value in words.items():
            if name in known and not (value.isascii() and value.isdigit() and len(value) <= 18):
                raise InvalidArgument(name, f"must be a whole number, got {value[:40]!r}")
        return cls(**{name: int(value) for name, value in words.items() if name in known})

    def over(self, default: "Quota") -> "Quota":
        """Return this quota, with the values of `default` where it states none."""
        said = {field_.name: getattr(self, field_.name) for field_ in fields(self)}
        return replace(default, **{name: value for name, value in said.items() if value})


NO_QUOTA = Quota()
QUOTA_FIELDS = frozenset(field_.name for field_ in fields(Quota))


class HolderRefused(ResourceExhausted):
    """Raised for a holder that has reached its quota or its share; `kind` names which."""

    def __init__(self, kind: Refusal, why: str, retry_after_s: float) -> None:
        super().__init__(f"{why}; try again in {retry_after_s:.3g} s")
        self.kind: Refusal = kind
        self.retry_after_s = retry_after_s


class Bucket:
    """A token bucket: a rate per minute, and a minute's worth at once. It may be left in debt,
    since what a request costs is known when it is over."""

    def __init__(self, now: float) -> None:
        self._per_minute = self._level = 0.0
        self._seen_s = now

    @property
    def full(self) -> bool:
        """True if the whole budget of a minute is available."""
        return self._level >= self._per_minute

    def set_rate(self, per_minute: float, now: float) -> None:
        """Set another rate from `now` on; 0: no limit."""
        self._refill(now)
        if not self._per_minute:
            self._level = per_minute
        self._per_minute = per_minute
        self._level = min(self._level, per_minute)

    def wait_s(self, now: float) -> float:
        """Return how long until something is there."""
        self._refill(now)
        rate = self._per_minute
        return max(0.0, (1 - self._level) * 60 / rate) if rate else 0.0

    def spend(self, amount: float, now: float, minutes_of_debt: float = inf) -> None:
        """Take `amount` out of the bucket, which may leave it in debt. Debt of more than
        `minutes_of_debt` minutes' worth is cancelled."""
        self._refill(now)
        self._level -= amount
        if self._per_minute and minutes_of_debt < inf:
            self._level = max(self._level, -minutes_of_debt * self._per_minute)

    def _refill(self, now: float) -> None:
        self._level += (now - self._seen_s) * self._per_minute / 60
        self._level = min(self._level, self._per_minute)
        self._seen_s = now


@dataclass(frozen=True, slots=True)
class Room:
    """Capacity of a service for all holders together."""

    places: int
    kv_bytes: int = 2**62
    what: str = "sessions"
    """What a place is called."""


@dataclass(slots=True)
class _Account:
    requests: Bucket
    tokens: Bucket
    sessions: int = 0
    kv_bytes: int = 0
    asked_s: float = field(default=0.0)


class FairShares:
    """Usage of each holder; one object per service. Holders are few: keys files name them."""

    def __init__(self, room: Room, quota: Quota) -> None:
        """Start with no sessions. `quota` is for a holder whose key says nothing else. The holder
        "" stands for all callers without keys, among whom nothing is shared out."""
        self._room = room
        self._quota = quota
        self._accounts: dict[str, _Account] = {}
        self._grammars: dict[tuple[str, bytes], Bucket] = {}
        self.sessions = 0
        self.kv_bytes = 0

    def held_by(self, holder: str) -> int:
        """Return how many sessions the holder has."""
        account = self._accounts.get(holder)
        return 0 if account is None else account.sessions

    def claim(self, holder: str) -> float:
        """Return the holder's sessions relative to an even share among all holders with sessions; 1
        for callers without keys."""
        if not holder or not self.sessions:
            return 1.0
        active = sum(1 for account in self._accounts.values() if account.sessions)
        return self.held_by(holder) * active / self.sessions

    def take(self, holder: str, kv_bytes: int, now: float, key_quota: Quota | None = None) -> None:
        """Take a place and `kv_bytes` bytes of keys and values.

        Args:
            key_quota: the quota that the holder's key states.

        Raises:
            ResourceExhausted: names the limit of the service that is reached.
            HolderRefused: the limit is the holder's own.
        """
        quota = self._quota if key_quota is None else key_quota.over(self._quota)
        account = self._accounts.setdefault(holder, _Account(Bucket(now), Bucket(now)))
        account.asked_s = now
        self._check_rates(holder, account, quota, now)
        self._check_sessions(holder, account, quota, now)
        self._check_kv(holder, account, quota, wanted=kv_bytes, now=now)
        account.requests.spend(1, now)
        account.sessions += 1
        account.kv_bytes += kv_bytes
        self.sessions += 1
        self.kv_bytes += kv_bytes

    def take_more(
        self, holder: str, kv_bytes: int, now: float, key_quota: Quota | None = None
    ) -> None:
        """Take `kv_bytes` bytes more for a session that has its place. Raises as `take`."""
        quota = self._quota if key_quota is None else key_quota.over(self._quota)
        account = self._accounts[holder]
        self._check_kv(holder, account, quota, wanted=kv_bytes, now=now)
        account.kv_bytes += kv_bytes
        self.kv_bytes += kv_bytes

    def check_grammar(
        self, holder: str, tenant: bytes, now: float, key_quota: Quota | None = None
    ) -> None:
        """Check that a tenant of the holder (b"": the holder itself) may use a grammar. Raises
        HolderRefused."""
        quota = self._quota if key_quota is None else key_quota.over(self._quota)
        most = quota.grammar_s_per_minute
        for payer, limit in self._payers(holder, tenant, most):
            if payer not in self._grammars and len(self._grammars) >= MOST_TENANTS:
                self._forget_grammars(now)
            bucket = self._grammars.setdefault(payer, Bucket(now))
            bucket.set_rate(limit, now)
            if (wait_s := bucket.wait_s(now)) > 0:
                who = f"a tenant of {_name(holder)}" if payer[1] == tenant != b"" else _name(holder)
                why = f"grammar: {who} has used its {limit} s of computing grammars per minute"
                raise HolderRefused("grammars", why, wait_s)

    def spend_grammar(self, holder: str, tenant: bytes, seconds: float, now: float) -> None:
        """Count the time for grammars of the tenant."""
        for payer, _ in self._payers(holder, tenant):
            if (bucket := self._grammars.get(payer)) is not None:
                bucket.spend(seconds, now, GRAMMAR_DEBT_MINUTES)

    def _payers(
        self, holder: str, tenant: bytes, most: int = 0
    ) -> list[tuple[tuple[str, bytes], int]]:
        """Return who pays for a tenant's grammars, and the limit of each. A holder says itself whom
        it asks for, so that all its tenants together have a limit too."""
        if not tenant:
            return [((holder, b""), most)]
        return [((holder, tenant), most), ((holder, _ALL_TENANTS), most * TENANTS_OF_HOLDER)]

    def _forget_grammars(self, now: float) -> None:
        for payer, bucket in list(self._grammars.items()):
            bucket.spend(0, now)
            if bucket.full:
                del self._grammars[payer]
        while len(self._grammars) >= MOST_TENANTS:
            del self._grammars[next(iter(self._grammars))]

    def give_back(self, holder: str, kv_bytes: int, tokens: int, now: float) -> None:
        """Return reserved capacity, and count what the session has used."""
        account = self._accounts[holder]
        account.sessions -= 1
        account.kv_bytes -= kv_bytes
        self.sessions -= 1
        self.kv_bytes -= kv_bytes
        account.tokens.spend(tokens, now)

    def _check_rates(self, holder: str, account: _Account, quota: Quota, now: float) -> None:
        kinds: tuple[tuple[Refusal, Bucket, int], ...] = (
            ("requests", account.requests, quota.requests_per_minute),
            ("tokens", account.tokens, quota.tokens_per_minute),
        )
        for kind, bucket, most in kinds:
            bucket.set_rate(most, now)
            if (wait_s := bucket.wait_s(now)) > 0:
                why = f"{kind}: {_name(holder)} has used its {most} per minute"
                raise HolderRefused(kind, why, wait_s)

    def _check_sessions(self, holder: str, account: _Account, quota: Quota, now: float) -> None:
        places = self._room.places
        what = self._room.what
        if quota.sessions and account.sessions >= quota.sessions:
            why = f"{what}: {_name(holder)} has reached its quota of {quota.sessions}"
            raise HolderRefused("sessions", why, BUSY_RETRY_S)
        fair = self._fair(
            holder, held=account.sessions, wanted=1, total=places, used=self.sessions, now=now
        )
        if not fair:
            why = f"{what}: {_name(holder)} has {account.sessions} of {places}, and its share"
            raise HolderRefused("sessions", f"{why} is less", BUSY_RETRY_S)
        if self.sessions >= places:
            raise ResourceExhausted(f"{what}: all {places} are in use; try again")

    def _check_kv(
        self, holder: str, account: _Account, quota: Quota, *, wanted: int, now: float
    ) -> None:
        total = self._room.kv_bytes
        if quota.kv_bytes and account.kv_bytes + wanted > quota.kv_bytes:
            left = quota.kv_bytes - account.kv_bytes
            why = f"kv budget: {wanted} bytes needed, {left} of {quota.kv_bytes} left"
            raise HolderRefused("kv", f"{why} to {_name(holder)}", BUSY_RETRY_S)
        if self.kv_bytes + wanted > total:
            free = total - self.kv_bytes
            raise ResourceExhausted(f"kv budget: {wanted} bytes needed, {free} of {total} free")
        fair = self._fair(
            holder,
            held=account.kv_bytes,
            wanted=wanted,
            total=total,
            used=self.kv_bytes,
            now=now,
        )
        if not fair:
            why = f"kv budget: {_name(holder)} has {account.kv_bytes} of {total} bytes"
            raise HolderRefused("kv", f"{why}, and its share is less", BUSY_RETRY_S)

    def _fair(
        self, holder: str, *, held: int, wanted: int, total: int, used: int, now: float
    ) -> bool:
        """Return whether the request leaves enough for the others. A holder that has nothing may
        have all that is free, since its request may be larger than any share."""
        if not holder or not held:
            return True
        others = sum(
            1
            for other, account in self._accounts.items()
            if other != holder and (account.sessions or now - account.asked_s < FRESH_S)
        )
        sharing = 1 + max(1, others)  # somebody may always come
        return (held + wanted) * sharing <= total or total - used - wanted >= total // KEPT_SHARE


def _name(holder: str) -> str:
    return f"'{holder}'" if holder else "everybody together"
