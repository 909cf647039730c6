"""The node itself: overview, status, health checks."""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from mirrormq import __version__
from mirrormq.http import answers, bodies, rates, shapes
from mirrormq.http.answers import Fault, Row, bad_request, not_found
from mirrormq.http.api import Call, Handler
from mirrormq.http.auth import ask
from mirrormq.http.describe import described
from mirrormq.http.far import inquire
from mirrormq.http.ports import RUNNING, Facts, Node, Process
from mirrormq.meta.definitions import RABBITMQ_VERSION
from mirrormq.node import report, report_cluster, report_mirrors, report_rates, requests
from mirrormq.node.inquiryframes import row_of
from mirrormq.node.report_cluster import cluster_name

RATES_MODE = "basic"
RETENTION = {
    "global": [600, 3600, 28800, 86400],
    "basic": [600, 3600],
    "detailed": [600],
}
"""For how many seconds samples are kept, in RabbitMQ's terms."""

EXCHANGE_TYPES = ("direct", "fanout", "headers", "topic", "x-consistent-hash")
COUNTED = ("connections", "channels", "consumers")
"""What each node counts of its own."""
SINGLE = "single node cluster"
DRAINED = "The node is in maintenance; `revive` brings it back"
AUTH_MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL")


class About:
    """What the node tells of itself, with what only its process knows."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def status(self, process: Process) -> Row:
        """Everything `status` shows; less of it while the application does not run."""
        facts = self._facts()
        found: Row = {
            "node": process.name,
            "app": process.state,
            "app_detail": process.detail,
            "pid": facts.get("pid"),
            "os": platform.system(),
            "mirrormq_version": __version__,
            "rabbitmq_version": RABBITMQ_VERSION,
            "python_version": platform.python_version(),
            "data_directory": facts.get("data_dir"),
            "config_files": list(facts.get("config_files", ())),
            "log_files": list(facts.get("log_files", ())),
            "file_descriptors": {"used": facts.get("fd_used", 0), "limit": facts.get("fd_limit", 0)},
            "listeners": self.listeners(process.name),
        }
        if process.state == RUNNING:
            node = process.driver.node
            found |= {
                "cluster_name": cluster_name(node),
                "uptime_seconds": self._uptime_ms(node) // 1000,
                "maintenance": node.copies.maintenance.status() if node.copies is not None else None,
                "alarms": sorted(node.alarms),
                "cluster_alarms": node.news.alarms(),
                "memory": {"used": node.memory_used, "limit": node.settings.memory_limit},
                "disk": {"free": node.disk_free, "limit": node.settings.disk_free_limit},
                "totals": dict(report.totals(node)),
            }
        return found

    def cluster_status(self, node: Node) -> Row:
        """Everything `cluster_status` shows."""
        listeners = self.listeners(node.node_name)
        return report_cluster.cluster_status(report_cluster.view_of(node, listeners))

    def settings(self) -> Row:
        """Settings with their values, without secrets."""
        read = self._facts().get("settings")
        return {} if read is None else dict(read())

    def listeners(self, name: str) -> list[Row]:
        """Protocols, interfaces and ports of the node with this name."""
        return [
            {
                "node": name,
                "protocol": entry["protocol"],
                "interface": entry["interface"],
                "port": entry["port"],
                "purpose": report_cluster.PURPOSES.get(entry["protocol"], entry["protocol"]),
            }
            for entry in self._facts().get("listeners", ())
        ]

    def _uptime_ms(self, node: Node) -> int:
        return (node.now.mono - node.started_at.mono) // 1000

    # --- resources ---

    @described(answer=shapes.Overview)
    async def overview(self, call: Call) -> web.Response:
        """GET overview."""
        node = call.node
        row: Row = {
            "management_version": RABBITMQ_VERSION,
            "rates_mode": RATES_MODE,
            "sample_retention_policies": RETENTION,
            "exchange_types": [_described(name) for name in EXCHANGE_TYPES],
            "product_version": RABBITMQ_VERSION,
            "product_name": "RabbitMQ",
            "rabbitmq_version": RABBITMQ_VERSION,
            "mirrormq_version": __version__,
            "cluster_name": cluster_name(node),
            "disable_stats": rates.is_disabled(call),
            "enable_queue_totals": True,
            "node": node.node_name,
        }
        row |= await _totals(call)
        if call.who.is_monitor:
            listeners = self.cluster_status(node)["listeners"]
            row |= {
                "listeners": [_listener(entry) for rows in listeners.values() for entry in rows],
                "contexts": [],
            }
        await answers.next_turn()  # with samples it is long, and the totals have just had a slice
        return answers.response(row)

    @described(answer=list[shapes.Node], needs="monitoring")
    async def list_nodes(self, call: Call) -> web.Response:
        """GET nodes: all members of the cluster."""
        call.need_monitor()
        names = sorted([call.node.node_name, *call.node.inquiries.others()])
        return answers.response(await self.node_rows(call, names))

    @described(answer=shapes.Node, needs="monitoring")
    async def get_node(self, call: Call) -> web.Response:
        """GET nodes/name."""
        call.need_monitor()
        name = call.part("name")
        if name not in (call.node.node_name, *call.node.inquiries.others()):
            raise not_found()
        return answers.response((await self.node_rows(call, [name]))[0])

    def certificates(self) -> list[Row]:
        """The certificates of the listeners here, with when they run out (s since 1970)."""
        read = self._facts().get("certificates")
        return [] if read is None else list(read())

    async def node_rows(self, call: Call, names: Sequence[str]) -> list[Row]:
        """Nodes by what they tell of themselves; one that does not answer, by what is known of it."""
        node = call.node
        others = tuple(name for name in names if name != node.node_name)
        look = rates.look_of(call)
        body = b"" if look is None else report_rates.packed(look)
        replies = await inquire(call, "node", nodes=others, body=body) if others else None
        rows: list[Row] = []
        for name in names:
            record = node.state.nodes.get(name)
            if name == node.node_name:
                found = report_cluster.node_details(node, self._facts())
                found |= {} if look is None else report_rates.of_node(node, name, look)
            elif replies is not None and replies.rows.get(name):
                found = row_of(replies.rows[name][0])
                found.pop("totals", None)
                found.pop("overview", None)
            else:
                found = report_cluster.told_details(node, name)
            is_drained = record is not None and record.is_drained
            rows.append(_node_row(found, is_drained=is_drained))
        return rows

    @described(answer=shapes.Named)
    async def cluster(self, call: Call) -> web.Response:
        """GET cluster-name."""
        return answers.response({"name": cluster_name(call.node)})

    @described(body=bodies.ClusterName, statuses=(204,), needs="administrator")
    async def put_cluster(self, call: Call) -> web.Response:
        """PUT cluster-name."""
        call.need_administrator()
        (name,) = await call.need_texts("name")
        await call.ask(requests.SetGlobalParameter(name="cluster_name", value=name))
        return answers.no_content()

    @described(answer=shapes.Health)
    async def aliveness(self, call: Call) -> web.Response:
        """GET aliveness-test/vhost."""
        vhost = call.need_vhost()
        return answers.response(await call.ask(requests.CheckAliveness(actor=call.who.name, vhost=vhost)))

    @described(answer=shapes.Health, statuses=(200, 503))
    async def check_alarms(self, call: Call) -> web.Response:
        """GET health/checks/alarms: those of all nodes."""
        shown = _alarm_rows(call.node.news.alarms())
        return _checked(not shown, "There are alarms in effect in the cluster", alarms=shown)

    @described(answer=shapes.Health, statuses=(200, 503))
    async def check_local_alarms(self, call: Call) -> web.Response:
        """GET health/checks/local-alarms."""
        shown = _alarm_rows({call.node.node_name: sorted(call.node.alarms)})
        return _checked(not shown, "There are alarms in effect on the node", alarms=shown)

    @described(answer=shapes.Health, statuses=(200, 503))
    async def check_virtual_hosts(self, call: Call) -> web.Response:
        """GET health/checks/virtual-hosts."""
        down = sorted(set(call.state.vhosts) - set(call.node.vhosts))
        return _checked(not down, "Some virtual hosts are down", **{"virtual-hosts": down})

    @described(answer=shapes.Health, statuses=(200, 503))
    async def check_port(self, call: Call) -> web.Response:
        """GET health/checks/port-listener/port."""
        port = answers.whole_number(call.part("port"))
        if port is None or port < 0:
            raise bad_request("Invalid port")
        ports = [entry["port"] for entry in self.listeners(call.node.node_name)]
        if port in ports:
            return answers.response({"status": "ok", "port": port})
        return _checked(False, "No active listener", missing=port, ports=ports)

    @described(answer=shapes.Health, statuses=(200, 503))
    async def check_protocol(self, call: Call) -> web.Response:
        """GET health/checks/protocol-listener/protocol."""
        wanted = call.part("protocol")
        names = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqps": "amqp/ssl"}
        found = [entry["protocol"] for entry in self.listeners(call.node.node_name)]
        if names.get(wanted.lower(), wanted.lower()) in found:
            return answers.response({"status": "ok", "protocol": wanted})
        return _checked(False, "No active listener", missing=wanted, protocols=found)

    @described(answer=shapes.Health, statuses=(200, 503))
    async def check_mirror_sync_critical(self, call: Call) -> web.Response:
        """GET health/checks/node-is-mirror-sync-critical."""
        if self.is_single(call.node):
            return answers.response({"status": "ok", "reason": SINGLE})
        queues = report_mirrors.sync_critical(call.node, quorum=False)
        return _checked(not queues, "There are mirrored queues without a mirror in sync", queues=queues)

    @described(answer=shapes.Health, statuses=(200, 503))
    async def check_quorum_critical(self, call: Call) -> web.Response:
        """GET health/checks/node-is-quorum-critical."""
        if self.is_single(call.node):
            return answers.response({"status": "ok", "reason": SINGLE})
        found = self.critical(call.node)
        if found["is_majority_critical"]:
            return _checked(False, "Without this node the cluster has no majority", queues=found["quorum"])
        return _checked(not found["quorum"], "There are queues without a quorum", queues=found["quorum"])

    def is_single(self, node: Node) -> bool:
        """Is this the only node of its cluster, so that nobody could take over anything?"""
        return not node.inquiries.others()

    def critical(self, node: Node) -> Row:
        """What would be lost or stop if this node stopped now."""
        return {
            "node": node.node_name,
            "is_single": self.is_single(node),
            "mirrored": report_mirrors.sync_critical(node, quorum=False),
            "quorum": report_mirrors.sync_critical(node, quorum=True),
            "is_majority_critical": report_cluster.is_majority_critical(report_cluster.view_of(node, ())),
        }

    @described(answer=shapes.Health)
    async def check_node(self, call: Call) -> web.Response:
        """GET healthchecks/node."""
        if _is_drained(call.node):
            return answers.response({"status": "failed", "reason": DRAINED})
        if not call.node.alarms:
            return answers.response({"status": "ok"})
        reason = f"resource alarms in effect: {', '.join(sorted(call.node.alarms))}"
        return answers.response({"status": "failed", "reason": reason})

    @described(answer=shapes.Health)
    async def check_ready(self, call: Call) -> web.Response:
        """GET health/checks/ready-to-serve-clients: for whoever sends clients to nodes."""
        node = call.node
        if _is_drained(node):
            return _checked(False, DRAINED)
        if not node.membership.takes_clients:
            return _checked(False, "The node hears no majority of its cluster and serves no clients")
        protocols = {entry["protocol"] for entry in self.listeners(node.node_name)}
        return _checked(bool(protocols & {"amqp", "amqp/ssl"}), "No listener for clients is open")

    @described(answer=shapes.Health)
    async def check_in_service(self, call: Call) -> web.Response:
        """GET health/checks/is-in-service: it is not in maintenance."""
        return _checked(not _is_drained(call.node), DRAINED)

    @described(body=bodies.Nothing, statuses=(204,), needs="administrator")
    async def rebalance(self, call: Call) -> web.Response:
        """POST rebalance/queues: begins it; 409 if one is under way."""
        call.need_administrator()
        answer = await ask(call.driver, requests.Rebalance())
        if answer.problem is None:
            return answers.no_content()
        if answer.problem.kind == "rebalance_in_progress":
            raise Fault(409, "conflict", answer.problem.text)
        raise answers.of_problem(answer.problem)

    @described(answer=list[dict[str, Any]])
    async def extensions(self, _call: Call) -> web.Response:
        """GET extensions."""
        return answers.response([])

    @described(answer=dict[str, Any], is_open=True)
    async def auth(self, _call: Call) -> web.Response:
        """GET auth: there is no OAuth. A page asks for it before anybody logs in."""
        return answers.response({"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})

    @described(answer=list[dict[str, Any]], needs="administrator")
    async def feature_flags(self, call: Call) -> web.Response:
        """GET feature-flags."""
        call.need_administrator()
        return answers.response(self.feature_flags_of(call.node))

    def feature_flags_of(self, node: Node) -> list[Row]:
        """RabbitMQ's feature flags with their states."""
        return report_cluster.feature_flags(report_cluster.view_of(node, ()).level)

    def routes(self) -> list[tuple[str, str, Handler]]:
        """The resources about the node."""
        checks: dict[str, Callable[[Call], Awaitable[web.Response]]] = {
            "alarms": self.check_alarms,
            "local-alarms": self.check_local_alarms,
            "virtual-hosts": self.check_virtual_hosts,
            "port-listener/{port}": self.check_port,
            "protocol-listener/{protocol}": self.check_protocol,
            "node-is-mirror-sync-critical": self.check_mirror_sync_critical,
            "node-is-quorum-critical": self.check_quorum_critical,
            "ready-to-serve-clients": self.check_ready,
            "is-in-service": self.check_in_service,
        }
        return [
            ("GET", "overview", self.overview),
            ("GET", "nodes", self.list_nodes),
            ("GET", "nodes/{name}", self.get_node),
            ("GET", "cluster-name", self.cluster),
            ("PUT", "cluster-name", self.put_cluster),
            ("GET", "aliveness-test/{vhost}", self.aliveness),
            ("GET", "healthchecks/node", self.check_node),
            ("POST", "rebalance/queues", self.rebalance),
            ("GET", "extensions", self.extensions),
            ("GET", "auth", self.auth),
            ("GET", "feature-flags", self.feature_flags),
            *(("GET", f"health/checks/{path}", check) for path, check in checks.items()),
        ]


async def _totals(call: Call) -> Row:
    """Messages and objects of all nodes that answer, with rates: of everything for those who watch the node,
    of their own vhosts and connections for others.
    """
    node = call.node
    look = rates.look_of(call)
    vhosts = list(call.state.vhosts) if call.who.is_monitor else call.visible_vhosts()
    summed: Row = {}
    if look is not None:
        steps = report_rates.overview(node, node.node_name, look, vhosts)
        summed = await answers.driven(steps)
        await answers.next_turn()
    objects = await _objects(call, vhosts)
    ready = unacked = 0
    async for batch in answers.slices(report.depths(node, vhosts)):
        ready += sum(depth[0] for depth in batch)
        unacked += sum(depth[1] for depth in batch)
    kind, owner = ("node", "") if call.who.is_monitor else ("overview", str(call.who.name))
    body = b"" if look is None else report_rates.packed(look)
    replies = await inquire(call, kind, owner=owner, body=body)
    for rows in replies.rows.values():
        told = row_of(rows[0]) if rows else {}
        counted = told.get("totals", {})
        for part, values in told.get("overview", {}).items():
            await answers.next_turn()  # hundreds of samples of each of twenty counters
            summed = report_rates.add(summed, {part: values})
        ready += counted.get("ready", 0)
        unacked += counted.get("unacked", 0)
        for name in COUNTED:
            if name in objects:
                objects[name] += counted.get(name, 0)
    return {
        **summed,
        "queue_totals": {
            **summed.get("queue_totals", {}),
            "messages": ready + unacked,
            "messages_ready": ready,
            "messages_unacknowledged": unacked,
        },
        "object_totals": objects,
    }


async def _objects(call: Call, vhosts: list[str]) -> Row:
    """How many objects there are on this node, for whoever asks."""
    node = call.node
    if call.who.is_monitor:
        found = dict(report.totals(node))
        del found["vhosts"]
        return found
    everybody = list(node.connections.values())
    own = await answers.kept(everybody, lambda item: item.user == call.who.name)
    counts = await answers.collected(report.totals_in(node, name) for name in vhosts)
    return {
        "connections": len(own),
        "channels": sum(len(item.channels) for item in own),
        "exchanges": sum(exchanges for exchanges, _ in counts),
        "queues": sum(queues for _, queues in counts),
    }


def _node_row(details: Row, *, is_drained: bool) -> Row:
    """A node with what RabbitMQ's clients expect of each; of one that is down little is known."""
    version = details.pop("version", None)
    row: Row = {**details, "type": "disc", "partitions": []}
    if not details["running"]:
        return row
    return row | {
        "rates_mode": RATES_MODE,
        "being_drained": is_drained,
        "exchange_types": [_described(name) for name in EXCHANGE_TYPES],
        "auth_mechanisms": [_described(name) for name in AUTH_MECHANISMS],
        "applications": [{"name": "mirrormq", "description": "MirrorMQ", "version": version}],
        "enabled_plugins": [],
    }


def _is_drained(node: Node) -> bool:
    return node.copies is not None and node.copies.maintenance.is_drained


def _alarm_rows(alarms: dict[str, list[str]]) -> list[Row]:
    return [{"node": node, "resource": alarm} for node, names in alarms.items() for alarm in names]


def _checked(is_well: bool, reason: str, **facts: Any) -> web.Response:
    if is_well:
        return answers.response({"status": "ok"})
    return answers.response({"status": "failed", "reason": reason, **facts}, 503)


def _described(name: str) -> Row:
    return {"name": name, "description": f"{name} of AMQP 0-9-1", "enabled": True}


def _listener(entry: Row) -> Row:
    return {
        "node": entry["node"],
        "protocol": entry["protocol"],
        "ip_address": entry["interface"],
        "port": entry["port"],
    }
