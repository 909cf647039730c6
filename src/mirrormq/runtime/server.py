"""One process with a node in it: signals, sockets, the data folder and the admin API around the application.

Up: bind AMQP (a busy port must be told before anything is changed), take the data folder, serve HTTP, start
the application (`control`, `app`), announce. Down (SIGTERM): answer no more, stop the application, let the
folder go. A second signal skips the waiting for clients. In between the application may be stopped and
started again; `node.json` and the service manager are told each time. If the first start fails, the process
ends with its reason; later ones leave it to the administrator who asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mirrormq.http.ports import RUNNING
from mirrormq.runtime import clock, heap, hygiene
from mirrormq.runtime.app import App
from mirrormq.runtime.control import Control, Interrupted
from mirrormq.runtime.facts import facts
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.folder import open_folder
from mirrormq.runtime.logs import Log
from mirrormq.runtime.ports import Bound, bind, bound_address
from mirrormq.runtime.reserve import FULL
from mirrormq.runtime.settings import Settings, SocketSettings
from mirrormq.runtime.tls import make_context, reload_files
from mirrormq.runtime.values import Address

if TYPE_CHECKING:
    from mirrormq.http.server import Api

FORCED = 1
"""Exit code after a second signal or a failure."""
BEAT_SECONDS = 1.0
"""How often the process does its chores, unless systemd wants to hear of it sooner."""


class Ready(NamedTuple):
    """What a node that accepts connections tells the outside."""

    amqp: list[str]
    http: str | None
    node_json: bytes


class Server:
    """A process that runs a node."""

    def __init__(self, settings: Settings, log: Log, *, fresh: bool, cure: Callable[[], str]) -> None:
        self.settings = settings
        self.log = log
        log.node = settings.node_name
        self.fresh = fresh
        self.cure = cure
        self.manager = hygiene.ServiceManager(os.environ)
        self.bound: list[Bound] = []
        self.bound_admin: socket.socket | None = None
        self.secured_admin: tuple[socket.socket, ssl.SSLContext] | None = None
        self.bound_exporter: socket.socket | None = None
        self.http: Api | None = None
        self.exporter: Api | None = None
        self._on_ready: Callable[[Ready], None] | None = None
        self._announcement = b""
        self._is_announced = False
        """node.json says how things are; a full disk can keep us from writing it."""
        self._status = "the node is starting"

    def note(self, level: str, text: str, **fields: object) -> None:
        """Write a log line."""
        self.log.note(level, text, fields, clock.now().wall)

    async def run(self, on_ready: Callable[[Ready], None], early: Sequence[str] = ()) -> int:
        """Serve until a signal, an administrator or a failure ends it; returns the exit code.

        `early`: signals that came, and still come, until this has handlers for them.
        """
        self.loop = asyncio.get_running_loop()
        self._stop: asyncio.Future[str] = self.loop.create_future()
        self._now: asyncio.Future[str] = self.loop.create_future()
        self._on_ready = on_ready
        self._install_signals()
        for name in early:
            self._on_stop_signal(name)
        heap.tune_memory()
        self.files_max = hygiene.raise_file_limit()
        # Whatever has come up goes down again in the opposite order, however far the start got.
        async with contextlib.AsyncExitStack() as undo:
            self._bind(undo)
            self.folder = open_folder(Path(self.settings.data_dir), fresh=self.fresh)
            undo.callback(self.folder.close)
            self.control = Control(
                self.settings.node_name,
                self.folder,
                self._make_app,
                hurry=self._now,
                note=self.note,
                changed=self._on_change,
            )
            undo.push_async_callback(self.control.close)
            undo.push_async_callback(self._stop_http)
            await self._start_http()
            self._beat()
            undo.callback(self._stop_beating)
            return await self._wait()

    # Up.

    def _bind(self, undo: contextlib.AsyncExitStack) -> None:
        settings = self.settings
        context = make_context(settings.tls) if settings.listen_tls else None
        for address in (*settings.listen, *settings.listen_tls):
            listening = bind(address, settings.sockets, self.cure)
            is_tls = len(self.bound) >= len(settings.listen)
            self.bound.append(Bound(listening, settings.sockets, context if is_tls else None))
            undo.callback(self.bound[-1].close)
        if settings.admin:
            self.bound_admin = bind(settings.admin_address, SocketSettings(), self.cure)
            undo.callback(self.bound_admin.close)
        if settings.admin_tls_address is not None:
            made = make_context(settings.admin_tls, "management.ssl")
            self.secured_admin = (bind(settings.admin_tls_address, SocketSettings(), self.cure), made)
            undo.callback(self.secured_admin[0].close)
        if settings.prometheus_port:
            host = settings.prometheus_host or settings.admin_address.host
            address = Address(host, settings.prometheus_port)
            self.bound_exporter = bind(address, SocketSettings(), self.cure)
            undo.callback(self.bound_exporter.close)

    async def _start_http(self) -> None:
        if self.bound_admin is None and self.bound_exporter is None:
            return
        # Imported only now: AMQP is bound already, and a node without admin API never pays for it.
        from mirrormq import http

        if self.bound_exporter is not None:
            self.exporter = await http.start_exporter(self.control, self.bound_exporter, facts=self._facts)
        if self.bound_admin is not None:
            self.http = await http.start(
                self.control,
                self.bound_admin,
                key=self.folder.key,
                facts=self._facts,
                secured=self.secured_admin,
                settings=self.settings.web,
            )

    def _make_app(self) -> App:
        app = App(self.settings, self.log, self.folder, self.bound, self.files_max)
        app.on_room = self._announce_late
        app.facts = self._facts
        return app

    def _facts(self) -> Mapping[str, Any]:
        listeners = []
        if self.control.state == RUNNING:
            listeners += [(bound.protocol, bound.address) for bound in self.bound if bound.is_open]
        if self.bound_admin is not None:
            listeners.append(("http", bound_address(self.bound_admin)))
        if self.secured_admin is not None:
            listeners.append(("https", bound_address(self.secured_admin[0])))
        if self.bound_exporter is not None:
            listeners.append(("http/prometheus", bound_address(self.bound_exporter)))
        return facts(self.settings, listeners, self.files_max)

    def _on_change(self) -> None:
        """The application has another state: tell everybody who may want to know."""
        state = self.control.state
        urls = [bound.url() for bound in self.bound] if state == RUNNING else []
        http = self.http.url if self.http is not None else None
        name = self.settings.node_name
        about = {"name": name, "pid": os.getpid(), "app": state, "amqp": urls, "http": http}
        self._announcement = msgspec.json.encode(about)
        self._is_announced = False
        self._write_announcement()
        if state != RUNNING:
            self._status = f"the application is {state}"
            self.manager.status(self._status)
            return
        self._status = f"accepting AMQP on {', '.join(urls)}"
        self.manager.ready(self._status)
        app = self.control.app
        takes_clients = app is None or app.node.membership.takes_clients
        what = "accepting connections" if takes_clients else "running, without accepting connections"
        self.note("info", what, node=name, amqp=",".join(urls), http=http, event="node.ready")
        if self._on_ready is not None:
            on_ready, self._on_ready = self._on_ready, None
            on_ready(Ready(urls, http, self._announcement))

    def _write_announcement(self) -> None:
        """Tell `ctl` where the node answers; on a full disk later."""
        control = self.control
        reserve = control.app.reserve if control.app is not None and control.state == RUNNING else None
        try:
            if reserve is not None:
                reserve.retry(lambda: self.folder.announce(self._announcement))
            else:
                self.folder.announce(self._announcement)
            self._is_announced = True
        except OSError as error:
            if self._on_ready is None:
                # The file of this process has at least the address of the admin API.
                self.note(
                    "warning", f"node.json cannot be written: {error.strerror}", event="storage.announcement"
                )
                return
            self.folder.withdraw()  # what an earlier process left there is wrong
            if reserve is not None and (error.errno not in FULL or not reserve.size):
                path = self.folder.path
                raise StartError(f"Data folder {path} cannot be written: {error.strerror}.") from None

    def _announce_late(self) -> None:
        if not self._is_announced:
            self._write_announcement()

    # While it runs.

    def _beat(self) -> None:
        """Do the process's chores, from the loop: a loop that hangs must not look alive."""
        if self.manager.watchdog_s:
            self.manager.alive()
        if os.getpid() == 1:
            # Not on SIGCHLD: uvloop keeps that signal for itself.
            hygiene.reap_children()
        seconds = min(BEAT_SECONDS, self.manager.watchdog_s or BEAT_SECONDS)
        self._next_beat = self.loop.call_later(seconds, self._beat)

    def _stop_beating(self) -> None:
        self._next_beat.cancel()

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
        failures = []
        # Each by itself: a bad certificate for clients must not keep links from theirs, which may run out.
        for reload in (self.log.reopen, self._reload_listeners, self._reload_links):
            try:
                reload()
            except (StartError, OSError) as error:
                failures.append(error)
        for failure in failures:
            self.note(
                "error",
                f"reload failed, the old certificates stay in use: {failure}",
                event="node.reload_failed",
            )
        if not failures:
            self.note("info", "certificates and log files reloaded", event="node.reloaded")
        self.manager.ready(self._status)

    def _reload_listeners(self) -> None:
        for context in {bound.context for bound in self.bound if bound.context is not None}:
            reload_files(context, self.settings.tls)
        if self.secured_admin is not None:
            reload_files(self.secured_admin[1], self.settings.admin_tls, "management.ssl")

    def _reload_links(self) -> None:
        """A stopped application has no links, and reads their files when it starts."""
        if self.control.app is not None:
            self.control.app.reload_links()

    # Down.

    async def _wait(self) -> int:
        """Start the application, and wait for whatever ends the process."""
        control = self.control
        starting = self.loop.create_task(control.start())
        starting.add_done_callback(_look_at)
        ends: set[asyncio.Future[Any]] = {self._stop, control.failed, control.asked_to_stop}
        await asyncio.wait({*ends, starting}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done() and not control.failed.done():
            # Who stops the application while it starts wants to do something with the process.
            with contextlib.suppress(Interrupted):
                starting.result()
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        self.manager.stopping()
        if control.failed.done():
            self.note("critical", f"the node stops: {control.failed.result()}", event="node.failed")
            return FORCED
        reason = self._stop.result() if self._stop.done() else control.asked_to_stop.result()
        clients = len(control.app.driver.clients) if control.state == RUNNING and control.app else 0
        self.note("info", f"stopping: {reason}", connections=clients, event="node.stopping")
        await self._stop_http()
        await control.stop("shutdown")
        await asyncio.wait({starting})
        # 0 if everything ended in order, also when some client did not in time.
        return FORCED if self._now.done() or control.failed.done() else 0

    async def _stop_http(self) -> None:
        if self.http is not None:
            http, self.http = self.http, None
            await http.stop()
        if self.exporter is not None:
            exporter, self.exporter = self.exporter, None
            await exporter.stop()


def _look_at(task: asyncio.Task[None]) -> None:
    """Somebody has seen the task's failure: when the node ends for another reason nobody else does."""
    if not task.cancelled():
        task.exception()
