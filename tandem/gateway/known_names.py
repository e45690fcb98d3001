"""By which names this server may be called, and which web pages may ask it. Invariant: a page of
another site reaches nothing. A browser sends the page's own host name as Host when that name is
made to point here (DNS rebinding), and the page's origin as Origin with all that it asks of others.

Programs send any Host they are told and no Origin, so neither check stands in for a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tandem.core.host_names import ANY, names_here
from tandem.gateway.errors import ApiError


def names_in(text: str) -> frozenset[str]:
    """Return the names or origins in a setting, where they are separated by commas, in any case."""
    parts = (part.strip().lower() for part in text.split(","))
    return frozenset(part.rstrip("/") for part in parts if part)


@dataclass(frozen=True, slots=True)
class KnownNames:
    """`hosts` are names without port, `*.example.com` or `*`; loopback names and IP addresses, to
    which no stranger's name can be made equal, are known always. `origins` are scheme://host[:port],
    or `*`; a page of this very server is known always. All in lower case."""

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise ApiError 421 for an unknown host name, 403 for a page of another site. A caller
        that sends no Host at all is not a browser."""
        host = headers.get("host")
        if host is not None and not names_here(host, self.hosts):
            why = f"Host '{_shown(host)}' is not allowed; see the setting http_hosts."
            raise ApiError(421, why, code="unknown_host")
        origin = headers.get("origin")
        if origin is not None and not self._may_ask(origin.lower(), host):
            why = f"Origin '{_shown(origin)}' is not allowed; see the setting http_origins."
            raise ApiError(403, why, code="origin_not_allowed")

    def _may_ask(self, origin: str, host: str | None) -> bool:
        if ANY in self.origins or origin in self.origins:
            return True
        scheme, _, place = origin.partition("://")
        return scheme in ("http", "https") and host is not None and place == host.strip().lower()


def _shown(text: str) -> str:
    return text[:80].encode("ascii", "backslashreplace").decode()
