"""What a node tells of its machine: no secret, and of a log file only what was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from mirrormq.base import limits
from mirrormq.http.api import Call
from mirrormq.http.auth import KEY_HOLDER
from mirrormq.http.routes.diagnostics import _tail, commands, without_secret
from mirrormq.http.routes.nodes import About
from mirrormq.node.steps import Refusal
from tests.support.adminkit import AdminKit, KitProcess


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("cluster_secret=abc", "cluster_secret=[hidden]"),
        ("--set=cluster_secret=a=b", "--set=cluster_secret=[hidden]"),
        ("MIRRORMQ_DEFAULT_PASS=x", "MIRRORMQ_DEFAULT_PASS=[hidden]"),
        ("ssl_options.password=two\nlines", "ssl_options.password=[hidden]"),
        ("amqp://ann:pw@host/v", "amqp://ann:[hidden]@host/v"),
        ("MIRRORMQ_URL=http://ann:pw@host:1", "MIRRORMQ_URL=http://ann:[hidden]@host:1"),
        ("--port-base=5672", "--port-base=5672"),
        ("MIRRORMQ_EMPTY_PASS=", "MIRRORMQ_EMPTY_PASS="),
    ],
)
def test_secrets_are_hidden_wherever_they_stand(word: str, shown: str) -> None:
    assert without_secret(word) == shown


def test_the_end_of_a_log_is_read_and_then_what_is_added(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\ntwo\nthree\nhal")
    found = _tail(file, 2, None)
    assert found["lines"] == ["two", "three"]
    with file.open("ab") as log:
        log.write(b"f\nfive\n")
    more = _tail(file, 0, found["offset"])
    assert more["lines"] == ["half", "five"]
    assert _tail(file, 0, more["offset"])["lines"] == []
    file.write_bytes(b"new\n")
    assert _tail(file, 0, more["offset"])["lines"] == ["new"]


def test_of_a_very_long_log_only_the_end_is_read(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"x" * 99 + b"\n" + b"y\n" * limits.log_tail_bytes_max)
    assert len(_tail(file, 10 * limits.log_tail_bytes_max, None)["lines"]) == limits.log_tail_bytes_max // 2


def test_a_log_that_is_not_there_is_a_refusal(tmp_path: Path) -> None:
    with pytest.raises(Refusal):
        _tail(tmp_path / "never", 1, None)


@pytest.mark.parametrize("given", [{"lines": "x"}, {"offset": [1]}, {"lines": -1}, {"offset": -5}])
async def test_lines_of_a_log_are_counted_in_numbers(tmp_path: Path, given: dict[str, object]) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\ntwo\n")
    log_tail = commands(About(lambda: {"log_files": [str(file)]}))["log_tail"]
    process = KitProcess(AdminKit())
    process.state = "stopped"
    call = Call(make_mocked_request("POST", "/api/ctl/log_tail"), process, KEY_HOLDER)
    assert (await log_tail(call, {"lines": 1}))["lines"] == ["two"]
    with pytest.raises(Refusal):
        await log_tail(call, given)
