"""A certificate and its private key from PEM files, and until when it is valid."""

import ssl
from pathlib import Path

from tandem.net.reloaded import BadFile

HANDSHAKE_FLIGHTS = 8
"""More than any handshake has."""


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Have `context` show the certificate. Raises BadFile."""
    try:
        # The password: an encrypted key is to be refused, not asked for on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            raise BadFile(key, f"is not the private key of {certificate}") from error
        why = "must be PEM, a certificate and its private key without a password"
        raise BadFile(certificate, f"with {key}: {why}") from error
    except OSError as error:
        raise BadFile(key, f"cannot be read: {error.strerror}") from error


def expiry_s(certificate: Path, key: Path) -> float:
    """Return when the certificate in these PEM files expires, in Unix seconds; 0 for one that is
    not valid now. Raises OSError or ssl.SSLError for files that are no certificate and its key.
    `ssl` tells a certificate's dates only to a peer that has verified it, so there is a handshake
    in memory, between a server that shows it and a client that trusts it and nothing else."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key, password="")
    caller = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    caller.check_hostname = False
    caller.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    caller.load_verify_locations(certificate)
    there = ssl.MemoryBIO()
    back = ssl.MemoryBIO()
    ends = (caller.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True))
    try:
        for _ in range(HANDSHAKE_FLIGHTS):
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
