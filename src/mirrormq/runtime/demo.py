"""`mirrormq demo`: a guided tour of what mirrored queues are for, on its own data and free ports.

Three nodes are started, a client publishes with confirms, the node that is the master of its queue is killed
with SIGKILL while it does, and afterwards every confirmed message is looked for, one by one. In the end Spark
archives what was published, audits the copies and reports. Exit code 0 if nothing was lost, 1 if anything
was, or a node did not start. Nothing is left behind but the archive and the reports.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from mirrormq.client.admin import AdminClient, Unreachable
from mirrormq.client.admin import Refused as AdminRefused
from mirrormq.client.amqp import AmqpClient, Confirmed, Delivered, Gone, Refused
from mirrormq.client.bulk import BulkError
from mirrormq.runtime import localcluster, main
from mirrormq.runtime.demopipeline import Pipeline
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.localcluster import LocalNode
from mirrormq.runtime.nodechild import NodeChild
from mirrormq.runtime.ports import free_base

NODES = 3
QUEUE = "orders"
MESSAGES = 20_000
WINDOW = 200
PREFETCH = 1_000
ACK_EVERY = 200
BODY_BYTES = 256
PATIENCE_S = 30.0
"""How long anything may take that is waited for."""
POLL_S = 0.05
FIRST_BASE = 7_000


def demo(argv: Sequence[str]) -> int:
    """Run the tour; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="mirrormq demo", description="Kill the master of a mirrored queue and count the messages."
    )
    parser.add_argument("--messages", type=int, default=MESSAGES, metavar="N", help=f"({MESSAGES})")
    parser.add_argument(
        "--out", type=Path, default=Path("data/demo"), metavar="DIR", help="archive and reports (data/demo)"
    )
    parser.add_argument("--no-pipeline", action="store_true", help="leave out the jobs on Spark")
    options = parser.parse_args(argv)
    out = None if options.no_pipeline else options.out.absolute() / time.strftime("%Y%m%d-%H%M%S")
    signal.signal(signal.SIGTERM, main.leave)
    folder = Path(tempfile.mkdtemp(prefix="mirrormq-demo-"))
    try:
        with _running(folder) as nodes:
            return Tour(nodes, options.messages, out).run()
    except StartError as error:
        return main.say(error)
    except KeyboardInterrupt:
        return main.COULD_NOT_START
    except (Gone, TimeoutError, Unreachable, AdminRefused, BulkError, ConnectionError) as error:
        return main.say(StartError(f"the tour could not go on: {error}."))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _say(text: str = "") -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class DemoNode:
    """One node of the tour."""

    def __init__(self, local: LocalNode, nodes: Sequence[LocalNode]) -> None:
        self.local = local
        self._words = [*localcluster.words_of(local, nodes), *localcluster.policy_words()]
        self._child: NodeChild | None = None
        self._drain: threading.Thread | None = None

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._child is not None
        return self._child.pid

    def start(self) -> None:
        """Start it; `wait` waits."""
        child = self._child = NodeChild(self.local.name, self._words, os.environ)
        # Its log lines would hide the tour; they are kept for the case that it does not start.
        log = self.local.folder.with_suffix(".log")
        self._drain = threading.Thread(target=_copy, args=(child, log), daemon=True)
        self._drain.start()

    def wait(self) -> None:
        """Wait until it takes clients."""
        assert self._child is not None
        while not self._child.read_ready():
            pass
        if self._child.announced is None:
            said = self.local.folder.with_suffix(".log").read_text(errors="replace").splitlines()
            raise StartError(f"node {self.local.name} did not start: {' '.join(said[-3:])}")

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait for the end."""
        if self._child is None or self._drain is None:
            return
        self._child.signal(number)
        self._drain.join()
        self._child.bury()
        self._child = None

    def connect(self) -> AmqpClient:
        """A client of this node."""
        return AmqpClient("127.0.0.1", self.local.port, timeout=PATIENCE_S)

    def queue(self) -> dict[str, Any]:
        """What it knows of the queue of the tour."""
        key = (self.local.folder / "node.key").read_text().strip()
        url = f"http://127.0.0.1:{self.local.ports[1]}"
        with AdminClient(url, key=key, timeout=PATIENCE_S) as client:
            rows = client.ctl("list_queues", vhost="/")
        return next((dict(row) for row in rows if row["name"] == QUEUE), {})


def _copy(child: NodeChild, log: Path) -> None:
    with log.open("ab") as file:
        while (lines := child.read_lines()) is not None:
            file.writelines(line + b"\n" for line in lines)
            file.flush()


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[list[DemoNode]]:
    def ports(base: int) -> list[int]:
        return [port for node in localcluster.local_nodes(NODES, base, folder) for port in node.ports]

    local = localcluster.local_nodes(NODES, free_base(FIRST_BASE, ports), folder)
    localcluster.prepare(folder, local)
    nodes = [DemoNode(node, local) for node in local]
    try:
        _say(f"MirrorMQ: {NODES} nodes, one queue, and a killed master")
        _say()
        _say(f"1. Starting {NODES} nodes in {folder}.")
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait()
            _say(f"     {node.local.name} takes clients on port {node.local.port} (process {node.pid})")
        yield nodes
    finally:
        for node in nodes:
            node.end(signal.SIGTERM)


class Tour:
    """The steps behind the start."""

    def __init__(self, nodes: list[DemoNode], messages: int, out: Path | None) -> None:
        """`out` is for what the pipeline makes; without it there is none."""
        self._nodes = nodes
        ports = [node.local.port for node in nodes]
        self._pipeline = None if out is None else Pipeline(QUEUE, ports, out, _say)
        self._messages = messages
        self._confirmed: set[int] = set()
        self._again = 0
        """Publishes that were repeated because their outcome was unknown."""
        self._pause_s = 0.0

    def run(self) -> int:
        """All of it; returns the exit code."""
        master, near, far = self._nodes
        _say(f"2. Declaring the durable queue '{QUEUE}' on {master.local.name}.")
        with master.connect() as client:
            client.declare(QUEUE)
            client.close()
        row = _until(lambda: _has_copies(near.queue(), NODES), "all copies are in sync")
        _say(f"     master {row['master']}, in sync: {', '.join(row['in_sync'])}")
        if self._pipeline is not None:
            self._pipeline.hold()
            _say("     a cursor keeps every record until it is archived")
        _say(f"3. Publishing {self._messages:,} persistent messages with confirms through {near.local.name}.")
        self._publish(near, master)
        row = _until(lambda: near.queue().get("master") and near.queue(), "the queue has a master")
        _say(f"     all {len(self._confirmed):,} confirmed; the master is now {row['master']}")
        _say(f"4. Taking every message out of the queue through {far.local.name}.")
        received, repeated, is_ordered = self._take(far)
        _say(f"5. Starting {master.local.name} again on its old data.")
        began = time.monotonic()
        master.start()
        master.wait()
        _until(lambda: _has_copies(near.queue(), NODES), "all copies are in sync again")
        _say(f"     in sync again {time.monotonic() - began:.1f} s after its start")
        code = 0
        if self._pipeline is not None:
            _say("6. The data pipeline: Spark archives, audits and reports, reading from the mirrors.")
            code = self._pipeline.run(len(self._confirmed))
        return self._sum_up(received, repeated, is_ordered) or code

    def _sum_up(self, received: set[int], repeated: int, is_ordered: bool) -> int:
        missing = sorted(self._confirmed - received)
        _say()
        _say(f"confirmed by the broker       {len(self._confirmed):>8,}")
        _say(f"confirmed and received        {len(self._confirmed & received):>8,}")
        _say(f"confirmed and lost            {len(missing):>8,}")
        _say(f"received twice                {repeated:>8,}   (published again: {self._again:,})")
        _say(f"in the order of publishing    {'yes' if is_ordered else 'no':>8}")
        _say(f"first confirm after the kill  {self._pause_s * 1000:>8,.0f} ms")
        _say()
        if missing:
            _say(f"LOST: {missing[:20]}")
            return 1
        _say("Nothing that was confirmed is lost.")
        return 0

    def _publish(self, near: DemoNode, master: DemoNode) -> None:
        """Publish everything; half way through the master is killed."""
        waiting: dict[int, int] = {}
        to_send = list(range(self._messages, 0, -1))
        killed_at, first_after = 0.0, 0
        with near.connect() as client:
            while len(self._confirmed) < self._messages:
                while to_send and len(waiting) < WINDOW:
                    number = to_send.pop()
                    tag = client.publish(QUEUE, _body(number))
                    waiting[tag] = number
                    if killed_at and not first_after:
                        first_after = tag
                event = client.next_event()
                if not isinstance(event, Confirmed | Refused):
                    continue
                answered = [
                    tag for tag in waiting if tag == event.tag or (event.multiple and tag < event.tag)
                ]
                numbers = [waiting.pop(tag) for tag in answered]
                if isinstance(event, Refused):
                    self._again += len(numbers)
                    to_send += reversed(numbers)
                    continue
                self._confirmed.update(numbers)
                if not killed_at and len(self._confirmed) >= self._messages // 2:
                    _say(f"     {len(self._confirmed):,} confirmed. Now: kill -9 {master.pid}, the master.")
                    killed_at = time.monotonic()
                    master.end(signal.SIGKILL)
                elif first_after and not self._pause_s and event.tag >= first_after:
                    self._pause_s = time.monotonic() - killed_at
                    _say(f"     first confirm after the kill: {self._pause_s * 1000:.0f} ms")
            client.close()

    def _take(self, far: DemoNode) -> tuple[set[int], int, bool]:
        """The numbers received, how many came again, and whether first ones came in order."""
        received: set[int] = set()
        repeated, last, is_ordered = 0, 0, True
        with far.connect() as client:
            client.consume(QUEUE, PREFETCH)
            count = 0
            while not self._confirmed <= received:
                try:
                    event = client.next_event()
                except TimeoutError:
                    break
                if not isinstance(event, Delivered):
                    continue
                number = int(event.body.split(b" ", 1)[0])
                if number in received:
                    repeated += 1
                else:
                    is_ordered = is_ordered and number > last
                    last = number
                received.add(number)
                count += 1
                if count % ACK_EVERY == 0:
                    client.ack(event.tag)
            client.close()
        _say(f"     {count:,} received")
        return received, repeated, is_ordered


def _body(number: int) -> bytes:
    return f"{number} ".encode().ljust(BODY_BYTES, b".")


def _has_copies(row: dict[str, Any], count: int) -> dict[str, Any] | None:
    return row if len(row.get("in_sync", ())) == count else None


def _until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:g} s: {what}")
        pause.wait(POLL_S)
    return found
