"""The Java that Spark would start is there and new enough, or a sentence says what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrormq.spark.jobs import cli


def _java(folder: Path, says: str) -> str:
    """A folder with a program that says this of itself, as Java does: on stderr."""
    folder.mkdir(parents=True)
    program = folder / "java"
    program.write_text(f"#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Dv=1' >&2\necho '{says}' >&2\n")
    program.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    "says", ['openjdk version "17.0.9" 2023-10-17', 'openjdk version "21" 2023-09-19', "something else"]
)
def test_a_java_that_is_new_enough_or_says_nothing_of_its_age_is_taken(says: str, tmp_path: Path) -> None:
    assert cli.missing_java({"PATH": _java(tmp_path / "bin", says)}) is None


@pytest.mark.parametrize(
    ("says", "age"), [('java version "1.8.0_392"', "Java 8"), ('openjdk version "11.0.21"', "Java 11")]
)
def test_a_java_that_is_too_old_is_named_with_the_cure(says: str, age: str, tmp_path: Path) -> None:
    folder = _java(tmp_path / "bin", says)
    told = cli.missing_java({"PATH": folder})
    assert told is not None
    assert f"Java 17 or newer, and {folder}/java is {age}: install it" in told


def test_the_java_of_java_home_goes_before_that_of_the_path(tmp_path: Path) -> None:
    old = _java(tmp_path / "old/bin", 'openjdk version "11.0.21"')
    new = _java(tmp_path / "new/bin", 'openjdk version "17.0.9"')
    assert cli.missing_java({"PATH": old, "JAVA_HOME": str(tmp_path / "new")}) is None
    told = cli.missing_java({"PATH": new, "JAVA_HOME": str(tmp_path / "old")})
    assert told is not None
    assert f"is Java 11: set JAVA_HOME to a newer one (it is {tmp_path / 'old'})" in told


def test_a_java_home_without_a_java_and_a_path_without_one_are_told_apart(tmp_path: Path) -> None:
    new = _java(tmp_path / "bin", 'openjdk version "17.0.9"')
    told = cli.missing_java({"PATH": new, "JAVA_HOME": str(tmp_path / "none")})
    assert told is not None
    assert f"there is no program {tmp_path}/none/bin/java; set it to" in told
    told = cli.missing_java({"PATH": str(tmp_path)})
    assert told is not None
    assert "there is no java in the PATH: install it" in told
    assert "set JAVA_HOME" in told
