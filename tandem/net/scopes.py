"""Permissions: the scopes of keys, the one table from each RPC to the scope that opens it, and who
calls. Invariants: a method that the table does not list is open to nobody, whatever a server has
registered; no scope includes another."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from tandem.core.errors import InvalidArgument
from tandem.net.quotas import NO_QUOTA, Quota


class Scope(StrEnum):
    """A scope of a key."""

    GENERATE = "generate"
    """Ask an aggregator or a drafter for answers, and the cloud's aggregator to take part."""
    VERIFY = "verify"
    """Have drafts verified by the target model."""
    DECODE = "decode"
    """Decode documents, and read their keys and values, as an aggregator does with its decoder."""
    DOCUMENTS_READ = "documents:read"
    """Search a retriever, and read what it has; over HTTP list the holder's own documents."""
    DOCUMENTS_WRITE = "documents:write"
    """Put documents in and take them out, of a retriever and of a decoder's cache; over HTTP the
    holder's own."""
    DOCUMENTS_SHARE = "documents:share"
    """Over HTTP: have documents found by everybody. Whoever may, writes into all tenants' answers,
    and takes places that their own documents would have: that is more than to write one's own."""
    ADMIN = "admin"
    """What operators do: reflection, snapshots of documents; over HTTP metrics."""


OPEN = None
"""The scope of a method that needs no key."""

SCOPE_OF: Mapping[str, Scope | None] = {
    "/tandem_api.aggregator.v1.AggregatorService/Generate": Scope.GENERATE,
    "/tandem_api.aggregator.v1.AggregatorService/Collaborate": Scope.GENERATE,
    "/tandem_api.aggregator.v1.AggregatorService/FetchDocuments": Scope.GENERATE,
    "/tandem_api.aggregator.v1.AggregatorService/Describe": Scope.GENERATE,
    "/tandem_api.drafter.v1.DrafterService/Generate": Scope.GENERATE,
    "/tandem_api.drafter.v1.DrafterService/Describe": Scope.GENERATE,
    "/tandem_api.drafter.v1.DrafterService/Tokenize": Scope.GENERATE,
    "/tandem_api.verifier.v1.VerifierService/Verify": Scope.VERIFY,
    "/tandem_api.verifier.v1.VerifierService/Describe": Scope.VERIFY,
    "/tandem_api.decoding.v1.DecodingService/Decode": Scope.DECODE,
    "/tandem_api.decoding.v1.DecodingService/LookUpDocuments": Scope.DECODE,
    "/tandem_api.decoding.v1.DecodingService/ExportDocuments": Scope.DECODE,
    "/tandem_api.decoding.v1.DecodingService/ImportDocuments": Scope.DOCUMENTS_WRITE,
    "/tandem_api.decoding.v1.DecodingService/ForgetDocuments": Scope.DOCUMENTS_WRITE,
    "/tandem_api.retriever.v1.RetrieverService/Search": Scope.DOCUMENTS_READ,
    "/tandem_api.retriever.v1.RetrieverService/List": Scope.DOCUMENTS_READ,
    "/tandem_api.retriever.v1.RetrieverService/Stats": Scope.DOCUMENTS_READ,
    "/tandem_api.retriever.v1.RetrieverService/Describe": Scope.DOCUMENTS_READ,
    "/tandem_api.retriever.v1.RetrieverService/Embed": Scope.DOCUMENTS_READ,
    "/tandem_api.retriever.v1.RetrieverService/Ingest": Scope.DOCUMENTS_WRITE,
    "/tandem_api.retriever.v1.RetrieverService/Delete": Scope.DOCUMENTS_WRITE,
    "/tandem_api.retriever.v1.RetrieverService/Snapshot": Scope.ADMIN,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Scope.ADMIN,
    "/grpc.health.v1.Health/Check": OPEN,  # probes have no keys; it says only whether it serves
    "/grpc.health.v1.Health/Watch": OPEN,
    "/grpc.health.v1.Health/List": Scope.ADMIN,
}


def scopes_from(text: str) -> frozenset[Scope]:
    """Parse names separated by commas. Raises InvalidArgument naming one that is no scope."""
    try:
        return frozenset(map(Scope, text.split(",")))
    except ValueError:
        unknown = next(name for name in text.split(",") if name not in list(Scope))
        why = f"{unknown[:40]!r} is not one of {', '.join(Scope)}"
        raise InvalidArgument("scopes", why) from None


OVER_HTTP = " over HTTP"


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller: the holder of a key, and the scopes of the key."""

    holder: str
    scopes: frozenset[Scope]
    quota: Quota = NO_QUOTA
    """What the key says of limits; where it says nothing, the service's own hold."""
    over_http: bool = False
    """Whether the key is one of the HTTP API. Those are in a file of their own, in which a name may
    stand for somebody else."""

    @property
    def name(self) -> str:
        """The holder, unlike any of the same name at the other door; "" where nobody is known. No
        holder's name has a space."""
        return f"{self.holder}{OVER_HTTP}" if self.over_http and self.holder else self.holder


ANYONE = Caller("", frozenset(Scope))
"""Who calls a port without keys: nobody can be told from others."""

_CALLER: ContextVar[Caller] = ContextVar("tandem_caller", default=ANYONE)


def current_caller() -> Caller:
    """Return the caller of the current call; `ANYONE` if the port needs no key."""
    return _CALLER.get()


def note_caller(caller: Caller) -> None:
    """Note that this task, and the tasks that it starts from now on, serve `caller`."""
    _CALLER.set(caller)
