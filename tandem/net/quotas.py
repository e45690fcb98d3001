"""What a key may take of a service: limits that an operator sets, and the refusal of who reached
one."""

from dataclasses import dataclass, fields, replace
from typing import Literal, Self

from tandem.core.errors import InvalidArgument, ResourceExhausted

BUSY_RETRY_S = 1.0
"""When to try again where that depends on others."""

Refusal = Literal["sessions", "kv", "requests", "tokens", "grammars", "extraction", "queue"]


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
    say)."""

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

    def __init__(self, kind: Refusal, why: str, retry_after_s: float = BUSY_RETRY_S) -> None:
        super().__init__(f"{why}; try again in {retry_after_s:.3g} s")
        self.kind: Refusal = kind
        self.retry_after_s = retry_after_s
