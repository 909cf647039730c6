"""Promises about definition files: what RabbitMQ 3.x exports can be imported, used, and comes out again."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.interop import brokers
from tests.interop.admin import Refused
from tests.interop.brokers import Broker
from tests.interop.talk import publish, publish_all, queue, take_all, wait_depth
from tests.interop.waiting import until


def salted_hash(password: str, algorithm: str = "sha256") -> str:
    """RabbitMQ's form: base64(salt + hash(salt + password))."""
    salt = b"\x90\x8d\xc6\x0a"
    digest = hashlib.new(algorithm, salt + password.encode()).digest()
    return base64.b64encode(salt + digest).decode()


def definitions(vhost: str) -> dict[str, Any]:
    """A file as RabbitMQ 3.10 writes it, with one of each kind, for this vhost."""
    text = Path(__file__).with_name("definitions.json").read_text().replace("@vhost@", vhost)
    content: dict[str, Any] = json.loads(text)
    return content


@pytest.fixture
def imported(broker: Broker) -> Iterator[Broker]:
    """The test's vhost filled from a file; its users and global parameter are removed afterwards."""
    file = definitions(broker.vhost)
    broker.admin.post("definitions", body=file)
    yield broker.seen_by(f"imported-{broker.vhost}", "secret")
    for row in file["users"]:
        broker.admin.delete_user(row["name"])
    broker.admin.delete("global-parameters", f"setting-{broker.vhost}")


def test_imported_users_log_in_with_their_old_password(imported: Broker, clients: Any) -> None:
    clients.connect(imported)
    clients.connect(imported.seen_by(f"{imported.user}-512", "secret"))
    with pytest.raises(pika.exceptions.AMQPError):
        clients.connect(imported.seen_by(imported.user, "wrong"))


def test_imported_exchanges_queues_and_bindings_route(imported: Broker, channel: Any) -> None:
    publish(channel, "new.order", "low", "orders", priority=1)
    publish(channel, "new.order", "high", "orders", priority=4)
    publish(channel, "old.order", "lost", "orders")
    assert take_all(channel, "plain") == ["high", "low"]
    channel.queue_declare("plain", durable=True, arguments={"x-queue-type": "classic", "x-max-priority": 4})


def test_imported_policies_act_and_the_operators_limit_wins(imported: Broker, channel: Any) -> None:
    channel.queue_bind("plain", "orders", "capped")
    publish_all(channel, "capped", *"12345")
    wait_depth(channel, "plain", 2)
    assert take_all(channel, "capped") == ["3", "4", "5"], "3 by the operator policy, not 5"
    assert take_all(channel, "plain") == ["1", "2"], "the dead-letter exchange of the user policy"


def test_importing_twice_changes_nothing(imported: Broker, channel: Any) -> None:
    publish(channel, "plain", "kept")
    imported.admin.post("definitions", body=definitions(imported.vhost))
    assert take_all(channel, "plain") == ["kept"]


def test_what_was_imported_is_exported(imported: Broker) -> None:
    exported = imported.admin.get("definitions")
    wanted = definitions(imported.vhost)

    def rows(source: dict[str, Any], kind: str) -> list[str]:
        own = [row for row in source[kind] if row.get("vhost") == imported.vhost]
        return sorted(json.dumps(row, sort_keys=True) for row in own)

    for kind in (
        "permissions",
        "topic_permissions",
        "parameters",
        "policies",
        "queues",
        "exchanges",
        "bindings",
    ):
        assert rows(exported, kind) == rows(wanted, kind), kind
    users = {row["name"]: row for row in exported["users"]}
    for row in wanted["users"]:
        found = users[row["name"]]
        assert (found["password_hash"], found["hashing_algorithm"]) == (
            row["password_hash"],
            row["hashing_algorithm"],
        )
        assert found["limits"] == row["limits"]
    assert {"name": f"setting-{imported.vhost}", "value": {"nested": [1, "two", True]}} in exported[
        "global_parameters"
    ]
    assert imported.vhost in {row["name"] for row in exported["vhosts"]}
    assert exported["rabbit_version"] == "3.10.8"


def test_exclusive_queues_are_not_exported(broker: Broker, channel: Any) -> None:
    queue(channel, "keep", durable=True)
    queue(channel, "transient")
    queue(channel, "own", exclusive=True)
    names = {row["name"] for row in broker.admin.get("definitions")["queues"] if row["vhost"] == broker.vhost}
    assert names == {"keep", "transient"}


def test_definitions_of_one_vhost_come_without_its_name(imported: Broker) -> None:
    exported = imported.admin.get("definitions", imported.vhost)
    assert {row["name"] for row in exported["queues"]} == {"capped", "plain"}
    assert all("vhost" not in row for kind in ("queues", "exchanges", "bindings") for row in exported[kind])


def test_definitions_of_one_vhost_can_be_imported_into_another(imported: Broker, clients: Any) -> None:
    exported = imported.admin.get("definitions", imported.vhost)
    other = f"copy-{imported.vhost}"
    imported.admin.add_vhost(other)
    imported.admin.permit("guest", other)
    try:
        imported.admin.post("definitions", other, body=exported)
        channel = clients.channel(clients.broker.within(other))
        publish(channel, "new.x", "m", "orders")
        assert take_all(channel, "plain") == ["m"]
        channel.connection.close()
    finally:
        imported.admin.delete_vhost(other)


@pytest.mark.parametrize(
    "broken",
    [
        {"queues": [{"name": "q"}]},
        {"permissions": [{"user": "no such user", "vhost": "/", "configure": "", "write": "", "read": ""}]},
    ],
)
def test_a_file_that_makes_no_sense_is_refused(broker: Broker, broken: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        broker.admin.post("definitions", body=broken)
    assert caught.value.status == 400


def test_a_node_loads_its_definitions_file_at_start(tmp_path: Any) -> None:
    file = tmp_path / "definitions.json"
    content = definitions("from-file")
    content["users"].append(
        {
            "name": "guest",
            "password_hash": salted_hash("guest"),
            "tags": ["administrator"],
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "limits": {},
        }
    )
    file.write_text(json.dumps(content))
    with brokers.launch([f"load_definitions = {file}"]) as broker:
        at = broker.within("from-file").seen_by("imported-from-file", "secret")
        credentials = pika.PlainCredentials(at.user, at.password)
        parameters = pika.ConnectionParameters(at.host, at.port, at.vhost, credentials)

        def logged_in() -> Any:
            try:
                return pika.BlockingConnection(parameters)
            except pika.exceptions.AMQPError:
                return None

        with until(logged_in, "the imported user can log in") as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            publish(channel, "new.order", "m", "orders")
            assert take_all(channel, "plain") == ["m"]
