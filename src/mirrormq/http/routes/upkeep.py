"""Looking after nodes: memory, certificates, log-in attempts, feature flags, restarting a virtual host."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from mirrormq.http import answers, bodies, shapes
from mirrormq.http.answers import Fault, Row, bad_request, not_found
from mirrormq.http.api import Call, Handler
from mirrormq.http.describe import described
from mirrormq.http.far import inquire
from mirrormq.http.routes.nodes import About
from mirrormq.node import requests
from mirrormq.node.inquiryframes import row_of

DAY_SECONDS = 86_400
UNITS = {"days": 1, "weeks": 7, "months": 30, "years": 365}
EMPTY = (
    "connection_readers",
    "connection_writers",
    "connection_channels",
    "connection_other",
    "plugins",
    "other_proc",
    "metrics",
    "mgmt_db",
    "mnesia",
    "binary",
    "msg_index",
    "code",
    "atom",
)
"""What RabbitMQ tells apart and this node does not."""


class Upkeep:
    """The resources."""

    def __init__(self, about: About) -> None:
        self._about = about

    # --- memory ---

    @described(answer=dict[str, Any], needs="monitoring")
    async def memory(self, call: Call) -> web.Response:
        """GET nodes/name/memory: what the process uses, and how much of that are messages."""
        used, bodies_held = await self._memory(call)
        found = dict.fromkeys(EMPTY, 0) | {"queue_procs": bodies_held, "other_system": used - bodies_held}
        totals = {"erlang": used, "rss": used, "allocated": used}
        return answers.response({"memory": {**found, "strategy": "rss", "total": totals}})

    @described(answer=dict[str, Any], needs="monitoring")
    async def memory_shares(self, call: Call) -> web.Response:
        """GET nodes/name/memory/relative: the same in percent."""
        used, bodies_held = await self._memory(call)
        share = -(-100 * bodies_held // used) if used else 0
        found = dict.fromkeys(EMPTY, 0) | {"queue_procs": share, "other_system": 100 - share}
        return answers.response({"memory": {"total": 100, **found}})

    async def _memory(self, call: Call) -> tuple[int, int]:
        call.need_monitor()
        name = _node(call)
        details = (await self._about.node_rows(call, [name]))[0]
        held = 0
        if name == call.node.node_name:
            async for few in answers.slices(list(call.node.switch.masters.values())):
                held += sum(live.core.ready_bytes + live.core.unacked_bytes for live in few)
        used = int(details.get("mem_used") or 0)
        return used, min(held, used)

    # --- checks ---

    @described(answer=shapes.Health, statuses=(200, 503))
    async def certificates(self, call: Call) -> web.Response:
        """GET health/checks/certificate-expiration/within/unit."""
        days = UNITS.get(call.part("unit"))
        if days is None:
            raise bad_request("Time unit not recognised. Supported units: days, weeks, months, years.")
        within = answers.whole_number(call.part("within"))
        if within is None:
            raise bad_request("Invalid expiration value.")
        until = call.node.now.wall // 1_000_000 + within * days * DAY_SECONDS
        expiring = [
            {"node": call.node.node_name, **row}
            for row in self._about.certificates()
            if row["certfile_expires_on"] < until
        ]
        if not expiring:
            return answers.response({"status": "ok"})
        return answers.response(
            {"status": "failed", "reason": "Certificates expiring", "expired": expiring}, 503
        )

    @described(answer=shapes.Health)
    async def node_health(self, call: Call) -> web.Response:
        """GET healthchecks/node/name."""
        name = _node(call)
        alarms = call.node.news.alarms().get(name, [])
        if name != call.node.node_name and call.node.news.is_silent(name):
            return answers.response({"status": "failed", "reason": f"node {name} is down"})
        if alarms:
            reason = f"resource alarms in effect: {', '.join(sorted(alarms))}"
            return answers.response({"status": "failed", "reason": reason})
        return answers.response({"status": "ok"})

    # --- log-ins ---

    @described(answer=list[shapes.Attempts], needs="monitoring")
    async def attempts(self, call: Call) -> web.Response:
        """GET auth/attempts/node: log-ins by protocol."""
        return answers.response(await self._attempts(call, ""))

    @described(answer=list[shapes.Attempts], needs="monitoring")
    async def attempts_by_source(self, call: Call) -> web.Response:
        """GET auth/attempts/node/source: log-ins by where they came from."""
        return answers.response(await self._attempts(call, "source"))

    @described(statuses=(204,), needs="monitoring")
    async def forget_attempts(self, call: Call) -> web.Response:
        """DELETE auth/attempts/node: count anew."""
        await self._attempts(call, "forget")
        return answers.no_content()

    async def _attempts(self, call: Call, what: str) -> list[Row]:
        call.need_monitor()
        name = _node(call)
        own = call.node.logins.attempts
        if name == call.node.node_name:
            if what == "forget":
                own.forget()
                return []
            return own.by_source() if what else own.by_protocol()
        replies = await inquire(call, "attempts", name=what, nodes=(name,))
        if replies.missing:
            raise Fault(503, "unavailable", f"node {name} {replies.missing[name]}")
        return [row_of(raw) for raw in replies.rows.get(name, ())]

    # --- changes ---

    @described(body=bodies.Named, statuses=(204,), needs="administrator")
    async def enable_flag(self, call: Call) -> web.Response:
        """PUT feature-flags/name/enable."""
        call.need_administrator()
        await call.body()
        await call.ask(requests.EnableFeatureFlag(actor=call.who.name, name=call.part("name")))
        return answers.no_content()

    @described(body=bodies.Named, statuses=(204,), needs="administrator")
    async def start_vhost(self, call: Call) -> web.Response:
        """POST vhosts/name/start/node: a virtual host runs wherever its node does."""
        call.need_administrator()
        await call.body()
        vhost, name = call.part("vhost"), call.part("node")
        problem = ""
        if name not in (call.node.node_name, *call.node.inquiries.others()):
            problem = "nodedown"
        elif vhost not in call.state.vhosts:
            problem = f'{{no_such_vhost,<<"{vhost}">>}}'
        elif name != call.node.node_name and call.node.news.is_silent(name):
            problem = "nodedown"
        if problem:
            raise bad_request(f"Request to node {name} failed with {problem}")
        return answers.no_content()

    @described(statuses=(204,), needs="administrator")
    async def reset(self, call: Call) -> web.Response:
        """DELETE reset, and of one node: forget what was counted about log-ins."""
        call.need_administrator()
        others = call.node.inquiries.others()
        wanted = call.request.match_info.get("node")
        if wanted is not None and wanted not in (call.node.node_name, *others):
            raise not_found()
        if wanted in (None, call.node.node_name):
            call.node.logins.attempts.forget()
        far = tuple(name for name in others if wanted in (None, name))
        if far:
            await inquire(call, "attempts", name="forget", nodes=far)
        return answers.no_content()


def _node(call: Call) -> str:
    """The node of the path."""
    name = call.part("node")
    if name not in (call.node.node_name, *call.node.inquiries.others()):
        raise not_found()
    return name


def routes(about: About) -> list[tuple[str, str, Handler]]:
    """The resources."""
    found = Upkeep(about)
    return [
        ("GET", "nodes/{node}/memory", found.memory),
        ("GET", "nodes/{node}/memory/relative", found.memory_shares),
        ("GET", "health/checks/certificate-expiration/{within}/{unit}", found.certificates),
        ("GET", "healthchecks/node/{node}", found.node_health),
        ("GET", "auth/attempts/{node}", found.attempts),
        ("DELETE", "auth/attempts/{node}", found.forget_attempts),
        ("GET", "auth/attempts/{node}/source", found.attempts_by_source),
        ("DELETE", "auth/attempts/{node}/source", found.forget_attempts),
        ("PUT", "feature-flags/{name}/enable", found.enable_flag),
        ("POST", "vhosts/{vhost}/start/{node}", found.start_vhost),
        ("DELETE", "reset", found.reset),
        ("DELETE", "reset/{node}", found.reset),
    ]
