"""RabbitMQ's own rabbitmqadmin, as its package brings it, against our API: declare, list, publish, get,
export, import and the rest.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.interop.brokers import Broker
from tests.interop.conftest import Clients
from tests.support import rabbitmq

pytestmark = pytest.mark.slow


def script() -> Path | None:
    """The script in the management plugin's files, or in the path."""
    folder = rabbitmq.binaries()
    if folder is not None:
        home = (folder / "rabbitmq-server").resolve().parent.parent
        for found in home.glob("plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin"):
            return found
    installed = shutil.which("rabbitmqadmin")
    return Path(installed) if installed else None


class Admin:
    """Runs it as guest in a vhost."""

    def __init__(self, broker: Broker) -> None:
        found = script()
        if found is None:
            pytest.skip("rabbitmqadmin is not installed")
        port = str(broker.http_port)
        self._words = [sys.executable, str(found), "-H", broker.host, "-P", port, "-V", broker.vhost]
        self._words += ["-u", broker.user, "-p", broker.password]

    def run(self, *words: str, stdin: str | None = None) -> str:
        done = self.try_run(*words, stdin=stdin)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def try_run(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._words, *words], capture_output=True, text=True, timeout=60, check=False, input=stdin
        )

    def rows(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("-f", "raw_json", *words))
        return found


@pytest.fixture
def admin(broker: Broker) -> Admin:
    return Admin(broker)


def names(rows: list[dict[str, Any]]) -> set[str]:
    return {row["name"] for row in rows}


def test_it_declares_lists_and_deletes(admin: Admin, broker: Broker) -> None:
    assert "queue declared" in admin.run("declare", "queue", "name=q", 'arguments={"x-max-length": 9}')
    assert "exchange declared" in admin.run("declare", "exchange", "name=e", "type=topic")
    assert "binding declared" in admin.run(
        "declare", "binding", "source=e", "destination=q", "routing_key=a.#"
    )
    admin.run("declare", "policy", "name=p", "pattern=^q$", 'definition={"max-length": 5}', "apply-to=queues")
    admin.run("declare", "operator_policy", "name=o", "pattern=^q$", 'definition={"max-length": 4}')
    admin.run("declare", "vhost_limit", f"vhost={broker.vhost}", "name=max-queues", "value=50")
    (queue,) = admin.rows("list", "queues")
    assert (queue["name"], queue["arguments"], queue["durable"]) == ("q", {"x-max-length": 9}, True)
    assert "e" in names(admin.rows("list", "exchanges"))
    assert any(row["routing_key"] == "a.#" for row in admin.rows("list", "bindings"))
    assert names(admin.rows("list", "policies")) == {"p"}
    assert names(admin.rows("list", "operator_policies")) == {"o"}
    assert admin.rows("list", "vhost_limits")[0]["value"] == {"max-queues": 50}
    admin.run(
        "delete", "binding", "source=e", "destination_type=queue", "destination=q", "properties_key=a.%23"
    )
    admin.run("delete", "policy", "name=p")
    admin.run("delete", "operator_policy", "name=o")
    admin.run("delete", "exchange", "name=e")
    admin.run("delete", "queue", "name=q")
    assert admin.rows("list", "queues") == []


def test_it_publishes_gets_and_purges(admin: Admin) -> None:
    admin.run("declare", "queue", "name=q", "durable=false")
    assert "Message published" in admin.run("publish", "routing_key=q", "payload=hello")
    assert "NOT routed" in admin.run("publish", "routing_key=none", "payload=hello")
    admin.run(
        "publish", "routing_key=q", 'properties={"delivery_mode": 2, "headers": {"a": 1}}', stdin="bytes"
    )
    first, second = admin.rows("get", "queue=q", "count=5")
    assert (first["payload"], second["payload"]) == ("hello", "bytes")
    assert second["properties"] == {"delivery_mode": 2, "headers": {"a": 1}}
    (taken,) = admin.rows("get", "queue=q", "ackmode=ack_requeue_false")
    assert (taken["payload"], taken["redelivered"]) == ("hello", True)
    admin.run("purge", "queue", "name=q")
    assert admin.rows("get", "queue=q") == []


def test_it_exports_and_imports(admin: Admin, tmp_path: Path) -> None:
    admin.run("declare", "queue", "name=kept")
    admin.run("declare", "binding", "source=amq.topic", "destination=kept", "routing_key=k")
    file = tmp_path / "definitions.json"
    admin.run("export", str(file))
    assert names(json.loads(file.read_text())["queues"]) == {"kept"}
    admin.run("delete", "queue", "name=kept")
    admin.run("import", str(file))
    assert names(admin.rows("list", "queues")) == {"kept"}
    assert any(row["routing_key"] == "k" for row in admin.rows("list", "bindings"))


def test_it_administers_vhosts_users_permissions_and_parameters(admin: Admin, broker: Broker) -> None:
    vhost, user = f"{broker.vhost}-made", f"{broker.vhost}-ann"
    admin.run("declare", "vhost", f"name={vhost}")
    admin.run("declare", "user", f"name={user}", "password=secret", "tags=monitoring")
    admin.run(
        "declare", "permission", f"vhost={vhost}", f"user={user}", "configure=.*", "write=.*", "read=.*"
    )
    assert vhost in names(admin.rows("list", "vhosts"))
    assert user in names(admin.rows("list", "users"))
    assert user in {row["user"] for row in admin.rows("list", "permissions")}
    admin.run("delete", "permission", f"vhost={vhost}", f"user={user}")
    admin.run("delete", "user", f"name={user}")
    admin.run("delete", "vhost", f"name={vhost}")
    assert vhost not in names(admin.rows("list", "vhosts"))


def test_it_shows_the_overview_and_lists_what_is_live(admin: Admin, broker: Broker, clients: Clients) -> None:
    connection = clients.connect()
    channel = connection.channel()
    channel.queue_declare("live")
    channel.basic_consume("live", lambda *_: None)
    assert admin.rows("show", "overview")[0]["rabbitmq_version"].startswith("3.")
    assert admin.rows("list", "nodes")
    mine = [row for row in admin.rows("list", "connections") if row["vhost"] == broker.vhost]
    assert len(mine) == 1
    assert [row["vhost"] for row in admin.rows("list", "channels") if row["vhost"] == broker.vhost]
    assert any(row["queue"]["name"] == "live" for row in admin.rows("list", "consumers"))
    admin.run("close", "connection", f"name={mine[0]['name']}")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
        connection.process_data_events(5)
    assert not [row for row in admin.rows("list", "connections") if row["name"] == mine[0]["name"]]


def test_what_is_refused_is_told(admin: Admin) -> None:
    done = admin.try_run("delete", "queue", "name=none")
    assert (done.returncode, "Not found: /api/queues/" in done.stderr) == (1, True)
    done = admin.try_run("declare", "exchange", "name=e", "type=nonsense")
    assert (done.returncode, "exchange type 'nonsense'" in done.stderr) == (1, True)
