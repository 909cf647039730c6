"""Certificates are read as the library that made them says."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from mirrormq.ctl.certificates import Unreadable, read_pem

NAMES = [
    (NameOID.COUNTRY_NAME, "DE"),
    (NameOID.ORGANIZATION_NAME, "Größe & Söhne"),
    (NameOID.COMMON_NAME, "broker.example.org"),
]


def made(ends: datetime.datetime, serial: int) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(kind, value) for kind, value in NAMES])
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    builder = builder.public_key(key.public_key()).serial_number(serial)
    begins = datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    certificate = builder.not_valid_before(begins).not_valid_after(ends).sign(key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("year", [2021, 2049, 2050, 2999])
@pytest.mark.parametrize("serial", [1, 127, 128, 1 << 158])
def test_names_and_times_are_read(year: int, serial: int) -> None:
    ends = datetime.datetime(year, 12, 31, 23, 59, 58, tzinfo=datetime.UTC)
    found = read_pem(made(ends, serial))
    assert found.not_after == ends
    assert found.not_before == datetime.datetime(2020, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert found.subject == "CN=broker.example.org,O=Größe & Söhne,C=DE"
    assert found.issuer == "CN=an authority"
    assert found.serial == serial


def test_what_is_no_certificate_is_refused() -> None:
    whole = made(datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC), 1)
    lines = whole.splitlines()
    cut = "\n".join([lines[0], *lines[1:3], lines[-1]])
    for text in ("", "x", cut, f"{lines[0]}\nAAAA\n{lines[-1]}\n"):
        with pytest.raises(Unreadable):
            read_pem(text)
