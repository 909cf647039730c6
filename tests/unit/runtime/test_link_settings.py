"""Settings of links between nodes, and the secret that all of them share: found, made, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrormq.base import limits
from mirrormq.runtime import config
from mirrormq.runtime.facts import shown_settings
from mirrormq.runtime.faults import ConfigError, StartError
from mirrormq.runtime.folder import open_folder
from mirrormq.runtime.settings import LinkSettings, LinkTlsSettings, Settings
from mirrormq.runtime.tls import make_link_contexts
from mirrormq.runtime.values import Address

SECRET = "known to all nodes"


def load(**given: str) -> Settings:
    source = [config.Given(key.replace("__", "."), value, "here") for key, value in given.items()]
    return config.load([], {}, source, "here").settings


def test_links_are_configured_by_names_like_the_others() -> None:
    settings = load(
        cluster_listen="[::1]:4000",
        cluster_advertise="node-1.example:4001",
        cluster_secret=SECRET,
        cluster_tls__certfile="/c",
        cluster_tls__keyfile="/k",
        cluster_tls__cacertfile="/a",
        cluster_tls__check_host="false",
    )
    tls = LinkTlsSettings(certfile="/c", keyfile="/k", cacertfile="/a", check_host=False)
    assert settings.links == LinkSettings(
        listen=Address("::1", 4000), advertise=Address("node-1.example", 4001), secret=SECRET, tls=tls
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"cluster_secret": "too short"}, "cluster_secret must have at least 16 characters"),
        ({"cluster_tls__certfile": "/c"}, "cluster_tls.certfile, cluster_tls.keyfile and cluster_tls.cacert"),
        ({"cluster_advertise": "25672"}, "cluster_advertise needs a host"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        load(**given)
    assert "too short" not in str(caught.value)


def test_the_secret_is_shown_neither_as_a_setting_nor_in_a_traceback() -> None:
    settings = load(cluster_secret=SECRET)
    assert SECRET not in repr(settings)
    assert SECRET not in str(shown_settings(settings))


def test_a_secret_is_made_once_readable_by_its_owner_only(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "data", fresh=False)
    try:
        made = folder.cluster_secret("")
        file = tmp_path / "data" / "cluster.secret"
        assert len(made) >= 4 * limits.peer_secret_chars_min
        assert file.stat().st_mode & 0o777 == 0o600
        assert folder.cluster_secret("") == made
        # Copied from another node, by a careless hand.
        file.write_text(f"{SECRET}\n", encoding="ascii")
        file.chmod(0o644)
        assert folder.cluster_secret("") == SECRET.encode()
        assert file.stat().st_mode & 0o777 == 0o600
        assert folder.cluster_secret("the setting wins over it") == b"the setting wins over it"
    finally:
        folder.close()


@pytest.mark.parametrize("content", [b"short\n", b"\xff" * 40])
def test_a_secret_file_that_cannot_be_used_is_refused_without_showing_it(
    tmp_path: Path, content: bytes
) -> None:
    folder = open_folder(tmp_path, fresh=False)
    try:
        (tmp_path / "cluster.secret").write_bytes(content)
        with pytest.raises(StartError, match=r"cluster\.secret") as caught:
            folder.cluster_secret("")
        assert "short" not in str(caught.value)
    finally:
        folder.close()


def test_missing_files_of_link_tls_are_named(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.pem")
    with pytest.raises(StartError, match=r"gone\.pem"):
        make_link_contexts(LinkTlsSettings(certfile=gone, keyfile=gone, cacertfile=gone))
