"""rabbitmq-diagnostics about the node and its machine: alarms, log, memory, environment, interfaces."""

from __future__ import annotations

import json
import threading
from typing import Annotated, Any

import typer

from mirrormq.ctl.commands.nodes import POLL_SECONDS, running_status
from mirrormq.ctl.faults import Failure, Misuse
from mirrormq.ctl.registry import CONFIGURATION, MONITORING, command, session_of
from mirrormq.ctl.session import Session

UNITS = {"bytes": 1, "kb": 1_000, "mb": 1_000_000, "gb": 1_000_000_000, "tb": 1_000_000_000_000}
FAMILIES = ("ipv4", "ipv6")


@command(MONITORING)
def alarms(ctx: typer.Context) -> None:
    """List the memory and disk alarms of all nodes that are in effect."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Asking node {name} to report any known resource alarms ...")
    found = session.call("cluster_status")["alarms"]
    local = [entry for entry in found if entry["node"] == name]
    if session.is_json:
        others = [entry for entry in found if entry["node"] != name]
        session.finish(None, **{"local": local, "global": others})
    elif not found:
        session.write(f"Node {name} reported no alarms, local or clusterwide")
    else:
        session.table(found, ("resource", "node"))


@command(MONITORING)
def is_running(ctx: typer.Context) -> None:
    """Say whether the node is fully started and serves clients."""
    session = session_of(ctx)
    session.say(f"Asking node {session.node_name} for its status ...")
    state = session.call("status").get("app", "running")
    words = (
        "is fully booted and running" if state == "running" else "is not running or has not fully booted yet"
    )
    session.finish(f"MirrorMQ on node {session.node_name} {words}", running=state == "running")


@command(MONITORING)
def is_booting(ctx: typer.Context) -> None:
    """Say whether the node's application is starting."""
    session = session_of(ctx)
    session.say(f"Asking node {session.node_name} for its boot status ...")
    state = session.call("status").get("app", "running")
    words = "is booting" if state == "starting" else f"is not booting: it is {state}"
    session.finish(f"MirrorMQ on node {session.node_name} {words}", booting=state == "starting")


# --- log ---


@command(CONFIGURATION, "[--all|-a]")
def log_location(
    ctx: typer.Context,
    _all: Annotated[bool, typer.Option("--all", "-a", help="accepted: a node has one log")] = False,
) -> None:
    """Show where the node writes its log."""
    session = session_of(ctx)
    files = session.call("status")["log_files"]
    session.finish("\n".join(files), paths=files)


@command(MONITORING, "[--number|-N <number>]")
def log_tail(
    ctx: typer.Context,
    number: Annotated[int, typer.Option("--number", "-N", help="how many lines", min=1)] = 50,
) -> None:
    """Show the last lines of the node's log file."""
    session = session_of(ctx)
    session.say(f"Last {number} log lines on node {session.node_name} ...")
    found = session.call("log_tail", lines=number)
    if session.is_json:
        session.finish(file=found["file"], lines=found["lines"])
        return
    for line in found["lines"]:
        session.write(line)


@command(MONITORING, "[--duration|-d <seconds>]")
def log_tail_stream(
    ctx: typer.Context,
    duration: Annotated[
        float | None, typer.Option("--duration", "-d", help="stop after so many seconds", min=0)
    ] = None,
) -> None:
    """Show what the node writes to its log file from now on, until Ctrl-C."""
    session = session_of(ctx)
    session.say(f"Streaming logs from node {session.node_name} ...")
    offset = session.call("log_tail", lines=0)["offset"]
    looks = None if duration is None else max(1, int(duration / POLL_SECONDS))
    while looks is None or looks > 0:
        found = session.call("log_tail", offset=offset)
        offset = found["offset"]
        for line in found["lines"]:
            session.write(json.dumps({"line": line}, ensure_ascii=False) if session.is_json else line)
        session.out.flush()
        looks = None if looks is None else looks - 1
        # A file grows without telling: there is nothing to wait on.
        threading.Event().wait(POLL_SECONDS)


# --- memory and settings ---


@command(MONITORING, "[--unit <unit>]")
def memory_breakdown(
    ctx: typer.Context,
    unit: Annotated[str, typer.Option("--unit", help="bytes, kb, mb, gb or tb")] = "gb",
) -> None:
    """Show what the node's memory is used for, as far as it is known."""
    if unit.lower() not in UNITS:
        raise Misuse(f"unit '{unit}' is not known; there are {', '.join(UNITS)}.")
    session = session_of(ctx)
    session.say(f"Reporting memory breakdown on node {session.node_name}...")
    found = session.call("memory_breakdown")
    if session.is_json:
        session.write_json(found)
        return
    total = max(1, found.pop("total"))
    found.pop("limit")
    shown = unit.lower()
    rows = [
        {
            "category": name,
            "used": f"{used:d}" if shown == "bytes" else f"{used / UNITS[shown]:.4f}",
            "unit": shown,
            "percent": f"{100 * used / total:.2f}",
        }
        for name, used in sorted(found.items(), key=lambda item: -item[1])
    ]
    if session.is_for_machines:
        session.table(rows, ("category", "used", "unit", "percent"))
        return
    for row in rows:
        session.write(f"{row['category']}: {row['used']} {row['unit']} ({row['percent']}%)")


@command(CONFIGURATION)
def command_line_arguments(ctx: typer.Context) -> None:
    """Show the command line the node was started with; secrets are left out."""
    session = session_of(ctx)
    words = session.call("command_line_arguments")
    session.finish("\n".join(words), arguments=words)


@command(CONFIGURATION)
def os_env(ctx: typer.Context) -> None:
    """List the environment variables of the node that begin with MIRRORMQ_ or RABBITMQ_."""
    session = session_of(ctx)
    session.say(f"Listing MirrorMQ-specific environment variables defined on node {session.node_name}...")
    rows = session.call("os_env")
    if session.is_for_machines:
        session.table(rows, ("name", "value"))
        return
    for row in rows:
        session.write(f"{row['name']}={row['value']}")


@command(MONITORING)
def list_network_interfaces(ctx: typer.Context) -> None:
    """List the network interfaces of the node's machine with their addresses."""
    session = session_of(ctx)
    session.say(f"Asking node {session.node_name} to report its network interfaces ...")
    session.table(session.call("list_network_interfaces"), ("interface", "addresses"))


@command(CONFIGURATION, "<hostname> [--address-family <ipv4 | ipv6>]")
def resolve_hostname(
    ctx: typer.Context,
    hostname: str,
    *,
    family: Annotated[
        str | None, typer.Option("--address-family", help="ipv4 or ipv6; both if not given")
    ] = None,
) -> None:
    """Ask the node for the addresses of a host name."""
    if family is not None and family.lower() not in FAMILIES:
        raise Misuse(f"address family '{family}' is not known; there are {' and '.join(FAMILIES)}.")
    session = session_of(ctx)
    session.say(f"Resolving hostname {hostname} on node {session.node_name} ...")
    found = session.call("resolve_hostname", name=hostname, family=family and family.lower())
    session.finish("\n".join(found), addresses=found)


@command(MONITORING)
def discover_peers(ctx: typer.Context) -> None:
    """List the nodes with which the node was told to form a cluster."""
    session = session_of(ctx)
    session.say(f"Discovering peers nodes of {session.node_name} ...")
    listed: Any = session.call("environment").get("cluster_nodes") or []
    names = [str(name) for name in listed]
    if session.is_json:
        session.finish(nodes=names)
    elif names:
        session.write("\n".join(names))
    else:
        session.write("No peers are listed: the node was made to be alone, or joined by join_cluster.")


def need_listener(session: Session, *protocols: str) -> dict[str, Any]:
    """The first listener for one of these protocols, the first protocol first."""
    entries = running_status(session)["listeners"]
    for protocol in protocols:
        for entry in entries:
            if entry["protocol"] == protocol:
                return dict(entry)
    raise Failure(f"node {session.node_name} has no listener for {' or '.join(protocols)}")
