"""Clients of RabbitMQ's management API from the package index: pyrabbit2, rabbitmq-admin, AMQPStorm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from amqpstorm.management import ManagementApi
from amqpstorm.management.exception import ApiError
from pyrabbit2.api import Client
from pyrabbit2.http import HTTPError
from rabbitmq_admin import AdminAPI

from tests.interop.brokers import Broker
from tests.interop.conftest import Clients

# --- pyrabbit2 ---


@pytest.fixture
def pyrabbit(broker: Broker) -> Client:
    return Client(f"{broker.host}:{broker.http_port}", broker.user, broker.password)


def test_pyrabbit_moves_messages(broker: Broker, pyrabbit: Client) -> None:
    vhost = broker.vhost
    assert pyrabbit.is_alive(vhost)
    pyrabbit.create_queue(vhost, "q", durable=True, auto_delete=False, arguments={"x-max-length": 7})
    pyrabbit.create_exchange(vhost, "e", "topic", durable=True, auto_delete=False)
    pyrabbit.create_binding(vhost, "e", "q", "a.*")
    assert pyrabbit.publish(vhost, "e", "a.b", "hello") is True
    assert pyrabbit.publish(vhost, "e", "none", "hello") is False
    assert pyrabbit.get_queue_depth(vhost, "q") == 1
    (message,) = pyrabbit.get_messages(vhost, "q", count=1, requeue=True)
    assert message["payload"] == "hello"
    assert "q" in {row["name"] for row in pyrabbit.get_queues(vhost)}
    bound = pyrabbit.get_queue_bindings(vhost, "q")
    assert [row["routing_key"] for row in bound] == ["q", "a.*"]
    pyrabbit.purge_queue(vhost, "q")
    assert pyrabbit.get_queue(vhost, "q")["messages"] == 0
    pyrabbit.delete_binding(vhost, "e", "q", "a.*")
    pyrabbit.delete_exchange(vhost, "e")
    pyrabbit.delete_queue(vhost, "q")
    with pytest.raises(HTTPError):
        pyrabbit.get_queue(vhost, "q")


def test_pyrabbit_administers_vhosts_users_and_policies(broker: Broker, pyrabbit: Client) -> None:
    vhost, user = f"{broker.vhost}-py", f"{broker.vhost}-py-ann"
    pyrabbit.create_vhost(vhost)
    pyrabbit.create_user(user, "secret", tags="management")
    pyrabbit.set_vhost_permissions(vhost, user, ".*", ".*", ".*")
    assert pyrabbit.get_permission(vhost, user)["configure"] == ".*"
    assert vhost in pyrabbit.get_vhost_names()
    policy = {"pattern": "^q$", "definition": {"max-length": 3}, "priority": 1, "apply-to": "queues"}
    pyrabbit.create_policy(vhost, "p", **policy)
    assert pyrabbit.get_policy(vhost, "p")["definition"] == {"max-length": 3}
    pyrabbit.delete_policy(vhost, "p")
    assert pyrabbit.get_whoami()["name"] == "guest"
    assert pyrabbit.get_overview()["rabbitmq_version"]
    assert pyrabbit.get_nodes()
    assert pyrabbit.get_cluster_name()["name"]
    assert {row["name"] for row in pyrabbit.get_definitions()["vhosts"]} >= {vhost}
    pyrabbit.get_extensions()
    pyrabbit.delete_permission(vhost, user)
    pyrabbit.delete_user(user)
    pyrabbit.delete_vhost(vhost)


# --- rabbitmq-admin ---


@pytest.fixture
def admin(broker: Broker) -> AdminAPI:
    return AdminAPI(f"http://{broker.host}:{broker.http_port}", auth=(broker.user, broker.password))


def test_rabbitmq_admin_administers_and_closes_connections(
    broker: Broker, admin: AdminAPI, clients: Clients
) -> None:
    vhost, user = f"{broker.vhost}-ra", f"{broker.vhost}-ra-ann"
    admin.create_vhost(vhost)
    admin.create_user(user, "secret", tags="policymaker")
    admin.create_user_permission(user, vhost)
    assert admin.get_user_permission(vhost, user)["read"] == ".*"
    admin.create_policy_for_vhost(vhost, "ha", {"ha-mode": "all"}, pattern="^ha\\.")
    assert admin.get_policy_for_vhost(vhost, "ha")["definition"] == {"ha-mode": "all"}
    admin.create_exchange_for_vhost("e", vhost, {"type": "fanout", "durable": True, "arguments": {}})
    assert admin.get_exchange_for_vhost("e", vhost)["type"] == "fanout"
    admin.delete_exchange_for_vhost("e", vhost, if_unused=True)
    assert admin.is_vhost_alive(broker.vhost) == {"status": "ok"}
    connection = clients.connect()
    connection.channel()
    (name,) = [row["name"] for row in admin.list_connections() if row["vhost"] == broker.vhost]
    assert len(admin.list_connection_channels(name)) == 1
    assert admin.get_connection(name)["user"] == "guest"
    admin.delete_connection(name, "maintenance")
    with pytest.raises(Exception, match="320"):
        connection.process_data_events(5)
    node = admin.list_nodes()[0]["name"]
    assert admin.get_node(node, memory=True)["name"] == node
    assert admin.whoami()["tags"]
    assert admin.overview()["cluster_name"] == admin.get_cluster_name()["name"]
    definitions = admin.get_definitions()
    admin.post_definitions(definitions)
    admin.delete_policy_for_vhost(vhost, "ha")
    admin.delete_user_permission(user, vhost)
    admin.delete_user(user)
    admin.delete_vhost(vhost)


# --- AMQPStorm ---


@pytest.fixture
def storm(broker: Broker) -> Iterator[ManagementApi]:
    with ManagementApi(f"http://{broker.host}:{broker.http_port}", broker.user, broker.password) as found:
        yield found


def test_amqpstorm_moves_messages(broker: Broker, storm: ManagementApi) -> None:
    vhost = broker.vhost
    storm.queue.declare("q", virtual_host=vhost, durable=True)
    storm.exchange.declare("e", exchange_type="direct", virtual_host=vhost, durable=True)
    storm.queue.bind("q", "e", "k", virtual_host=vhost)
    assert storm.basic.publish("hello", "k", "e", virtual_host=vhost) == {"routed": True}
    (message,) = storm.basic.get("q", virtual_host=vhost, requeue=True)
    assert str(message.body) == "hello"
    assert [row["name"] for row in storm.queue.list(vhost, show_all=False)] == ["q"]
    assert any(row["routing_key"] == "k" for row in storm.queue.bindings("q", virtual_host=vhost))
    storm.queue.purge("q", virtual_host=vhost)
    storm.queue.unbind("q", "e", "k", virtual_host=vhost)
    storm.exchange.delete("e", virtual_host=vhost)
    storm.queue.delete("q", virtual_host=vhost)
    with pytest.raises(ApiError):
        storm.queue.get("q", virtual_host=vhost)


def test_amqpstorm_administers_vhosts_and_users(broker: Broker, storm: ManagementApi) -> None:
    vhost, user = f"{broker.vhost}-st", f"{broker.vhost}-st-ann"
    storm.virtual_host.create(vhost)
    storm.user.create(user, "secret", tags="monitoring")
    storm.user.set_permission(user, vhost, ".*", ".*", ".*")
    assert storm.user.get_permission(user, vhost)["write"] == ".*"
    assert storm.virtual_host.get(vhost)["name"] == vhost
    assert storm.aliveness_test(broker.vhost) == {"status": "ok"}
    assert storm.healthchecks.get()["status"] == "ok"
    assert storm.nodes()
    assert storm.overview()["node"]
    assert storm.whoami()["name"] == "guest"
    storm.user.delete([user])
    storm.virtual_host.delete(vhost)
