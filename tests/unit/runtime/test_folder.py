"""The data folder between two starts: resets, and what was decided for the next start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrormq.runtime import offline
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.folder import OWN_FILES, Contact, DataFolder, open_folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    found = open_folder(tmp_path, fresh=False)
    yield found
    found.close()


def fill(path: Path) -> None:
    for name in ("meta/log-1", "queues/7/1.seg", "journal/1.log", "checkpoint", "identity"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"data")


def test_a_reset_leaves_the_keys_and_what_is_not_ours(folder: DataFolder) -> None:
    folder.cluster_secret("")
    folder.put_contact(Contact("a@b", "b:1"))
    folder.put_force_boot()
    (folder.path / "lost+found").mkdir()
    fill(folder.path)
    assert folder.has_data()
    folder.reset()
    assert {path.name for path in folder.path.iterdir()} == {
        "lock",
        "VERSION",
        "node.key",
        "cluster.secret",
        "lost+found",
    }
    assert not folder.has_data()
    folder.reset()


def test_a_reset_that_was_cut_short_is_finished_before_anything_is_read(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, fresh=False)
    key = folder.key
    fill(tmp_path)
    (tmp_path / "reset.begun").touch()
    folder.close()
    again = open_folder(tmp_path, fresh=False)
    assert again.key == key
    assert not again.has_data()
    assert {path.name for path in tmp_path.iterdir()} <= OWN_FILES - {"reset.begun"}
    again.close()


def test_whom_to_join_is_remembered(folder: DataFolder) -> None:
    assert folder.contact() is None
    folder.put_contact(Contact("a@b", "b:25672"))
    folder.put_contact(Contact("c@d", "[::1]:1"))
    assert folder.contact() == Contact("c@d", "[::1]:1")
    assert not folder.has_data()
    folder.drop_contact()
    folder.drop_contact()
    assert folder.contact() is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"node": 1}', b'{"node": "a@b"}', b"\xff"])
def test_a_damaged_contact_is_refused_in_a_sentence(folder: DataFolder, content: bytes) -> None:
    (folder.path / "cluster.join").write_bytes(content)
    with pytest.raises(StartError, match=r"cluster\.join is damaged: run join_cluster again"):
        folder.contact()


def test_a_forced_boot_is_asked_for_once(folder: DataFolder) -> None:
    assert not folder.is_boot_forced()
    folder.put_force_boot()
    assert folder.is_boot_forced()
    folder.drop_force_boot()
    assert not folder.is_boot_forced()


def test_a_boot_is_forced_only_where_no_node_runs(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, fresh=False)
    with pytest.raises(offline.FolderUnusable, match="is in use by"):
        offline.force_boot(str(tmp_path), None)
    folder.close()
    offline.force_boot(str(tmp_path), None)
    assert (tmp_path / "cluster.force_boot").exists()
