"""A certificate and its private key from PEM files, refused with a word on what is wrong with them.

Must not import grpc or torch.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from tandem.rpc.reloaded import BadFile


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
