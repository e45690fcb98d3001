"""Until when a certificate is valid, by the standard library alone.

`ssl` tells the dates of a certificate only to a peer that has verified it; so a handshake is made
in memory, between a server that shows it and a caller that trusts it and nothing else. Must not
import grpc or torch.
"""

from __future__ import annotations

import ssl
from pathlib import Path

FLIGHTS = 8
"""More than any handshake has."""


def expiry_s(certificate: Path, key: Path) -> float:
    """When the certificate in these PEM files expires, in Unix seconds; 0 for one that is not valid
    now. Raises OSError or ssl.SSLError for files that are no certificate and its key."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key, password="")
    caller = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    caller.check_hostname = False
    caller.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    caller.load_verify_locations(certificate)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        caller.wrap_bio(back, there),
        server.wrap_bio(there, back, server_side=True),
    )
    try:
        for _ in range(FLIGHTS):
            done = [_has_shaken_hands(end) for end in ends]  # both, in turn
            if all(done):
                break
        dates = ends[0].getpeercert() or {}
    except (ssl.SSLError, ValueError):  # not valid now, or not for servers; no handshake, no dates
        return 0.0
    return ssl.cert_time_to_seconds(str(dates["notAfter"])) if "notAfter" in dates else 0.0


def _has_shaken_hands(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
