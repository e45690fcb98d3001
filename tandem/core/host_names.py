"""Whether the Host of an HTTP request names this server. When a web page makes its own name point
here (DNS rebinding), the browser sends that name, and the page reads what it gets: so a server that
asks for no key answers to its own names alone."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

ANY = "*"
_LOOPBACK = ("localhost", "*.localhost")


def names_here(host: str, known: Iterable[str] = ()) -> bool:
    """Return whether `host`, as in `name:port`, is a name of this server. Loopback names and IP
    addresses are always: no stranger's name can be made equal to one. `known` are more names in
    lower case without port, `*.example.com`, or `*` for all."""
    name = _without_port(host.strip().lower())
    names = (*_LOOPBACK, *known)
    return ANY in names or _is_address(name) or any(_matches(name, each) for each in names)


def _matches(name: str, known: str) -> bool:
    return name.endswith(known[1:]) if known.startswith("*.") else name == known


def _without_port(host: str) -> str:
    """Return the name in `name:port`; an IPv6 address is in brackets. Empty for what is
    malformed."""
    if host.startswith("["):
        address, closed, _ = host[1:].partition("]")
        return address if closed else ""
    return host.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
