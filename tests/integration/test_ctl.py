"""`mirrormq ctl` as a process against a real node: found by its folder, opened by its key, stopped by it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pika.exceptions
import pytest

from mirrormq.testing import Broker, running

Ctl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running(admin=True) as found:
        yield found


def command_line(*words: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mirrormq", "ctl", *words],
        input=stdin,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def ctl(broker: Broker) -> Ctl:
    def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return command_line("--data", str(broker.process.folder), *words, stdin=stdin)

    return run


def rows(result: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert result.returncode == 0, result.stderr
    found: list[dict[str, object]] = json.loads(result.stdout)
    return found


def test_a_user_made_on_the_command_line_logs_in_and_is_seen(ctl: Ctl, broker: Broker) -> None:
    assert ctl("add_vhost", "shop").returncode == 0
    assert ctl("add_user", "ann", stdin="s3cret\n").returncode == 0
    assert ctl("set_permissions", "-p", "shop", "ann", ".*", ".*", ".*").returncode == 0
    connection = pika.BlockingConnection(
        pika.URLParameters(f"amqp://ann:s3cret@127.0.0.1:{broker.port}/shop")
    )
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
    channel.basic_publish("", "orders", b"1")
    assert rows(ctl("-p", "shop", "list_queues", "--json", "name", "messages")) == [
        {"name": "orders", "messages": 1}
    ]
    listed = ctl("list_connections", "user", "vhost", "state", "pid", "--silent").stdout.split("\t")
    assert listed[:3] == ["ann", "shop", "running"]
    assert ctl("close_connection", listed[3].strip(), "go away").returncode == 0
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="CONNECTION_FORCED - go away"):
        connection.process_data_events(5)
    assert ctl("-p", "shop", "purge_queue", "orders").returncode == 0
    deleted = ctl("-p", "shop", "-q", "delete_queue", "orders")
    assert deleted.stdout == "Queue was successfully deleted with 0 ready messages\n"
    assert ctl("delete_vhost", "shop").returncode == 0
    assert ctl("delete_user", "ann").returncode == 0


def test_definitions_move_from_one_node_to_another(ctl: Ctl, broker: Broker, tmp_path: Path) -> None:
    broker.ask("declare_queue", vhost="/", name="moved", durable=True, arguments={"x-max-length": 5})
    file = tmp_path / "definitions.json"
    assert ctl("export_definitions", str(file)).returncode == 0
    with running(admin=True) as other:
        at = ("--data", str(other.process.folder))
        assert command_line(*at, "import_definitions", str(file)).returncode == 0
        listed = rows(command_line(*at, "list_queues", "name", "arguments", "--json"))
    assert listed == [{"name": "moved", "arguments": [["x-max-length", "signedint", 5]]}]


def test_the_key_is_the_nodes_own_and_nobody_elses(broker: Broker) -> None:
    key = broker.process.folder / "data" / "node.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_another_machine_logs_in_by_address_and_password(broker: Broker) -> None:
    assert broker.admin_url is not None
    at = ("--url", broker.admin_url, "--user", "guest")
    assert command_line(*at, "ping", MIRRORMQ_PASSWORD="guest").returncode == 0
    wrong = command_line(*at, "list_users", MIRRORMQ_PASSWORD="wrong")
    assert (wrong.returncode, wrong.stderr) == (77, "Error:\nLogin failed\n")
    assert (
        command_line("list_users", MIRRORMQ_URL=broker.admin_url, MIRRORMQ_PASSWORD="guest").returncode == 0
    )
    assert command_line(*at, "list_users").returncode == 77


def test_health_checks_pass_on_a_healthy_node(ctl: Ctl, broker: Broker) -> None:
    for line in (
        "check_running",
        "check_local_alarms",
        "check_alarms",
        "check_virtual_hosts",
        "check_port_connectivity",
        f"check_port_listener {broker.port}",
        "check_protocol_listener amqp",
        "await_startup --timeout 10",
        "status",
        "cluster_status",
        "environment",
        "listeners",
    ):
        result = ctl(*line.split())
        assert result.returncode == 0, (line, result.stderr)


def test_secrets_do_not_appear_among_the_settings(ctl: Ctl) -> None:
    settings = json.loads(ctl("environment", "--json").stdout)
    assert settings["default_pass"] != "guest"


def test_stop_returns_when_the_process_is_gone_and_ping_then_fails() -> None:
    with running(admin=True) as broker:
        at = ("--data", str(broker.process.folder / "data"))
        stopped = command_line(*at, "stop")
        assert stopped.returncode == 0, stopped.stderr
        assert broker.process._child.wait(10) == 0
        assert command_line(*at, "ping").returncode == 69
        assert command_line(*at, "stop").returncode == 69
        assert command_line(*at, "stop", "--idempotent").returncode == 0


def test_output_into_a_closed_pipe_ends_without_noise() -> None:
    words = [sys.executable, "-m", "mirrormq", "ctl", "help"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(30) in (0, 1)
    process.stderr.close()
