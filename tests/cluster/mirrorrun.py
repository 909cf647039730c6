"""Faults on mirrored queues of real processes, one after the other, checked message by message.

Three queues (two on all nodes, one on exactly two) are used by real clients on all nodes: publishers that
wait for each confirm, publishers that send bursts, consumers that acknowledge, give back and publish. In each
round one fault happens; the round ends when every client has got on since, then publishers stand still until
the queues are empty, and everything confirmed must have been given to somebody. What counts as broken, and
how a duplicate is explained, is in mirrorclients.py.

    python -m tests.cluster.mirrorrun --nodes 3 --faults 60 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until
from tests.cluster.mirrorclients import BurstPublisher, Client, Ledger, Publisher, Worker
from tests.cluster.mirrorfaults import DISK_BYTES, FAULTS, Fault, Field, give_small_disk
from tests.integration.smalldisk import SmallDisk, small_disk

QUEUES = ["all-1", "all-2", "two-1"]
POLICIES: dict[str, dict[str, object]] = {
    "^all-": {"ha-mode": "all"},
    "^two-": {"ha-mode": "exactly", "ha-params": 2},
}
ENOUGH = 30
"""What every client gets done before a fault and after it."""
SECONDS = 120.0

SHOWN = ("master", "in_sync", "unsynchronised", "state", "messages", "messages_unacknowledged", "mirrors")
BROKEN = ("confirmed lost", "resurfaced", "unmarked", "out of order", "changed")


class Round(NamedTuple):
    """One fault and what it cost."""

    fault: str
    what: str
    silence: float
    """Longest time from the fault until a publisher got its first confirm, seconds."""
    counts: Counter[str]


class Run:
    """A cluster, its clients, and the rounds so far."""

    def __init__(self, field: Field, tell: Callable[[str], object]) -> None:
        self.field = field
        self.faults: dict[str, tuple[int, Fault]] = dict(FAULTS)
        self.ledger = Ledger()
        self.rounds: list[Round] = []
        self._tell = tell
        self.clients = self._clients()

    def _clients(self) -> list[Client]:
        nodes = self.field.cluster.nodes
        made: list[Client] = []
        for queue in self.field.queues:
            made.append(Publisher(nodes, queue, f"{queue}-one", self.ledger))
            made.append(BurstPublisher(nodes, queue, f"{queue}-burst", self.ledger))
            for number in (1, 2):
                worker = Worker(nodes, queue, f"{queue}-worker{number}", self.ledger)
                worker.is_touched = self.field.is_touched
                worker.is_late = self.field.is_late
                made.append(worker)
        return made

    def __enter__(self) -> Self:
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            with contextlib.suppress(Exception):
                client.stop()

    def round(self, fault: str) -> Round:
        """One fault; AssertionError if it broke a promise, or somebody is not served again."""
        self._get_on(ENOUGH, "before the fault")
        before = Counter(self.ledger.counts)
        began = time.monotonic()
        queue = self.field.rng.choice(self.field.queues)
        what = f"{queue}: " + self.faults[fault][1](self.field, queue)
        self._tell(f"{fault}, {what}\n")
        self._get_on(ENOUGH, f"after {fault} ({what})")
        silence = time.monotonic() - began
        self._empty()
        done = Round(fault, what, silence, Counter(self.ledger.counts) - before)
        self.rounds.append(done)
        self._tell(
            f"{len(self.rounds):4d} all served {silence:.1f} s after its beginning;"
            f" {done.counts['confirmed']} confirmed, {len(self.ledger.broken)} broken\n"
        )
        assert not self.ledger.broken, f"after {fault} ({what}): {self.ledger.broken[:10]}"
        return done

    def _get_on(self, count: int, when: str) -> None:
        """Wait until every client has got this much done."""
        marks = [client.done for client in self.clients]

        def late() -> list[str]:
            self._check_clients()
            return [
                f"{client.name} at {client.node}"
                for client, mark in zip(self.clients, marks, strict=True)
                if client.done < mark + count
            ]

        until(lambda: not late(), lambda: f"all clients get on {when}: {late()}; {self._state()}", SECONDS)

    def _empty(self) -> None:
        """Publishers stand still, consumers take everything; nothing confirmed may be missing."""
        for client in self.clients:
            client.quiet(True)
        until(lambda: all(client.is_idle for client in self.clients), "publishers are answered", SECONDS)
        until(self._is_empty, lambda: f"queues are empty: {self._state()}", SECONDS)
        self._check_clients()
        self.ledger.check_nothing_lost()
        for client in self.clients:
            client.quiet(False)

    def _is_empty(self) -> bool:
        depths = self._depths()
        return len(depths) == len(self.field.queues) and not any(depths.values())

    def _depths(self) -> dict[str, int]:
        rows = {queue: self.field.row(queue) for queue in self.field.queues}
        return {queue: int(row["messages"]) for queue, row in rows.items() if "messages" in row}

    def _state(self) -> dict[str, dict[str, object]]:
        rows = {queue: self.field.row(queue) for queue in self.field.queues}
        return {queue: {key: row.get(key) for key in SHOWN} for queue, row in rows.items()}

    def _check_clients(self) -> None:
        """Nobody has failed, and no node has ended by itself."""
        for node in self.field.cluster:
            dead = [line.text for line in node.said("[critical]")]
            assert node.is_running, f"{node} has ended: {dead}"
        for client in self.clients:
            if client.failure is not None:
                raise client.failure


@contextlib.contextmanager
def running(
    folder: Path, nodes: int, seed: int, tell: Callable[[str], object], settings: Sequence[str] = ()
) -> Iterator[Run]:
    """A cluster with its policies, queues and clients."""
    with contextlib.ExitStack() as stack:
        disk: SmallDisk | None = None
        try:
            disk = stack.enter_context(small_disk(folder / "small", DISK_BYTES))
        except pytest.skip.Exception as reason:
            tell(f"no full disk: {reason}\n")
        cluster = stack.enter_context(
            kit.cluster(folder, nodes, proxied=True, settings=settings, start=False)
        )
        if disk is not None:
            give_small_disk(cluster, disk)
        cluster.start()
        cluster.wait_whole()
        for number, (pattern, definition) in enumerate(POLICIES.items()):
            set_policy(cluster[0], f"p{number}", pattern, definition)
        for place, queue in enumerate(QUEUES):
            channel = cluster[place % nodes].channel()
            kit.declare(channel, queue)
            channel.connection.close()
        field = Field(cluster, list(QUEUES), random.Random(seed), disk)
        field.wait_synced()
        yield stack.enter_context(Run(field, tell))


def set_policy(node: Node, name: str, pattern: str, definition: dict[str, object]) -> None:
    node.ctl("set_policy", name=name, pattern=pattern, definition=definition, vhost="/", apply_to="queues")


def sequence(count: int, rng: random.Random, *, disk: bool) -> list[str]:
    """Each fault at least once, if there are enough, then by weight."""
    known = [name for name in FAULTS if disk or name != "full disk of a node"]
    found = list(known)
    found += rng.choices(known, [FAULTS[name][0] for name in known], k=max(0, count - len(found)))
    rng.shuffle(found)
    return found[:count]


def summary(rounds: Sequence[Round]) -> str:
    """What happened, by fault, and how duplicates are explained."""
    head = f"{'fault':37} rounds  confirmed  lost  resurfaced  unmarked  disordered  served again s p50   max"
    lines = [head]
    total: Counter[str] = Counter()
    for fault in sorted({one.fault for one in rounds}):
        mine = [one for one in rounds if one.fault == fault]
        counts = sum((one.counts for one in mine), Counter[str]())
        total += counts
        times = sorted(one.silence for one in mine)
        lines.append(
            f"{fault:37} {len(mine):6d} {counts['confirmed']:10,d} {counts['confirmed lost']:5d}"
            f" {counts['resurfaced']:11d} {counts['unmarked']:9d} {counts['out of order']:11d}"
            f"       {times[len(times) // 2]:9.1f} {times[-1]:5.1f}"
        )
    lines.append(f"{len(rounds)} faults: " + ", ".join(f"{total[kind]} {kind}" for kind in BROKEN))
    for what, number in sorted(total.items()):
        if what not in BROKEN:
            lines.append(f"  {number:9,d} {what}")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the order of faults (0: by the clock)")
    parser.add_argument("--only", default="", help="the faults whose names contain this")
    options = parser.parse_args()
    seed = options.seed or int(time.time())
    sys.stdout.write(f"{options.nodes} nodes, {options.faults} faults, seed {seed}\n")
    with (
        tempfile.TemporaryDirectory(prefix="mirrormq-mirror-") as folder,
        running(Path(folder), options.nodes, seed, sys.stdout.write) as run,
    ):
        rng = random.Random(seed)
        if options.only:
            known = [name for name in FAULTS if options.only in name]
            chosen = rng.choices(known, k=options.faults)
        else:
            chosen = sequence(options.faults, rng, disk=run.field.disk is not None)
        try:
            for fault in chosen:
                run.round(fault)
                sys.stdout.flush()
        finally:
            sys.stdout.write(summary(run.rounds))
            if run.ledger.broken or len(run.rounds) < len(chosen):
                sys.stdout.write("\n".join(["broken:", *run.ledger.broken[:50]]) + "\n")
                keep_logs(run.field.cluster)
    return 1 if run.ledger.broken else 0


def keep_logs(cluster: Cluster) -> None:
    """What the nodes said, for whoever looks for the reason."""
    for node in cluster:
        path = Path(tempfile.gettempdir()) / f"mirrorrun-{node.short}.log"
        path.write_text(node.text)
        sys.stdout.write(f"log of {node} in {path}\n")


if __name__ == "__main__":
    sys.exit(main())
