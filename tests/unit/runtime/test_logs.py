"""Log lines: levels, forms, rotation, and no secrets."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from mirrormq.runtime.logs import Bridge, Log, RotatedFile, as_json, as_text, open_log
from mirrormq.runtime.settings import LogSettings
from tests.unit.runtime.fakes import memory_log

MOMENT = 1_700_000_000_123_456


def test_a_line_has_time_level_text_and_fields() -> None:
    line = as_text("info", "queue declared", {"queue": "q 1", "vhost": "/"}, MOMENT)
    assert line == b'2023-11-14 22:13:20.123456+00:00 [info] queue declared queue="q 1" vhost=/\n'


def test_a_json_line_has_the_same_content() -> None:
    line = json.loads(as_json("info", "queue declared", {"queue": "q", "n": 3}, MOMENT))
    assert line == {
        "time": "2023-11-14 22:13:20.123456+00:00",
        "level": "info",
        "event": "note",
        "msg": "queue declared",
        "queue": "q",
        "n": 3,
    }


def test_a_client_cannot_forge_a_line() -> None:
    line = as_text("info", "user 'a\n2023 [error] forged'", {"x": "\x1b[31m\r\n"}, MOMENT)
    assert line.count(b"\n") == 1
    assert b"\x1b" not in line
    assert b"\r" not in line


def test_secrets_are_hidden_by_name_and_in_urls() -> None:
    log, lines = memory_log()
    fields = {
        "password": "p1",
        "client_secret": "p2",
        "authorization": "p3",
        "key": "p4",
        "routing_key": "orders",
    }
    log.note("info", "connecting to amqp://user:p5@host/", {**fields, "url": "amqp://u:p6@h"}, MOMENT)
    for number in range(1, 7):
        assert f"p{number}" not in lines[0]
    assert "user:[hidden]@host" in lines[0]


def test_a_routing_key_is_no_secret() -> None:
    log, lines = memory_log()
    log.note("info", "published", {"routing_key": "orders"}, MOMENT)
    assert "routing_key=orders" in lines[0]


def test_lines_below_the_level_are_not_written(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    log = open_log(LogSettings(file=str(path), file_level="warning"))
    for level in ("debug", "info", "warning", "error"):
        log.note(level, level, {}, MOMENT)
    log.close()
    assert [line.split("] ")[1] for line in path.read_text().splitlines()] == ["warning", "error"]


def test_a_full_file_is_set_aside_and_old_ones_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "node.log"
    target = RotatedFile(path, LogSettings(rotate_bytes=20, rotate_count=2))
    for number in range(6):
        target.write(f"line number {number}\n".encode())
    target.close()
    found = {file.name: file.read_text() for file in path.parent.iterdir()}
    assert found == {
        "node.log": "line number 5\n",
        "node.log.0": "line number 4\n",
        "node.log.1": "line number 3\n",
    }


def test_without_old_files_a_full_file_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    target = RotatedFile(path, LogSettings(rotate_bytes=10, rotate_count=0))
    target.write(b"first line\n")
    target.write(b"second\n")
    target.close()
    assert path.read_text() == "second\n"
    assert len(list(tmp_path.iterdir())) == 1


def test_after_reopen_a_file_moved_away_is_let_go(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    log = open_log(LogSettings(file=str(path)))
    log.note("info", "before", {}, MOMENT)
    path.rename(tmp_path / "moved.log")
    log.note("info", "between", {}, MOMENT)
    log.reopen()
    log.note("info", "after", {}, MOMENT)
    log.close()
    assert "between" in (tmp_path / "moved.log").read_text()
    assert path.read_text().endswith("after\n")


def test_standard_error_is_used_unless_there_is_a_file(tmp_path: Path) -> None:
    assert len(open_log(LogSettings()).targets) == 1
    both = open_log(LogSettings(file=str(tmp_path / "x.log"), console=True))
    assert len(both.targets) == 2
    both.close()


def test_a_target_that_cannot_be_written_loses_the_line_and_nothing_else(tmp_path: Path) -> None:
    target = RotatedFile(tmp_path / "node.log", LogSettings())
    os.close(target.descriptor)
    target.descriptor = os.open(tmp_path / "node.log", os.O_RDONLY)
    Log([target]).note("error", "lost", {}, MOMENT)
    assert target.lost_lines == 1
    target.close()


def test_lines_of_libraries_become_notes() -> None:
    log, lines = memory_log()
    logger = logging.getLogger("test.bridge")
    logger.addHandler(Bridge(log))
    logger.propagate = False
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("it failed")
    assert "[error] it failed" in lines[0]
    assert "ValueError: broken" in lines[0]
    assert "logger=test.bridge" in lines[0]


@pytest.mark.parametrize(
    "level", ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
)
def test_every_level_of_rabbitmq_is_known(level: str) -> None:
    log, lines = memory_log()
    log.note(level, "x", {}, MOMENT)
    assert f"[{level}]" in lines[0]


def test_a_json_line_names_its_event_and_its_node(tmp_path: Path) -> None:
    settings = LogSettings(file="node.log", folder=str(tmp_path), form="json", console=False)
    log = open_log(settings)
    log.node = "a@host"
    log.note("warning", "disk alarm set", {"alarm": "disk", "event": "alarm.set"}, MOMENT)
    log.close()
    (line,) = (tmp_path / "node.log").read_text().splitlines()
    found = json.loads(line)
    assert list(found)[:4] == ["time", "level", "event", "msg"]
    assert (found["event"], found["node"], found["alarm"]) == ("alarm.set", "a@host", "disk")


@pytest.mark.parametrize(("own", "is_json"), [("", True), ("plaintext", False), ("json", True)])
def test_a_destination_has_the_form_of_all_lines_unless_it_has_its_own(
    tmp_path: Path, own: str, is_json: bool
) -> None:
    settings = LogSettings(file="l", folder=str(tmp_path), form="json", file_format=own, console=False)
    log = open_log(settings)
    log.note("info", "text", {}, MOMENT)
    log.close()
    assert (tmp_path / "l").read_text().startswith("{") == is_json
