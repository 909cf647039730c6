"""Promises about a restart: durable objects and their bindings are there again, all others are gone."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker

from tests.interop import brokers
from tests.interop.brokers import Broker
from tests.interop.talk import publish, queue, take_all
from tests.interop.waiting import until


def opened(broker: Broker) -> Any:
    def attempt() -> Any:
        try:
            return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port))
        except AMQPError:
            return None

    return until(attempt, "the broker accepts connections", 30)


def test_durable_objects_survive_a_restart_and_transient_ones_do_not() -> None:
    with brokers.restartable() as (broker, restart):
        with opened(broker) as connection:
            channel = connection.channel()
            for name, durable in (("keep", True), ("drop", False)):
                channel.exchange_declare(f"ex-{name}", "topic", durable=durable)
                queue(channel, name, durable=durable, x_max_length=2)
                channel.queue_bind(name, "ex-keep", "a.#")
            queue(channel, "own", durable=True, exclusive=True)
            channel.exchange_bind("ex-keep", "amq.fanout", "")
        restart()
        with opened(broker) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("keep", durable=True, arguments={"x-max-length": 2})
            for number in range(3):
                publish(channel, "a.b", str(number), "amq.fanout")
            assert take_all(channel, "keep") == ["1", "2"], "bindings and arguments are those from before"
            for missing in ("drop", "own"):
                with pytest.raises(ChannelClosedByBroker) as caught:
                    connection.channel().queue_declare(missing, passive=True)
                assert caught.value.reply_code == 404
            with pytest.raises(ChannelClosedByBroker) as caught:
                connection.channel().exchange_declare("ex-drop", passive=True)
            assert caught.value.reply_code == 404
