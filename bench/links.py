"""Links between two nodes: round trip of control frames, alone and while bulk fills the link; rate of bulk.

    python -m bench.links [--seconds 5] [--tls FOLDER]

Two processes on loopback. The second answers every control frame and takes bulk; the first sends a control
frame every millisecond and, in the second half, as much bulk as the link takes. With --tls, FOLDER holds
cert.pem, key.pem and ca.pem.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from bench import machine
from mirrormq.base.types import NodeName, Now
from mirrormq.peer.card import Card, PeerInfo
from mirrormq.peer.framing import Lane, Payload
from mirrormq.peer.handshake import SharedSecret
from mirrormq.runtime.links import PeerLinks
from mirrormq.runtime.logs import Log
from mirrormq.runtime.settings import LinkTlsSettings
from mirrormq.runtime.tls import LinkContexts, make_link_contexts
from mirrormq.runtime.values import Address

SECRET = SharedSecret(b"nothing to protect here")
PIECE = bytes(256 * 1024)
EVERY_SECONDS = 0.001


class Owner:
    """Hears of links; what to do with payloads is given to it."""

    def __init__(self, name: str, contexts: LinkContexts | None) -> None:
        me = Card(NodeName(name), name.encode().ljust(16), 1)
        self.links = PeerLinks(me, SECRET, self, Log([]), contexts=contexts)
        self.opened: asyncio.Future[PeerInfo] = self.links.loop.create_future()
        self.over: asyncio.Future[str] = self.links.loop.create_future()
        self.on_frame: Callable[[Lane, Payload], None] = lambda _lane, _payload: None
        self.on_writable: Callable[[], None] = lambda: None

    def link_verdict(self, peer: Card, other: Card | None) -> str | None:  # noqa: ARG002
        return None

    def link_opened(self, now: Now, peer: PeerInfo) -> None:  # noqa: ARG002
        self.opened.set_result(peer)

    def peer_frame(self, now: Now, peer: PeerInfo, lane: Lane, payload: Payload) -> None:  # noqa: ARG002
        self.on_frame(lane, payload)

    def link_writable(self, now: Now, peer: PeerInfo) -> None:  # noqa: ARG002
        self.on_writable()

    def link_suspected(self, now: Now, peer: PeerInfo, *, is_suspected: bool) -> None: ...

    def link_down(self, now: Now, peer: PeerInfo, *, eof: bool, reason: str) -> None:  # noqa: ARG002
        if not self.over.done():
            self.over.set_result(reason)


async def serve(contexts: LinkContexts | None) -> None:
    """The second process."""
    owner = Owner("b@bench", contexts)
    listening = socket.create_server(("127.0.0.1", 0))
    owner.links.listen(listening)
    print(listening.getsockname()[1], flush=True)
    peer = await owner.opened

    def answer(lane: Lane, payload: Payload) -> None:
        if lane is Lane.CONTROL:
            owner.links.send(peer.name, Lane.CONTROL, payload)

    owner.on_frame = answer
    await owner.over
    await owner.links.close("over")
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{used.ru_utime + used.ru_stime:.2f} {used.ru_maxrss // 1024}", flush=True)


class Meter:
    """The first process: what it sends and when answers come."""

    def __init__(self, owner: Owner, peer: NodeName) -> None:
        self.owner = owner
        self.peer = peer
        self.loop = owner.links.loop
        self.times: list[float] = []
        self.bulk_bytes = 0
        owner.on_frame = self._answered

    async def measure(self, seconds: float, *, bulk: bool) -> None:
        self.times, self.bulk_bytes = [], 0
        end = self.loop.create_future()
        if bulk:
            self.owner.on_writable = self._fill
            self._fill()
        began = time.perf_counter()
        self._ask(began + seconds, end)
        await end
        self.owner.on_writable = lambda: None
        took = time.perf_counter() - began
        self._show("with bulk" if bulk else "alone", took)

    def _ask(self, until: float, end: asyncio.Future[None]) -> None:
        now = time.perf_counter()
        if now >= until:
            end.set_result(None)
            return
        self.owner.links.send(self.peer, Lane.CONTROL, int(now * 1e9).to_bytes(8, "big") + bytes(56))
        self.loop.call_later(EVERY_SECONDS, self._ask, until, end)

    def _answered(self, lane: Lane, payload: Payload) -> None:  # noqa: ARG002
        self.times.append(time.perf_counter() - int.from_bytes(payload[:8], "big") / 1e9)

    def _fill(self) -> None:
        while self.owner.links.send(self.peer, Lane.BULK, PIECE):
            self.bulk_bytes += len(PIECE)

    def _show(self, what: str, took: float) -> None:
        times = sorted(self.times)
        at = [times[int(len(times) * part)] * 1000 for part in (0.5, 0.99, 0.999)]
        rate = self.bulk_bytes / took / 1e6
        print(
            f"{what:10} control round trips {len(times):6}  p50 {at[0]:.2f} ms  p99 {at[1]:.2f} ms"
            f"  p99.9 {at[2]:.2f} ms  max {times[-1] * 1000:.2f} ms  bulk {rate:.0f} MB/s"
        )


async def drive(seconds: float, contexts: LinkContexts | None, port: int) -> None:
    """The first process."""
    owner = Owner("a@bench", contexts)
    owner.links.dial(Address("127.0.0.1", port))
    peer = await owner.opened
    meter = Meter(owner, peer.name)
    await meter.measure(seconds, bulk=False)
    await meter.measure(seconds, bulk=True)
    await owner.links.close("over")
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"sender: {used.ru_utime + used.ru_stime:.2f} CPU s, {used.ru_maxrss // 1024} MiB at most")


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tls", metavar="FOLDER", default="")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.serve:
        machine.enter_private_network("bench.links")
    contexts = None
    if options.tls:
        folder = Path(options.tls)
        files = {"certfile": "cert.pem", "keyfile": "key.pem", "cacertfile": "ca.pem"}
        contexts = make_link_contexts(LinkTlsSettings(**{key: str(folder / files[key]) for key in files}))
    if options.serve:
        run(serve(contexts))
        return
    command = [
        sys.executable,
        "-m",
        "bench.links",
        "--serve",
        *(["--tls", options.tls] if options.tls else []),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        run(drive(options.seconds, contexts, int(child.stdout.readline())))
        cpu, memory = child.stdout.readline().split()
        print(f"receiver: {cpu} CPU s, {memory} MiB at most")


if __name__ == "__main__":
    main()
