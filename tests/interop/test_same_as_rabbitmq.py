"""Random conversations have the same transcripts on MirrorMQ and on RabbitMQ 3.10.8, where installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop import brokers, conversation
from tests.interop.brokers import Broker
from tests.support import rabbitmq

FIRST = int(os.environ.get("CONVERSATION_SEED", "1"))
COUNT = int(os.environ.get("CONVERSATIONS", "40"))


@pytest.fixture(scope="module")
def original() -> Iterator[Broker]:
    if not rabbitmq.installed():
        pytest.skip("rabbitmq-server is not installed")
    with brokers.rabbitmq_server() as broker:
        yield broker


def transcript(broker: Broker, seed: int) -> list[Any]:
    vhost = f"conversation-{seed}"
    broker.admin.add_vhost(vhost)
    broker.admin.permit("guest", vhost)
    player = conversation.Player(broker.within(vhost))
    try:
        return [(step, player.play(step)) for step in conversation.draw(seed)]
    finally:
        player.close()
        broker.admin.delete_vhost(vhost)


def test_a_client_cannot_tell_the_brokers_apart(server: Broker, original: Broker) -> None:
    for seed in range(FIRST, FIRST + COUNT):
        theirs, ours = transcript(original, seed), transcript(server, seed)
        for number, (wanted, found) in enumerate(zip(theirs, ours, strict=True)):
            assert found == wanted, f"conversation {seed}, step {number}"
