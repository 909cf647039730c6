"""The admin API over TLS: its own certificate, read again without a restart, and the plain port for this
machine only.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.integration.process import failing, running, sentence
from tests.integration.test_hygiene import wait_for_line
from tests.integration.test_tls import install
from tests.interop.brokers import free_port
from tests.interop.certificates import Authority, Pair

pytestmark = pytest.mark.slow


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "pki").mkdir()
    return Authority(tmp_path / "pki")


@pytest.fixture
def served(authority: Authority, tmp_path: Path) -> Pair:
    return install(authority.issue("localhost", server=True), tmp_path)


def options(served: Pair, port: int, *more: str) -> list[str]:
    settings = [
        f"management.ssl.port={port}",
        "management.ssl.ip=127.0.0.1",
        f"management.ssl.certfile={served.certificate}",
        f"management.ssl.keyfile={served.key}",
        *more,
    ]
    return [word for setting in settings for word in ("--set", setting)]


def asked(port: int, path: str, context: ssl.SSLContext) -> tuple[int, Any, Any]:
    """Status, answer to guest, and headers."""
    connection = http.client.HTTPSConnection("localhost", port, timeout=10, context=context)
    with contextlib.closing(connection):
        connection.request("GET", f"/api/{path}", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
        answer = connection.getresponse()
        return answer.status, json.load(answer), answer.headers


def serial(port: int, authority: Authority) -> int:
    """Which certificate is shown."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        shown = secured.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)


def test_it_is_served_over_tls_and_ctl_goes_on(tmp_path: Path, authority: Authority, served: Pair) -> None:
    port = free_port()
    policy = "management.hsts.policy=max-age=3600"
    with running(tmp_path / "n", *options(served, port, policy)) as node:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        _, found, headers = asked(port, "overview", context)
        assert ("https", port) in {(row["protocol"], row["port"]) for row in found["listeners"]}
        assert headers["Strict-Transport-Security"] == "max-age=3600"
        assert node.announced["http"].startswith("http://127.0.0.1:")
        status, checked, _ = asked(port, "health/checks/certificate-expiration/1/months", context)
        assert (status, checked["status"]) == (503, "failed")
        assert [row["port"] for row in checked["expired"]] == [port]
        with pytest.raises(ssl.SSLError):
            asked(port, "overview", ssl.create_default_context())


def test_a_new_certificate_is_shown_after_a_reload(
    tmp_path: Path, authority: Authority, served: Pair
) -> None:
    port = free_port()
    with running(tmp_path / "n", *options(served, port)) as node:
        before = serial(port, authority)
        install(authority.issue("localhost", server=True), tmp_path)
        node.signal(signal.SIGHUP)
        wait_for_line(node, "certificates and log files reloaded")
        assert serial(port, authority) != before


def test_a_client_without_a_certificate_is_refused_if_one_is_wanted(
    tmp_path: Path, authority: Authority, served: Pair
) -> None:
    port = free_port()
    wanted = [
        f"management.ssl.cacertfile={authority.certificate}",
        "management.ssl.verify=verify_peer",
        "management.ssl.fail_if_no_peer_cert=true",
    ]
    with running(tmp_path / "n", *options(served, port, *wanted)):
        context = ssl.create_default_context(cafile=str(authority.certificate))
        with pytest.raises((OSError, ssl.SSLError)):
            asked(port, "whoami", context)
        pair = authority.issue("app one", server=False)
        context.load_cert_chain(pair.certificate, pair.key)
        assert asked(port, "whoami", context)[1]["name"] == "guest"


def test_a_missing_file_is_told_in_one_sentence(tmp_path: Path, served: Pair) -> None:
    lacking = Pair(tmp_path / "none.pem", served.key)
    data = ["--data", str(tmp_path / "n"), "--listen", "127.0.0.1:0", "--set", "management.tcp.port=0"]
    ended = failing(*data, *options(lacking, free_port()))
    assert "none.pem or its key cannot be read" in sentence(ended)
