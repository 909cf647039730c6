"""What rabbitmq-diagnostics tells of TLS: versions, cipher suites, certificates and their end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from mirrormq.ctl.certificates import Certificate, Unreadable, read_pem
from mirrormq.ctl.faults import Failure, Misuse
from mirrormq.ctl.registry import CONFIGURATION, MONITORING, command, session_of
from mirrormq.ctl.session import Session

UNITS = {"days": 1, "weeks": 7, "months": 30, "years": 365}
COLUMNS = ("setting", "file", "subject", "issuer", "not_before", "not_after")


@command(MONITORING)
def tls_versions(ctx: typer.Context) -> None:
    """List the versions of TLS the node's library has; ssl_options.versions says which are offered."""
    session = session_of(ctx)
    session.say(f"Listing all TLS versions supported on node {session.node_name}...")
    found = session.call("tls")["versions"]
    session.finish("\n".join(found), versions=found)


@command(MONITORING, "[--format <openssl>] [--all]")
def cipher_suites(
    ctx: typer.Context,
    *,
    form: Annotated[
        str, typer.Option("--format", help="openssl: Erlang's forms do not exist here")
    ] = "openssl",
    is_all: Annotated[bool, typer.Option("--all", help="those that are off by default, too")] = False,
) -> None:
    """List the cipher suites that are on by default; ssl_options.ciphers chooses others."""
    if form != "openssl":
        raise Misuse(f"--format {form} is not known: cipher suites have OpenSSL's names here.")
    session = session_of(ctx)
    which = "all cipher suites" if is_all else "cipher suites on by default"
    session.say(f"Listing {which} on node {session.node_name}, with OpenSSL's names ...")
    found = session.call("tls")["all" if is_all else "default"]
    session.finish("\n".join(found), cipher_suites=found, format="openssl")


@command(CONFIGURATION)
def certificates(ctx: typer.Context) -> None:
    """Show the certificates of the node's TLS listeners."""
    session = session_of(ctx)
    session.say(f"Certificates of node {session.node_name} ...")
    rows = [_row(found, certificate) for found, certificate in _read(session)]
    if not rows and not session.is_for_machines:
        session.write(f"Node {session.node_name} has no certificates: ssl_options.certfile is not set.")
        return
    session.table(rows, COLUMNS)


@command(MONITORING, "[--within <period>] [--unit <unit>]")
def check_certificate_expiration(
    ctx: typer.Context,
    *,
    within: Annotated[int, typer.Option("--within", help="how far to look ahead", min=0)] = 4,
    unit: Annotated[str, typer.Option("--unit", help="days, weeks, months or years")] = "weeks",
) -> None:
    """Check that no certificate of the node runs out soon."""
    if unit.lower() not in UNITS:
        raise Misuse(f"unit '{unit}' is not known; there are {', '.join(UNITS)}.")
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Checking certificate expiration on node {name} ...")
    until = datetime.now(UTC) + timedelta(days=within * UNITS[unit.lower()])
    found = _read(session)
    bad = [(row, certificate) for row, certificate in found if certificate.not_after <= until]
    if bad:
        listed = "; ".join(
            f"{certificate.subject} ({row['file']}) is valid until {certificate.not_after:%Y-%m-%d}"
            for row, certificate in bad
        )
        raise Failure(
            f"Certificates of node {name} run out within {within} {unit}: {listed}; replace the files"
        )
    session.finish(f"No certificate of node {name} runs out within {within} {unit}.", certificates=len(found))


def _read(session: Session) -> list[tuple[dict[str, Any], Certificate]]:
    rows = session.call("certificates")
    try:
        return [(row, read_pem(row["pem"])) for row in rows]
    except Unreadable as error:
        raise Failure(f"a certificate of node {session.node_name} cannot be read: {error}") from None


def _row(found: dict[str, Any], certificate: Certificate) -> dict[str, Any]:
    return {
        "setting": found["setting"],
        "file": found["file"],
        "subject": certificate.subject,
        "issuer": certificate.issuer,
        "not_before": certificate.not_before.isoformat(),
        "not_after": certificate.not_after.isoformat(),
    }
