"""For whoever helps others: everything about a node in one text, names of commands, waiting by a pid file."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from mirrormq.ctl.commands import cluster, listings, nodes
from mirrormq.ctl.faults import SOFTWARE, Failure, Misuse
from mirrormq.ctl.locate import is_alive
from mirrormq.ctl.registry import COMMANDS, HELP, MONITORING, NODES, command, session_of
from mirrormq.ctl.session import Session

PER_VHOST = (
    "list_queues",
    "list_exchanges",
    "list_bindings",
    "list_consumers",
    "list_permissions",
    "list_policies",
)
WIDE = ("list_vhosts", "list_users", "list_connections", "list_channels", "list_feature_flags")
COLUMNS: dict[str, tuple[str, ...]] = {
    "list_queues": (
        "name",
        "type",
        "state",
        "node",
        "messages",
        "consumers",
        "policy",
        "in_sync",
        "unsynchronised",
    ),
    "list_exchanges": listings.EXCHANGES,
    "list_bindings": listings.BINDINGS,
    "list_consumers": listings.CONSUMERS,
    "list_permissions": ("user", "configure", "write", "read"),
    "list_policies": ("name", "pattern", "apply-to", "definition", "priority"),
    "list_vhosts": ("name", "description", "tags"),
    "list_users": ("user", "tags"),
    "list_connections": ("pid", "user", "vhost", "peer_host", "peer_port", "state", "channels"),
    "list_channels": ("pid", "user", "vhost", "consumer_count", "messages_unacknowledged"),
    "list_feature_flags": ("name", "state"),
}


@command(MONITORING)
def report(ctx: typer.Context) -> None:
    """Show status, cluster, settings and all lists of a node, for somebody who is to help; no secrets."""
    session = session_of(ctx)
    found = {name: session.call(name) for name in ("status", "cluster_status", "environment", *WIDE)}
    vhosts = [row["name"] for row in found["list_vhosts"]]
    lists = {vhost: {name: session.call(name, vhost=vhost) for name in PER_VHOST} for vhost in vhosts}
    if session.is_json:
        session.write_json({**found, "vhosts": lists})
        return
    session.write(f"Reporting server status of node {found['status']['node']} ...\n")
    running = found["status"].get("app", "running") == "running"
    session.write(nodes.status_text(found["status"]))
    if running:
        session.write("\n" + cluster.status_text(found["cluster_status"]))
    settings: dict[str, Any] = found["environment"]
    session.write("\nSettings\n\n" + "\n".join(f"{name} = {settings[name]}" for name in sorted(settings)))
    for name in WIDE:
        _list(session, name, "", found[name])
    for vhost, of in lists.items():
        for name, rows in of.items():
            _list(session, name, f" of virtual host {vhost}", rows)


def _list(session: Session, name: str, whose: str, rows: list[dict[str, Any]]) -> None:
    session.write(f"\n{name.removeprefix('list_').replace('_', ' ').capitalize()}{whose}\n")
    if rows:
        session.table(rows, COLUMNS[name])
    else:
        session.write("(none)")


@command(HELP, "[prefix]")
def autocomplete(ctx: typer.Context, prefix: Annotated[str, typer.Argument(metavar="[PREFIX]")] = "") -> None:
    """List the commands that begin with some letters; `mirrormq completion` has the scripts for shells."""
    session = session_of(ctx)
    names = sorted(name for name in COMMANDS if name.startswith(prefix))
    if session.is_json:
        session.write_json(names)
    elif names:
        session.write("\n".join(names))


@command(NODES, "[<pidfile>] [--pid|-P <pid>] [--timeout <timeout>]")
def wait(
    ctx: typer.Context,
    pidfile: Annotated[str | None, typer.Argument(metavar="[PIDFILE]")] = None,
    *,
    pid: Annotated[int | None, typer.Option("--pid", "-P", help="process to wait for")] = None,
) -> None:
    """Wait until the node has started whose process is given by a file or a number."""
    if (pidfile is None) == (pid is None):
        raise Misuse("give either a pid file or --pid.")
    session = session_of(ctx)
    limit = session.options.timeout or nodes.STARTUP_SECONDS
    failure: Failure | None = None
    for _ in range(max(1, int(limit / nodes.POLL_SECONDS))):
        process = pid if pid is not None else _read(str(pidfile))
        if process is not None:
            if not is_alive(process):
                raise Failure(f"process {process} is not running")
            failure = nodes.try_running(session)
            if failure is None:
                session.finish()
                return
        # Another process starts: there is nothing to wait on but its files and port.
        threading.Event().wait(nodes.POLL_SECONDS)
    why = failure.text if failure else f"{pidfile} names no process"
    raise Failure(f"the node did not start within {limit:g} seconds: {why}", SOFTWARE)


def _read(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        return None
