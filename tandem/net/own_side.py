"""The callers on a service's own side: those of its machine and its configured networks. A device's
documents are answered to its own side only: a caller from an address elsewhere is refused. It
cannot see through a proxy or a tunnel that runs on this machine."""

import ipaddress
from collections.abc import Sequence
from urllib.parse import unquote

import grpc

from tandem.net.status import Rejected

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse networks such as "10.1.0.0/16, fd00::/8". Raises ValueError naming the one at fault."""
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def is_loopback(host: str) -> bool:
    """Return whether a server that listens on `host` can be reached from its own machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_own_side(peer: str, networks: Sequence[Network]) -> None:
    """Raise Rejected with PERMISSION_DENIED unless `peer`, as gRPC names it, is on this side."""
    if peer.startswith("unix:"):
        return
    address = _address(peer)
    if address and (address.is_loopback or any(address in network for network in networks)):
        return
    why = (
        f"this retriever has a device's documents and answers only its own side, not {peer};"
        " its setting own_side names the networks that are"
    )
    raise Rejected(grpc.StatusCode.PERMISSION_DENIED, why)


def _address(peer: str) -> Address | None:
    """Return the address of a peer; None for what is no address: such a caller is a stranger."""
    family, _, place = unquote(peer).partition(":")
    host = place.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host) if family in ("ipv4", "ipv6") else None
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
