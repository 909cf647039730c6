"""Start time, memory and the cost of many objects:  python -m bench.footprint

Start until AMQP answers (first and second start on the same data for MirrorMQ), idle memory, memory per idle
connection with one channel, and the time of each thousand of 10,000 queues declared, bound and deleted: a
curve that rises means a cost that grows with what is there already.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import brokers, generator, machine
from bench.brokers import Broker
from mirrormq.wire import methods
from tests.support import raw

EXCHANGE = "footprint"
SETTLE_S = 2.0


def starts(kind: str) -> dict[str, float]:
    """Time until AMQP answers. A MirrorMQ is started twice on one folder: the second one finds its data."""
    if kind != "mirrormq":
        broker = brokers.KINDS[kind]()
        broker.stop()
        return {"first_start_s": broker.start_s}
    folder = Path(tempfile.mkdtemp(prefix="footprint-"))
    try:
        times = {}
        for which in ("first_start_s", "second_start_s"):
            node = brokers.MirrorMQ(folder / "data")
            times[which] = node.start_s
            node.stop()
        return times
    finally:
        shutil.rmtree(folder)


def idle(broker: Broker, connections: int) -> dict[str, float]:
    """Memory at rest and with idle connections."""
    machine.wait_until_quiet(broker.pid, SETTLE_S)
    at_rest = machine.memory_mb(broker.pid)
    held = ["--mode", "idle", "--publishers", str(connections), "--channels", "1", "--seconds", "4"]
    result = generator.load(held, broker.port, broker.pid)
    if "error" in result:
        raise RuntimeError(result["error"])
    return {
        "idle_mb": at_rest,
        "kb_per_connection": result["kb_per_connection"],
        "connections_per_s": result["connections_per_s"],
    }


def curve(broker: Broker, queues: int, step: int, *, durable: bool) -> dict[str, list[float]]:
    """Seconds for each `step` queues: declared and bound one after the other, then deleted."""
    with raw.connect("127.0.0.1", broker.port, timeout=120) as client:
        client.handshake()
        client.open_channel(1)
        client.call(1, methods.ExchangeDeclare(exchange=EXCHANGE, type="direct"), methods.ExchangeDeclareOk)
        made, removed = [], []
        for first in range(0, queues, step):
            began = time.monotonic()
            for number in range(first, first + step):
                name = f"footprint.{number}"
                client.call(1, methods.QueueDeclare(queue=name, durable=durable), methods.QueueDeclareOk)
                bind = methods.QueueBind(queue=name, exchange=EXCHANGE, routing_key=name)
                client.call(1, bind, methods.QueueBindOk)
            made.append(time.monotonic() - began)
        for first in range(0, queues, step):
            began = time.monotonic()
            for number in range(first, first + step):
                client.call(1, methods.QueueDelete(queue=f"footprint.{number}"), methods.QueueDeleteOk)
            removed.append(time.monotonic() - began)
        client.call(1, methods.ExchangeDelete(exchange=EXCHANGE), methods.ExchangeDeleteOk)
        client.close_cleanly()
    return {"declared_and_bound_s": made, "deleted_s": removed}


def _curve_text(seconds: list[float]) -> str:
    return " ".join(f"{value:.2f}" for value in seconds)


def table(results: dict[str, dict[str, Any]]) -> str:
    rows: list[tuple[str, str, str]] = [
        ("start until AMQP answers, s", "first_start_s", ".2f"),
        ("second start, s", "second_start_s", ".2f"),
        ("idle memory, MiB", "idle_mb", ".0f"),
        ("memory per idle connection with a channel, KiB", "kb_per_connection", ".1f"),
        ("connections opened per second", "connections_per_s", ",.0f"),
    ]
    lines = [f"| | {' | '.join(results)} |", "|---|" + "---|" * len(results)]
    for what, key, form in rows:
        lines.append(
            f"| {what} | {' | '.join(format(r[key], form) if key in r else '–' for r in results.values())} |"
        )
    for what, key in (("declared and bound", "declared_and_bound_s"), ("deleted", "deleted_s")):
        cells = " | ".join(_curve_text(r[key]) if key in r else "–" for r in results.values())
        lines.append(f"| queues {what}, s per step | {cells} |")
    return "\n".join(lines)


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.footprint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--brokers", default="")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--step", type=int, default=1000)
    parser.add_argument(
        "--durable", action="store_true", help="durable queues: each declare and bind waits for the disk"
    )
    parser.add_argument("--skip", default="", help="starts, idle, curve (with commas)")
    parser.add_argument("--out", default="build/bench/footprint.json")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = parse(argv)
    machine.enter_private_network("bench.footprint")
    brokers.prepare()
    generator.program()
    skipped = options.skip.split(",")
    results: dict[str, dict[str, Any]] = {}
    for kind in brokers.available(options.brokers):
        result: dict[str, Any] = {} if "starts" in skipped else dict(starts(kind))
        with brokers.running([kind]) as [broker]:
            if "idle" not in skipped:
                result |= idle(broker, options.connections)
            if "curve" not in skipped:
                result |= curve(broker, options.queues, options.step, durable=options.durable)
        results[kind] = result
    sizes = f"{options.connections:,} connections, steps of {options.step:,} queues"
    text = f"{machine.description()}; {sizes}\n\n{table(results)}\n"
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1))
    out.with_suffix(".md").write_text(text)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
