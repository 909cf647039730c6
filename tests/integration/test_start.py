"""Starting a node: fast, small, after a crash, and one sentence when it cannot."""

from __future__ import annotations

import json
import resource
import shlex
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pika.exceptions
import pytest

from mirrormq.client.admin import AdminClient
from mirrormq.wire import methods
from tests.integration.process import failing, running, sentence
from tests.support.raw import Closed, connect


def test_an_idle_node_needs_less_than_80_megabytes(tmp_path: Path) -> None:
    with running(tmp_path) as node, connect("127.0.0.1", node.port) as client:
        client.handshake()
        status = Path(f"/proc/{node.pid}/status").read_text()
    resident_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert resident_kb * 1024 <= 80_000_000


def test_the_node_imports_neither_typer_nor_rich() -> None:
    code = (
        "import sys, mirrormq.runtime.main, mirrormq.runtime.server, mirrormq.http.server;"
        "assert not {'typer', 'rich', 'pyspark'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_node_without_admin_api_never_imports_aiohttp(tmp_path: Path) -> None:
    code = "import sys, mirrormq.runtime.main, mirrormq.runtime.server; assert 'aiohttp' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with running(tmp_path, "--no-admin") as node:
        assert node.announced["http"] is None


def test_the_node_says_where_it_is_and_who_may_administer_it(tmp_path: Path) -> None:
    with running(tmp_path, "--node-name", "rabbit@a") as node:
        content = json.loads((tmp_path / "data/node.json").read_text())
        assert content == node.announced
        assert content["name"] == "rabbit@a"
        assert content["pid"] == node.pid
        key = tmp_path / "data/node.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert node.stop() == 0
    assert not (tmp_path / "data/node.json").exists()


def test_a_new_node_begins_with_the_policies_of_its_configuration_and_an_old_one_keeps_its_own(
    tmp_path: Path,
) -> None:
    wanted = json.dumps([{"name": "first", "pattern": "^ha[.]", "definition": {"ha-mode": "all"}}])
    other = json.dumps([{"name": "second", "definition": {"ha-mode": "all"}}])
    key = tmp_path / "data/node.key"
    for text in (wanted, other):
        with running(tmp_path, environment={"MIRRORMQ_MIRRORING_POLICY": text}) as node:
            with AdminClient(node.announced["http"], key=key.read_text().strip()) as api:
                (row,) = api.get("policies")
            assert (row["name"], row["pattern"], row["definition"]) == ("first", "^ha[.]", {"ha-mode": "all"})


def test_definitions_survive_a_kill(tmp_path: Path) -> None:
    with running(tmp_path) as node:
        channel = node.connect().channel()
        channel.queue_declare("kept", durable=True)
        channel.queue_declare("dropped", durable=False)
        node.popen.kill()
        node.wait()
    with running(tmp_path) as node:
        node.connect().channel().queue_declare("kept", passive=True)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
            node.connect().channel().queue_declare("dropped", passive=True)
        assert caught.value.reply_code == 404


def test_definitions_are_loaded_before_the_first_client(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"queues": [queue_definition("ready")], "vhosts": [{"name": "/"}]}))
    with running(tmp_path, "--set", f"load_definitions={file}") as node:
        node.connect().channel().queue_declare("ready", passive=True)


def queue_definition(name: str) -> dict[str, object]:
    return {"name": name, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}


def test_definitions_that_cannot_be_read_stop_the_start(tmp_path: Path) -> None:
    options = ["--listen", "127.0.0.1:0", "--no-admin", "--data", str(tmp_path / "data")]
    missing = failing(*options, "--set", f"load_definitions={tmp_path}/none.json")
    assert "cannot be read: No such file" in sentence(missing)
    (tmp_path / "bad.json").write_text("{")
    assert "not a JSON object" in sentence(
        failing(*options, "--set", f"load_definitions={tmp_path}/bad.json")
    )


def test_a_busy_port_names_its_owner_and_a_command_that_works(tmp_path: Path) -> None:
    with running(tmp_path / "one") as node:
        options = ["--listen", f"127.0.0.1:{node.port}", "--no-admin", "--data", str(tmp_path / "two")]
        said = sentence(failing(*options))
        assert f"Port {node.port} is used by process {node.pid} (" in said
        cure = shlex.split(said.partition("run: ")[2])
        assert cure[:2] == ["mirrormq", "serve"]
        with running(tmp_path / "two", *cure[2:], "--no-admin") as second:
            second.connect().close()


def test_a_busy_admin_port_is_told_before_anything_is_changed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ["--listen", "127.0.0.1:0", "--set", "management.tcp.ip=127.0.0.1"]
        result = failing(*options, "--set", f"management.tcp.port={port}", "--data", str(tmp_path / "data"))
        assert f"Port {port} is used by process" in sentence(result)
    assert not (tmp_path / "data").exists()


def test_a_data_folder_in_use_names_its_owner(tmp_path: Path) -> None:
    with running(tmp_path) as node:
        result = failing("--listen", "127.0.0.1:0", "--no-admin", "--data", str(tmp_path / "data"))
        assert f"is in use by process {node.pid} (" in sentence(result)


@pytest.mark.parametrize("folder", ["/proc/mirrormq", "file/data"])
def test_an_unwritable_data_folder_is_one_sentence(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    result = failing("--listen", "127.0.0.1:0", "--no-admin", "--data", str(tmp_path / folder))
    assert "cannot be written" in sentence(result)
    assert "--data DIR" in sentence(result)


def test_a_newer_data_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "VERSION").write_text("2\n")
    result = failing("--listen", "127.0.0.1:0", "--no-admin", "--data", str(tmp_path))
    assert "written by a newer MirrorMQ" in sentence(result)


def test_a_bad_configuration_is_one_sentence_and_a_good_one_is_said_to_be(tmp_path: Path) -> None:
    file = tmp_path / "rabbitmq.conf"
    file.write_text("heartbeet = 5\n")
    said = sentence(failing("--config", str(file)))
    assert said == f"{file} line 1: unknown setting heartbeet; did you mean heartbeat?"
    file.write_text("heartbeat = 5\nnum_acceptors.tcp = 4\n")
    checked = failing("--config", str(file), "--check-config")
    assert checked.returncode == 0
    assert "num_acceptors.tcp is ignored: one event loop" in checked.stdout
    assert "is valid" in checked.stdout
    assert not (tmp_path / "data").exists()


def test_settings_reach_the_protocol(tmp_path: Path) -> None:
    options = ["--set", "heartbeat=17", "--set", "frame_max=8192", "--set", "auth_mechanisms=AMQPLAIN"]
    with (
        running(tmp_path, *options, environment={"MIRRORMQ_CHANNEL_MAX": "9"}) as node,
        connect("127.0.0.1", node.port) as client,
    ):
        tune = client.handshake(mechanism="AMQPLAIN")
        assert (tune.heartbeat, tune.frame_max, tune.channel_max) == (17, 8192, 9)


def test_a_disk_that_fails_ends_the_node_with_the_reason(tmp_path: Path) -> None:
    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    with running(tmp_path, before=little_room) as node, connect("127.0.0.1", node.port) as client:
        client.handshake()
        channel = client.open_channel(1)
        for number in range(2_000):
            try:
                client.call(
                    channel,
                    methods.QueueDeclare(queue=f"queue-{number}", durable=True),
                    methods.QueueDeclareOk,
                )
            except (OSError, Closed):
                break
        assert node.wait() == 1
        assert "[critical] the node stops: writing" in node.log
        assert "File too large" in node.log
