"""The line that lets a second machine in: a verifier's address, the hash of its certificate, a key.
Invariant: the key is shown to nobody before it has shown the certificate that the line names."""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
import ssl
from dataclasses import dataclass, field

import grpc

from tandem.core.errors import InvalidArgument, TandemError
from tandem.core.foreign_words import cleaned
from tandem.net.access import ClientAccess
from tandem.net.access_keys import check_key
from tandem.net.channels import open_channel
from tandem.net.endpoint import Endpoint, parse_endpoint
from tandem.net.status import details_of
from tandem.net.tls import PINNED_NAME
from tandem_api.verifier.v1 import verifier_pb2, verifier_pb2_grpc

REACH_S = 10.0
MESSAGE_BYTES = 2**20
_LINE = re.compile(r"(?P<address>[^#\s]+)#sha256:(?P<sha256>[0-9a-f]{64}):(?P<key>\S+)")


@dataclass(frozen=True, slots=True)
class Invitation:
    """`sha256` is of the certificate as DER, in hexadecimal digits."""

    endpoint: Endpoint
    sha256: str
    key: str = field(repr=False)

    def __str__(self) -> str:
        """Return the line, with the key."""
        return f"{self.endpoint}#sha256:{self.sha256}:{self.key}"


def parse_invitation(text: str) -> Invitation:
    """Return what a line says. Raises InvalidArgument("line"), without showing the key."""
    found = _LINE.fullmatch(text.strip())
    if found is None:
        raise InvalidArgument(
            "line", "must be HOST:PORT#sha256:HEX:KEY, as the verifier printed it"
        )
    try:
        check_key(found["key"])
        return Invitation(parse_endpoint(found["address"]), found["sha256"], found["key"])
    except (InvalidArgument, ValueError) as error:
        raise InvalidArgument("line", str(error)) from None


def sha256_of(pem: str) -> str:
    """Return the hash of a PEM certificate by which a line names it."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


def fetch_certificate(invitation: Invitation) -> str:
    """Return the PEM certificate that the verifier shows. Raises TandemError if it cannot be
    reached, or shows another one than the line names: somebody else may answer in its place."""
    endpoint = invitation.endpoint
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the hash is compared instead
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((endpoint.host, endpoint.port), REACH_S) as plain,
            context.wrap_socket(plain, server_hostname=PINNED_NAME) as secured,
        ):
            shown = ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True) or b"")
    except (OSError, UnicodeError) as error:  # ssl's errors, and those of names that are none
        words = getattr(error, "strerror", None) or error
        why = f"{endpoint} cannot be reached over TLS: {words}"
        raise TandemError(f"{why}; is the verifier serving there?") from error
    if not hmac.compare_digest(sha256_of(shown), invitation.sha256):
        raise TandemError(
            f"{endpoint} shows another certificate than the line names, and is not sent the key:"
            " somebody may be in between, or the verifier has made itself a new one, and a new line"
        )
    return shown


async def model_at(address: str, access: ClientAccess) -> str:
    """Return the name of the model of the verifier at `address`. Raises TandemError where it does
    not let this caller in."""
    async with open_channel(address, MESSAGE_BYTES, access) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        try:
            described = await stub.Describe(verifier_pb2.DescribeRequest(), timeout=REACH_S)
        except grpc.aio.AioRpcError as error:
            why = details_of(error, f"the verifier at {address}")
            raise TandemError(f"{address} does not let this machine in: {why}") from error
    return cleaned(described.model.model_name)
