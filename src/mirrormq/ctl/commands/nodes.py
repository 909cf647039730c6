"""The node itself: status, settings, starting and stopping."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import Annotated, Any

import typer

from mirrormq.client.admin import AdminClient, Refused, Unreachable
from mirrormq.ctl.faults import NO_PERMISSION, USAGE, Failure, Misuse
from mirrormq.ctl.registry import CONFIGURATION, HELP, MONITORING, NODES, command, session_of
from mirrormq.ctl.session import Session

STARTUP_SECONDS = 300.0
POLL_SECONDS = 0.1
GB = 1_000_000_000


@command(MONITORING, "[--unit <unit>]")
def status(
    ctx: typer.Context,
    _unit: Annotated[str, typer.Option("--unit", help="accepted; sizes are shown in GB")] = "gb",
) -> None:
    """Show the status of the node."""
    session = session_of(ctx)
    found = session.call("status")
    if session.is_json:
        session.write_json(found)
        return
    session.say(f"Status of node {found['node']} ...")
    session.write(status_text(found))


@command(MONITORING)
def ping(ctx: typer.Context) -> None:
    """Check that the node runs and accepts this tool's key."""
    session = session_of(ctx)
    timeout_ms = int(session.timeout * 1000)
    name = session.options.node or session.url or "the node"
    if session.url is None:
        try:
            name = session.local_node().name
        except Failure as failure:
            raise Failure(f"Failed to connect and authenticate: {failure.text}") from None
    session.say(f"Will ping {name}. This only checks that the process answers. Timeout: {timeout_ms} ms.")
    try:
        session.call("ping")
    except Failure as failure:
        raise Failure(
            f"Failed to connect and authenticate to {name} in {timeout_ms} ms: {failure.text}"
        ) from None
    session.finish("Ping succeeded")


@command(CONFIGURATION)
def environment(ctx: typer.Context) -> None:
    """Show every setting of the node with its value; secrets are left out."""
    session = session_of(ctx)
    session.say(f"Application environment of node {session.node_name} ...")
    found = session.call("environment")
    if session.is_json:
        session.write_json(found)
        return
    for name in sorted(found):
        session.write(f"{name} = {_setting(found[name])}")


@command(CONFIGURATION, "<name>")
def set_cluster_name(ctx: typer.Context, name: str) -> None:
    """Set the name of the cluster, which clients see."""
    session = session_of(ctx)
    session.say(f"Setting cluster name to {name} ...")
    session.call("set_global_parameter", name="cluster_name", value=name)
    session.finish()


@command(NODES, "[<pidfile>] [--idempotent]")
def stop(
    ctx: typer.Context,
    _pidfile: Annotated[
        str | None, typer.Argument(metavar="[PIDFILE]", help="accepted; the node's own file is used")
    ] = None,
    idempotent: Annotated[bool, typer.Option("--idempotent", help="no error if it does not run")] = False,
) -> None:
    """Stop the node and wait until its process is gone."""
    session = session_of(ctx)
    try:
        pid = None if session.url is not None else session.local_node().pid
        name = session.node_name
    except Failure:
        if idempotent:
            if session.is_json:
                session.write_json({"result": "ok"})
            return
        raise
    session.say(f"Stopping and halting node {name} ...")
    gone = _watch(pid)
    session.call("stop", reason="mirrormqctl stop")
    if not gone(session.timeout):
        raise Failure(
            f"node {name} was told to stop but process {pid} still runs after {session.timeout:g} s; "
            "its log says what it waits for"
        )
    session.finish()


@command(NODES, "[--wait | --no-wait] [--timeout <timeout>]")
def shutdown(
    ctx: typer.Context,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="do not wait until it is gone")] = False,
    is_waiting: Annotated[bool, typer.Option("--wait", help="wait until it is gone, as without")] = False,
) -> None:
    """Stop the node; without --no-wait, wait until its process is gone."""
    if no_wait and is_waiting:
        raise Misuse("--wait and --no-wait exclude each other.")
    session = session_of(ctx)
    if not no_wait:
        stop(ctx)
        return
    session.say(f"Shutting down node {session.node_name} ...")
    session.call("stop", reason="mirrormqctl shutdown")
    session.finish()


@command(NODES, "[--timeout <timeout>]")
def await_startup(ctx: typer.Context) -> None:
    """Wait until the node runs and its application accepts clients."""
    session = session_of(ctx)
    limit = session.options.timeout or STARTUP_SECONDS
    failure: Failure | None = None
    for _ in range(max(1, int(limit / POLL_SECONDS))):
        failure = try_running(session)
        if failure is None:
            session.finish()
            return
        if failure.code == NO_PERMISSION:
            raise failure
        # Another process starts: there is nothing to wait on but its file and port.
        threading.Event().wait(POLL_SECONDS)
    raise Failure(f"the node did not start within {limit:g} seconds: {failure.text if failure else ''}")


@command(HELP)
def version(ctx: typer.Context) -> None:
    """Show the version of this tool."""
    from mirrormq import __version__

    session = session_of(ctx)
    if session.is_json:
        session.write_json({"result": "ok", "version": __version__})
    else:
        session.write(__version__)


@command(MONITORING)
def server_version(ctx: typer.Context) -> None:
    """Show the version of the node."""
    session = session_of(ctx)
    session.say(f"Asking node {session.node_name} for its version...")
    found = session.call("status")
    session.finish(found["mirrormq_version"])


@command(MONITORING)
def listeners(ctx: typer.Context) -> None:
    """List the protocols and ports the node listens on."""
    session = session_of(ctx)
    found = running_status(session)
    session.say(f"Asking node {found['node']} to report its protocol listeners ...")
    if session.is_json:
        session.finish(listeners=found["listeners"])
        return
    for line in listener_lines(found["listeners"]):
        session.write(line)


def status_text(found: dict[str, Any]) -> str:
    """`status` for people: rabbitmqctl's sections, those that mean something here and now."""
    descriptors = found["file_descriptors"]
    runtime = [
        f"OS PID: {found['pid']}",
        f"OS: {found['os']}",
        f"Application: {found.get('app', 'running')}",
        f"MirrorMQ version: {found['mirrormq_version']}",
        f"RabbitMQ version: {found['rabbitmq_version']} (whose behaviour it has)",
        f"Node name: {found['node']}",
        f"Python: {found['python_version']}",
    ]
    if found.get("app_detail"):
        runtime.insert(3, f"It says: {found['app_detail']}")
    if _is_running(found):
        runtime.insert(2, f"Uptime (seconds): {found['uptime_seconds']}")
        maintenance = found.get("maintenance") or {}
        runtime.insert(3, f"Is under maintenance?: {'true' if maintenance.get('is_drained') else 'false'}")
    body: list[tuple[str, list[str]]] = [
        ("Runtime", runtime),
        ("Data directory", [f"Node data directory: {found['data_directory']}"]),
        ("Config files", [f" * {path}" for path in found["config_files"]] or ["(none)"]),
        ("Log file(s)", [f" * {path}" for path in found["log_files"]]),
        ("File Descriptors", [f"Total: {descriptors['used']}, limit: {descriptors['limit']}"]),
        *(_app_sections(found) if _is_running(found) else ()),
        ("Listeners", listener_lines(found["listeners"])),
    ]
    return sections(body)


def _app_sections(found: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """What is known only while the application runs."""
    memory, disk, totals = found["memory"], found["disk"], found["totals"]
    return [
        ("Alarms", _alarms(found)),
        (
            "Memory",
            [
                f"Total memory used: {memory['used'] / GB:.4f} gb",
                f"Memory high watermark: {memory['limit'] / GB:.4f} gb",
            ],
        ),
        (
            "Free Disk Space",
            [
                f"Low free disk space watermark: {disk['limit'] / GB:.4f} gb",
                f"Free disk space: {disk['free'] / GB:.4f} gb",
            ],
        ),
        (
            "Totals",
            [
                f"Connection count: {totals['connections']}",
                f"Queue count: {totals['queues']}",
                f"Virtual host count: {totals['vhosts']}",
            ],
        ),
    ]


def sections(body: list[tuple[str, list[str]]]) -> str:
    """Titles with their lines, as rabbitmqctl shows them."""
    return "\n\n".join(f"{title}\n\n" + "\n".join(lines) for title, lines in body)


def _alarms(found: dict[str, Any]) -> list[str]:
    return [f"{alarm} alarm on node {found['node']}" for alarm in found["alarms"]] or ["(none)"]


def listener_lines(entries: list[dict[str, Any]]) -> list[str]:
    """Listeners, as rabbitmqctl shows them."""
    return [
        f"Interface: {entry['interface']}, port: {entry['port']}, "
        f"protocol: {entry['protocol']}, purpose: {entry['purpose']}"
        for entry in entries
    ]


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return "" if value is None else str(value)


def running_status(session: Session) -> dict[str, Any]:
    """`status` of a node whose application runs; refused otherwise, as rabbitmqctl refuses it."""
    found: dict[str, Any] = session.call("status")
    if not _is_running(found):
        raise Failure(_not_running(found), USAGE)
    return found


def _is_running(found: dict[str, Any]) -> bool:
    # A node of an older version is its application.
    return bool(found.get("app", "running") == "running")


def _not_running(found: dict[str, Any]) -> str:
    detail = f" ({found['app_detail']})" if found.get("app_detail") else ""
    cure = "run start_app" if found["app"] == "stopped" else "await_startup waits for it"
    return f"this node's application is {found['app']}{detail}; {cure}"


def try_running(session: Session) -> Failure | None:
    """One attempt to reach the node with fresh eyes: its file may have changed since the last one."""
    try:
        if session.url is not None:
            found = session.call("status")
        else:
            node = session.local_node()
            if node.http is None:
                return Failure(f"node {node.name} runs without its admin API")
            with AdminClient(node.http, key=node.key(), timeout=session.timeout) as client:
                found = client.ctl("status")
    except Failure as failure:
        return failure
    except (Unreachable, Refused) as error:
        return Failure(str(error))
    return None if _is_running(found) else Failure(_not_running(found))


def _watch(pid: int | None) -> Callable[[float], bool]:
    """Hold on to a process, so that its number cannot be reused; the result waits for its end."""
    if pid is None:
        return lambda _seconds: True
    try:
        handle = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return lambda _seconds: True

    def wait(seconds: float) -> bool:
        try:
            return bool(select.select([handle], [], [], seconds)[0])
        finally:
            os.close(handle)

    return wait
