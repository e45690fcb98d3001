"""Where a service is, as people write it: HOST:PORT or a URL. An aggregator has two ports, and one
to remember: at that of HTTP it says which is that of gRPC."""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

HEALTH_PATH = "/healthz"
ASKING_S = 5.0
MOST_BYTES = 4096
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`scheme` is empty where only HOST:PORT was given."""

    host: str
    port: int
    scheme: str = ""

    def __str__(self) -> str:
        """Return HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Return what HOST:PORT or a URL names; an IPv6 host stands in brackets. Raises ValueError."""
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    try:
        parts = urlsplit(text if scheme else f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if port is None:
        port = _PORTS.get(scheme)
    bare = host is not None and ":" in host and "[" not in text
    if not host or port is None or bare or (scheme and scheme not in _PORTS):
        raise ValueError(f"{text!r} is neither HOST:PORT nor a URL such as http://127.0.0.1:8000")
    return Endpoint(host, port, scheme)


def of_grpc(endpoint: Endpoint, authorities: Path | None = None) -> Endpoint:
    """Return the gRPC port of the aggregator whose HTTP port `endpoint` is; `endpoint` itself where
    no aggregator answers over HTTP. `authorities`: PEM certificates to check that of https by,
    instead of the system's. Raises OSError for a bad certificate."""
    if endpoint.scheme == "https":
        context = ssl.create_default_context(cafile=authorities)
        asking: HTTPConnection = HTTPSConnection(
            endpoint.host, endpoint.port, timeout=ASKING_S, context=context
        )
    else:
        asking = HTTPConnection(endpoint.host, endpoint.port, timeout=ASKING_S)
    try:
        asking.request("GET", HEALTH_PATH)
        port = json.loads(asking.getresponse().read(MOST_BYTES))["grpc_port"]
    except ssl.SSLCertVerificationError:
        raise
    except (OSError, HTTPException, ValueError, LookupError, TypeError, RecursionError):
        return replace(endpoint, scheme="")
    finally:
        asking.close()
    known = type(port) is int and 0 < port < 2**16
    return Endpoint(endpoint.host, port if known else endpoint.port)
