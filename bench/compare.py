"""MirrorMQ against RabbitMQ under the same load in the same run:  python -m bench.compare

Both brokers run at once and take turns, at least three runs each; printed are medians with their spread and
the ratios MirrorMQ / RabbitMQ. Every run is appended to a file of JSON lines; a table in Markdown ends it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench import brokers, generator, machine, report
from bench.brokers import Broker
from bench.generator import Result

PAUSE_S = 0.5
WARM_UP_S = 2.0
NOISE = 0.25


@dataclass(frozen=True)
class Row:
    """One line of the comparison. `awake`: a latency row, measured with the cores kept from sleeping."""

    what: str
    options: str
    awake: bool = False


ALWAYS = "--purge --delete --check"
BATCHED = "--coalesce-us 1000"  # few wake-ups of the generator in rows that measure throughput only
DURABLE = "--durable --persistent --prefetch 200"
TEN = "--publishers 10 --consumers 10 --queues 10"
ROWS = {
    "transient-16": Row("transient, auto-ack, 16 B", f"--size 16 --auto-ack {BATCHED}"),
    "transient-1k": Row("transient, auto-ack, 1 KiB", f"--size 1024 --auto-ack {BATCHED}"),
    "single-16": Row(
        "one send() per message, 16 B, auto-ack, 10 publishers, 10 consumers, 1,000 in flight",
        f"--size 16 --auto-ack --single-send --in-flight 1000 {TEN}",
    ),
    "acked-1k": Row(
        "transient, 1 KiB, acks (one per 50), 10,000 in flight",
        f"--size 1024 --prefetch 200 --ack-every 50 --in-flight 10000 {BATCHED}",
    ),
    "persistent-16": Row(
        "persistent, 16 B, confirms (1,000), acks (one per 50)",
        f"--size 16 {DURABLE} --confirm-window 1000 --ack-every 50 {BATCHED}",
    ),
    "persistent-1k": Row(
        "persistent, 1 KiB, confirms (1,000), acks (one per 50)",
        f"--size 1024 {DURABLE} --confirm-window 1000 --ack-every 50 {BATCHED}",
    ),
    "latency-1k": Row(
        "persistent, 1 KiB, one unconfirmed at a time",
        f"--size 1024 {DURABLE} --confirm-window 1 --ack-every 1",
        awake=True,
    ),
}
FIRST_ROWS = ["transient-16", "transient-1k", "single-16"]
Log = Callable[[str], None]


def measure(row_name: str, broker: Broker, seconds: float) -> Result:
    """One run of one row."""
    row = ROWS[row_name]
    timing = ["--seconds", str(seconds + WARM_UP_S), "--warmup", str(WARM_UP_S), "--drain-timeout", "60"]
    time.sleep(PAUSE_S)
    with machine.cores_kept_awake(row.awake):
        result = generator.load(
            [*row.options.split(), *ALWAYS.split(), "--queue", row_name, *timing], broker.port, broker.pid
        )
    return {"row": row_name, "broker": broker.name, **result}


def usable(run: Result) -> bool:
    """A run counts if nothing was lost, doubled or left behind."""
    check = run.get("check", {})
    wrong = [check.get(key, 0) for key in ("lost_confirmed", "not_received", "duplicates")]
    return "error" not in run and not run["timed_out"] and not any(wrong)


def measure_row(row_name: str, running: list[Broker], options: argparse.Namespace, say: Log) -> list[Result]:
    """Take turns until every broker has enough quiet runs, at most twice as often; keep the quietest."""
    runs: list[Result] = []
    for attempt in range(2 * options.runs):
        for broker in running:
            run = measure(row_name, broker, options.seconds)
            runs.append(run)
            with Path(options.out).open("a") as lines:
                lines.write(json.dumps(run) + "\n")
            say(f"{row_name} {broker.name} run {attempt + 1}: {brief(run)}")
        quiet = [
            sum(
                1
                for run in runs
                if run["broker"] == broker.name
                and usable(run)
                and (ROWS[row_name].awake or run["other_cpu_share"] <= options.max_other)
            )
            for broker in running
        ]
        if min(quiet) >= options.runs:
            break
    kept: list[Result] = []
    for broker in running:
        mine = [run for run in runs if run["broker"] == broker.name and usable(run)]
        kept += sorted(mine, key=lambda run: float(run["other_cpu_share"]))[: options.runs]
    return kept


def brief(run: Result) -> str:
    if "error" in run:
        return f"failed: {run['error']}"
    late = (run.get("e2e_ms") or {}).get("p99", -1)
    return (
        f"{run['consumed_per_s']:,.0f} msgs/s, {run['msgs_per_broker_cpu_s']:,.0f} per broker CPU second, "
        f"end-to-end p99 {late:.1f} ms, generator {run['client_cpu_share']:.2f} cores, "
        f"others {run['other_cpu_share']:.0%}" + ("" if usable(run) else f", NOT USABLE: {run.get('check')}")
    )


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", default=",".join(FIRST_ROWS), help=f"of {', '.join(ROWS)} (or: all)")
    parser.add_argument(
        "--brokers", default="", help="mirrormq, rabbitmq or both with a comma (default: what is there)"
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="measured time of a run, after 2 s of warm-up"
    )
    parser.add_argument(
        "--max-other", type=float, default=0.15, help="part of the machine others may use in a run"
    )
    parser.add_argument("--out", default="build/bench/runs.jsonl", help="every run, one JSON line each")
    parser.add_argument("--table", default="build/bench/compare.md")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    options = parse(argv)
    names = list(ROWS) if options.rows == "all" else options.rows.split(",")
    unknown = [name for name in names if name not in ROWS]
    if unknown:
        sys.stderr.write(f"unknown rows {', '.join(unknown)}; there are {', '.join(ROWS)}\n")
        return 2
    private = machine.enter_private_network("bench.compare")
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    generator.program()
    brokers.prepare()

    def say(text: str) -> None:
        sys.stderr.write(text + "\n")

    runs: list[Result] = []
    with brokers.running(brokers.available(options.brokers)) as running:
        for name in names:
            runs += measure_row(name, running, options, say)
    network = "private network namespace" if private else "shared network"
    text = (
        f"{machine.description()}; {network}; windows of {options.seconds:g} s, medians (lowest–highest); "
        f"differences under {NOISE:.0%} mean nothing.\n\n"
        f"{report.table(runs, {name: row.what for name, row in ROWS.items()})}\n"
    )
    Path(options.table).write_text(text)
    sys.stdout.write(text)
    return 0 if runs else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
