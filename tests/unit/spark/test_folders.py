"""Folders whose entries are on the disk: whatever was made is flushed where it was made."""

from __future__ import annotations

from pathlib import Path

from mirrormq.spark.jobs import folders


def test_every_folder_that_is_made_is_flushed_where_it_was_made_and_no_other(tmp_path: Path) -> None:
    flushed: list[Path] = []
    folders.make(tmp_path / "a/b/c", flushed.append)
    assert (tmp_path / "a/b/c").is_dir()
    assert flushed == [tmp_path, tmp_path / "a", tmp_path / "a/b"]
    folders.make(tmp_path / "a/b/c", flushed.append)
    folders.make(tmp_path / "a/b/d", flushed.append)
    assert flushed[3:] == [tmp_path / "a/b"]


def test_all_folders_up_to_the_root_are_flushed_whoever_made_them(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    flushed: list[Path] = []
    folders.flush_between(tmp_path / "a/b", tmp_path, flushed.append)
    assert flushed == [tmp_path / "a/b", tmp_path / "a", tmp_path]


def test_a_real_folder_can_be_flushed(tmp_path: Path) -> None:
    folders.make(tmp_path / "x/y")
    folders.flush_between(tmp_path / "x/y", tmp_path)
