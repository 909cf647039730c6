"""Acting on live things: purge and delete queues, close connections."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mirrormq.ctl.faults import USAGE, Failure
from mirrormq.ctl.registry import OPERATIONS, QUEUES, command, session_of
from mirrormq.ctl.session import Session

Limit = Annotated[int, typer.Option("--limit", help="close at most so many; 0 is all")]
VHost = Annotated[str | None, typer.Option("--vhost", "-p", help="only those of a virtual host")]


@command(QUEUES, "<queue> [--vhost <vhost>]")
def purge_queue(ctx: typer.Context, queue: str) -> None:
    """Remove all ready messages of a queue."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f"Purging queue '{queue}' in vhost '{vhost}' ...")
    purged = session.call("purge_queue", vhost=vhost, name=queue)
    session.finish(messages=purged["messages"])


@command(QUEUES, "<queue_name> [--if-empty|-e] [--if-unused|-u] [--vhost <vhost>]")
def delete_queue(
    ctx: typer.Context,
    queue_name: str,
    *,
    if_empty: Annotated[bool, typer.Option("--if-empty", "-e", help="only if it has no messages")] = False,
    if_unused: Annotated[bool, typer.Option("--if-unused", "-u", help="only if it has no consumers")] = False,
) -> None:
    """Delete a queue with its messages."""
    session = session_of(ctx)
    vhost = session.options.vhost
    conditions = [word for asked, word in ((if_empty, "empty"), (if_unused, "unused")) if asked]
    suffix = f" if queue is {' and '.join(conditions)}" if conditions else ""
    session.say(f"Deleting queue '{queue_name}' on vhost '{vhost}'{suffix} ...")
    try:
        gone = session.call(
            "delete_queue", vhost=vhost, name=queue_name, if_empty=if_empty, if_unused=if_unused
        )
    except Failure as failure:
        if failure.kind == "no_such_queue":
            raise Failure("Queue not found", USAGE) from None
        raise
    session.finish(f"Queue was successfully deleted with {gone['messages']} ready messages")


@command(OPERATIONS, "<connection pid or name> <explanation>")
def close_connection(ctx: typer.Context, connection: str, explanation: str) -> None:
    """Close a connection, given by its pid or name in list_connections."""
    session = session_of(ctx)
    session.say(f"Closing connection {connection}, reason: {explanation}...")
    session.call("close_connection", connection=connection, reason=explanation)
    session.finish()


@command(
    OPERATIONS,
    "[--vhost <vhost> --limit <limit>] [--global] [--per-connection-delay <delay>] <explanation>",
    own=("--vhost", "-p"),
)
def close_all_connections(
    ctx: typer.Context,
    explanation: str,
    *,
    vhost: VHost = None,
    limit: Limit = 0,
    everywhere: Annotated[bool, typer.Option("--global", help="of all virtual hosts")] = False,
    _delay: Annotated[
        int, typer.Option("--per-connection-delay", help="accepted: the node paces itself", min=0)
    ] = 0,
) -> None:
    """Close all connections of a virtual host, or with --global of all, on all nodes."""
    session = session_of(ctx)
    where = None if everywhere else (vhost or session.options.vhost)
    shown = "all vhosts" if where is None else f"vhost {where}"
    session.say(f"Closing all connections in {shown} (limit {limit}), reason: {explanation}...")
    closed = session.call("close_connections", vhost=where, reason=explanation, limit=limit)
    _warn(session, closed)
    session.finish(f"Closed {closed['closed']} connections")


@command(OPERATIONS, "<username> <explanation>")
def close_all_user_connections(ctx: typer.Context, username: str, explanation: str) -> None:
    """Close all connections of a user."""
    session = session_of(ctx)
    session.say(f"Closing connections of user {username}, reason: {explanation}...")
    closed = session.call("close_connections", user=username, reason=explanation)
    _warn(session, closed)
    session.finish(f"Closed {closed['closed']} connections")


def _warn(session: Session, closed: dict[str, Any]) -> None:
    session.warn_missing(closed.get("missing", {}), "its connections were not closed, or nobody knows")
