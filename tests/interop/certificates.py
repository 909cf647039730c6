"""A throw-away certificate authority for the TLS tests: one server and one client certificate."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates that live for a day into a folder."""

    def __init__(self, folder: Path, name: str = "interop test authority") -> None:
        """Who trusts several authorities tells them apart by their names."""
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self.certificate = folder / "ca.pem"
        built = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate.write_bytes(_pem(built.sign(self._key, hashes.SHA256())))

    def issue(self, common_name: str, *, server: bool, client: bool | None = None) -> Pair:
        """Issue a certificate for a server or else for a client, or for a node, which is both."""
        key = ec.generate_private_key(ec.SECP256R1())
        is_client = not server if client is None else client
        usages = [ExtendedKeyUsageOID.SERVER_AUTH] if server else []
        usages += [ExtendedKeyUsageOID.CLIENT_AUTH] if is_client else []
        names: list[x509.GeneralName] = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        builder = self._builder(_name(common_name), key).add_extension(
            x509.ExtendedKeyUsage(usages), critical=False
        )
        if server:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        stem = self.folder / common_name.replace(" ", "-")
        pair = Pair(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        pair.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
