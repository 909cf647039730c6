"""One node from start to stop: the order in which its parts come up and go down.

Up: bind AMQP (a busy port must be told before anything is changed), take the data folder, recover the node,
serve HTTP, accept AMQP. Down (SIGTERM): accept no more, tell every client, wait for them at most
`shutdown_timeout`, finish the disk's work, let the folder go. A second signal skips the waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mirrormq.base import limits
from mirrormq.broker.host import BrokerSettings
from mirrormq.log import segments
from mirrormq.log.disk import LogRefused
from mirrormq.meta.commands import Command, SetPermission
from mirrormq.meta.layout import MetaDamaged, MetaTooNew
from mirrormq.meta.records import Permission
from mirrormq.meta.state import bootstrap_commands
from mirrormq.node import requests
from mirrormq.node.node import Node
from mirrormq.runtime import clock, hygiene
from mirrormq.runtime.acceptor import ProxyAcceptor
from mirrormq.runtime.backup import Backups
from mirrormq.runtime.driver import Driver
from mirrormq.runtime.facts import facts
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.files import Files, Hearer
from mirrormq.runtime.folder import open_folder
from mirrormq.runtime.gauges import Gauges, limit_bytes
from mirrormq.runtime.hashing import Cost, make_hash
from mirrormq.runtime.listener import Door
from mirrormq.runtime.logs import Log
from mirrormq.runtime.ports import bind, bound_address
from mirrormq.runtime.reserve import FULL, Reserve
from mirrormq.runtime.settings import Settings, SocketSettings
from mirrormq.runtime.tls import make_context, reload_files
from mirrormq.runtime.values import Address

if TYPE_CHECKING:
    from mirrormq.http.server import Api

FORCED = 1
"""Exit code after a second signal or a failure."""


class Bound(NamedTuple):
    """A listening socket with what belongs to it."""

    socket: socket.socket
    context: ssl.SSLContext | None

    def url(self) -> str:
        """Return the address for a client on this machine."""
        scheme = "amqps" if self.context else "amqp"
        return f"{scheme}://{local_address(bound_address(self.socket))}"


class Ready(NamedTuple):
    """What a node that accepts connections tells the outside."""

    amqp: list[str]
    http: str | None
    node_json: bytes


class Server:
    """A node that runs in this process."""

    def __init__(self, settings: Settings, log: Log, *, fresh: bool, cure: Callable[[], str]) -> None:
        self.settings = settings
        self.log = log
        self.fresh = fresh
        self.cure = cure
        self.manager = hygiene.ServiceManager(os.environ)
        self.bound: list[Bound] = []
        self.bound_admin: socket.socket | None = None
        self.listeners: list[asyncio.Server | ProxyAcceptor] = []
        self.http: Api | None = None

    def note(self, level: str, text: str, **fields: object) -> None:
        """Write a log line."""
        self.log.note(level, text, fields, clock.now().wall)

    async def run(self, on_ready: Callable[[Ready], None]) -> int:
        """Serve until a signal, an administrator or a failure ends it; returns the exit code."""
        self.loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[str] = self.loop.create_future()
        self._now: asyncio.Future[str] = self.loop.create_future()
        self._install_signals()
        self.files_max = hygiene.raise_file_limit()
        # Whatever has come up goes down again in the opposite order, however far the start got.
        async with contextlib.AsyncExitStack() as undo:
            self._bind(undo)
            self.folder = open_folder(Path(self.settings.data_dir), fresh=self.fresh)
            undo.callback(self.folder.close)
            self._start_node(undo)
            await self._load_definitions()
            self.backups = Backups(self.driver, self.folder.path)
            undo.push_async_callback(self.backups.close)
            undo.push_async_callback(self._close_listeners)
            await self._start_http()
            await self._accept()
            on_ready(self._announce())
            self._watch_machine()
            undo.callback(self._stop_watching)
            hygiene.tune_garbage_collection()
            return await self._wait()

    # Up.

    def _bind(self, undo: contextlib.AsyncExitStack) -> None:
        settings = self.settings
        context = make_context(settings.tls) if settings.listen_tls else None
        for address in (*settings.listen, *settings.listen_tls):
            listening = bind(address, settings.sockets, self.cure)
            undo.callback(listening.close)
            self.bound.append(Bound(listening, context if len(self.bound) >= len(settings.listen) else None))
        if settings.admin:
            address = Address(settings.admin_host, settings.admin_port)
            self.bound_admin = bind(address, SocketSettings(), self.cure)
            undo.callback(self.bound_admin.close)

    def _start_node(self, undo: contextlib.AsyncExitStack) -> None:
        settings, folder = self.settings, self.folder
        self.gauges = Gauges(folder.path)
        now = clock.now()
        self.node = Node(
            now, name=settings.node_name, settings=self._broker_settings(), rng=clock.MachineRng()
        )
        self.node.cluster_name = settings.cluster_name
        self.driver = Driver(self.node, self.loop, self.log)
        driver = self.driver
        self._open_reserve(undo)
        share = self.files_max * limits.open_data_files_percent_max // 100
        self.files = Files(
            folder.path,
            Hearer(driver.disk_done, driver.disk_read, driver.fail, self._look_at_machine),
            open_max=min(limits.open_data_files_max, share),
            reserve=self.reserve,
        )
        # Hashing the first user's password takes tens of milliseconds: only a folder without data needs it.
        first = [] if self.files.list("meta/") else self._first_commands()
        try:
            damaged = self._check_segments()
            recovered = self.node.start(now, self.files, first)
        except (MetaDamaged, MetaTooNew, LogRefused) as error:
            raise StartError(f"Data folder {folder.path}: {error}.") from None
        except OSError as error:
            what = f"{error.filename} cannot be read: {error.strerror}"
            raise StartError(f"Data folder {folder.path}: {what}.") from None
        for name in damaged - set(self.node.recycler.orphans):
            self.note(
                "warning", f"the head of {name} is damaged; its records are served as long as they are whole"
            )
        self.driver.disk = self.files
        self.files.start()
        self.loop.add_reader(self.files.fileno(), self.files.collect)
        undo.callback(self._close_node)
        self.driver.start()
        self.note(
            "info",
            "definitions recovered" if not recovered.fresh else "data folder is new",
            data=str(folder.path),
            entries=recovered.entries,
            torn_bytes=recovered.torn_bytes,
        )

    def _check_segments(self) -> set[str]:
        """Refuse those of a newer version; returns the ones whose head is damaged."""
        damaged = set()
        for name in self.files.list(segments.PREFIX):
            head = self.files.read_part(name, 0, segments.HEAD_BYTES)
            segments.check_version(name, head)
            if segments.read_file_head(head) != segments.identify(name):
                damaged.add(name)
        return damaged

    def _open_reserve(self, undo: contextlib.AsyncExitStack) -> None:
        size, folder = self.settings.disk_reserve_bytes, self.folder.path
        try:
            self.reserve = Reserve(folder, size, self.node.settings.disk_free_limit)
        except OSError as error:
            raise StartError(f"{folder / 'reserve'} cannot be opened: {error.strerror}.") from None
        undo.callback(self.reserve.close)
        self.is_reserve_missing = False
        refused = self.reserve.make(self.gauges.disk_free())
        if refused is not None:
            self.note("warning", f"no space is kept back for a full disk: {refused}", bytes=size)

    def _broker_settings(self) -> BrokerSettings:
        settings = self.settings
        total = settings.memory_total_bytes or self.gauges.memory_total()
        return BrokerSettings(
            heartbeat=settings.heartbeat_s,
            frame_max=settings.frame_max,
            channel_max=settings.channel_max,
            handshake_timeout_ms=settings.handshake_timeout_ms,
            consumer_timeout_ms=settings.consumer_timeout_ms,
            max_message_size=settings.max_message_bytes,
            publish_ahead_bytes=settings.publish_ahead_bytes,
            fsync=settings.fsync,
            fsync_interval_ms=settings.fsync_interval_ms,
            memory_limit=limit_bytes(settings.memory_limit, total),
            disk_free_limit=limit_bytes(settings.disk_free_limit, total),
            loopback_users=frozenset(settings.loopback_users),
            default_vhost=settings.default_user.vhost,
            auth_mechanisms=settings.auth_mechanisms,
            argon2_cost=(settings.argon2_memory_kib, settings.argon2_passes, settings.argon2_lanes),
        )

    def _first_commands(self) -> list[Command]:
        """The user and the vhost that an empty data folder begins with."""
        user = self.settings.default_user
        cost = Cost(self.settings.argon2_memory_kib, self.settings.argon2_passes, self.settings.argon2_lanes)
        first = bootstrap_commands(user.name, make_hash(user.password, cost), user.vhost, user.tags)
        rights = Permission(user.name, user.vhost, user.configure, user.write, user.read)
        return [*first, SetPermission(rights)]

    async def _load_definitions(self) -> None:
        """Bring the definitions of `load_definitions` into force before the first client can see anything."""
        path = self.settings.load_definitions
        if not path:
            return
        answer = await self.driver.ask(requests.ImportDefinitions(definitions=read_definitions(Path(path))))
        if answer.problem is not None:
            raise StartError(f"Definitions {path} cannot be loaded: {answer.problem.text}.")
        self.note("info", "definitions loaded", file=path)

    async def _start_http(self) -> None:
        if self.bound_admin is None:
            return
        # Imported only now: AMQP is bound already, and a node without admin API never pays for it.
        from mirrormq import http

        self.http = await http.start(
            self.driver, self.bound_admin, key=self.folder.key, facts=self._facts, backups=self.backups
        )

    def _facts(self) -> Mapping[str, Any]:
        listeners = [
            ("amqp/ssl" if bound.context else "amqp", bound_address(bound.socket)) for bound in self.bound
        ]
        if self.bound_admin is not None:
            listeners.append(("http", bound_address(self.bound_admin)))
        return facts(self.settings, listeners, self.files_max)

    async def _accept(self) -> None:
        door = Door(self.driver, self.settings, self.files_max)
        for bound in self.bound:
            if self.settings.proxy_protocol:
                acceptor = ProxyAcceptor(door, bound.socket, bound.context)
                acceptor.start()
                self.listeners.append(acceptor)
            else:
                self.listeners.append(await door.serve(bound.socket, bound.context))

    def _announce(self) -> Ready:
        urls = [bound.url() for bound in self.bound]
        http = self.http.url if self.http is not None else None
        name = self.settings.node_name
        content = msgspec.json.encode({"name": name, "pid": os.getpid(), "amqp": urls, "http": http})
        self._unannounced = content
        self._write_announcement()
        self.manager.ready(f"accepting AMQP on {', '.join(urls)}")
        self.note(
            "info", "accepting connections", node=self.settings.node_name, amqp=",".join(urls), http=http
        )
        return Ready(urls, http, content)

    def _write_announcement(self) -> None:
        """Tell `ctl` where the node answers; on a full disk later."""
        try:
            self.reserve.retry(lambda: self.folder.announce(self._unannounced))
        except OSError as error:
            self.folder.withdraw()  # what an earlier process left there is wrong
            if error.errno not in FULL or not self.reserve.size:
                path = self.folder.path
                raise StartError(f"Data folder {path} cannot be written: {error.strerror}.") from None
            return
        self._unannounced = b""

    # While it runs.

    def _watch_machine(self) -> None:
        """Look at memory and disk once per second, from the loop: a loop that hangs must not look alive."""
        self._look_at_machine()
        if self.manager.watchdog_s:
            self.manager.alive()
        if os.getpid() == 1:
            # Not on SIGCHLD: uvloop keeps that signal for itself.
            hygiene.reap_children()
        self._watch = self.loop.call_later(min(1.0, self.manager.watchdog_s or 1.0), self._watch_machine)

    def _look_at_machine(self) -> None:
        """Tell the node how much is left. What the reserve lacks is not left for anything else."""
        free, missing = self.gauges.disk_free(), self.reserve.missing()
        if missing and self.reserve.has_room(free):
            self.files.make_reserve()
        if (missing > 0) != self.is_reserve_missing:
            self.is_reserve_missing = missing > 0
            text = "the disk is full: its reserve is in use" if missing else "the reserve is there again"
            self.note("warning" if missing else "info", text, bytes=self.reserve.size, free=free)
            if self._unannounced and not missing:
                self._write_announcement()
        self.driver.gauges(self.gauges.memory_used(), max(0, free - missing), is_full=missing > 0)

    def _stop_watching(self) -> None:
        self._watch.cancel()

    def stop_on_eof(self) -> None:
        """Stop when standard input ends: a node must not outlive the program that started it for itself."""
        thread = threading.Thread(target=self._read_to_end, name="stdin", daemon=True)
        thread.start()

    def _read_to_end(self) -> None:
        while os.read(0, 4096):
            pass
        # The loop may be closed already if the node stopped by itself.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._on_stop_signal, "end of standard input")

    def _install_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self._on_stop_signal, number.name)
        self.loop.add_signal_handler(signal.SIGHUP, self._on_reload)

    def _on_stop_signal(self, name: str) -> None:
        if not self._stop.done():
            self._stop.set_result(name)
        elif not self._now.done():
            self._now.set_result(name)

    def _on_reload(self) -> None:
        """SIGHUP: certificates and log files are read or opened again; open connections are left alone."""
        self.manager.reloading()
        try:
            self.log.reopen()
            for context in {bound.context for bound in self.bound if bound.context is not None}:
                reload_files(context, self.settings.tls)
            self.note("info", "certificates and log files reloaded")
        except (StartError, OSError) as error:
            self.note("error", f"reload failed, the old certificates stay in use: {error}")
        self.manager.ready("accepting connections")

    # Down.

    async def _wait(self) -> int:
        ends: list[asyncio.Future[str]] = [self._stop, self.driver.failed, self.driver.asked_to_stop]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        self.manager.stopping()
        if self.driver.failed.done():
            self.note("critical", f"the node stops: {self.driver.failed.result()}")
            return FORCED
        reason = self._stop.result() if self._stop.done() else self.driver.asked_to_stop.result()
        self.note("info", f"stopping: {reason}", connections=len(self.driver.clients))
        return await self._drain()

    async def _drain(self) -> int:
        """Let clients finish; 0 if everything ended in order, also when some client did not in time."""
        await self._close_listeners()
        draining = self.loop.create_task(self.driver.drain("shutdown"))
        ends: list[asyncio.Future[Any]] = [draining, self._now, self.driver.failed]
        seconds = self.settings.shutdown_timeout_ms / 1000
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            draining.cancel()
            self.note("warning", "clients are cut off", connections=len(self.driver.clients))
        if self._now.done() or self.driver.failed.done():
            return FORCED
        return 0

    async def _close_listeners(self) -> None:
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()
        if self.http is not None:
            http, self.http = self.http, None
            await http.stop()

    def _close_node(self) -> None:
        """Cut off who is left, and let the disk finish what was ordered."""
        self.driver.close()
        self.loop.remove_reader(self.files.fileno())
        if not self.files.close(self.settings.shutdown_timeout_ms / 1000):
            self.note("error", "the disk did not finish in time")
        self.note("info", "stopped")


def read_definitions(path: Path) -> dict[str, Any]:
    """Read a definitions file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise StartError(f"Definitions {path} cannot be read: {error.strerror}.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StartError(f"Definitions {path} are not a JSON object: {error}.") from None


def local_address(address: Address) -> str:
    """Return host:port by which this machine reaches a listener."""
    return str(Address(address.host or "127.0.0.1", address.port))
