"""Copying and restoring files: links where nothing is written again, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirrormq.log import journal
from mirrormq.node.backup import Image
from mirrormq.node.steps import Refusal
from mirrormq.runtime import copies
from mirrormq.runtime.backup import Backups, GivenUp
from mirrormq.runtime.folder import locked
from mirrormq.runtime.restore import restore

FIXED = [
    journal.file_name(3),
    journal.file_name(4),
    "segments/0000000000000007/00000001",
]
WRITTEN = [
    "log/checkpoint",
    "segments/0000000000000007/00000002",
    "segments/0000000000000009/00000001",
]
LAST = journal.file_name(5)


def image() -> Image:
    return Image(iter([b"meta", b"data"]), [3, 4, 5], 10)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    for name in (*FIXED, *WRITTEN, LAST, "node.key", "lock", "meta/log-1"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * 3)
    return folder


@pytest.fixture
def backups(data: Path) -> Backups:
    driver: Any = SimpleNamespace(node=SimpleNamespace(node_name="a@b"))
    return Backups(driver, data)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_files_that_are_never_written_again_are_linked_and_the_others_copied(
    backups: Backups, data: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    manifest = backups._copy(target, image(), 1)
    found = content(target)
    assert found.keys() == {*FIXED, *WRITTEN, LAST, "VERSION", "meta/snapshot", copies.MANIFEST}
    assert found["meta/snapshot"] == b"metadata"
    assert found[LAST] == (data / LAST).read_bytes()[:10]
    for name in (*FIXED, *WRITTEN):
        assert (target / name).samefile(data / name) == (name in FIXED)
        assert found[name] == (data / name).read_bytes()
    assert copies.read_manifest(target) == manifest
    assert {entry.name: entry.bytes for entry in manifest.files} == {
        name: len(data) for name, data in found.items() if name != copies.MANIFEST
    }


def test_a_restored_folder_has_the_files_of_the_backup_and_no_identity(
    backups: Backups, tmp_path: Path
) -> None:
    copy, target = tmp_path / "copy", tmp_path / "new"
    copy.mkdir()
    backups._copy(copy, image(), 1)
    assert restore([str(copy), "--data", str(target), "-q"]) == 0
    expected = content(copy)
    del expected[copies.MANIFEST]
    assert content(target) == expected
    for path in target.rglob("*"):
        assert path.is_dir() or path.stat().st_nlink == 1, "a node may write here without touching the backup"
    with locked(target):
        pass


def test_a_copy_that_fails_leaves_an_empty_folder(backups: Backups, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    (data / LAST).unlink()
    with pytest.raises(FileNotFoundError):
        backups._copy(target, image(), 1)
    assert content(target) == {}


def test_a_copy_is_given_up_when_the_node_stops(backups: Backups, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    target.mkdir()
    backups._gives_up = True
    with pytest.raises(GivenUp):
        backups._copy(target, image(), 1)
    assert content(target) == {}


def test_a_target_must_be_absolute_empty_and_elsewhere(backups: Backups, data: Path) -> None:
    for target in (Path("copy"), data, data / "copy", data / ".." / "data" / "copy", data.parent):
        with pytest.raises(Refusal):
            backups._check(target)


def test_a_manifest_with_foreign_files_is_refused(backups: Backups, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    manifest = backups._copy(copy, image(), 1)
    for name in ("node.key", "../x", "meta/../../x", "identity"):
        (copy / copies.MANIFEST).unlink()
        entry = copies.Entry(name, 0, 0)
        copies.write_manifest(copy, copies.Manifest(1, "0", "a@b", 1, [*manifest.files, entry]))
        assert restore([str(copy), "--data", str(tmp_path / "new")]) == 65
        assert not (tmp_path / "new").exists()
