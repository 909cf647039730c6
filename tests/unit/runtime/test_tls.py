"""User names in client certificates, in RabbitMQ's forms, and contexts that refuse bad files."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from mirrormq.runtime.faults import StartError
from mirrormq.runtime.settings import TlsSettings
from mirrormq.runtime.tls import distinguished_name, login_name, make_context

CERTIFICATE: dict[str, Any] = {
    "subject": (
        (("countryName", "DE"),),
        (("organizationName", "Example, Inc."),),
        (("commonName", "app"), ("userId", "u1")),
    ),
    "subjectAltName": (
        ("DNS", "first.example"),
        ("email", "a@example"),
        ("DNS", "second.example"),
        ("URI", "urn:app"),
    ),
}


def test_a_distinguished_name_is_written_last_part_first_and_escaped() -> None:
    assert distinguished_name(CERTIFICATE["subject"]) == "CN=app+UID=u1,O=Example\\, Inc.,C=DE"


@pytest.mark.parametrize(("value", "escaped"), [("#1", "\\#1"), (" a ", "\\ a\\ "), ('a"b<c', 'a\\"b\\<c')])
def test_characters_with_a_meaning_are_escaped(value: str, escaped: str) -> None:
    assert distinguished_name(((("commonName", value),),)) == f"CN={escaped}"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (TlsSettings(), "CN=app+UID=u1,O=Example\\, Inc.,C=DE"),
        (TlsSettings(login_from="common_name"), "app"),
        (TlsSettings(login_from="subject_alternative_name"), "first.example"),
        (TlsSettings(login_from="subject_alternative_name", login_san_index=1), "second.example"),
        (TlsSettings(login_from="subject_alternative_name", login_san_type="email"), "a@example"),
        (TlsSettings(login_from="subject_alternative_name", login_san_type="uri"), "urn:app"),
        (TlsSettings(login_from="subject_alternative_name", login_san_type="ip"), None),
        (TlsSettings(login_from="subject_alternative_name", login_san_index=2), None),
    ],
)
def test_the_user_name_is_taken_from_where_the_settings_say(settings: TlsSettings, name: str | None) -> None:
    assert login_name(CERTIFICATE, settings) == name


def test_without_a_verified_certificate_there_is_no_name() -> None:
    assert login_name(None, TlsSettings()) is None
    assert login_name({}, TlsSettings()) is None


@pytest.fixture
def pair(tmp_path: Path) -> TlsSettings:
    """A certificate with an encrypted key."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "1"]
    names = ["-keyout", key, "-out", certificate, "-subj", "/CN=localhost", "-passout", "pass:secret"]
    subprocess.run(["openssl", "req", *kind, *names], check=True, capture_output=True)
    return TlsSettings(certfile=str(certificate), keyfile=str(key), password="secret")


def test_an_encrypted_key_needs_its_password_and_never_asks_for_it(pair: TlsSettings) -> None:
    make_context(pair)
    without = TlsSettings(certfile=pair.certfile, keyfile=pair.keyfile)
    with pytest.raises(StartError, match="give its password as"):
        make_context(without)
    wrong = TlsSettings(certfile=pair.certfile, keyfile=pair.keyfile, password="wrong")
    with pytest.raises(StartError) as caught:
        make_context(wrong)
    assert "wrong" not in str(caught.value)


def test_unknown_ciphers_are_refused(pair: TlsSettings) -> None:
    settings = TlsSettings(
        certfile=pair.certfile, keyfile=pair.keyfile, password=pair.password, ciphers=("NO-SUCH-CIPHER",)
    )
    with pytest.raises(StartError, match="knows none of these"):
        make_context(settings)
