"""The application: the broker in a process, which can be stopped and started again while the process goes on.

Up, one step after the other: the files and the node on them, definitions, clients. Down: accept no more, tell
every client, wait for them at most `shutdown_timeout`, cut off who is left, finish the disk's work. However
far the start got, what has come up goes down again in the opposite order. The folder, the listening sockets
and the admin API belong to the process (`server`); an object of this class lives from one start to one stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from mirrormq.base import limits
from mirrormq.broker.host import BrokerSettings
from mirrormq.cluster.etcd.agreement import EtcdOptions
from mirrormq.cluster.identity import IdentityDamaged
from mirrormq.cluster.raft.layout import RaftDamaged, RaftTooNew
from mirrormq.log import segments
from mirrormq.log.disk import LogRefused
from mirrormq.meta.commands import Command, SetPermission, SetPolicy
from mirrormq.meta.records import Permission
from mirrormq.meta.state import bootstrap_commands
from mirrormq.node import requests
from mirrormq.node.etcdmember import EtcdMembership
from mirrormq.node.memberport import ClusterOptions, Contact
from mirrormq.node.node import Node
from mirrormq.runtime import clock, policies
from mirrormq.runtime.acceptor import ProxyAcceptor
from mirrormq.runtime.backup import Backups
from mirrormq.runtime.courier import Courier
from mirrormq.runtime.driver import Driver
from mirrormq.runtime.etcdclient import EtcdClient
from mirrormq.runtime.farewell import leave
from mirrormq.runtime.faults import StartError
from mirrormq.runtime.files import Files, Hearer
from mirrormq.runtime.folder import FORCE_BOOT, JOIN, DataFolder
from mirrormq.runtime.gauges import Gauges, limit_bytes
from mirrormq.runtime.hashing import Cost, make_hash
from mirrormq.runtime.listener import Door
from mirrormq.runtime.logs import Log
from mirrormq.runtime.ports import Bound, bind, bound_address
from mirrormq.runtime.reserve import Reserve
from mirrormq.runtime.settings import LINK_LISTEN, Settings, SocketSettings
from mirrormq.runtime.values import Address

PORT_CURE = "mirrormq ctl start_app when it is gone"
LOOK_SECONDS = 1.0
"""Between two looks at what a cluster is waited for with; an administrator may ask at any time."""
LOOKS_PER_LINE = 10
"""How many of them make one log line, after the first."""
WATCH_SECONDS = 1.0
"""Between two looks at memory and disk."""


class App:
    """The broker, from one start to one stop."""

    def __init__(
        self, settings: Settings, log: Log, folder: DataFolder, bound: list[Bound], files_max: int
    ) -> None:
        self.settings = settings
        self.log = log
        self.folder = folder
        self.bound = bound
        self.files_max = files_max
        self.loop = asyncio.get_running_loop()
        self.listeners: list[asyncio.Server | ProxyAcceptor] = []
        self.failed: asyncio.Future[str] = self.loop.create_future()
        """Done with a reason when the application cannot go on."""
        self.asked_to_stop: asyncio.Future[str] = self.loop.create_future()
        """Done with a reason when an administrator wants the process to stop."""
        self.waits_for = ""
        """What the start waits for, for whoever asks why it takes so long."""
        self.on_room: Callable[[], None] = _nothing
        """Called when a disk that was full has its reserve back."""
        self.facts: Callable[[], Mapping[str, Any]] = dict
        """What the process tells of itself, for administrators who ask through another node."""
        self.reload_links: Callable[[], None] = _nothing
        """Reads the certificates of links again, once there are any; raises StartError if they are bad."""
        self._watch: asyncio.TimerHandle | None = None
        self._is_wanted: asyncio.Future[None] = self.loop.create_future()
        """Done when the node wants clients for the first time."""
        self._are_doors_mine = False
        """The start is over: doors open and close as the node wants."""
        self.is_suspended = False
        """An administrator wants no new clients."""
        self._opening: asyncio.Task[None] | None = None
        self._undo = contextlib.AsyncExitStack()

    def note(self, level: str, text: str, **fields: object) -> None:
        """Write a log line."""
        self.log.note(level, text, fields, clock.now().wall)

    # Up.

    async def start(self) -> None:
        """Come up until clients are accepted; raises StartError with one sentence if that cannot be."""
        try:
            self._take_ports()
            self._read_orders()
            self._bind_links()
            self._open_node()
            self._watch_machine()
            await self._enter_cluster()
            await self._load_definitions()
            await self._imply_policy()
            self._open_backups()
            self._introduce()
            if self.node.membership.takes_clients:
                await self.open_doors()
            self.folder.drop_force_boot()
            self._are_doors_mine = True
            if not self.node.membership.takes_clients:
                # It was paused while the doors were being opened, or is in maintenance.
                self.close_doors()
            elif not self.listeners:
                await self.open_doors()
        except BaseException:
            await self.close()
            raise

    def _take_ports(self) -> None:
        """A busy port must be told before anything is changed."""
        self._undo.callback(self.close_doors)
        for bound in self.bound:
            bound.open(lambda: PORT_CURE)

    def _bind_links(self) -> None:
        """Take the port for other nodes. A node that is alone has one only if it was told so."""
        settings, links = self.settings, self.settings.links
        self.advertised = links.advertise
        self.listening: socket.socket | None = None
        is_member = self.contact is not None or bool(self.folder.linked())
        by_etcd = settings.coordinator == "etcd"
        if settings.cluster_nodes or is_member or by_etcd or links.listen != LINK_LISTEN:
            self.listening = bind(links.listen, SocketSettings(), lambda: PORT_CURE)
            self._undo.callback(self.listening.close)
            own = bound_address(self.listening)
            host = own.host or settings.node_name.partition("@")[2]
            self.advertised = links.advertise or Address(host, own.port)

    def _cluster_options(self) -> ClusterOptions:
        join = self.contact
        return ClusterOptions(
            nodes=tuple(Contact(peer.name, str(peer.address)) for peer in self.settings.cluster_nodes),
            join=Contact(join.node, join.address) if join is not None else None,
            known=tuple(self.folder.linked()),
            address=str(self.advertised) if self.advertised is not None else "",
            death_certificate=self.settings.death_certificate,
            is_forced=self.is_boot_forced,
            etcd=self._etcd_options(),
        )

    def _etcd_options(self) -> EtcdOptions | None:
        settings = self.settings
        if settings.coordinator != "etcd":
            return None
        return EtcdOptions(settings.etcd.prefix, settings.death_certificate)

    def _open_etcd(self) -> None:
        """Be ready to ask etcd, if that is what the nodes agree by; the node says when."""
        membership = self.node.membership
        if not isinstance(membership, EtcdMembership):
            return
        client = EtcdClient(
            self.settings.etcd,
            lambda answer: self.driver.call(lambda now: membership.etcd_answer(now, answer)),
        )
        self.driver.serve_etcd(client.order)
        self._undo.push_async_callback(client.close)

    def _open_links(self) -> None:
        """Be ready to carry frames; the node says when."""
        links = self.settings.links
        secret = self.folder.cluster_secret(links.secret)
        self.courier = Courier(self.driver, self.settings.node_name, self.advertised, secret, links)
        self.courier.listening, self.courier.log = self.listening, self.log
        self.courier.on_dialled = self._remember
        self.reload_links = self.courier.reload
        self.driver.serve_links(self.courier)
        self.driver.on_doors = self._doors_wanted

    def _remember(self, addresses: list[str]) -> None:
        """Keep where other nodes are, for a start without them and for a farewell."""
        try:
            self.folder.put_linked(addresses)
        except OSError as error:
            self.note(
                "warning",
                f"the addresses of other nodes cannot be written: {error.strerror}",
                event="storage.peers_not_written",
            )

    async def _enter_cluster(self) -> None:
        """Wait until the node has found its cluster, which may take as long as other nodes take to start."""
        waiting: list[asyncio.Future[Any]] = [self._is_wanted, self.asked_to_stop]
        for look in count():
            await asyncio.wait(waiting, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if self._is_wanted.done():
                break
            if self.asked_to_stop.done():
                raise StartError(self.asked_to_stop.result() + ".")
            self.waits_for = self.node.membership.waits_for()
            if look % LOOKS_PER_LINE == 0:
                self.note("info", self.waits_for, event="node.waiting")
        self.waits_for = ""
        if self.contact is not None:
            self.folder.drop_contact()

    def _doors_wanted(self, is_open: bool) -> None:
        """The node wants clients, or wants them no more: a minority serves nobody."""
        if not self._is_wanted.done():
            self._is_wanted.set_result(None)
        elif not self._are_doors_mine:
            return
        elif is_open:
            self._opening = self.loop.create_task(self._open_again())
        else:
            self.close_doors()

    async def _open_again(self) -> None:
        """Let clients in; a port that was taken meanwhile may become free."""
        while self.node.membership.takes_clients and not self.listeners:
            try:
                await self.open_doors()
            except StartError as error:
                self.note("error", str(error), event="node.start_failed")
                await asyncio.wait({self.failed}, timeout=WATCH_SECONDS)
            else:
                return

    def _read_orders(self) -> None:
        """What was decided for this start while the application was stopped."""
        self.contact = self.folder.contact()
        self.is_boot_forced = self.folder.is_boot_forced()
        self.folder.agrees_by(self.settings.coordinator)
        if self.settings.coordinator == "etcd" and (self.contact is not None or self.is_boot_forced):
            raise StartError(
                "With coordinator = etcd a node enters the cluster under etcd.prefix by itself, and none goes"
                f" on without etcd: remove {JOIN} and {FORCE_BOOT} from the data folder."
            )

    def _open_node(self) -> None:
        """Take the files and recover the node that lives on them."""
        self._make_node()
        self._open_links()
        self._open_etcd()
        self._open_reserve()
        self._open_files()
        self._recover_node()
        self.driver.start()

    def _make_node(self) -> None:
        self.gauges = Gauges(self.folder.path)
        settings = self.settings
        self.node = Node(
            clock.now(),
            name=settings.node_name,
            settings=self._broker_settings(),
            rng=clock.MachineRng(),
            cluster=self._cluster_options(),
        )
        self.node.cluster_name = settings.cluster_name
        self.driver = Driver(self.node, self.loop, self.log)
        self.driver.failed = self.failed
        self.driver.asked_to_stop = self.asked_to_stop

    def _open_reserve(self) -> None:
        size, folder = self.settings.disk_reserve_bytes, self.folder.path
        try:
            self.reserve = Reserve(folder, size, self.node.settings.disk_free_limit)
        except OSError as error:
            raise StartError(f"{folder / 'reserve'} cannot be opened: {error.strerror}.") from None
        self._undo.callback(self.reserve.close)
        self.is_reserve_missing = False
        refused = self.reserve.make(self.gauges.disk_free())
        if refused is not None:
            self.note(
                "warning",
                f"no space is kept back for a full disk: {refused}",
                bytes=size,
                event="storage.no_reserve",
            )

    def _open_files(self) -> None:
        driver = self.driver
        share = self.files_max * limits.open_data_files_percent_max // 100
        self.files = Files(
            self.folder.path,
            Hearer(driver.disk_done, driver.disk_read, driver.fail, self.look_at_machine),
            open_max=min(limits.open_data_files_max, share),
            reserve=self.reserve,
        )

    def _recover_node(self) -> None:
        path = self.folder.path
        try:
            damaged = self._check_segments()
            # Hashing the first user's password takes tens of milliseconds: only who forms a cluster needs it.
            recovered = self.node.start(clock.now(), self.files, self._first_commands)
        except (IdentityDamaged, RaftDamaged, RaftTooNew, LogRefused) as error:
            raise StartError(f"Data folder {path}: {error}.") from None
        except OSError as error:
            what = f"{error.filename} cannot be read: {error.strerror}"
            raise StartError(f"Data folder {path}: {what}.") from None
        for name in damaged - set(self.node.recycler.orphans):
            self.note(
                "warning",
                f"the head of {name} is damaged; its records are served as long as they are whole",
                event="storage.head_damaged",
            )
        self.driver.disk = self.files
        self.files.start()
        self.loop.add_reader(self.files.fileno(), self.files.collect)
        self._undo.callback(self._close_node)
        self._undo.push_async_callback(self.courier.close, "the node stops")
        self.note(
            "info",
            "definitions recovered" if not recovered.fresh else "data folder is new",
            data=str(path),
            entries=recovered.entries,
            torn_bytes=recovered.torn_bytes,
            event="storage.definitions_recovered",
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
            queue_master_locator=settings.queue_master_locator,
            ha_defaults=settings.ha_defaults,
            partition_handling=settings.partition_handling,
            partition_nodes=settings.partition_nodes,
            events=settings.events,
            samples=settings.samples,
            rebalance=settings.rebalance,
            rebalance_interval_ms=settings.rebalance_interval_ms,
            rebalance_strategy=settings.rebalance_strategy,
        )

    def _first_commands(self) -> list[Command]:
        """The user and the vhost that an empty data folder begins with."""
        user = self.settings.default_user
        cost = Cost(self.settings.argon2_memory_kib, self.settings.argon2_passes, self.settings.argon2_lanes)
        first = bootstrap_commands(user.name, make_hash(user.password, cost), user.vhost, user.tags)
        rights = Permission(user.name, user.vhost, user.configure, user.write, user.read)
        return [*first, SetPermission(rights), *map(SetPolicy, self.settings.mirroring_policies)]

    async def _load_definitions(self) -> None:
        """Bring the definitions of `load_definitions` into force before the first client can see anything."""
        path = self.settings.load_definitions
        if not path:
            return
        answer = await self.driver.ask(requests.ImportDefinitions(definitions=read_definitions(Path(path))))
        if answer.problem is not None:
            raise StartError(f"Definitions {path} cannot be loaded: {answer.problem.text}.")
        self.note("info", "definitions loaded", file=path, event="definitions.loaded")

    async def _imply_policy(self) -> None:
        """Have the policy that stands for `disc_copies` say what the settings say now."""
        wanted, vhost = policies.implied(self.settings), self.settings.default_user.vhost
        found = self.node.state.policies.get((vhost, policies.DISC_COPIES, False))
        if self.settings.disc_copies is None or wanted == found or vhost not in self.node.state.vhosts:
            return
        request: requests.Request = requests.ClearPolicy(vhost=vhost, name=policies.DISC_COPIES)
        if wanted is not None:
            request = requests.SetPolicy(
                vhost=vhost,
                name=wanted.name,
                pattern=wanted.pattern,
                definition=wanted.definition,
                priority=wanted.priority,
                apply_to=wanted.apply_to,
            )
        answer = await self.driver.ask(request)
        if answer.problem is not None:
            raise StartError(f"cluster_nodes.disc_copies cannot be honoured: {answer.problem.text}.")
        pattern = wanted.pattern if wanted is not None else "(none)"
        text = "queues of cluster_nodes.disc_copies are mirrored"
        self.note("info", text, pattern=pattern, event="config.disc_copies")

    def _open_backups(self) -> None:
        self.backups = Backups(self.driver, self.folder.path)
        self._undo.push_async_callback(self.backups.close)

    def _introduce(self) -> None:
        """Let other nodes know where clients are served, and what this process is."""
        listeners = [(bound.protocol, bound.address.host, bound.address.port) for bound in self.bound]
        told = [entry for entry in self.facts().get("listeners", ()) if "http" in entry["protocol"]]
        listeners += [(entry["protocol"], entry["interface"], entry["port"]) for entry in told]
        self.node.news.set_listeners(listeners)
        self.node.inquiries.describe = self.facts
        self.node.rates.is_exact = True

    async def open_doors(self) -> None:
        """Let clients in."""
        if self.is_suspended:
            return
        door = Door(self.driver, self.settings, self.files_max)
        for bound in self.bound:
            bound.open(lambda: PORT_CURE)
            if self.settings.proxy_protocol:
                acceptor = ProxyAcceptor(door, bound.socket, bound.context)
                acceptor.start()
                self.listeners.append(acceptor)
            else:
                self.listeners.append(await door.serve(bound.socket, bound.context))

    # While it runs.

    def _watch_machine(self) -> None:
        """Look at memory and disk once per second."""
        self.look_at_machine()
        self.driver.heap.fit(len(self.node.state.queues))
        self._watch = self.loop.call_later(WATCH_SECONDS, self._watch_machine)

    def look_at_machine(self) -> None:
        """Tell the node how much is left. What the reserve lacks is not left for anything else."""
        free, missing = self.gauges.disk_free(), self.reserve.missing()
        if missing and self.reserve.has_room(free):
            self.files.make_reserve()
        if (missing > 0) != self.is_reserve_missing:
            self.is_reserve_missing = missing > 0
            text = "the disk is full: its reserve is in use" if missing else "the reserve is there again"
            self.note(
                "warning" if missing else "info",
                text,
                bytes=self.reserve.size,
                free=free,
                event="storage.reserve",
            )
            if not missing:
                self.on_room()
        self.driver.gauges(self.gauges.memory_used(), max(0, free - missing), is_full=missing > 0)

    # Down.

    async def stop(self, reason: str, hurry: asyncio.Future[Any]) -> None:
        """Tell every client why, let them finish within `shutdown_timeout` or until `hurry`; then end."""
        self.close_doors()
        draining = self.loop.create_task(self.driver.drain(reason))
        ends: list[asyncio.Future[Any]] = [draining, hurry, self.failed]
        seconds = self.settings.shutdown_timeout_ms / 1000
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            draining.cancel()
            self.note(
                "warning",
                "clients are cut off: they did not close within shutdown_timeout",
                connections=len(self.driver.clients),
                event="node.clients_cut_off",
            )
        await self.close()

    async def close(self) -> None:
        """Go down at once from wherever the start got to."""
        if self._watch is not None:
            self._watch.cancel()
        if self._opening is not None:
            self._opening.cancel()
        await self._undo.aclose()

    def close_doors(self) -> None:
        """Let no more clients in; who is in stays. The ports are given up."""
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()
        for bound in self.bound:
            bound.close()

    async def leave_cluster(self) -> None:
        """Leave the cluster with an application that is not started; raises StartError if that cannot be.

        A node that is alone in its cluster has none to leave.
        """
        links = self.settings.links
        if self.settings.coordinator == "etcd":
            raise StartError(
                "a node that agrees by etcd leaves its cluster while it runs: start_app, then leave_cluster"
            )
        known = {str(peer.address) for peer in self.settings.cluster_nodes} | set(self.folder.linked())
        secret = self.folder.cluster_secret(links.secret)
        name, log = self.settings.node_name, self.log
        await leave(self.folder.path, name, secret=secret, settings=links, log=log, known=sorted(known))

    def _close_node(self) -> None:
        """Cut off who is left, and let the disk finish what was ordered."""
        self.driver.close()
        self.loop.remove_reader(self.files.fileno())
        if not self.files.close(self.settings.shutdown_timeout_ms / 1000):
            self.note(
                "error",
                "the disk did not finish in time; what no flush covered is written again or lost",
                event="storage.stalled",
            )
        self.driver.leave()
        self.note("info", "stopped", event="node.stopped")


def read_definitions(path: Path) -> dict[str, Any]:
    """Read a definitions file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise StartError(f"Definitions {path} cannot be read: {error.strerror}.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StartError(f"Definitions {path} are not a JSON object: {error}.") from None


def _nothing() -> None:
    """Nobody listens yet."""
