"""A certificate for names of Google's servers, which only those believe who are given its authority."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = timedelta(days=400)
_SKEW = timedelta(days=1)


def make(hosts: Sequence[str], folder: Path) -> tuple[ssl.SSLContext, bytes]:
    """Return what a server of these names needs, and the authority that its clients have to trust, in PEM.

    The authority may sign nothing but these names, and its key is gone when this returns. The key of the server is in the
    folder for a moment.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _authority(authority_key, hosts)
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = _builder("podlift emulator", authority.subject, key.public_key())
    builder = builder.add_extension(names, critical=False).add_extension(usage, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    certificate = builder.sign(authority_key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return _context(certificate.public_bytes(pem) + secret, folder), authority.public_bytes(pem)


def _authority(key: ec.EllipticCurvePrivateKey, hosts: Sequence[str]) -> x509.Certificate:
    # A client looks for its issuer by name: of two with the same one, it takes the first.
    called = f"podlift emulator authority {secrets.token_hex(8)}"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, called)])
    only = x509.NameConstraints(permitted_subtrees=[x509.DNSName(host) for host in hosts], excluded_subtrees=None)
    signs = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _builder(called, name, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.add_extension(only, critical=True).add_extension(signs, critical=True).sign(key, hashes.SHA256())


def _builder(name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    builder = x509.CertificateBuilder().issuer_name(issuer).public_key(key)
    builder = builder.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _SKEW).not_valid_after(now + _VALID)


def _context(chain: bytes, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = folder / "server.pem"
    # The ssl module reads keys from files only.
    path.touch(mode=0o600)
    try:
        path.write_bytes(chain)
        context.load_cert_chain(path)
    finally:
        path.unlink()
    return context
