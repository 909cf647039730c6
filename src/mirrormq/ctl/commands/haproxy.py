"""`haproxy_config`: a file for HAProxy that sends clients to the nodes of this cluster that take them.

Guarantees of the printed file
- A node gets clients only while GET /health/ready answers 200: not when it is stopped, leaving or paused in a
  minority. Whoever is connected to a node that turns bad is cut off and finds another one.
- If the nodes expect PROXY headers they get them, so that rules about addresses (`loopback_users`) are about
  the client. If they do not, the file and a warning say what that means.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from mirrormq.ctl.faults import Failure, Misuse
from mirrormq.ctl.registry import CONFIGURATION, command, session_of

AMQP, AMQPS, HTTP, HTTPS = "amqp", "amqp/ssl", "http", "https"
EVERYWHERE = ("", "::", "0.0.0.0")
OFF = "off"
UNPROXIED = (
    "the nodes expect no PROXY header, so they take every client for this proxy: if HAProxy runs on a node's "
    "own machine, users that may come from loopback only (guest) get in from everywhere. Set "
    "proxy_protocol = true and proxy_protocol_sources to the address of HAProxy on all nodes, restart them, "
    "and print this file again"
)
UNASKED = (
    "not every node has a management listener, so HAProxy only looks whether the port for clients is open; "
    "a node that is stopped or paused closes it"
)
ALONE = "the cluster is one node: there is nobody to go to when it is down"

_DEFAULTS = """\
global
    log stdout format raw local0 notice{maxconn}

defaults
    log global
    option dontlognull
    option redispatch
    retries 3
    timeout connect 2s
    # Heartbeats and TCP find dead clients; an idle AMQP connection is not a dead one.
    timeout client 3h
    timeout server 3h
    timeout check 2s
    default-server inter 1s fastinter 300ms fall 2 rise 2 on-marked-down shutdown-sessions"""

_CHECK = """\
    option httpchk
    http-check send meth GET uri /health/ready
    http-check expect status 200"""


@dataclass(frozen=True)
class Place:
    """A node that takes clients, and where each protocol is spoken."""

    name: str
    ports: dict[str, tuple[str, int]]


@dataclass(frozen=True)
class Front:
    """Where HAProxy listens."""

    amqp: str
    amqps: str
    management: str
    stats: str
    is_proxied: bool
    """Clients come through another proxy, which sends PROXY headers."""
    sends_proxy: bool
    maxconn: int
    """Connections in all; 0 is as many as the limit of open files allows."""


@command(
    CONFIGURATION,
    "[--bind-amqp <[host:]port>] [--bind-amqps <[host:]port>] [--bind-management <[host:]port>] "
    "[--bind-stats <[host:]port>] [--proxy-protocol auto|on|off] [--accept-proxy] [--maxconn <number>]",
)
def haproxy_config(
    ctx: typer.Context,
    *,
    bind_amqp: Annotated[str, typer.Option("--bind-amqp", help="AMQP clients")] = "5672",
    bind_amqps: Annotated[
        str, typer.Option("--bind-amqps", help="AMQP over TLS, ended by the nodes")
    ] = "5671",
    bind_management: Annotated[str, typer.Option("--bind-management", help="HTTP API")] = "15672",
    bind_stats: Annotated[str, typer.Option("--bind-stats", help="HAProxy's own page")] = OFF,
    proxy_protocol: Annotated[
        str, typer.Option("--proxy-protocol", help="send PROXY headers: auto is as the nodes are set")
    ] = "auto",
    is_proxied: Annotated[
        bool, typer.Option("--accept-proxy", help="clients come through a proxy that sends PROXY headers")
    ] = False,
    maxconn: Annotated[
        int,
        typer.Option("--maxconn", help="connections in all; 0: what the limit of open files allows", min=0),
    ] = 0,
) -> None:
    """Print a file for HAProxy in front of this cluster: clients go to nodes that take them."""
    if proxy_protocol not in ("auto", "on", "off"):
        raise Misuse(f"--proxy-protocol is auto, on or off, not '{proxy_protocol}'.")
    session = session_of(ctx)
    status = session.call("cluster_status")
    expects = bool(session.call("environment").get("proxy_protocol"))
    sends = expects if proxy_protocol == "auto" else proxy_protocol == "on"
    front = Front(
        amqp=_bind(bind_amqp),
        amqps=_bind(bind_amqps),
        management=_bind(bind_management),
        stats=_bind(bind_stats),
        is_proxied=is_proxied,
        sends_proxy=sends,
        maxconn=maxconn,
    )
    places, unknown = places_of(status)
    if not any(AMQP in place.ports or AMQPS in place.ports for place in places):
        raise Failure("no node of this cluster takes AMQP clients; cluster_status shows who listens where")
    warnings = [] if sends else [UNPROXIED]
    warnings += [ALONE] if len(places) + len(unknown) == 1 else []
    warnings += [] if is_asked(places) else [UNASKED]
    warnings += [
        f"node {name} is not running and its ports are not known: it is left out; start it and print again"
        for name in unknown
    ]
    for warning in warnings if not session.options.silent else ():
        sys.stderr.write(f"Warning: {warning}\n")
    text = config(str(status["cluster_name"]), places, front, warnings)
    if session.is_json:
        session.finish(config=text, warnings=warnings)
    else:
        session.write(text.rstrip("\n"))


def places_of(status: dict[str, Any]) -> tuple[list[Place], list[str]]:
    """Nodes that take clients, and the names of those of which it is not known where."""
    places: list[Place] = []
    unknown: list[str] = []
    for member in status["members"]:
        name = str(member["name"])
        heard = status["listeners"].get(name)
        if heard:
            places.append(Place(name, {entry["protocol"]: _address(name, entry) for entry in heard}))
        elif member["role"] != "witness":
            unknown.append(name)
    # Nodes on machines of their own use the same ports: one that is down will be where the others are.
    alike = {tuple(sorted((kind, at[1]) for kind, at in place.ports.items())) for place in places}
    hosts = [name.partition("@")[2] for name in (*(place.name for place in places), *unknown)]
    if len(alike) == 1 and len(set(hosts)) == len(hosts):
        ports = dict(alike.pop())
        places += [
            Place(name, {kind: (name.partition("@")[2], port) for kind, port in ports.items()})
            for name in unknown
        ]
        unknown = []
    return sorted(places, key=lambda place: place.name), unknown


def config(cluster: str, places: list[Place], front: Front, warnings: list[str]) -> str:
    """The file."""
    head = [
        f"# HAProxy in front of MirrorMQ's cluster {cluster}, as `mirrormq ctl haproxy_config` printed it."
    ]
    head += [f"# Note: {warning}." for warning in warnings]
    parts = [
        "\n".join(head),
        _DEFAULTS.format(maxconn=f"\n    maxconn {front.maxconn}" if front.maxconn else ""),
    ]
    parts += _relay("amqp", front.amqp, AMQP, places, front)
    parts += _relay("amqps", front.amqps, AMQPS, places, front)
    parts += _management(places, front)
    if front.stats:
        bind = (
            f"    bind {front.stats}\n    mode http\n    stats enable\n    stats uri /\n    stats refresh 5s"
        )
        parts.append(f"frontend stats\n{bind}")
    return "\n\n".join(parts) + "\n"


def _relay(name: str, bind: str, protocol: str, places: list[Place], front: Front) -> list[str]:
    """Bytes as they are, to the node with the fewest connections."""
    found = [place for place in places if protocol in place.ports]
    if not bind or not found:
        return []
    lines = [
        f"listen {name}",
        f"    bind {bind}{' accept-proxy' if front.is_proxied else ''}",
        "    mode tcp",
        "    option tcplog",
        "    option clitcpka",
        "    balance leastconn",
        *([_CHECK] if is_asked(places) else []),
    ]
    for place in found:
        words = ["server", _word(place.name), _joined(place.ports[protocol]), "check"]
        if is_asked(places):
            kind = HTTP if HTTP in place.ports else HTTPS
            host, port = place.ports[kind]
            words += [
                "addr",
                host,
                "port",
                str(port),
                *(["check-ssl", "verify", "none"] if kind == HTTPS else []),
            ]
        if front.sends_proxy:
            words.append("send-proxy-v2")
        lines.append("    " + " ".join(words))
    return ["\n".join(lines)]


def is_asked(places: list[Place]) -> bool:
    """Can every node be asked whether it takes clients?"""
    return all(HTTP in place.ports or HTTPS in place.ports for place in places)


def _management(places: list[Place], front: Front) -> list[str]:
    """A browser stays with one node; the client's address goes with each request."""
    found = [place for place in places if HTTP in place.ports or HTTPS in place.ports]
    if not front.management or not found:
        return []
    servers = []
    for place in found:
        secured = "" if HTTP in place.ports else " ssl verify none"
        at = _joined(place.ports[HTTPS if secured else HTTP])
        servers.append(f"    server {_word(place.name)} {at} check{secured}")
    lines = [
        "listen management",
        f"    bind {front.management}{' accept-proxy' if front.is_proxied else ''}",
        "    mode http",
        "    option httplog",
        "    option forwardfor",
        "    balance source",
        _CHECK,
        *servers,
    ]
    return ["\n".join(lines)]


def _address(node: str, entry: dict[str, Any]) -> tuple[str, int]:
    """Where others reach a listener: its interface, or the node's host if it listens on all."""
    interface = str(entry["interface"]).strip("[]")
    host = node.partition("@")[2] if interface in EVERYWHERE else interface
    return host, int(entry["port"])


def _joined(at: tuple[str, int]) -> str:
    host, port = at
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _word(name: str) -> str:
    """A name as HAProxy allows it."""
    return re.sub(r"[^A-Za-z0-9_.:-]", "_", name)


def _bind(text: str) -> str:
    """`5672`, `host:5672` or `off`; checked here, because HAProxy's complaint would name a line."""
    if text == OFF:
        return ""
    host, colon, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536 or (colon and not host):
        raise Misuse(f"'{text}' is no place to listen: give a port, host:port, or off.")
    return text if host else f"*:{port}"
