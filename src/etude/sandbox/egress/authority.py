"""The certificate authority of one backend. Boxes trust it, so the proxy can read what they send over TLS.

The authority's key is generated in memory, never written to a file, and gone when the process ends.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import ssl
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_NAME = "Local Root"
"""Common name of the authority's certificate, which programs in a box can see."""
_BACKDATED, _LIFETIME = datetime.timedelta(days=2), datetime.timedelta(days=60)
_MOST_CONTEXTS = 512


class NamedConnection(ssl.SSLObject):
    """The proxy's end of a TLS connection with a box. It stores the server name (SNI) that the box asked for."""

    server_name: str | None = None
    """The server name in the TLS handshake; None if the box sent none."""


class Authority:
    """Signs a certificate for each host that boxes connect to. `context_for(name)` returns the cached TLS context."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, AUTHORITY_NAME)])
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.context_for = lru_cache(_MOST_CONTEXTS)(self._make_context)

    @property
    def pem(self) -> bytes:
        """The authority's own certificate, for boxes to trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def lookup_name(self) -> str:
        """File name by which OpenSSL finds the certificate in a folder: a hash of its subject."""
        text = AUTHORITY_NAME.lower().encode()
        value = bytes([0x06, 3, 0x55, 0x04, 0x03, 0x0C, len(text)]) + text
        pair = bytes([0x30, len(value)]) + value
        digest = hashlib.sha1(bytes([0x31, len(pair)]) + pair, usedforsecurity=False).digest()
        return f"{int.from_bytes(digest[:4], 'little'):08x}.0"

    def _make_context(self, name: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.num_tickets = 0
        context.sslobject_class = NamedConnection
        context.sni_callback = _remember_server_name
        # The ssl module reads certificates only from files; a memfd keeps this one off the disk.
        memory = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(memory), "wb") as file:
                file.write(self._certify(name))
            context.load_cert_chain(f"/proc/self/fd/{memory}")
        finally:
            os.close(memory)
        return context

    def _certify(self, name: str) -> bytes:
        """Return a key and a new certificate for this host name, as PEM."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)] if len(name) <= 64 else [])
        builder = _builder(subject, self._name, self._leaf_key.public_key())
        for extension, critical in (
            (x509.SubjectAlternativeName([x509.DNSName(name)]), not subject.rdns),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
        ):
            builder = builder.add_extension(extension, critical=critical)
        key = self._leaf_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return key + builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _remember_server_name(connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
    assert isinstance(connection, NamedConnection)
    connection.server_name = name


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _BACKDATED).not_valid_after(now + _LIFETIME)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
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
