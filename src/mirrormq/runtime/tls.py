"""TLS contexts of the listeners and of links between nodes, and the user name inside a client's certificate.

A context is changed in place on reload: connections that are open keep the certificate they began with, new
ones get the new one. Files that do not fit together leave the old certificate in use.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from mirrormq.runtime.faults import StartError
from mirrormq.runtime.settings import LinkTlsSettings, TlsSettings

VERSIONS = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}

SHORT_NAMES = {
    "surname": "SN", "givenName": "GIVENNAME", "initials": "INITIALS",
    "generationQualifier": "GENERATIONQUALIFIER", "commonName": "CN", "localityName": "L",
    "stateOrProvinceName": "ST", "organizationName": "O", "organizationalUnitName": "OU", "title": "TITLE",
    "countryName": "C", "serialNumber": "SERIALNUMBER", "pseudonym": "PSEUDONYM", "domainComponent": "DC",
    "emailAddress": "EMAILADDRESS", "streetAddress": "STREET", "userId": "UID",
}  # fmt: skip
"""Names of the parts of a distinguished name, as RabbitMQ writes them."""

SAN_KINDS = {"dns": "DNS", "ip": "IP Address", "email": "email", "uri": "URI"}


class LinkContexts(NamedTuple):
    """TLS of links between nodes: each end shows a certificate of the cluster's authorities to the other."""

    accepting: ssl.SSLContext
    dialling: ssl.SSLContext


def make_link_contexts(settings: LinkTlsSettings) -> LinkContexts | None:
    """Build both contexts, or none if the settings name no certificate."""
    if not settings.certfile:
        return None
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    dialling.check_hostname = settings.check_host
    offered = sorted(VERSIONS[version] for version in settings.versions)
    for context in (accepting, dialling):
        context.minimum_version, context.maximum_version = offered[0], offered[-1]
        context.verify_mode = ssl.CERT_REQUIRED
        load_files(context, _as_tls_settings(settings), "cluster_tls")
    return LinkContexts(accepting, dialling)


def reload_link_files(contexts: LinkContexts, settings: LinkTlsSettings) -> None:
    """Read the files again; a bad file changes nothing. Links that are open keep what they began with."""
    make_link_contexts(settings)
    for context in contexts:
        load_files(context, _as_tls_settings(settings), "cluster_tls")


def _as_tls_settings(settings: LinkTlsSettings) -> TlsSettings:
    return TlsSettings(
        certfile=settings.certfile,
        keyfile=settings.keyfile,
        password=settings.password,
        cacertfile=settings.cacertfile,
    )


def make_context(settings: TlsSettings, group: str = "ssl_options") -> ssl.SSLContext:
    """Build a server context. Raises StartError with one sentence if a file or a cipher is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    offered = sorted(VERSIONS[version] for version in settings.versions)
    context.minimum_version, context.maximum_version = offered[0], offered[-1]
    if settings.verify == "verify_peer":
        context.verify_mode = ssl.CERT_REQUIRED if settings.fail_if_no_peer_cert else ssl.CERT_OPTIONAL
    if settings.honor_cipher_order:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    if settings.ciphers:
        try:
            context.set_ciphers(":".join(settings.ciphers))
        except ssl.SSLError:
            raise StartError(f"{group}.ciphers: OpenSSL knows none of these cipher suites.") from None
    load_files(context, settings, group)
    return context


def load_files(context: ssl.SSLContext, settings: TlsSettings, group: str = "ssl_options") -> None:
    """Read certificate, key and authorities into a context; `group` is how these settings are called."""
    reading = settings.certfile

    def no_password() -> str:
        # Without this OpenSSL would ask on the terminal and hang a service.
        raise StartError(f"TLS: the private key is encrypted; give its password as {group}.password.")

    try:
        context.load_cert_chain(settings.certfile, settings.keyfile, settings.password or no_password)
        if settings.cacertfile:
            reading = settings.cacertfile
            context.load_verify_locations(settings.cacertfile)
        if settings.dhfile:
            reading = settings.dhfile
            context.load_dh_params(settings.dhfile)
    except ssl.SSLError as error:
        files = f"{settings.certfile} and {settings.keyfile}" if reading == settings.certfile else reading
        raise StartError(f"TLS: {files} cannot be used: {error.reason or error}.") from None
    except OSError as error:
        raise StartError(f"TLS: {reading} or its key cannot be read: {error.strerror}.") from None


def reload_files(context: ssl.SSLContext, settings: TlsSettings, group: str = "ssl_options") -> None:
    """Read the files again, first into a context of their own, so that a bad file changes nothing."""
    make_context(settings, group)
    load_files(context, settings, group)


def login_name(certificate: Mapping[str, Any] | None, settings: TlsSettings) -> str | None:
    """Return the user name in a verified client certificate, by the rule in the settings."""
    if not certificate:
        return None
    if settings.login_from == "subject_alternative_name":
        kind = SAN_KINDS[settings.login_san_type]
        names = [str(name) for found, name in certificate.get("subjectAltName", ()) if found == kind]
        return names[settings.login_san_index] if settings.login_san_index < len(names) else None
    subject = certificate.get("subject", ())
    if settings.login_from == "common_name":
        names = [str(value) for part in subject for name, value in part if name == "commonName"]
        return ",".join(names) or None
    return distinguished_name(subject) or None


def distinguished_name(subject: Any) -> str:
    """Write a subject as RabbitMQ does: last part first, `CN=name,O=company`."""
    return ",".join(
        "+".join(f"{_short(name)}={_escape(value)}" for name, value in part) for part in reversed(subject)
    )


def _short(name: str) -> str:
    return SHORT_NAMES.get(name, name)


def _escape(value: str) -> str:
    escaped = "".join("\\" + char if char in ',+"\\<>;' else char for char in value)
    if escaped.startswith(("#", " ")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(escaped) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped
