"""What the texts say clients do and see, done by a client."""

from __future__ import annotations

from typing import Any

import pika
import pika.exceptions
import pytest

from tests.cluster.kit import Cluster, until
from tests.seeds.lines import CLIENTS, tried

pytestmark = pytest.mark.slow

TRIED = {
    "001-durable",
    "001-exclusive",
    "001-delivery-mode",
    "002-cancel-on-failover",
    "003-tx-and-confirms",
    "003-expiration",
}


def test_everything_said_of_clients_is_tried_here() -> None:
    assert tried(CLIENTS) == TRIED


@pytest.fixture
def channel(three: Cluster) -> Any:
    return three[0].channel(confirms=False)


def test_durable_exchanges_and_queues_outlive_a_restart_with_their_bindings_and_messages(
    three: Cluster, channel: Any
) -> None:
    """001-durable, 001-exclusive, 001-delivery-mode: what is kept, and what is not."""
    channel.exchange_declare("kept", "topic", durable=True)
    channel.queue_declare("kept", durable=True)
    channel.queue_declare("mine", durable=True, exclusive=True)
    channel.queue_bind("kept", "kept", "a.*")
    channel.confirm_delivery()
    channel.basic_publish("kept", "a.b", b"stays", pika.BasicProperties(delivery_mode=2), mandatory=True)
    channel.basic_publish("kept", "a.b", b"goes", pika.BasicProperties(delivery_mode=1), mandatory=True)
    three[0].stop()
    three.start(three[0])
    again = three[0].channel()
    assert again.queue_declare("kept", passive=True).method.message_count == 1
    again.basic_publish("kept", "a.c", b"more", mandatory=True)
    assert again.basic_get("kept", auto_ack=True)[2] == b"stays"
    assert "mine" not in three[1].queues()


def test_transactions_and_confirms_exclude_each_other_as_in_rabbitmq(channel: Any) -> None:
    """003-tx-and-confirms."""
    channel.tx_select()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="cannot switch from tx to confirm mode"):
        channel.confirm_delivery()


def test_an_empty_expiration_is_refused_as_in_rabbitmq(channel: Any) -> None:
    """003-expiration."""
    channel.queue_declare("my_queue")
    channel.basic_publish("", "my_queue", b"Hello world!", pika.BasicProperties(expiration=""))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
        channel.queue_declare("my_queue", passive=True)
    assert closed.value.reply_code == 406


@pytest.mark.parametrize("argument", ["x-mirrored", "x-copy-from", "x-copy-routing-key"])
def test_arguments_of_named_copies_are_refused_by_name_until_there_are_some(
    channel: Any, argument: str
) -> None:
    """What `mirrored=`, `copy_from=` and `routing_key=` of a declared queue stand for."""
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=f"'{argument}'") as closed:
        channel.queue_declare("myqueue@alternate", durable=True, arguments={argument: "myqueue"})
    assert closed.value.reply_code == 540


def test_a_consumer_that_asks_for_it_is_told_when_the_master_changes(three: Cluster, channel: Any) -> None:
    """002-cancel-on-failover."""
    three[0].ctl(
        "set_policy", vhost="/", name="ha", pattern="^cancel$", definition={"ha-mode": "all"}, priority=5
    )
    channel.queue_declare("cancel", durable=True)
    told: list[object] = []
    channel.add_on_cancel_callback(told.append)
    channel.basic_consume("cancel", lambda *_: None, arguments={"x-cancel-on-ha-failover": True})
    master = next(row["node"] for row in three[1].ctl("list_queues") if row["name"] == "cancel")
    other = next(node.name for node in three if node.name != master)
    three[1].ctl("move_master", vhost="/", name="cancel", node=other)

    def is_told() -> bool:
        channel.connection.process_data_events(0.05)
        return bool(told)

    until(is_told, "basic.cancel")
