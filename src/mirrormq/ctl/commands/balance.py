"""Where masters are: spread them over the nodes anew, and take nodes out of service for maintenance.

`rebalance` and `drain` wait until it is done, with a bar on a terminal, and can be interrupted: the node goes
on, `rebalance_status` and `status` show how far it is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from mirrormq.ctl.faults import DATA, NO_INPUT, UNAVAILABLE, Failure, Misuse
from mirrormq.ctl.registry import MONITORING, NODES, QUEUES, command, session_of
from mirrormq.ctl.session import Session

POLL_SECONDS = 0.2
KINDS = ("all", "classic", "quorum")
PLAN_COLUMNS = ("vhost", "name", "from", "to", "messages", "by")

Show = Callable[[int, int], None]


@command(
    QUEUES,
    "[all | classic | quorum] [--vhost-pattern <pattern>] [--queue-pattern <pattern>] [--strategy <strategy>]"
    " [--dry-run] [--move <queue>=<node> ...] [--plan <file>] [--no-wait] [--force]",
)
def rebalance(
    ctx: typer.Context,
    kind: Annotated[str, typer.Argument(metavar="TYPE")] = "all",
    *,
    vhosts: Annotated[str, typer.Option("--vhost-pattern", help="vhosts (a regular expression)")] = ".*",
    queues: Annotated[str, typer.Option("--queue-pattern", help="queues (a regular expression)")] = ".*",
    strategy: Annotated[
        str, typer.Option("--strategy", help="masters, connections, messages, random or round-robin")
    ] = "",
    moves: Annotated[list[str] | None, typer.Option("--move", help="QUEUE=NODE, in place of a plan")] = None,
    plan: Annotated[str | None, typer.Option("--plan", help="file made by --dry-run --json")] = None,
    is_trial: Annotated[bool, typer.Option("--dry-run", help="only show what would move")] = False,
    is_impatient: Annotated[bool, typer.Option("--no-wait", help="begin it and return")] = False,
    is_forced: Annotated[bool, typer.Option("--force", help="whatever cluster_rebalance says")] = False,
) -> None:
    """Spread the masters of queues evenly over the nodes; nothing is lost, and clients go on."""
    if kind not in KINDS:
        raise Misuse(f"type '{kind}' is not one of {', '.join(KINDS)}.")
    session = session_of(ctx)
    named = [*_named(session, moves or []), *_planned(plan)]
    session.say("Moving the masters that were named ..." if named else f"Rebalancing {kind} queues ...")
    wanted: dict[str, Any] = {"kind": kind, "vhost_pattern": vhosts, "queue_pattern": queues}
    wanted |= {"strategy": strategy, "moves": named, "plan": is_trial, "force": is_forced}
    begun = session.call("rebalance", **wanted)
    if is_trial:
        session.table(begun["moves"], PLAN_COLUMNS)
        return
    if begun["planned"] == 0:
        _finish(session, "Nothing to move: every node has its share", begun)
        return
    if is_impatient:
        session.finish(f"Begun: {begun['planned']} masters are to move", **begun)
        return
    with _shown(session, "masters moved") as show:
        _finish_run(session, _wait_run(session, begun, show))


@command(QUEUES)
def rebalance_status(ctx: typer.Context) -> None:
    """Show whether masters are being moved, by which node, and how far it is."""
    session = session_of(ctx)
    found = session.call("rebalance_status")
    if session.formatter == "json":
        session.write_json(found)
        return
    run = found["run"]
    done = f"{run['moved'] + run['failed']} of {run['planned']} done, {run['failed']} failed" if run else ""
    if found["running"]:
        session.write(f"Node {found['node']} is rebalancing: {done or 'it does not say how far'}")
    elif run:
        session.write(f"No rebalancing is under way. The last one of node {found['node']}: {done}")
    else:
        session.write("No rebalancing is under way")


@command(QUEUES)
def cancel_rebalance(ctx: typer.Context) -> None:
    """End the rebalancing under way; queues that have moved stay where they are."""
    session = session_of(ctx)
    session.say("Cancelling the rebalancing under way ...")
    found = session.call("cancel_rebalance")
    session.finish(f"Node {found['node']} moves no further masters", by=found["node"])


# --- maintenance ---


@command(NODES, "[--no-wait]")
def drain(
    ctx: typer.Context,
    is_impatient: Annotated[bool, typer.Option("--no-wait", help="begin it and return")] = False,
) -> None:
    """Put a node into maintenance: clients are sent away, masters go to other nodes, until `revive`."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Will put node {name} into maintenance mode: it will no longer serve any client traffic!")
    found = session.call("drain") if is_impatient else give_away(session)
    message = f"Node {name} is in maintenance"
    if found["masters"] and not is_impatient:
        if len(session.call("cluster_status")["members"]) > 1:
            raise Failure(
                f"{message}, but {left_over(found)}; they are tried again while it is in maintenance",
                UNAVAILABLE,
                "masters_left",
            )
        message += f"; it is alone in its cluster and keeps {found['masters']} queues"
    session.finish(message, masters=found["masters"])


@command(NODES)
def revive(ctx: typer.Context) -> None:
    """Bring a node back from maintenance; `rebalance` gives it masters again."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Will bring node {name} back from maintenance mode ...")
    found = session.call("revive")
    was_drained = found["was_drained"]
    text = "serves clients again" if was_drained else "was in service already"
    session.finish(f"Node {name} {text}", was_drained=was_drained)


@command(MONITORING)
def check_ready_to_serve_clients(ctx: typer.Context) -> None:
    """Check that the node takes clients: it is started, hears its cluster and is not in maintenance."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Checking if node {name} is ready to serve clients ...")
    found = session.call("status")
    if found.get("app", "running") != "running":
        raise Failure(f"MirrorMQ on node {name} is not running or has not fully booted yet")
    if (found.get("maintenance") or {}).get("is_drained"):
        raise Failure(f"Node {name} is in maintenance; `revive` brings it back")
    if not any(entry["protocol"].startswith("amqp") for entry in found["listeners"]):
        raise Failure(f"Node {name} has no open listener for clients; cluster_status says why")
    session.finish(f"Node {name} is ready to serve clients")


# --- shared ---


def _named(session: Session, moves: list[str]) -> list[tuple[str, str, str]]:
    found = []
    for text in moves:
        queue, equals, node = text.rpartition("=")
        if not equals or not queue or not node:
            raise Misuse(f"--move takes QUEUE=NODE, not '{text}'.")
        found.append((session.options.vhost, queue, node))
    return found


def _planned(path: str | None) -> list[tuple[str, str, str]]:
    """The moves of a plan that was written by --dry-run --json, and maybe changed since."""
    if path is None:
        return []
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
        return [(str(row["vhost"]), str(row["name"]), str(row["to"])) for row in rows]
    except OSError as error:
        raise Failure(f"--plan: {error}", NO_INPUT) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"--plan: {path} is no list of moves as --dry-run --json writes it", DATA) from error


def _wait_run(session: Session, begun: dict[str, Any], show: Show) -> dict[str, Any]:
    """Look until the run is over; a node that is not asked any more goes on with it."""
    while True:
        found = session.call("rebalance_status")
        run: dict[str, Any] = found["run"] or begun
        if run["number"] != begun["number"]:
            return begun  # another one has begun since: ours is over
        show(run["moved"] + run["failed"], run["planned"])
        if run["state"] == "done":
            return run
        # Only the node knows how far it is: there is nothing to wait on.
        threading.Event().wait(POLL_SECONDS)


def _finish_run(session: Session, run: dict[str, Any]) -> None:
    if run["cancelled"]:
        raise Failure(f"it was cancelled after {run['moved']} of {run['planned']} masters", kind="cancelled")
    if run["failed"]:
        first = run["problems"][0]
        raise Failure(
            f"{run['failed']} of {run['planned']} masters stay where they are:"
            f" queue '{first['name']}' in vhost '{first['vhost']}': {first['reason']}"
        )
    _finish(session, f"Moved {run['moved']} masters", run)


def _finish(session: Session, message: str, run: dict[str, Any]) -> None:
    if session.formatter == "json":
        session.finish(message, **run)
        return
    session.say(message)
    session.table(
        [{"node": name, "masters": run["masters"][name]} for name in sorted(run["masters"])],
        ("node", "masters"),
    )


def give_away(session: Session) -> dict[str, Any]:
    """Put the node into maintenance and wait; what is left there then nobody could take."""
    found = session.call("drain")
    with _shown(session, "masters given away") as show:
        return _wait_drained(session, found, show)


def _wait_drained(session: Session, found: dict[str, Any], show: Show) -> dict[str, Any]:
    """Look until nothing is left that somebody could take, or it stands still for the timeout."""
    polls = max(1, int(session.timeout / POLL_SECONDS))
    at_first = seen = found["masters"]
    idle = 0
    while found["is_drained"] and found["masters"] > found["stuck"] and idle < polls:
        threading.Event().wait(POLL_SECONDS)
        found = session.call("maintenance_status")
        show(at_first - found["masters"], at_first)
        idle = idle + 1 if found["masters"] == seen else 0
        seen = found["masters"]
    return found


def left_over(found: dict[str, Any]) -> str:
    """What a node in maintenance still has, for people."""
    text = f"{found['masters']} queues still have their masters there"
    if found["problems"]:
        first = found["problems"][0]
        text += f", '{first['name']}' in vhost '{first['vhost']}' among them: {first['reason']}"
    return text


@contextmanager
def _shown(session: Session, what: str) -> Iterator[Show]:
    """A bar where a person looks at it."""
    if not session.out.isatty() or session.is_for_machines or session.options.quiet or session.options.silent:
        yield _unseen
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(file=session.out)) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _unseen(_done: int, _total: int) -> None:
    """Nobody looks."""
