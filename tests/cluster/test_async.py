"""Asynchronous replication between real processes: what a kill -9 of the master loses is what was told."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mirrormq.wire import methods
from tests.cluster import kit
from tests.cluster.kit import Node, until
from tests.cluster.mirrorrun import set_policy
from tests.cluster.test_salvage import PERSISTENT, body, row, taken

pytestmark = pytest.mark.slow

QUEUE = "q"
BURST, UNCONFIRMED = 10, 100
LATE_S = 0.4
"""How much later the mirror hears of everything."""


class Load:
    """A client that publishes numbers as fast as they are confirmed, until it is stopped."""

    def __init__(self, node: Node) -> None:
        self.confirmed = 0
        self.sent = 0
        self._client = node.raw()
        self._client.call(1, methods.ConfirmSelect(), methods.ConfirmSelectOk)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            for _ in range(BURST):
                self._client.publish(1, methods.BasicPublish(routing_key=QUEUE), body(self.sent), PERSISTENT)
                self.sent += 1
            self._hear(self.sent - UNCONFIRMED)
        self._hear(self.sent)

    def _hear(self, upto: int) -> None:
        while self.confirmed < upto:
            self.confirmed = self._client.expect(1, methods.BasicAck).delivery_tag

    def stop(self) -> None:
        """Wait until all is confirmed."""
        self._is_over.set()
        self._thread.join(kit.DEADLINE_S)
        assert not self._thread.is_alive()
        self._client.close()


def test_what_a_kill_of_the_master_under_load_loses_is_within_the_window_and_comes_back(
    tmp_path: Path,
) -> None:
    with kit.cluster(tmp_path, proxied=True) as three:
        old, new, home = three
        both = {"ha-mode": "nodes", "ha-params": [old.name, new.name], "ha-replication": "async"}
        set_policy(old, "ha", "^q$", both)
        kit.declare(old.channel(), QUEUE)
        until(lambda: len(row(home).get("in_sync", ())) == 2, "the mirror is in sync")
        assert row(home)["replication"] == "async"
        three.net.delay(old.name, new.name, LATE_S)
        load = Load(home)

        def told() -> tuple[int, int]:
            before = load.confirmed
            return before, row(home).get("loss_window_records") or 0

        until(lambda: load.confirmed > 500 and told()[1] > BURST, "the mirror is behind under load")
        before, window = told()
        three.net.lose(old.name, new.name)
        old.kill()
        at_kill = load.confirmed
        until(lambda: row(home)["master"] == new.name, "the mirror has taken over")
        three.net.heal()
        load.stop()
        found = row(home)
        assert (found["losses"], found["to_salvage"]) == (1, [old.name])
        survived = [number for number, _ in taken(home, QUEUE)]
        lost = set(range(load.sent)) - set(survived)
        assert lost, "a mirror that is behind lacks something"
        # What was confirmed and is lost was in the window when that was told, or was confirmed since.
        assert len({number for number in lost if number < at_kill}) <= window + (at_kill - before)
        assert len(survived) == len(set(survived))
        old.start()
        until(lambda: not row(home)["to_salvage"], "the old master is salvaged", 60)
        salvaged = [number for number, _ in taken(home, f"{QUEUE}.salvage")]
        assert lost <= set(salvaged)
        assert len(salvaged) == len(set(salvaged))
