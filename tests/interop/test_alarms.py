"""Promises about resource alarms: publishers are told and wait, consumers go on, and it ends by itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pamqp import commands

from tests.interop import brokers
from tests.interop.brokers import Broker
from tests.interop.rawclient import RawClient
from tests.interop.waiting import until

MARGIN_BYTES = 512 * 1024 * 1024


class Scarce(NamedTuple):
    """A broker whose disk alarm is half a gigabyte away, and a file that takes twice that much."""

    broker: Broker
    ballast: Path

    def fill(self) -> None:
        with self.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 2 * MARGIN_BYTES)

    def empty(self) -> None:
        self.ballast.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def scarce(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scarce]:
    folder = tmp_path_factory.mktemp("ballast")
    free = shutil.disk_usage(folder).free
    if free < 4 * MARGIN_BYTES:
        pytest.skip("not enough free disk to play with")
    with brokers.launch([f"disk_free_limit.absolute = {free - MARGIN_BYTES}"]) as broker:
        if broker.folder.stat().st_dev != folder.stat().st_dev:
            pytest.skip("the broker's data lies on another disk")
        yield Scarce(broker, folder / "ballast")


@pytest.fixture
def opened(scarce: Scarce) -> Iterator[Any]:
    made: list[RawClient] = []

    def connect(**options: Any) -> RawClient:
        client = RawClient.connect(scarce.broker.host, scarce.broker.port)
        made.append(client)
        client.open(scarce.broker, **options)
        client.channel(1, confirm=True)
        return client

    yield connect
    scarce.empty()
    for client in made:
        client.close()


def until_blocked(client: RawClient, key: str) -> tuple[commands.Connection.Blocked, int]:
    """Publish now and then until the broker says blocked; also how many publishes it confirmed before."""
    confirmed = 0

    def attempt() -> commands.Connection.Blocked | None:
        nonlocal confirmed
        client.publish(1, key, b"m")
        _, answer = client.receive()
        if isinstance(answer, commands.Connection.Blocked):
            return answer
        assert isinstance(answer, commands.Basic.Ack)
        confirmed = answer.delivery_tag
        return None

    return until(attempt, "the alarm", 30), confirmed


def test_an_alarm_blocks_publishers_not_consumers_and_ends(scarce: Scarce, opened: Any) -> None:
    publisher, consumer, idle = opened(), opened(), opened()
    consumer.call(1, commands.Queue.Declare(queue="q", exclusive=True), commands.Queue.DeclareOk)
    consumer.publish(1, "q", b"before")
    consumer.expect(commands.Basic.Ack, 1)
    scarce.fill()
    blocked, confirmed = until_blocked(publisher, "q")
    assert blocked.reason == "low on disk"
    consumer.call(1, commands.Queue.Declare(queue="q", passive=True), commands.Queue.DeclareOk)
    consumer.send(1, commands.Basic.Get(queue="q"))
    assert consumer.expect_content(commands.Basic.GetOk, 1).body == b"before"
    idle.call(1, commands.Basic.Qos(), commands.Basic.QosOk)
    scarce.empty()
    publisher.expect(commands.Connection.Unblocked, 0, 30)
    answer = publisher.expect(commands.Basic.Ack, 1)
    assert answer.delivery_tag > confirmed, "what was held back is taken and confirmed"


def test_a_client_without_the_capability_just_waits(scarce: Scarce, opened: Any) -> None:
    told, silent = opened(), opened(client_properties={})
    scarce.fill()
    until_blocked(told, "nowhere")
    silent.publish(1, "nowhere", b"m")
    with pytest.raises(TimeoutError):
        silent.receive(0.3)
    scarce.empty()
    assert silent.expect(commands.Basic.Ack, 1, 30).delivery_tag == 1
