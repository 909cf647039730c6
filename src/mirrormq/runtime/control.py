"""Starts and stops the application within its process, and does what must be done while it is stopped.

Guarantees
- One thing at a time: what is asked for while something else is under way waits for its end. Only stopping
  does not wait for a start: it interrupts it, since a start may wait for other nodes for ever.
- A request that was put to the application and not answered when it stopped is refused, never left hanging.
- The data folder is changed here only while the application is stopped.

States: STOPPED -> STARTING -> RUNNING -> STOPPING -> STOPPED; a start that fails ends in STOPPED.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any

from mirrormq.base.durations import Durations
from mirrormq.base.errors import FolderUnusable
from mirrormq.http.ports import RUNNING, STARTING, STOPPED, STOPPING, Stopped
from mirrormq.node.node import Node
from mirrormq.node.requests import LeaveCluster, Request
from mirrormq.node.steps import Answer, Done, Problem, Refusal
from mirrormq.runtime import adjust, hygiene, offline
from mirrormq.runtime.app import App
from mirrormq.runtime.backup import Backups
from mirrormq.runtime.driver import Driver
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.folder import Contact, DataFolder
from mirrormq.runtime.settings import LINK_LISTEN
from mirrormq.runtime.values import Address, address, node_name

START_CURE = "run start_app"
STOP_CURE = "this node's application must be stopped for this; run stop_app first"
EMPTY_CURE = (
    "this node has data of its own, and a node joins a cluster with an empty data folder:"
    " run stop_app, reset, join_cluster and start_app in this order"
)
LEAVE_CURE = "run forget_cluster_node {} on another node of the cluster, then force_reset here"


class Interrupted(StartError):
    """The application was stopped while it started."""


class Control:
    """The application of a process. It is also the driver of the node as the admin API sees it."""

    def __init__(
        self,
        name: str,
        folder: DataFolder,
        make: Callable[[], App],
        *,
        hurry: asyncio.Future[str],
        note: Callable[..., None],
        changed: Callable[[], None],
    ) -> None:
        """`make` gives an application that was never started; `changed` is called with every new state.

        From `hurry` on nobody is waited for any more.
        """
        self.name = name
        self.state = STOPPED
        self.app: App | None = None
        self.note = note
        self._hurry = hurry
        self._folder = folder
        self._make = make
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[str] = self._loop.create_future()
        """Done with a reason when the process cannot go on."""
        self.asked_to_stop: asyncio.Future[str] = self._loop.create_future()
        """Done with a reason when an administrator wants the process to stop."""
        self._turn = asyncio.Lock()
        self._starting: asyncio.Task[None] | None = None
        self._failure = ""
        self._numbers = count()
        self._asked: dict[int, Done] = {}
        """Who waits for an answer of the application."""
        self._running_commands: set[asyncio.Task[dict[str, Any]]] = set()
        """References to commands that nobody may wait for any more: the loop itself keeps none."""
        self._commands: Mapping[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "start_app": self._start_app,
            "stop_app": self._stop_app,
            "reset": self._reset,
            "force_reset": self._force_reset,
            "join_cluster": self._join_cluster,
            "leave_cluster": self._leave_cluster,
            "force_boot": self._force_boot,
            "stop": self._stop_process,
            **adjust.commands(self._running),
        }

    # The application.

    async def start(self) -> None:
        """Start the application; returns when it accepts clients, raises StartError if that cannot be."""
        async with self._turn:
            if self.state != RUNNING:
                await self._bring_up()

    async def stop(self, reason: str) -> None:
        """Stop the application, or interrupt its start; returns when it is stopped."""
        if self._starting is not None:
            self._starting.cancel()
        async with self._turn:
            if self.app is None:
                return
            self._become(STOPPING)
            self._failure = ""
            try:
                await self.app.stop(reason, self._hurry)
            finally:
                self._let_go()

    async def close(self) -> None:
        """End at once, from whatever state."""
        if self._starting is not None:
            self._starting.cancel()
        async with self._turn:
            if self.app is not None:
                await self.app.close()
                self._let_go()

    async def _bring_up(self) -> None:
        app = self.app = self._make()
        app.failed.add_done_callback(self._app_failed)
        app.asked_to_stop.add_done_callback(self._app_asked_to_stop)
        self._failure = ""
        self._become(STARTING)
        starting = self._starting = self._loop.create_task(app.start())
        try:
            # A start waits for the disk and for other nodes; neither may come.
            ends: list[asyncio.Future[Any]] = [starting, app.failed]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not starting.done():
                starting.cancel()
                await asyncio.wait({starting})
            self._starting = None
            if starting.cancelled() or starting.exception() is not None:
                self._let_go()
        if starting.cancelled():
            if app.failed.done():
                raise StartError(app.failed.result())
            raise Interrupted("the application was stopped while it started")
        try:
            starting.result()
        except StartError as error:
            self._failure = str(error)
            raise
        self._become(RUNNING)
        hygiene.tune_garbage_collection()

    def _let_go(self) -> None:
        self.app = None
        self._become(STOPPED)
        asked, self._asked = self._asked, {}
        for done in asked.values():
            done(Answer(problem=Problem("app_stopped", self._why_not())))

    def _become(self, state: str) -> None:
        self.state = state
        self._changed()

    def _app_failed(self, failed: asyncio.Future[str]) -> None:
        if not failed.cancelled() and not self.failed.done():
            self.failed.set_result(failed.result())

    def _app_asked_to_stop(self, asked: asyncio.Future[str]) -> None:
        # A start that is refused fails by itself, and says so as any other that cannot be.
        if not asked.cancelled() and self.state != STARTING and not self.asked_to_stop.done():
            self.asked_to_stop.set_result(asked.result())

    # What the admin API asks.

    @property
    def detail(self) -> str:
        """What the application waits for, or why it does not run."""
        if self.app is not None:
            return self.app.waits_for
        return self._failure

    @property
    def driver(self) -> Control:
        """This, if the application runs."""
        self._running()
        return self

    @property
    def node(self) -> Node:
        """The node of the running application."""
        return self._running().node

    @property
    def entrance(self) -> Driver[Node]:
        """Where connections come into the running application."""
        return self._running().driver

    @property
    def passes(self) -> Durations:
        """How long passes of its loop take."""
        return self._running().driver.passes

    @property
    def backups(self) -> Backups:
        """Of the running application."""
        return self._running().backups

    def admin(self, request: Request, done: Done) -> None:
        """Put a request to the node; `done` gets the answer, or that the application stopped meanwhile."""
        app = self._running()
        number = next(self._numbers)
        self._asked[number] = done

        def answered(answer: Answer) -> None:
            waiting = self._asked.pop(number, None)
            if waiting is not None:
                waiting(answer)

        app.driver.admin(request, answered)

    async def command(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """Carry out a command on the process; who asked may hang up without stopping it halfway."""
        task = self._loop.create_task(self._run(name, given))
        self._running_commands.add(task)
        task.add_done_callback(self._running_commands.discard)
        return await asyncio.shield(task)

    async def _run(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._commands[name](given)
        except StartError as error:
            raise Refusal("cannot_start", str(error)) from error
        except OSError as error:
            raise Refusal("cannot_create", f"the data folder cannot be written: {error.strerror}") from error

    def _running(self) -> App:
        if self.app is None or self.state != RUNNING:
            raise Stopped(self._why_not())
        return self.app

    def _why_not(self) -> str:
        cure = START_CURE if self.state == STOPPED else "await_startup waits for it"
        detail = f" ({self.detail.rstrip('.')})" if self.detail else ""
        return f"this node's application is {self.state}{detail}; {cure}"

    # The commands.

    async def _start_app(self, _given: dict[str, Any]) -> dict[str, Any]:
        await self.start()
        return {"app": self.state}

    async def _stop_app(self, _given: dict[str, Any]) -> dict[str, Any]:
        self.note("info", "the application stops: an administrator asked for it", event="node.app_stopping")
        await self.stop("shutdown")
        return {"app": self.state}

    async def _stop_process(self, given: dict[str, Any]) -> dict[str, Any]:
        if not self.asked_to_stop.done():
            self.asked_to_stop.set_result(str(given.get("reason", "asked by an administrator")))
        return {}

    async def _reset(self, given: dict[str, Any]) -> dict[str, Any]:
        self._need_stopped()
        async with self._turn:
            self._need_stopped()
            if not given.get("force"):
                await self._need_copies()
            try:
                await self._make().leave_cluster()
            except StartError as error:
                cure = LEAVE_CURE.format(self.name)
                raise Refusal("cannot_leave", f"{str(error).rstrip('.')}; {cure}") from None
            await self._empty()
        return {}

    async def _need_copies(self) -> None:
        """Of what is in this folder there must be other copies, if there are nodes to have them."""
        try:
            found = await asyncio.to_thread(offline.only_here, self._folder.path, self.name)
        except FolderUnusable as error:
            text = f"nobody can tell what would be lost ({error}); give --force to lose it"
            raise Refusal("not_empty", text) from None
        if found:
            raise Refusal(
                "not_empty",
                f"{sum(found.values())} messages are only here, of {next(iter(found))} for one: start_app and"
                " drain this node, so that others take them, or give --force to lose them",
            )

    async def _leave_cluster(self, given: dict[str, Any]) -> dict[str, Any]:
        """Leave while the application runs and votes, then stop it and be empty."""
        answered: asyncio.Future[Answer] = self._loop.create_future()
        self.admin(LeaveCluster(force=bool(given.get("force"))), answered.set_result)
        answer = await answered
        if answer.problem is not None:
            raise Refusal(*answer.problem)
        await self.stop("this node leaves the cluster")
        return await self._force_reset({})

    async def _force_reset(self, _given: dict[str, Any]) -> dict[str, Any]:
        self._need_stopped()
        async with self._turn:
            self._need_stopped()
            await self._empty()
        return {}

    async def _empty(self) -> None:
        """Empty the data folder, on a thread: there may be very many files."""
        self._failure = ""
        await asyncio.to_thread(self._folder.reset)
        self.note("warning", "the data folder was emptied: reset", event="node.reset")

    async def _join_cluster(self, given: dict[str, Any]) -> dict[str, Any]:
        self._need_stopped()
        node, place = self._contact(given)
        async with self._turn:
            self._need_stopped()
            if self._folder.has_data():
                raise Refusal("not_empty", EMPTY_CURE)
            self._folder.put_contact(Contact(node, place))
        self.note("info", f"the next start joins the cluster of {node} at {place}", event="cluster.will_join")
        return {"node": node, "address": place}

    def _contact(self, given: dict[str, Any]) -> tuple[str, str]:
        try:
            node = node_name(str(given.get("node", "")))
            found = address(str(given["address"])) if given.get("address") else LINK_LISTEN
        except ValueError as error:
            raise Refusal("bad_request", str(error)) from None
        if node == self.name:
            raise Refusal("bad_request", f"{node} is this node itself; name another node of the cluster")
        return node, str(Address(found.host or node.partition("@")[2], found.port))

    async def _force_boot(self, _given: dict[str, Any]) -> dict[str, Any]:
        self._need_stopped()
        async with self._turn:
            self._need_stopped()
            self._folder.put_force_boot()
        return {}

    def _need_stopped(self) -> None:
        if self.state != STOPPED:
            raise Refusal("app_running", STOP_CURE)
