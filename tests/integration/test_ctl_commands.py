"""Each command of `mirrormqctl` against a real node: as table, as JSON, what it refuses and its exit code."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from mirrormq.__main__ import main_ctl
from mirrormq.ctl.main import main
from mirrormq.ctl.options import Options
from mirrormq.ctl.session import Session
from mirrormq.testing import Broker, running
from tests.integration.ctlcases import CASES, IDS, Case
from tests.interop.certificates import Authority


@dataclass
class Result:
    """What a run left behind."""

    code: int
    out: str
    err: str


@dataclass
class Ctl:
    """Runs lines against the node."""

    broker: Broker
    words: dict[str, Any]
    capsys: pytest.CaptureFixture[str]

    def run(self, line: str, *more: str, n: str = "") -> Result:
        given = [word.format(n=n, port=self.broker.port, **self.words) for word in line.split()]
        code = main_ctl(["--data", str(self.broker.process.folder), *given, *more])
        shown = self.capsys.readouterr()
        return Result(code, shown.out, shown.err)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ctl")
    authority = Authority(folder)
    pair = authority.issue("localhost", server=True)
    config = [
        "log.file = node.log",
        f"log.dir = {folder}",
        "listeners.ssl.1 = 127.0.0.1:0",
        f"ssl_options.certfile = {pair.certificate}",
        f"ssl_options.keyfile = {pair.key}",
        f"ssl_options.cacertfile = {authority.certificate}",
    ]
    definitions = folder / "definitions.json"
    definitions.write_text(json.dumps({"vhosts": [{"name": "imported"}]}))
    os.environ["RABBITMQ_TEST_PASSWORD"] = "secret"
    try:
        with running(config, admin=True) as broker:
            del os.environ["RABBITMQ_TEST_PASSWORD"]
            with prepared(broker) as pid:
                yield broker, {"file": str(definitions), "pid": pid}
    finally:
        os.environ.pop("RABBITMQ_TEST_PASSWORD", None)


@contextlib.contextmanager
def prepared(broker: Broker) -> Iterator[str]:
    """What the cases are about."""
    ask = broker.ask
    for name in ("shop", "limited", "tagged", "oldt", "oldj", "clearedt", "clearedj"):
        ask("add_vhost", name=name, tags=["a"], actor="guest")
    for name in ("ann", "bob", "eve", "oldt", "oldj"):
        ask("add_user", name=name, password="pw")
    for vhost in ("limited", "clearedt", "clearedj"):
        ask("set_vhost_limits", vhost=vhost, limits={"max-queues": 5})
    ask("set_user_limits", user="eve", limits={"max-channels": 7})
    ask("set_permissions", vhost="shop", user="ann", configure=".*", write=".*", read=".*")
    ask("set_topic_permissions", vhost="shop", user="ann", exchange="amq.topic", write="a", read="b")
    for name in ("kept", "gonet", "gonej"):
        ask("set_global_parameter", name=name, value=1)
        ask("set_policy", vhost="shop", name=name, pattern="^none", definition={"max-length": 5})
    for name in ("bound", "ogonet", "ogonej"):
        bound = {"definition": {"max-length": 5}, "operator": True}
        ask("set_policy", vhost="shop", name=name, pattern="^none", **bound)
    for name in ("orders", "purged", "idle", "gonet", "gonej"):
        ask("declare_queue", vhost="shop", name=name)
    ask(
        "bind",
        vhost="shop",
        source="amq.topic",
        destination="orders",
        destination_type="queue",
        routing_key="k",
    )
    at = pika.ConnectionParameters(broker.host, broker.port, "shop", heartbeat=0)
    victims = [pika.BlockingConnection(at) for _ in range(2)]
    connection = pika.BlockingConnection(at)
    channel = connection.channel()
    channel.confirm_delivery()
    for _ in range(2):
        channel.basic_publish("", "orders", b"x")
    channel.basic_consume("idle", lambda *_: None)
    yield "none"
    connection.close()
    for victim in victims:
        with contextlib.suppress(pika.exceptions.AMQPError):
            victim.close()


@pytest.fixture
def ctl(node: tuple[Broker, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> Ctl:
    return Ctl(*node, capsys)


def victim(ctl: Ctl) -> None:
    """A connection that may be closed."""
    rows = json.loads(ctl.run("list_connections pid channels --json").out)
    ctl.words["pid"] = next((row["pid"] for row in rows if not row["channels"]), "none")


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_command_shows_its_result_as_lines(ctl: Ctl, case: Case) -> None:
    victim(ctl)
    result = ctl.run(case.line, n="t")
    assert (result.code, result.err) == (0, ""), result
    shows = case.shows.replace("{port}", str(ctl.broker.port))
    assert re.search(shows, result.out, re.MULTILINE), result.out


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_command_shows_its_result_as_json_and_nothing_else(ctl: Ctl, case: Case) -> None:
    victim(ctl)
    result = ctl.run(case.line, "--json", n="j")
    assert (result.code, result.err) == (0, ""), result
    assert case.has.replace("{port}", str(ctl.broker.port)) in json.dumps(json.loads(result.out)), result.out


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_command_refuses_with_its_code_and_a_reason(ctl: Ctl, case: Case) -> None:
    result = ctl.run(case.bad, "-q")
    assert (result.code, result.out) == (case.code, ""), result
    assert re.search(case.says, result.err), result.err
    assert "Traceback" not in result.err
    as_json = ctl.run(case.bad, "--json")
    assert as_json.code == case.code
    shown = json.loads(as_json.err)
    assert shown["result"] == "error"
    assert re.search(case.says, shown["message"]), shown


@pytest.mark.parametrize("name", ["csv", "erlang", "pretty_table", "json_stream"])
def test_lists_come_in_every_format(ctl: Ctl, name: str) -> None:
    found = ctl.run(f"list_queues -p shop name messages --formatter {name} -q").out
    shown = {
        "csv": '"orders","2"\n',
        "erlang": '[{name,"orders"},{messages,2}]',
        "pretty_table": "│ orders │ 2        │",
        "json_stream": '{"name":"orders","messages":2}\n',
    }
    assert shown[name] in found


def test_suspended_listeners_take_nobody_and_keep_those_who_are_in() -> None:
    with running(admin=True) as broker:
        at = pika.ConnectionParameters(broker.host, broker.port, heartbeat=0, connection_attempts=1)
        folder = str(broker.process.folder)
        with contextlib.closing(pika.BlockingConnection(at)) as inside:
            assert main_ctl(["--data", folder, "suspend_listeners"]) == 0
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                pika.BlockingConnection(at)
            assert health(broker) == (503, {"status": "failed", "reason": "no listener for clients is open"})
            inside.channel().queue_declare("still")
            assert main_ctl(["--data", folder, "resume_listeners"]) == 0
            pika.BlockingConnection(at).close()
            assert health(broker) == (200, {"status": "ok"})


def health(broker: Broker) -> tuple[int, Any]:
    """What a load balancer sees, without a log-in."""
    try:
        with urllib.request.urlopen(f"{broker.admin_url}/health/ready", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_file_that_was_moved_away_is_let_go_and_the_level_counts(ctl: Ctl) -> None:
    file = Path(json.loads(ctl.run("log_location --json").out)["paths"][0])
    moved = file.rename(file.with_suffix(".1"))
    assert ctl.run("rotate_logs").code == 0
    assert ctl.run("set_disk_free_limit 2MB").code == 0
    assert "the disk alarm has another limit" in file.read_text()
    assert ctl.run("set_log_level error").code == 0
    assert ctl.run("set_disk_free_limit 3MB").code == 0
    assert "3000000" not in file.read_text()
    assert ctl.run("set_log_level info").code == 0
    moved.unlink()


def test_alarms_come_and_go_with_their_limits(ctl: Ctl) -> None:
    assert ctl.run("set_vm_memory_high_watermark absolute 1MB").code == 0
    assert ctl.run("check_local_alarms").code == 69
    assert "memory\t" in ctl.run("alarms").out
    assert ctl.run("set_vm_memory_high_watermark 0.9").code == 0
    assert ctl.run("check_local_alarms").code == 0


@pytest.mark.parametrize(
    ("line", "moves"), [("import_definitions {file}", "Imported"), ("backup {file}", "Copied")]
)
def test_long_work_shows_a_bar_to_people_and_none_to_pipes(
    node: tuple[Broker, dict[str, Any]], tmp_path: Path, line: str, moves: str
) -> None:
    file = tmp_path / "work"
    if moves == "Imported":
        users = [{"name": f"many{n}", "password_hash": "", "tags": ""} for n in range(1500)]
        file.write_text(json.dumps({"users": users}))
    words = [word.format(file=file) for word in line.split()]
    out = Terminal()
    session = Session(Options(), out=out)
    assert main(["--data", str(node[0].process.folder), *words], session=session) == 0
    assert moves in out.getvalue()
    assert "100 %" in out.getvalue()
    piped = io.StringIO()
    session = Session(Options(), out=piped)
    words[1:] = [str(tmp_path / "other")] if moves == "Copied" else words[1:]
    assert main(["--data", str(node[0].process.folder), *words], session=session) == 0
    assert moves not in piped.getvalue()


class Terminal(io.StringIO):
    """Looks like a person's."""

    def isatty(self) -> bool:
        return True
