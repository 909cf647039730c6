"""Health checks of rabbitmq-diagnostics: exit code 0 if the node is well, 69 if not."""

from __future__ import annotations

import socket
from typing import Any

import typer

from mirrormq.ctl.commands.nodes import running_status
from mirrormq.ctl.faults import Failure
from mirrormq.ctl.registry import MONITORING, command, session_of


@command(MONITORING)
def check_running(ctx: typer.Context) -> None:
    """Check that the node is fully started and serves clients."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Checking if MirrorMQ is running on node {name} ...")
    if session.call("status").get("app", "running") != "running":
        raise Failure(f"MirrorMQ on node {name} is not running or has not fully booted yet")
    session.finish(f"MirrorMQ on node {name} is fully booted and running")


@command(MONITORING)
def check_local_alarms(ctx: typer.Context) -> None:
    """Check that the node has raised no memory or disk alarm."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Asking node {name} to report any local resource alarms ...")
    alarms = running_status(session)["alarms"]
    if alarms:
        raise Failure(f"Node {name} reported the following local alarms: {', '.join(alarms)}")
    session.finish(f"Node {name} reported no local alarms")


@command(MONITORING)
def check_alarms(ctx: typer.Context) -> None:
    """Check that no node of the cluster has raised a memory or disk alarm."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Asking node {name} to report any known resource alarms ...")
    found = session.call("cluster_status")["alarms"]
    alarms = [f"{entry['resource']} on {entry['node']}" for entry in found]
    if alarms:
        raise Failure(f"Node {name} reported the following alarms: {', '.join(alarms)}")
    session.finish(f"Node {name} reported no alarms, local or clusterwide")


@command(MONITORING)
def check_virtual_hosts(ctx: typer.Context) -> None:
    """Check that all virtual hosts serve clients."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Checking if all vhosts are running on node {name} ...")
    down = [row["name"] for row in session.call("list_vhosts") if row["cluster_state"].get(name) != "running"]
    if down:
        raise Failure(f"Some virtual hosts on node {name} are down: {', '.join(down)}")
    session.finish(f"Node {name} reported all vhosts as running")


@command(MONITORING, "<port>")
def check_port_listener(ctx: typer.Context, port: int) -> None:
    """Check that the node listens on a port."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Asking node {name} if there's an active listener on port {port} ...")
    ports = sorted({entry["port"] for entry in running_status(session)["listeners"]})
    if port not in ports:
        raise Failure(
            f"No listener for port {port} is active on node {name}. "
            f"Found listeners that use the following ports: {', '.join(map(str, ports))}"
        )
    session.finish(f"A listener for port {port} is running on node {name}.")


@command(MONITORING, "<protocol>")
def check_protocol_listener(ctx: typer.Context, protocol: str) -> None:
    """Check that the node has a listener for a protocol (amqp, amqp/ssl, http ...)."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Asking node {name} if there's an active listener for protocol {protocol} ...")
    found = sorted({entry["protocol"] for entry in running_status(session)["listeners"]})
    wanted = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqps": "amqp/ssl"}.get(protocol, protocol)
    if wanted not in found:
        raise Failure(
            f"No listener for protocol {protocol} is active on node {name}. "
            f"Found listeners for the following protocols: {', '.join(found)}"
        )
    session.finish(f"A listener for protocol {protocol} is running on node {name}.")


@command(MONITORING, "[--address <address>]")
def check_port_connectivity(ctx: typer.Context) -> None:
    """Check that every port the node listens on accepts a TCP connection from here."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Testing TCP connections to all active listeners on node {name} ...")
    entries = running_status(session)["listeners"]
    failed = [entry for entry in entries if not _accepts(entry, session.timeout)]
    if failed:
        ports = ", ".join(str(entry["port"]) for entry in failed)
        raise Failure(f"Connection attempts failed on node {name}, ports: {ports}; is a firewall in the way?")
    ports = ", ".join(str(port) for port in sorted({entry["port"] for entry in entries}))
    session.finish(f"Successfully connected to ports {ports} on node {name}.", listeners=entries)


@command(MONITORING, is_hidden=True)
def node_health_check(ctx: typer.Context) -> None:
    """Check alarms and virtual hosts (RabbitMQ deprecates it; use the check_* commands)."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Checking health of node {name} ...")
    alarms = running_status(session)["alarms"]
    if alarms:
        raise Failure(f"Health check failed: resource alarms {', '.join(alarms)} are in effect")
    session.finish("Health check passed")


def _accepts(entry: dict[str, Any], seconds: float) -> bool:
    interface = entry["interface"].strip("[]")
    hosts = ("127.0.0.1", "::1") if interface in ("::", "0.0.0.0") else (interface,)
    for host in hosts:
        try:
            socket.create_connection((host, entry["port"]), timeout=min(seconds, 10.0)).close()
        except OSError:
            continue
        return True
    return False
