"""Mirrored queues: synchronise them, move their masters, promote by force, and ask before stopping a node.

`sync_queue` waits until every mirror that is there has everything, with a bar on a terminal; rabbitmqctl's
returns at once, as `--no-wait` does here.
"""

from __future__ import annotations

import threading
from typing import Annotated, Any

import typer

from mirrormq.ctl.faults import USAGE, Failure
from mirrormq.ctl.progress import Show, bars
from mirrormq.ctl.registry import MONITORING, QUEUES, command, session_of
from mirrormq.ctl.session import Session

POLL_SECONDS = 0.2
PATIENT_SECONDS = 620.0
"""How long a move is waited for: the new master may have to be synchronised first."""

Queue = Annotated[str, typer.Argument(metavar="QUEUE")]


@command(QUEUES, "[--vhost <vhost>] [--no-wait] <queue>")
def sync_queue(
    ctx: typer.Context,
    queue: Queue,
    *,
    is_impatient: Annotated[bool, typer.Option("--no-wait", help="begin it and return")] = False,
) -> None:
    """Copy everything in a mirrored queue to its mirrors that are not in sync, and wait until it is done."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f"Synchronising queue '{queue}' in vhost '{vhost}' ...")
    begun = session.call("sync_queue", vhost=vhost, name=queue)
    if not begun["unsynchronised"]:
        session.finish("All mirrors are in sync already", unsynchronised=[])
        return
    if is_impatient:
        names = ", ".join(begun["unsynchronised"])
        session.finish(f"Begun for {names}", unsynchronised=begun["unsynchronised"])
        return
    with bars(session) as show:
        last = _wait(session, queue, show)
    in_sync = last["in_sync"]
    session.finish(f"In sync: {', '.join(in_sync)}", in_sync=in_sync, unsynchronised=[])


@command(QUEUES, "[--vhost <vhost>] <queue>")
def cancel_sync_queue(ctx: typer.Context, queue: Queue) -> None:
    """Stop copying to mirrors that are not in sync; what they have stays, and sync_queue goes on with it."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f"Stopping synchronising queue '{queue}' in vhost '{vhost}' ...")
    session.call("cancel_sync_queue", vhost=vhost, name=queue)
    session.finish()


@command(QUEUES, "[--vhost <vhost>] [--node <node>] <queue>", own=("--node",))
def repair_queue(
    ctx: typer.Context,
    queue: Queue,
    *,
    node: Annotated[str, typer.Option("--node", help="whose copy; the master's if not given")] = "",
) -> None:
    """Have a node fetch its copy of a mirrored queue anew from the others, as after a damage found by
    verify_log; nothing is lost.
    """
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f"Repairing queue '{queue}' in vhost '{vhost}' ...")
    done = session.call("repair_queue", vhost=vhost, name=queue, node=node)
    text = f"Node {done['node']} fetches its copy anew; list_queues shows when it is in sync"
    session.finish(text, node=done["node"])


@command(QUEUES, "[--vhost <vhost>] <queue> <node>")
def move_master(
    ctx: typer.Context, queue: Queue, node: Annotated[str, typer.Argument(metavar="NODE")]
) -> None:
    """Make another node with a copy in sync the master of a queue; nothing is lost."""
    session = session_of(ctx)
    session.be_patient(PATIENT_SECONDS)
    vhost = session.options.vhost
    session.say(f"Moving queue '{queue}' in vhost '{vhost}' to node {node} ...")
    moved = session.call("move_master", vhost=vhost, name=queue, node=node)
    if moved["from"] == moved["master"]:
        session.finish(f"Node {node} is its master already", master=node)
    else:
        session.finish(
            f"Moved from node {moved['from']} to node {node}", master=node, **{"from": moved["from"]}
        )


@command(QUEUES, "[--vhost <vhost>] [--node <node>] [--yes] <queue>", own=("--node",))
def force_promote(
    ctx: typer.Context,
    queue: Queue,
    *,
    node: Annotated[str, typer.Option("--node", help="whose copy; the best one if not given")] = "",
    is_sure: Annotated[bool, typer.Option("--yes", help="do it although messages are lost")] = False,
) -> None:
    """Give a queue without a master to a node that is there, at the price of what its copy lacks."""
    session = session_of(ctx)
    vhost = session.options.vhost
    wanted = {"vhost": vhost, "name": queue, "node": node}
    plan = session.call("force_promote", **wanted, plan=True)
    is_json = session.is_json
    if not is_json:
        for line in plan_lines(queue, plan):
            session.write(line)
    if plan["lossy"] and not is_sure and not is_json:
        raise Failure("nothing was done; give --yes to accept the loss", USAGE)
    done = session.call("force_promote", **wanted, accept_loss=plan["lossy"])
    session.finish(f"Node {done['node']} is the master of queue '{queue}' now", **done)


def plan_lines(queue: str, plan: dict[str, Any]) -> list[str]:
    """What a promotion by force would do, for people."""
    node = plan["node"]
    waits = ", ".join(plan["waits_for"]) or "(none; all of them were forgotten)"
    lines = [f"Queue '{queue}' would go to node {node}."]
    if not plan["lossy"]:
        return [*lines, f"Node {node} has a copy in sync: no persistent message that was confirmed is lost."]
    lines.append("LOSS: everything is lost that this node's copy lacks, confirmed messages included.")
    lines.append(
        "If a node that has it comes back later, the policy key ha-salvage says what is done with it."
    )
    lines.append(f"Nodes with a copy in sync, none of which is there: {waits}. To lose nothing, start one.")
    for row in plan["copies"]:
        state = "complete" if row["is_complete"] else f"copied {row['copied']} of {row['copied_of']}"
        lines.append(f"Copy on node {row['node']}: {state}, last record {row['end']}.")
    if not any(row["node"] == node for row in plan["copies"]):
        lines.append(f"Node {node} did not say what its copy has.")
    return lines


@command(MONITORING)
def check_if_node_is_mirror_sync_critical(ctx: typer.Context) -> None:
    """Check that this node can stop without a mirrored queue being left without a copy in sync."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Checking if node {name} is critical for any mirrored queue ...")
    found = session.call("check_critical")
    if found["is_single"]:
        session.finish(f"Node {name} is alone in its cluster: nothing can be mirrored")
        return
    if found["mirrored"]:
        raise Failure(
            f"Node {name} has the only copy in sync of {_listed(found['mirrored'])}; sync_queue makes another"
        )
    session.finish(f"Every mirrored queue of node {name} has another copy in sync")


@command(MONITORING)
def check_if_node_is_quorum_critical(ctx: typer.Context) -> None:
    """Check that this node can stop and the cluster keeps its majority, and quorum queues their copies."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Checking if node {name} is critical for a quorum ...")
    found = session.call("check_critical")
    if found["is_single"]:
        session.finish(f"Node {name} is alone in its cluster: there is no quorum to lose")
        return
    if found["is_majority_critical"]:
        raise Failure(f"Without node {name} the cluster has no majority; cluster_status shows who is missing")
    if found["quorum"]:
        raise Failure(f"Node {name} has the only copy in sync of {_listed(found['quorum'])}")
    session.finish(f"Node {name} can stop: the cluster keeps its majority, and every quorum queue a copy")


def _listed(rows: list[dict[str, Any]]) -> str:
    few = ", ".join(row["readable_name"] for row in rows[:5])
    return few if len(rows) <= 5 else f"{few} and {len(rows) - 5} more"


def _wait(session: Session, queue: str, show: Show) -> dict[str, Any]:
    """Look until nobody is left behind; a sync that stands still for the timeout is given up."""
    polls = max(1, int(session.timeout / POLL_SECONDS))
    seen: Any = None
    idle = 0
    while idle < polls:
        found: dict[str, Any] = session.call("sync_status", vhost=session.options.vhost, name=queue)
        _show(show, found)
        if not found["unsynchronised"]:
            return found
        now = (found["epoch"], found["mirrors"])
        idle = idle + 1 if now == seen else 0
        seen = now
        # Only the master knows how far it is: there is nothing to wait on.
        threading.Event().wait(POLL_SECONDS)
    behind = ", ".join(found["unsynchronised"])
    raise Failure(
        f"no progress for {session.timeout:g} s; not in sync: {behind}. It goes on by itself if it can; "
        "list_queues name state mirrors shows how far it is"
    )


def _show(show: Show, found: dict[str, Any]) -> None:
    """A bar for each mirror that is, or was, behind."""
    behind = set(found["unsynchronised"])
    for row in found["mirrors"] or ():
        done = row["progress"] or 0 if row["node"] in behind else 100
        if row["node"] in behind or row["node"] in found["in_sync"]:
            show(row["node"], done, 100)
