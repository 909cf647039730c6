"""A long queue across restarts:  python -m bench.longqueue --count 1000000 --size 1024

Fills one durable queue with persistent messages (confirms, window 1,000), ends the broker with SIGTERM and
with SIGKILL, starts it again each time on the same data and measures how long it takes until a client has
logged in and holds the first message, and how much memory it then has; at last the queue is drained, and
every message must come once and in order. The same is done to RabbitMQ where it is installed, in the same
run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from bench import brokers, generator, machine
from mirrormq.wire import methods
from tests.support import rabbitmq, raw

QUEUE = "long"
CHANNEL = 1
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 600.0
REST_S = 2.0
PEAK = "VmHWM"
NOW = "VmRSS"

Figures = dict[str, Any]


class Restartable(Protocol):
    """A broker that can be ended in two ways and started again on the same data."""

    name: str
    port: int

    @property
    def pid(self) -> int: ...

    @property
    def data(self) -> Path: ...

    def start(self) -> None:
        """Spawn it and return at once."""
        ...

    def end(self, number: signal.Signals) -> None:
        """Send this signal and wait for the end."""
        ...

    def remove(self) -> None: ...


class MirrorMQ:
    """A node with its queue log in the journal."""

    name = "mirrormq"

    def __init__(self, folder: Path, options: list[str]) -> None:
        self.folder = folder
        (self.port,) = rabbitmq.free_ports(1)
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        listen = ["--listen", f"127.0.0.1:{self.port}", "--no-admin"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mirrormq", "serve", "--data", str(self.data)),
                    *listen,
                    *self.options,
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def remove(self) -> None:
        self.end(signal.SIGKILL)


class RabbitMQ:
    """A stock node without plugins."""

    name = "rabbitmq"

    def __init__(self) -> None:
        self._node = rabbitmq.RabbitMQ(Path(tempfile.mkdtemp(prefix="rabbitmq-")), (), ())
        self._node.write_files()
        self.port = self._node.port

    @property
    def pid(self) -> int:
        return self._node.pid

    @property
    def data(self) -> Path:
        return self._node.folder / "mnesia"

    def start(self) -> None:
        self._node.spawn()

    def end(self, number: signal.Signals) -> None:
        self._node.end(number, STOP_TIMEOUT_S)

    def remove(self) -> None:
        self._node.stop()


def first_message(port: int, began: float) -> float:
    """Seconds from `began` until a client has logged in and holds the first message of the queue."""
    while time.monotonic() - began < START_TIMEOUT_S:
        with contextlib.suppress(OSError, raw.Closed):
            client = raw.connect("127.0.0.1", port)
            client.handshake()
            client.open_channel(CHANNEL)
            got = client.call(CHANNEL, methods.BasicGet(queue=QUEUE), methods.BasicGetOk)
            client.expect_content(CHANNEL)
            took = time.monotonic() - began
            assert got.message_count or got.delivery_tag
            client.close()  # unacknowledged: it goes back to its place
            return took
        time.sleep(0.005)
    raise RuntimeError(f"no message on port {port}")


def depth(port: int) -> int:
    client = raw.connect("127.0.0.1", port)
    client.handshake()
    client.open_channel(CHANNEL)
    declare = methods.QueueDeclare(queue=QUEUE, passive=True)
    count = client.call(CHANNEL, declare, methods.QueueDeclareOk).message_count
    client.close_cleanly()
    return count


def memory_mb(pid: int, which: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) / 1024


def forget_cached(folder: Path) -> None:
    """Let the system forget the files' content, as after a power failure."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def loaded(broker: Restartable, options: list[str], timeout_s: float) -> Figures:
    result = generator.load([*options, "--queue", QUEUE, "--durable"], broker.port, broker.pid, timeout_s)
    if "error" in result or result["timed_out"]:
        raise RuntimeError(f"{broker.name}: {result}")
    return result


def fill(broker: Restartable, count: int, size: int, timeout_s: float) -> Figures:
    options = ["--mode", "publish", "--persistent", "--confirm-window", "1000", "--drain-timeout", "120"]
    found = loaded(broker, [*options, "--count", str(count), "--size", str(size)], timeout_s)
    assert found["confirmed"] == count, found
    return {
        "fill_per_s": found["total_per_s"],
        "fill_peak_mb": memory_mb(broker.pid, PEAK),
        "fill_end_mb": memory_mb(broker.pid, NOW),
    }


def restart(broker: Restartable, number: signal.Signals, *, cold: bool) -> Figures:
    """End the broker, start it again, and see when it serves and what it takes."""
    ending = time.monotonic()
    broker.end(number)
    ended_s = time.monotonic() - ending
    if cold:
        forget_cached(broker.data)
    began = time.monotonic()
    broker.start()
    serving_s = first_message(broker.port, began)
    machine.boost(broker.pid)
    peak = memory_mb(broker.pid, PEAK)
    machine.wait_until_quiet(broker.pid, REST_S)
    return {
        "end_s": round(ended_s, 2),
        "serving_s": round(serving_s, 3),
        "peak_mb": round(peak, 1),
        "rest_mb": round(memory_mb(broker.pid, NOW), 1),
    }


def drain(broker: Restartable, count: int, timeout_s: float) -> Figures:
    options = ["--mode", "consume", "--consumers", "1", "--prefetch", "1000", "--ack-every", "50", "--check"]
    found = loaded(broker, [*options, "--count", str(count), "--drain-timeout", "120"], timeout_s)
    check = found["check"]
    wrong = {key: check[key] for key in ("sequence_gaps", "duplicates", "reordered") if check[key]}
    assert not wrong, wrong
    assert check["unique"] == count, check
    left = depth(broker.port)
    assert left == 0, left
    return {
        "drain_per_s": found["total_per_s"],
        "drain_peak_mb": round(memory_mb(broker.pid, PEAK), 1),
        "marked_redelivered": check["redelivered_flag"],
    }


@contextlib.contextmanager
def broker_of(kind: str, options: list[str]) -> Iterator[Restartable]:
    folder = Path(tempfile.mkdtemp(prefix="longqueue-"))
    broker: Restartable = RabbitMQ() if kind == "rabbitmq" else MirrorMQ(folder, options)
    try:
        yield broker
    finally:
        broker.remove()
        shutil.rmtree(folder)


def measure(kind: str, options: argparse.Namespace) -> Figures:
    """Everything for one broker."""
    with broker_of(kind, options.node_option) as broker:
        began = time.monotonic()
        broker.start()
        brokers.wait_for_amqp(broker.port, lambda: True, began)
        machine.boost(broker.pid)
        figures = {"broker": kind, "count": options.count, "size": options.size}
        figures |= fill(broker, options.count, options.size, options.timeout)
        for number in (signal.SIGTERM, signal.SIGKILL):
            figures[number.name] = restart(broker, number, cold=options.cold)
        found = depth(broker.port)
        assert found == options.count, found
        return figures | drain(broker, options.count, options.timeout)


ROWS = {
    "filled, confirmed msgs/s": lambda run: f"{run['fill_per_s']:,.0f}",
    "memory at the end of that (peak), MB": lambda run: (
        f"{run['fill_end_mb']:,.0f} ({run['fill_peak_mb']:,.0f})"
    ),
    "SIGTERM: end, s": lambda run: f"{run['SIGTERM']['end_s']:.2f}",
    "SIGTERM: start until the first message, s": lambda run: f"{run['SIGTERM']['serving_s']:.2f}",
    "SIGTERM: memory at rest (peak), MB": lambda run: (
        f"{run['SIGTERM']['rest_mb']:,.0f} ({run['SIGTERM']['peak_mb']:,.0f})"
    ),
    "SIGKILL: start until the first message, s": lambda run: f"{run['SIGKILL']['serving_s']:.2f}",
    "SIGKILL: memory at rest (peak), MB": lambda run: (
        f"{run['SIGKILL']['rest_mb']:,.0f} ({run['SIGKILL']['peak_mb']:,.0f})"
    ),
    "drained, msgs/s": lambda run: f"{run['drain_per_s']:,.0f}",
    "peak while drained, MB": lambda run: f"{run['drain_peak_mb']:,.0f}",
}


def table(runs: list[Figures]) -> str:
    lines = ["| | " + " | ".join(run["broker"] for run in runs) + " |", "|---" * (len(runs) + 1) + "|"]
    for what, shown in ROWS.items():
        lines.append(f"| {what} | " + " | ".join(shown(run) for run in runs) + " |")
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.longqueue",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=1_000_000, help="messages; a multiple of 50")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a message's body")
    parser.add_argument("--brokers", default="", help="mirrormq, rabbitmq or both with a comma")
    parser.add_argument("--cold", action="store_true", help="start without the page cache")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for filling and for draining")
    parser.add_argument("--node-option", action="append", default=[], help="option of `mirrormq serve`")
    options = parser.parse_args(argv)
    private = machine.enter_private_network("bench.longqueue")
    generator.program()
    brokers.prepare()
    runs = []
    for kind in brokers.available(options.brokers):
        runs.append(measure(kind, options))
        sys.stderr.write(json.dumps(runs[-1]) + "\n")
    network = "private network namespace" if private else "shared network"
    cache = "cold" if options.cold else "warm"
    sys.stdout.write(
        f"{options.count:,} x {options.size:,} B; {machine.description()}; {network}; page cache {cache}.\n\n"
        f"{table(runs)}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
