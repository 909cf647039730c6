"""A node that is killed or stopped under load: nothing confirmed is lost, nothing committed comes back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mirrormq.wire import methods
from tests.integration import killrun
from tests.integration.killrun import CHANNEL, QUEUE, Name, Promises
from tests.integration.process import running
from tests.support.raw import connect

ROUNDS = int(os.environ.get("KILL_ROUNDS", "3"))


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * ROUNDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_under_load_loses_nothing_confirmed_and_brings_back_nothing_committed(
    tmp_path: Path, seed: int
) -> None:
    promises = killrun.run(tmp_path, ROUNDS, seed, lambda line: None)
    assert not promises.broken, promises.broken[:10]
    assert all(promises.confirmed.values())
    assert promises.committed


@pytest.mark.slow
def test_sigterm_and_restart_keep_every_message_its_order_and_its_first_delivery(tmp_path: Path) -> None:
    names = [Name("confirm", number) for number in range(1, 301)]
    with (
        running(tmp_path, "--no-admin") as node,
        connect("127.0.0.1", node.port) as client,
    ):
        client.handshake()
        client.open_channel(CHANNEL)
        killrun.declare(client)
        for name in names:
            client.publish(CHANNEL, methods.BasicPublish(routing_key=QUEUE), name.body, name.properties)
        # Nothing was confirmed; the answer says only that the node has read the publishes.
        killrun.declare(client)
        client.close_cleanly()
        assert node.stop() == 0
    promises = Promises()
    with (
        running(tmp_path, "--no-admin") as node,
        connect("127.0.0.1", node.port) as client,
    ):
        client.handshake()
        worker = killrun.Worker(client, promises, keeps=None)
        assert worker.count == len(names)
        worker.take(len(names))
        assert worker.taken[: len(names)] == names
        client.close_cleanly()
        assert node.stop() == 0
    assert not promises.broken
    with (
        running(tmp_path, "--no-admin") as node,
        connect("127.0.0.1", node.port) as client,
    ):
        client.handshake()
        client.open_channel(CHANNEL)
        left = killrun.declare(client)
        assert left <= promises.sent["worker"]
