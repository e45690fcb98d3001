"""Certificates of a local authority, for mutual TLS. Invariant: a service's certificate serves both
ends, names the hosts it may be called by, and can sign nothing. No clock is read."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tandem.core.errors import InvalidArgument

_Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Validity:
    """From when to when a certificate is valid; times with their zone."""

    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def new_authority(name: str, validity: Validity) -> Issued:
    """Make an authority that signs services, but no further authorities."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key.public_key(), validity)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _signed(builder, key, key)


def issue(authority: Issued, name: str, hosts: Sequence[str], validity: Validity) -> Issued:
    """Issue a service's certificate for `hosts`, which are DNS names and addresses. Raises
    InvalidArgument for bad hosts and for a broken authority."""
    if not hosts:
        raise InvalidArgument("hosts", "must contain a host name or address of the service")
    issuer, issuer_key = _loaded(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), issuer.subject, key.public_key(), validity)
    constraints = x509.BasicConstraints(ca=False, path_length=None)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    extensions: tuple[tuple[x509.ExtensionType, bool], ...] = (
        (constraints, True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage(usages), False),
        (x509.SubjectAlternativeName([_alternative_name(host) for host in hosts]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False),
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return _signed(builder, issuer_key, key)


def self_signed(name: str, hosts: Sequence[str], validity: Validity) -> Issued:
    """Make a service's certificate that no authority stands behind: callers must know it. Raises
    InvalidArgument for bad hosts."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key.public_key(), validity)
    names = [_alternative_name(host) for host in hosts]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    return _signed(builder, key, key)


def expires(certificate: bytes) -> datetime:
    """Return when the PEM `certificate` stops being valid. Raises InvalidArgument."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError as error:
        raise InvalidArgument("certificate", "is not a PEM certificate") from error


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, validity: Validity
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity.begin)
        .not_valid_after(validity.end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(name: str) -> x509.Name:
    parts = ((NameOID.ORGANIZATION_NAME, "Tandem"), (NameOID.COMMON_NAME, name))
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        if not host or any(letter in host for letter in " :/\n"):
            raise ValueError
        return x509.DNSName(host)
    except ValueError:
        raise InvalidArgument(
            "hosts", f"{host!r} is neither a DNS name nor an IP address"
        ) from None


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _loaded(authority: Issued) -> tuple[x509.Certificate, _Key]:
    try:
        certificate = x509.load_pem_x509_certificate(authority.certificate)
        key = serialization.load_pem_private_key(authority.key, password=None)
    except (ValueError, TypeError) as error:
        raise InvalidArgument("authority", "is not a PEM certificate with its key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidArgument("authority", "must have an elliptic-curve key")
    if key.public_key() != certificate.public_key():
        raise InvalidArgument("authority", "the key does not match the certificate")
    return certificate, key


def _signed(builder: x509.CertificateBuilder, issuer_key: _Key, key: _Key) -> Issued:
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    return Issued(
        builder.sign(issuer_key, hashes.SHA256()).public_bytes(pem),
        key.private_bytes(pem, form, serialization.NoEncryption()),
    )
