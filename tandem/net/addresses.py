"""Addresses of services as settings name them, with or without replicas. Standard library only."""

import re

_SCHEME = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds|passthrough):")
_HOST_AND_PORT = re.compile(r"[^\s:]+:\d{1,5}|\[[^\s\]]+\]:\d{1,5}")


def addresses_of(text: str) -> list[str]:
    """Split a setting with commas between services; `ipv4:…` and `ipv6:…` are one with replicas."""
    if text.startswith(("ipv4:", "ipv6:")):
        return [text]
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def check_addresses(text: str) -> str:
    """Return `text`, where each of its addresses is HOST:PORT or begins with a scheme of gRPC's.
    Raises ValueError: gRPC would take any word for a host, and look for its port 443."""
    for address in addresses_of(text) or [text]:
        if not (_SCHEME.match(address) or _HOST_AND_PORT.fullmatch(address)):
            raise ValueError(f"must be HOST:PORT or dns:///HOST:PORT, is {address[:80]!r}")
    return text
