"""Mirrored queues on three nodes, beside RabbitMQ's:  python -m bench.mirror PART ... [--brokers mirrormq]

load      persistent, confirms (1,000), acknowledgements (one per 50), clients on the master and on a mirror,
          16 B and 1 KiB: messages per broker CPU second, msgs/s, latencies.
latency   one unconfirmed message at a time, cores kept awake: confirm p50 and p99.
sync      200,000 x 1 KiB synchronised to two new mirrors while a client publishes, then a mirror that is
          killed and comes back 10 s later: longest stall of the publisher, time, bytes sent to the mirrors.
failover  kill -9 of the master's node under load, again and again: time to the first confirm of a message
          that a client of another node published after the kill; half of the times the dead node also led
          the agreement on definitions (MirrorMQ).
many      10,000 mirrored queues, kill -9 of a node that does not lead the agreement on definitions (or that
          does, with --dead leader): time until every queue confirms a message again, whether a live node was
          suspected, and whether one lost its lease (which all do for a moment if their leader dies).

Both brokers run at once and take turns; RabbitMQ where it is installed. Every run is appended to a file of
JSON lines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import brokers, generator, machine, report, sites
from bench.compare import NOISE, PAUSE_S, WARM_UP_S, brief, usable
from bench.generator import Result
from bench.sites import Site

SYNCED = sites.NODES - 1
"""Mirrors of a queue that is on all nodes."""
COMMON = "--durable --persistent --check"
WINDOW = "--confirm-window 1000 --prefetch 200 --ack-every 50 --coalesce-us 1000"
ONE = "--confirm-window 1 --prefetch 200 --ack-every 1"
LOAD = {
    "master-16": ("mirrored on 3, clients on the master, 16 B", f"--size 16 {WINDOW}"),
    "master-1k": ("mirrored on 3, clients on the master, 1 KiB", f"--size 1024 {WINDOW}"),
    "mirror-16": ("mirrored on 3, clients on a mirror, 16 B", f"--size 16 {WINDOW}"),
    "mirror-1k": ("mirrored on 3, clients on a mirror, 1 KiB", f"--size 1024 {WINDOW}"),
}
LATENCY = {
    "master-one": ("mirrored on 3, clients on the master, 1 KiB, one unconfirmed", f"--size 1024 {ONE}"),
    "mirror-one": ("mirrored on 3, clients on a mirror, 1 KiB, one unconfirmed", f"--size 1024 {ONE}"),
}
DOWN_S = 10.0
STEADY_S = 6.0
RATE = 500
SUSPICIONS = ("link down", "nothing is heard of", "paused", "is not responding", "rabbit on node")
"""What nodes say of others that are taken for dead, and of themselves when they cannot act."""


class Bench:
    """The clusters and where to say what was found."""

    def __init__(self, running: Sequence[Site], options: argparse.Namespace) -> None:
        self.running = running
        self.options = options
        self.out = Path(options.out)

    def say(self, text: str) -> None:
        sys.stderr.write(text + "\n")

    def keep(self, part: str, site: Site, found: Result) -> Result:
        whole = {"part": part, "broker": site.name, **found}
        with self.out.open("a") as lines:
            lines.write(json.dumps(whole) + "\n")
        return whole

    # --- load and latency ---

    def load(self, rows: dict[str, tuple[str, str]], *, awake: bool) -> str:
        """Take turns, row by row; a table."""
        chosen = self.options.rows.split(",") if self.options.rows else list(rows)
        rows = {name: rows[name] for name in chosen if name in rows}
        runs: list[Result] = []
        for site in self.running:
            site.mirror(r"^ha\.")
        for name in rows:
            for attempt in range(self.options.runs):
                for site in self.running:
                    found = self.keep(
                        "load", site, {"row": name, **self._run(site, name, rows[name][1], awake)}
                    )
                    self.say(f"{name} {site.name} run {attempt + 1}: {brief(found)}")
                    if usable(found):
                        runs.append(found)
        for site in self.running:
            site.unmirror()
        return report.table(runs, {name: row[0] for name, row in rows.items()})

    def _run(self, site: Site, name: str, words: str, awake: bool) -> Result:
        queue = f"ha.{name}.{time.monotonic_ns()}"
        sites.declare(site.address(0), queue)
        time.sleep(PAUSE_S)
        clients = site.address(1 if name.startswith("mirror") else 0)
        seconds = self.options.seconds + WARM_UP_S
        timing = ["--seconds", str(seconds), "--warmup", str(WARM_UP_S), "--drain-timeout", "60"]
        with machine.cores_kept_awake(awake):
            return loaded(site, clients, queue, [*words.split(), *COMMON.split(), "--delete", *timing])

    # --- synchronising ---

    def sync(self) -> str:
        lines = [
            "| broker | what | s | longest wait for a confirm ms | longest silence ms | MiB to mirrors |",
            "|---|---|---|---|---|---|",
        ]
        for _ in range(self.options.runs):
            for site in self.running:
                lines += self._sync(site)
        return "\n".join(lines)

    def _sync(self, site: Site) -> list[str]:
        queue = f"sync.{time.monotonic_ns()}"
        count = self.options.messages
        fill = ["--mode", "publish", "--count", str(count), "--confirm-window", "1000", "--size", "1024"]
        loaded(site, site.address(0), queue, [*fill, *COMMON.split(), "--drain-timeout", "120"])
        publisher = Publisher(site, queue, self.options.publish_seconds)
        time.sleep(3)
        before = [site.link_bytes(place) for place in (1, 2)]
        began = time.time()
        site.mirror(r"^sync\.")
        took = site.wait_synced(queue, SYNCED, began) - began
        sent = sum(site.link_bytes(place) for place in (1, 2)) - sum(before)
        first = self._told(site, f"{count:,} x 1 KiB to two new mirrors", took, sent, publisher.end())
        publisher = Publisher(site, queue, self.options.publish_seconds + DOWN_S)
        time.sleep(2)
        killed = time.time()
        site.kill(2)
        time.sleep(max(0.0, killed + DOWN_S - time.time()))
        back = time.time()
        site.start(2)
        took = site.wait_synced(queue, SYNCED, back) - back
        what = f"mirror killed, back after {DOWN_S:g} s, {count:,} in the queue"
        second = self._told(site, what, took, site.link_bytes(2), publisher.end())
        site.unmirror()
        sites.delete(site.address(0), queue)
        return [first, second]

    def _told(self, site: Site, what: str, took: float, sent: int, found: Result) -> str:
        extra = {"what": what, "synced_s": took, "mirror_bytes": sent}
        self.keep("sync", site, {**found, **extra})
        late, silent = found["confirm_ms"]["max"], found["max_confirm_gap_ms"]
        line = f"| {site.name} | {what} | {took:.2f} | {late:.0f} | {silent:.0f} | {sent / 2**20:.1f} |"
        self.say(line)
        return line

    # --- fail-over ---

    def failover(self) -> str:
        found: dict[tuple[str, str], list[Result]] = {}
        for site in self.running:
            site.mirror(r"^ha\.")
        for number in range(self.options.kills):
            for site in self.running:
                led, run = self._kill_master(site, number)
                found.setdefault((site.name, led), []).append(run)
        for site in self.running:
            site.unmirror()
        head = (
            "| broker | dead node | kills | first confirm ms p50 / p90 / max "
            "| first delivery ms p50 / p90 / max | longest silence ms p50 / max "
            "| confirmed lost | duplicates |"
        )
        lines = [head, "|---|---|---|---|---|---|---|---|"]
        for (name, led), runs in found.items():
            confirm = [float(run["failover"]["first_confirm_ms"]) for run in runs]
            delivery = [float(run["failover"]["first_delivery_ms"]) for run in runs]
            silence = [float(run["max_confirm_gap_ms"]) for run in runs]
            lost = sum(run["check"]["lost_confirmed"] for run in runs)
            twice = sum(run["check"]["duplicates"] for run in runs)
            lines.append(
                f"| {name} | {led} | {len(runs)} | {spread(confirm)} | {spread(delivery)} "
                f"| {median(silence):.0f} / {max(silence):.0f} | {lost} | {twice} |"
            )
        return "\n".join(lines)

    def _kill_master(self, site: Site, number: int) -> tuple[str, Result]:
        leader = site.leader()
        wants_leader = number % 2 == 0
        places = [place for place in range(sites.NODES) if (place == leader) == wants_leader]
        dying = 0 if leader < 0 else places[number // 2 % len(places)]
        led = "" if leader < 0 else "led the agreement" if wants_leader else "did not lead"
        queue = f"ha.kill.{time.monotonic_ns()}"
        sites.declare(site.address(dying), queue)
        assert site.master(queue) == dying, (site.master(queue), dying)
        site.wait_synced_empty(queue, SYNCED)
        # A voter that started less than a lease ago answers for what it may have promised before.
        time.sleep(STEADY_S)
        survivors = [site.address(place) for place in range(sites.NODES) if place != dying]
        words = ["--size", "1024", "--confirm-window", "1000", "--prefetch", "200", "--ack-every", "50"]
        words += [*COMMON.split(), "--reconnect", "--kill-pid", str(site.pid(dying)), "--kill-at", "3"]
        words += ["--seconds", "7", "--delete", "--drain-timeout", "30"]
        run = self.keep("failover", site, loaded(site, survivors[0], queue, words))
        site.kill(dying)
        site.start(dying)
        site.settle()
        if "failover" not in run:
            raise SystemExit(f"{site.name}: {run}")
        after = run["failover"]["first_confirm_ms"]
        self.say(
            f"kill {number + 1} {site.name} {led}: first confirm after {after:.0f} ms, check {run['check']}"
        )
        return led, run

    # --- many queues ---

    def many(self) -> str:
        lines = []
        for site in self.running:
            lines += self._many(site, self.options.queues)
        return "\n".join(lines)

    def _many(self, site: Site, count: int) -> list[str]:
        site.mirror(r"^many\.")
        names = [f"many.{number}" for number in range(count)]
        began = time.monotonic()
        for place in range(sites.NODES):
            sites.declare_all(site.address(place), names[place :: sites.NODES])
        declared_s = time.monotonic() - began
        site.settle()
        with sites.Burst(site.address(1), names) as burst:
            calm_s = burst.publish()
        leader = site.leader()
        wanted = self.options.dead == "leader" and leader >= 0
        dying = next(at for at in range(sites.NODES) if (at == leader) == wanted)
        living = [at for at in range(sites.NODES) if at != dying]
        marks = {place: len(site.log(place)) for place in living}
        lapses = sum(site.lapses(place) for place in living)
        with sites.Burst(site.address(living[0]), names) as burst:
            killed = time.monotonic()
            site.kill(dying)
            burst.publish()
            last_s, first_s, nacks = burst.last_at - killed, burst.first_at - killed, burst.nacks
        changes = () if dying == leader else ("leader changed",)
        said = [
            line
            for place in living
            for line in site.log(place)[marks[place] :].splitlines()
            if any(word in line for word in (*SUSPICIONS, *changes)) and site.names[dying] not in line
        ]
        lapses = sum(site.lapses(place) for place in living) - lapses
        found = {"queues": count, "declared_s": declared_s, "calm_s": calm_s, "last_s": last_s}
        found |= {"lapses": lapses, "dead": self.options.dead}
        self.keep("many", site, {**found, "first_s": first_s, "nacks": nacks, "said": said})
        lines = [
            f"{site.name}: {count:,} queues mirrored on three nodes, declared in {declared_s:.1f} s",
            f"  a message to each, all confirmed: {calm_s:.2f} s",
            f"  kill -9 of a node, then a message to each: {nacks} nacked, seconds from the kill to the",
            f"  first confirm {first_s:.2f}, to the last {last_s:.2f}",
            f"  said of live nodes: {len(said)} lines, leases that ran out: {lapses}",
            *(f"  said of a live node: {line}" for line in said[:10]),
        ]
        self.say("\n".join(lines))
        began = time.monotonic()
        site.start(dying)
        started_s = time.monotonic() - began
        lines.append(f"  the killed node takes clients again {started_s:.1f} s after its start")
        site.unmirror()
        return lines


class Publisher:
    """A client that publishes at a steady rate while something else happens."""

    def __init__(self, site: Site, queue: str, seconds: float) -> None:
        command = [str(generator.program()), "--hosts", site.address(0), "--queue", queue]
        command += ["--durable", "--persistent", "--size", "1024", "--mode", "publish", "--rate", str(RATE)]
        command += ["--seconds", str(seconds), "--confirm-window", "20000", "--drain-timeout", "60"]
        command += ["--broker-pids", ",".join(str(pid) for pid in site.pids())]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self) -> Result:
        said, complaint = self._process.communicate(timeout=600)
        if not said.strip():
            raise SystemExit(complaint or "the generator said nothing")
        found: Result = json.loads(said)
        return found


def loaded(site: Site, address: str, queue: str, words: list[str]) -> Result:
    """One run of the generator."""
    command = [str(generator.program()), "--hosts", address, "--queue", queue, *words]
    command += ["--broker-pids", ",".join(str(pid) for pid in site.pids())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if not done.stdout.strip():
        return {"error": done.stderr.strip() or f"exit status {done.returncode}"}
    found: Result = json.loads(done.stdout)
    return found


def spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    ninety = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return f"{median(ordered):.0f} / {ninety:.0f} / {ordered[-1]:.0f}"


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.mirror",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("parts", nargs="+", choices=["load", "latency", "sync", "failover", "many"])
    option("--brokers", default="", help="mirrormq, rabbitmq or both with a comma (default: what is there)")
    option("--runs", type=int, default=3, help="runs of load, latency and sync")
    option("--rows", default="", help="rows of load and latency, with commas (default: all)")
    option("--seconds", type=float, default=6.0, help="measured time of a run of load and latency")
    option("--messages", type=int, default=200_000, help="messages in the queue of sync")
    option("--publish-seconds", type=float, default=30.0, help="how long the publisher of sync goes on")
    option("--kills", type=int, default=20, help="kills of failover")
    option("--queues", type=int, default=10_000, help="queues of many")
    option("--dead", choices=["other", "leader"], default="other", help="which node many kills")
    option("--out", default="build/bench/mirror.jsonl", help="every run, one JSON line each")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = parse(argv)
    machine.enter_private_network("bench.mirror")
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    generator.program()
    brokers.prepare()
    parts: dict[str, Any] = {
        "load": lambda bench: bench.load(LOAD, awake=False),
        "latency": lambda bench: bench.load(LATENCY, awake=True),
        "sync": Bench.sync,
        "failover": Bench.failover,
        "many": Bench.many,
    }
    kinds = brokers.available(options.brokers)
    for part in options.parts:
        # A cluster of its own for each: none inherits what another left behind.
        with (
            tempfile.TemporaryDirectory(prefix="mirrormq-bench-") as folder,
            sites.running(kinds, Path(folder)) as running,
        ):
            text = parts[part](Bench(running, options))
        sys.stdout.write(
            f"\n## {part}\n{machine.description()}; differences under {NOISE:.0%} mean nothing.\n"
        )
        sys.stdout.write(f"\n{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
