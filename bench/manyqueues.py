"""Many durable queues written in turn:  python -m bench.manyqueues --queues 1000 --seconds 10

One connection publishes persistent messages with confirms, at most `--window` unconfirmed, to each queue in
turn. Printed are the confirmed messages per second, the broker's CPU, and (a second window, under strace) how
often the broker asks the disk to flush. Nothing consumes: this is about the writing.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import brokers, machine
from mirrormq.wire import methods
from mirrormq.wire.properties import Properties, encode_properties
from tests.support import raw

CHANNEL = 1
FLUSHES = re.compile(r"(?:fdatasync|fsync|syncfs|sync_file_range)\(")


class Publisher:
    """Publishes to each queue in turn and counts confirms."""

    def __init__(self, port: int, queues: int, size: int, window: int) -> None:
        self.client = raw.connect("127.0.0.1", port)
        self.client.handshake()
        self.client.open_channel(CHANNEL)
        self.window = window
        properties = encode_properties(Properties(delivery_mode=2))
        header = struct.pack(">HHQ", 60, 0, size) + properties
        content = raw.encode_frame(2, CHANNEL, header) + raw.encode_frame(3, CHANNEL, bytes(size))
        self.frames = []
        for number in range(queues):
            name = f"many-{number}"
            declare = methods.QueueDeclare(queue=name, durable=True)
            self.client.call(CHANNEL, declare, methods.QueueDeclareOk)
            publish = methods.encode(methods.BasicPublish(routing_key=name))
            self.frames.append(raw.encode_frame(1, CHANNEL, publish) + content)
        self.client.call(CHANNEL, methods.ConfirmSelect(), methods.ConfirmSelectOk)
        self.sent = 0
        self.confirmed = 0
        self.waiting: set[int] = set()

    def run(self, seconds: float) -> float:
        """Publish for so long; returns confirmed messages per second."""
        began, before = time.monotonic(), self.confirmed
        while time.monotonic() - began < seconds:
            room = self.window - (self.sent - self.confirmed)
            if room:
                at = self.sent % len(self.frames)
                some = (self.frames[at:] + self.frames[:at])[:room]
                self.client.send(b"".join(some))
                self.waiting.update(range(self.sent + 1, self.sent + len(some) + 1))
                self.sent += len(some)
            self._hear()
        rate = (self.confirmed - before) / (time.monotonic() - began)
        while self.confirmed < self.sent:
            self._hear()
        return rate

    def _hear(self) -> None:
        method = self.client.next_frame().method
        assert isinstance(method, methods.BasicAck), method
        tag = method.delivery_tag
        tags = {waiting for waiting in self.waiting if waiting <= tag} if method.multiple else {tag}
        self.waiting -= tags
        self.confirmed += len(tags)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def flushes_per_s(pid: int, publisher: Publisher, seconds: float) -> tuple[float, float]:
    """(flushes per second, messages per second) while strace watches."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "trace"
        calls = "trace=fdatasync,fsync,syncfs,sync_file_range"
        watched = ["strace", "-f", "-qq", "-e", calls, "-o", str(out), "-p", str(pid)]
        trace = subprocess.Popen(watched, stderr=subprocess.DEVNULL)
        publisher.run(1.0)
        seen = len(FLUSHES.findall(out.read_text()))
        rate = publisher.run(seconds)
        found = len(FLUSHES.findall(out.read_text())) - seen
        trace.send_signal(signal.SIGINT)
        trace.wait()
    return found / seconds, rate


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m bench.manyqueues")
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--brokers", default="")
    options = parser.parse_args(argv)
    machine.enter_private_network("bench.manyqueues")
    brokers.raise_file_limit()
    with brokers.running(brokers.available(options.brokers)) as running:
        for broker in running:
            publisher = Publisher(broker.port, options.queues, options.size, options.window)
            publisher.run(2.0)
            before = cpu_s(broker.pid)
            rate = publisher.run(options.seconds)
            spent = (cpu_s(broker.pid) - before) / options.seconds
            flushes, traced = flushes_per_s(broker.pid, publisher, options.seconds / 2)
            sys.stdout.write(
                f"{broker.name}: {options.queues} queues in turn, {options.size} B: {rate:,.0f} confirmed "
                f"per second, {rate / max(spent, 1e-9):,.0f} per broker CPU second; under strace "
                f"{flushes:,.0f} flushes per second for {traced:,.0f} messages\n"
            )
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
