"""rabbitmq-queues and rabbitmq-upgrade: the copies of a queue, and waiting until a node may be stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated, Any

import typer

from mirrormq.ctl.commands.nodes import POLL_SECONDS
from mirrormq.ctl.faults import Failure
from mirrormq.ctl.registry import CLUSTER, MONITORING, command, session_of
from mirrormq.ctl.session import Session

WAIT_SECONDS = 120.0
"""How long an upgrade waits for copies, unless a time is given."""
COLUMNS = ("node", "role", "state", "progress", "lag")


@command(MONITORING, "[--vhost <vhost>] <queue>")
def quorum_status(ctx: typer.Context, queue: Annotated[str, typer.Argument(metavar="QUEUE")]) -> None:
    """Show who has a copy of a mirrored queue, who is its master, and how far each copy is."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f"Status of queue {queue} on node {session.node_name} ...")
    found = session.call("sync_status", vhost=vhost, name=queue)
    session.table(copies(found), COLUMNS)


def copies(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each copy, the master's first."""
    mirrors = {row["node"]: row for row in found["mirrors"] or ()}
    names = [
        found["master"],
        *sorted({*mirrors, *found["in_sync"], *found["unsynchronised"]} - {found["master"]}),
    ]
    return [
        {
            "node": name,
            "role": "master" if name == found["master"] else "mirror",
            "state": mirrors.get(name, {}).get("state", "in-sync" if name in found["in_sync"] else "unknown"),
            "progress": 100 if name in found["in_sync"] else mirrors.get(name, {}).get("progress"),
            "lag": mirrors.get(name, {}).get("lag"),
        }
        for name in names
    ]


@command(CLUSTER)
def await_online_quorum_plus_one(ctx: typer.Context) -> None:
    """Wait until this node can stop and the cluster keeps its majority, and quorum queues their copies."""
    session = session_of(ctx)
    session.say(f"Will wait until node {session.node_name} is not needed for any quorum ...")

    def what_is_missing(found: dict[str, Any]) -> str:
        if found["is_majority_critical"]:
            return "without it the cluster has no majority"
        return (
            f"it has the only copy in sync of {len(found['quorum'])} quorum queues" if found["quorum"] else ""
        )

    _await(session, what_is_missing)


@command(CLUSTER)
def await_online_synchronized_mirror(ctx: typer.Context) -> None:
    """Wait until every mirrored queue of this node has another copy in sync."""
    session = session_of(ctx)
    session.say(
        f"Will wait until every mirrored queue of node {session.node_name} has another copy in sync ..."
    )

    def what_is_missing(found: dict[str, Any]) -> str:
        count = len(found["mirrored"])
        return f"it has the only copy in sync of {count} mirrored queues" if count else ""

    _await(session, what_is_missing)


def _await(session: Session, what_is_missing: Callable[[dict[str, Any]], str]) -> None:
    seconds = session.options.timeout or WAIT_SECONDS
    missing = ""
    for _ in range(max(1, int(seconds / POLL_SECONDS))):
        found = session.call("check_critical")
        missing = "" if found["is_single"] else what_is_missing(found)
        if not missing:
            session.finish(f"Node {session.node_name} can stop")
            return
        # Mirrors catch up by themselves: there is nothing to wait on but what the node tells of them.
        threading.Event().wait(POLL_SECONDS)
    raise Failure(f"node {session.node_name} cannot stop yet after {seconds:g} s: {missing}")
