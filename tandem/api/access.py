"""How a running suite is reached: its address, TLS and the key. Invariant: what is sent leaves this
machine over TLS, unless the caller said `insecure`."""

from os import PathLike
from pathlib import Path

from tandem.core.errors import InvalidArgument
from tandem.net.access import ClientAccess
from tandem.net.auth import own_key
from tandem.net.own_side import is_loopback
from tandem.net.reloaded import BadFile
from tandem.net.tls import TlsFiles, TlsIdentity

Place = str | PathLike[str]


def client_access(
    host: str,
    *,
    tls_ca: Place | None,
    tls_certificate: Place | None,
    tls_key: Place | None,
    call_key_file: Place | None,
    insecure: bool,
) -> ClientAccess:
    """Return the credentials to show to a service at `host`; without files a plain connection, on
    loopback only. Raises InvalidArgument naming the file that is missing or bad."""
    tls = {"tls_ca": tls_ca, "tls_certificate": tls_certificate, "tls_key": tls_key}
    files = {name: Path(place) for name, place in tls.items() if place is not None}
    if insecure or (not files and call_key_file is None and is_loopback(host)):
        return ClientAccess()
    if missing := [name for name in tls if name not in files]:
        why = "is required to call another machine; set insecure (--insecure) to call without TLS"
        raise InvalidArgument(missing[0], why)
    key = None if call_key_file is None else Path(call_key_file)
    try:
        identity = TlsIdentity(
            TlsFiles(files["tls_certificate"], files["tls_key"], files["tls_ca"])
        )
        return ClientAccess(identity, None if key is None else own_key(key))
    except BadFile as error:
        named = {**files, "call_key_file": key}
        field = next((name for name in named if named[name] == error.path), "tls_certificate")
        raise InvalidArgument(field, str(error)) from error
