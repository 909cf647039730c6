"""Mutual TLS between nodes: new certificates and authorities without a restart."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import kit
from tests.cluster.kit import Cluster, Node
from tests.interop.certificates import Authority, Pair

CERTIFICATE, KEY, AUTHORITIES = "cert.pem", "key.pem", "ca.pem"
RELOADED = "certificates and log files reloaded"


@pytest.fixture
def old(tmp_path: Path) -> Authority:
    """The authority that the nodes begin with."""
    return make_authority(tmp_path / "old")


@pytest.fixture
def secured(tmp_path: Path, old: Authority) -> Iterator[Cluster]:
    """Two nodes, each with a certificate of its own."""
    with kit.cluster(tmp_path, 2, start=False) as made:
        for node in made:
            folder = files_of(node)
            folder.mkdir()
            trust(node, old)
            install(node, issue(old, node))
            node.settings += [
                f"cluster_tls.certfile={folder / CERTIFICATE}",
                f"cluster_tls.keyfile={folder / KEY}",
                f"cluster_tls.cacertfile={folder / AUTHORITIES}",
                "cluster_tls.check_host=false",
            ]
        made.start()
        made.wait_whole()
        yield made


def make_authority(folder: Path) -> Authority:
    folder.mkdir()
    return Authority(folder, f"{folder.name} authority")


def files_of(node: Node) -> Path:
    return node.folder.with_name(f"{node.short}-tls")


def issue(authority: Authority, node: Node) -> Pair:
    return authority.issue(node.short, server=True, client=True)


def install(node: Node, pair: Pair) -> None:
    shutil.copy(pair.certificate, files_of(node) / CERTIFICATE)
    shutil.copy(pair.key, files_of(node) / KEY)


def trust(node: Node, *authorities: Authority) -> None:
    bundle = b"".join(authority.certificate.read_bytes() for authority in authorities)
    (files_of(node) / AUTHORITIES).write_bytes(bundle)


def reload(node: Node, *expected: str) -> None:
    since = len(node.lines)
    node.signal(signal.SIGHUP)
    node.wait_for(*(expected or (RELOADED,)), since=since)


def shown(node: Node, authority: Authority) -> bytes | None:
    """The certificate a node shows to another one that dials it."""
    pair = authority.issue("stranger", server=False)
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.check_hostname = False
    context.load_cert_chain(pair.certificate, pair.key)
    with (
        socket.create_connection((node.host, kit.CLUSTER), timeout=kit.DEADLINE_S) as plain,
        context.wrap_socket(plain) as secured,
    ):
        return secured.getpeercert(binary_form=True)


def test_sighup_takes_a_new_certificate_for_new_links_and_leaves_open_ones_alone(
    secured: Cluster, old: Authority
) -> None:
    node, _ = secured
    before = shown(node, old)
    install(node, issue(old, node))
    assert shown(node, old) == before, "nothing changes without the signal"
    reload(node)
    assert shown(node, old) not in (None, before)
    secured.wait_whole()
    assert not node.said("link down")


def test_a_bad_certificate_of_links_leaves_the_old_one_in_use(secured: Cluster, old: Authority) -> None:
    node, other = secured
    before = shown(node, old)
    (files_of(node) / CERTIFICATE).write_text("no certificate")
    reload(node, "reload failed, the old certificates stay in use", str(files_of(node)))
    assert shown(node, old) == before
    other.kill()
    secured.start(other)
    secured.wait_whole()


def test_nodes_come_to_a_new_authority_without_a_restart_of_those_that_serve(
    secured: Cluster, tmp_path: Path, old: Authority
) -> None:
    new = make_authority(tmp_path / "new")
    node, other = secured
    trust(node, old, new)
    reload(node)
    # Only who has read its authorities again lets it in.
    other.kill()
    trust(other, old, new)
    install(other, issue(new, other))
    secured.start(other)
    secured.wait_whole()
    # And the one that never stopped shows a certificate of the new authority from now on.
    install(node, issue(new, node))
    reload(node)
    assert shown(node, new) is not None
