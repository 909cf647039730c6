"""The node itself: overview, status, health checks."""

from __future__ import annotations

import platform
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from mirrormq import __version__
from mirrormq.http import answers
from mirrormq.http.answers import Row, bad_request, not_found
from mirrormq.http.api import Call, Handler
from mirrormq.http.ports import Facts, Node
from mirrormq.node import report, requests

RABBITMQ_VERSION = "3.10.8"
"""Whose behaviour it has: clients of the API choose theirs by it."""

EXCHANGE_TYPES = ("direct", "fanout", "headers", "topic", "x-consistent-hash")
AUTH_MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL")
PURPOSES = {
    "amqp": "AMQP 0-9-1",
    "amqp/ssl": "AMQP 0-9-1 over TLS",
    "http": "HTTP API",
}


class About:
    """What the node tells of itself, with what only its process knows."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def status(self, node: Node) -> Row:
        """Everything `status` shows."""
        facts = self._facts()
        return {
            "node": node.node_name,
            "cluster_name": cluster_name(node),
            "pid": facts.get("pid"),
            "os": platform.system(),
            "uptime_seconds": self._uptime_ms(node) // 1000,
            "mirrormq_version": __version__,
            "rabbitmq_version": RABBITMQ_VERSION,
            "python_version": platform.python_version(),
            "data_directory": facts.get("data_dir"),
            "config_files": list(facts.get("config_files", ())),
            "log_files": list(facts.get("log_files", ())),
            "alarms": sorted(node.alarms),
            "memory": {"used": node.memory_used, "limit": node.settings.memory_limit},
            "disk": {"free": node.disk_free, "limit": node.settings.disk_free_limit},
            "file_descriptors": {"used": facts.get("fd_used", 0), "limit": facts.get("fd_limit", 0)},
            "totals": dict(report.totals(node)),
            "listeners": self.listeners(node),
        }

    def settings(self) -> Row:
        """Settings with their values, without secrets."""
        return dict(self._facts().get("settings", {}))

    def listeners(self, node: Node) -> list[Row]:
        """Protocols, interfaces and ports."""
        return [
            {
                "node": node.node_name,
                "protocol": entry["protocol"],
                "interface": entry["interface"],
                "port": entry["port"],
                "purpose": PURPOSES.get(entry["protocol"], entry["protocol"]),
            }
            for entry in self._facts().get("listeners", ())
        ]

    def _uptime_ms(self, node: Node) -> int:
        return (node.now.mono - node.started_at.mono) // 1000

    # --- resources ---

    async def overview(self, call: Call) -> web.Response:
        """GET overview."""
        node = call.node
        counted = dict(report.totals(node))
        counted.pop("vhosts")
        ready = unacked = 0
        async for batch in answers.slices(report.depths(node)):
            ready += sum(depth[0] for depth in batch)
            unacked += sum(depth[1] for depth in batch)
        row: Row = {
            "management_version": RABBITMQ_VERSION,
            "rates_mode": "none",
            "exchange_types": [_described(name) for name in EXCHANGE_TYPES],
            "product_version": RABBITMQ_VERSION,
            "product_name": "RabbitMQ",
            "rabbitmq_version": RABBITMQ_VERSION,
            "mirrormq_version": __version__,
            "cluster_name": cluster_name(node),
            "disable_stats": False,
            "enable_queue_totals": True,
            "node": node.node_name,
        }
        if call.who.is_monitor:
            row |= {
                "queue_totals": {
                    "messages": ready + unacked,
                    "messages_ready": ready,
                    "messages_unacknowledged": unacked,
                },
                "object_totals": counted,
                "listeners": [_listener(entry) for entry in self.listeners(node)],
                "contexts": [],
            }
        return answers.response(row)

    async def list_nodes(self, call: Call) -> web.Response:
        """GET nodes."""
        call.need_monitor()
        return answers.response([self._node_row(call.node)])

    async def get_node(self, call: Call) -> web.Response:
        """GET nodes/name."""
        call.need_monitor()
        if call.part("name") != call.node.node_name:
            raise not_found()
        return answers.response(self._node_row(call.node))

    def _node_row(self, node: Node) -> Row:
        facts = self._facts()
        return {
            "name": node.node_name,
            "type": "disc",
            "running": True,
            "os_pid": str(facts.get("pid", "")),
            "uptime": self._uptime_ms(node),
            "mem_used": node.memory_used,
            "mem_limit": node.settings.memory_limit,
            "mem_alarm": "memory" in node.alarms,
            "disk_free": node.disk_free,
            "disk_free_limit": node.settings.disk_free_limit,
            "disk_free_alarm": "disk" in node.alarms,
            "fd_used": facts.get("fd_used", 0),
            "fd_total": facts.get("fd_limit", 0),
            "sockets_used": len(node.connections),
            "db_dir": facts.get("data_dir"),
            "config_files": list(facts.get("config_files", ())),
            "log_files": list(facts.get("log_files", ())),
            "rates_mode": "none",
            "partitions": [],
            "being_drained": False,
            "exchange_types": [_described(name) for name in EXCHANGE_TYPES],
            "auth_mechanisms": [_described(name) for name in AUTH_MECHANISMS],
            "applications": [{"name": "mirrormq", "description": "MirrorMQ", "version": __version__}],
            "enabled_plugins": [],
        }

    async def cluster(self, call: Call) -> web.Response:
        """GET cluster-name."""
        return answers.response({"name": cluster_name(call.node)})

    async def put_cluster(self, call: Call) -> web.Response:
        """PUT cluster-name."""
        call.need_administrator()
        (name,) = await call.need_texts("name")
        await call.ask(requests.SetGlobalParameter(name="cluster_name", value=name))
        return answers.no_content()

    async def aliveness(self, call: Call) -> web.Response:
        """GET aliveness-test/vhost."""
        vhost = call.need_vhost()
        return answers.response(await call.ask(requests.CheckAliveness(actor=call.who.name, vhost=vhost)))

    async def check_alarms(self, call: Call) -> web.Response:
        """GET health/checks/alarms and local-alarms."""
        alarms = sorted(call.node.alarms)
        shown = [{"node": call.node.node_name, "resource": alarm} for alarm in alarms]
        return _checked(not alarms, "There are alarms in effect in the cluster", alarms=shown)

    async def check_virtual_hosts(self, call: Call) -> web.Response:
        """GET health/checks/virtual-hosts."""
        down = sorted(set(call.state.vhosts) - set(call.node.vhosts))
        return _checked(not down, "Some virtual hosts are down", **{"virtual-hosts": down})

    async def check_port(self, call: Call) -> web.Response:
        """GET health/checks/port-listener/port."""
        text = call.part("port")
        if not text.isdigit():
            raise bad_request("Invalid port")
        ports = [entry["port"] for entry in self.listeners(call.node)]
        port = int(text)
        if port in ports:
            return answers.response({"status": "ok", "port": port})
        return _checked(False, "No active listener", missing=port, ports=ports)

    async def check_protocol(self, call: Call) -> web.Response:
        """GET health/checks/protocol-listener/protocol."""
        wanted = call.part("protocol")
        names = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqps": "amqp/ssl"}
        found = [entry["protocol"] for entry in self.listeners(call.node)]
        if names.get(wanted.lower(), wanted.lower()) in found:
            return answers.response({"status": "ok", "protocol": wanted})
        return _checked(False, "No active listener", missing=wanted, protocols=found)

    async def check_single_node(self, _call: Call) -> web.Response:
        """GET health/checks/node-is-mirror-sync-critical and node-is-quorum-critical."""
        return answers.response({"status": "ok", "reason": "single node cluster"})

    async def check_node(self, call: Call) -> web.Response:
        """GET healthchecks/node."""
        if not call.node.alarms:
            return answers.response({"status": "ok"})
        reason = f"resource alarms in effect: {', '.join(sorted(call.node.alarms))}"
        return answers.response({"status": "failed", "reason": reason})

    async def extensions(self, _call: Call) -> web.Response:
        """GET extensions."""
        return answers.response([])

    async def auth(self, _call: Call) -> web.Response:
        """GET auth: there is no OAuth."""
        return answers.response({"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""})

    async def feature_flags(self, call: Call) -> web.Response:
        """GET feature-flags: there are none, every feature is on."""
        call.need_administrator()
        return answers.response([])

    def routes(self) -> list[tuple[str, str, Handler]]:
        """The resources about the node."""
        checks: dict[str, Callable[[Call], Awaitable[web.Response]]] = {
            "alarms": self.check_alarms,
            "local-alarms": self.check_alarms,
            "virtual-hosts": self.check_virtual_hosts,
            "port-listener/{port}": self.check_port,
            "protocol-listener/{protocol}": self.check_protocol,
            "node-is-mirror-sync-critical": self.check_single_node,
            "node-is-quorum-critical": self.check_single_node,
        }
        return [
            ("GET", "overview", self.overview),
            ("GET", "nodes", self.list_nodes),
            ("GET", "nodes/{name}", self.get_node),
            ("GET", "cluster-name", self.cluster),
            ("PUT", "cluster-name", self.put_cluster),
            ("GET", "aliveness-test/{vhost}", self.aliveness),
            ("GET", "healthchecks/node", self.check_node),
            ("GET", "extensions", self.extensions),
            ("GET", "auth", self.auth),
            ("GET", "feature-flags", self.feature_flags),
            *(("GET", f"health/checks/{path}", check) for path, check in checks.items()),
        ]


def cluster_name(node: Node) -> str:
    """The name an administrator gave, or the configured one."""
    found = node.state.global_parameters.get("cluster_name")
    return node.cluster_name if found is None else str(found.value)


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
