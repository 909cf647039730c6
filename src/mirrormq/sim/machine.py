"""A node with its disk and its clients under virtual time: what `runtime` is to a real one.

Effects are carried out in order and may stop after any of them, as a machine that loses power does.
"""

import random
from collections.abc import Callable
from typing import Any

from mirrormq.base.types import Now, Peer
from mirrormq.broker.host import BrokerSettings
from mirrormq.meta.passwords import salted_hash
from mirrormq.meta.state import bootstrap_commands
from mirrormq.node import effects as fx
from mirrormq.node.node import Node
from mirrormq.sim.disk import MemoryDisk, ReadFailed, SlowDisk
from mirrormq.sim.session import Arrival, Reader

NAME = "mirrormq@sim"
_NEVER = 1 << 62
Hear = Callable[[Arrival], None]


class PowerLost(Exception):
    """The machine stopped between two effects."""


class SeededRng:
    """Randomness for the node that repeats."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def token(self, nbytes: int) -> bytes:
        """Bytes nobody expects."""
        return self._random.randbytes(nbytes)

    def below(self, n: int) -> int:
        """A number in range(n)."""
        return self._random.randrange(n)


class Machine:
    """One life of a node, from its start to a crash."""

    def __init__(
        self, disk: MemoryDisk, now: Now, *, make_node: Callable[..., Node] = Node, **settings: Any
    ) -> None:
        """Start the node on what the disk holds."""
        self.disk = disk
        self.now = now
        self.effects_left = -1
        """Effects carried out before the power goes; -1 = it stays."""
        self.notes: list[fx.Note] = []
        self.closed: list[int] = []
        self.passes = 0
        self.read_us = 0
        """How long a read takes."""
        self._reads: list[tuple[int, int, bytes | None, str | None]] = []
        self._hear: dict[int, tuple[Reader, Hear]] = {}
        self._paused: dict[int, list[bytes]] = {}
        self._is_open = False
        self._early: dict[int, list[bytes]] = {}
        """What clients sent before they were let in."""
        settings.setdefault("disk_free_limit", 0)
        # Each life draws other numbers, as a real one does: ids drawn at random must not come back.
        rng = SeededRng(f"{now.mono} {now.wall} {disk.list('')}")
        self.node = make_node(now, name=NAME, settings=BrokerSettings(**settings), rng=rng)
        fresh = bootstrap_commands("guest", salted_hash(b"guest", b"salt"), "/", ("administrator",))
        self.node.start(now, disk, fresh)

    # --- clients ---

    def connect(self, conn: int, hear: Hear) -> None:
        """Take in a client; what it receives goes to `hear`."""
        self._hear[conn] = (Reader(), hear)
        if self._is_open:
            self.node.client_open(
                self.now, conn, Peer("127.0.0.1", 10_000 + conn % 50_000, "127.0.0.1", 5672)
            )
        else:
            self._early[conn] = []

    def _open_doors(self) -> None:
        self._is_open = True
        early, self._early = self._early, {}
        for conn, sent in early.items():
            self.connect(conn, self._hear[conn][1])
            for data in sent:
                self.send(conn, data)

    def send(self, conn: int, data: bytes) -> None:
        """Bytes of a client; they wait while the node does not read from it."""
        if conn in self._early:
            self._early[conn].append(data)
        elif conn in self._paused:
            self._paused[conn].append(data)
        elif conn in self._hear:
            self.node.client_bytes(self.now, conn, memoryview(data))

    def hang_up(self, conn: int) -> None:
        """A client's socket is gone."""
        if self._hear.pop(conn, None) is not None:
            self._paused.pop(conn, None)
            if self._early.pop(conn, None) is None:
                self.node.client_closed(self.now, conn)

    # --- time and passes ---

    def pass_time(self, now: Now, *, tick: bool) -> None:
        """Time goes on; what the disk has finished by then is reported."""
        self.now = now
        if isinstance(self.disk, SlowDisk):
            self.disk.now = now.mono
            for token in self.disk.finish_due(now.mono):
                self.node.disk_done(now, token)
        self._report_reads(now.mono)
        if tick:
            self.node.tick(now)
        else:
            self.node.on_timer(now)

    def end_pass(self) -> None:
        """One pass, and its effects."""
        self.passes += 1
        self.node.end_pass(self.now)
        self._carry_out_all()

    def settle(self, passes_max: int = 10_000) -> None:
        """Passes until nothing is left to do; every flush ends at once, however slow the disk is."""
        for _ in range(passes_max):
            self.end_pass()
            token = self.disk.finish_next()
            if token is not None:
                self.node.disk_done(self.now, token)
            elif not self._report_reads(_NEVER) and not self.node.needs_pass and not self.node.effects:
                return
        raise AssertionError("the node never comes to rest")

    def abandon(self) -> None:
        """The process is gone. Deliveries hold their queues where the collector cannot see it."""
        for channel in self.node.channels.values():
            channel.core.release()

    # --- effects ---

    def _carry_out_all(self) -> None:
        while self.node.effects:
            for effect in self.node.effects.take():
                if self.effects_left == 0:
                    raise PowerLost
                self.effects_left -= self.effects_left > 0
                self._carry_out(effect)

    def _carry_out(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Write(conn):
                self._write(conn)
            case fx.Append(file, data):
                self.disk.append(file, data)
            case fx.Flush(file, token):
                self.disk.flush(file, token)
            case fx.Replace(file, data, token):
                self.disk.replace(file, data, token)
            case fx.Remove(file):
                self.disk.remove(file)
            case fx.Close(conn):
                self._write(conn)
                self.closed.append(conn)
                self.hang_up(conn)
            case fx.Pause(conn):
                self._paused.setdefault(conn, [])
            case fx.Resume(conn):
                for data in self._paused.pop(conn, []):
                    self.send(conn, data)
            case fx.Note():
                self.notes.append(effect)
            case fx.Read():
                self._read(effect)
            case fx.Introduce():
                pass
            case fx.Doors(is_open):
                assert is_open
                self._open_doors()
            case _:
                raise NotImplementedError(type(effect).__name__)

    def _write(self, conn: int) -> None:
        data = b"".join(self.node.take_output(conn))
        found = self._hear.get(conn)
        if found is not None:
            reader, hear = found
            for arrival in reader.feed(data):
                hear(arrival)

    def _read(self, effect: fx.Read) -> None:
        """The content of this moment, reported later."""
        data, error = None, None
        try:
            data = self.disk.read_part(effect.file, effect.offset, effect.length)
        except ReadFailed as failed:
            error = str(failed)
        except AssertionError:
            error = f"there is no {effect.file}"
        self._reads.append((self.now.mono + self.read_us, effect.token, data, error))

    def _report_reads(self, upto: int) -> bool:
        due = [read for read in self._reads if read[0] <= upto]
        self._reads = [read for read in self._reads if read[0] > upto]
        for _, token, data, error in due:
            self.node.disk_read(self.now, token, data, error)
        return bool(due)
