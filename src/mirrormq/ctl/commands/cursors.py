"""Cursors: the places in queues from which on readers such as Spark jobs keep everything."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrormq.ctl.registry import MONITORING, QUEUES, columns_of, command, session_of

COLUMNS = (
    "queue",
    "name",
    "mode",
    "seq",
    "epoch",
    "lag",
    "held_bytes",
    "reader",
    "reader_node",
    "opened_at",
    "moved_at",
    "lost",
)
DEFAULT = ("queue", "name", "mode", "seq", "lag", "held_bytes", "reader", "lost")


@command(MONITORING, "[--vhost <vhost>] [--queue <queue>] [<column> ...]")
def list_cursors(
    ctx: typer.Context,
    columns: Annotated[list[str] | None, typer.Argument(metavar="[COLUMN]...", show_default=False)] = None,
    *,
    queue: Annotated[str, typer.Option("--queue", help="only those of this queue")] = "",
) -> None:
    """List the cursors of the queues of a virtual host: where they stand, what they hold, who reads."""
    session = session_of(ctx)
    chosen = columns_of(columns, DEFAULT, COLUMNS)
    vhost = session.options.vhost
    session.say(f"Listing cursors for vhost {vhost} ...")
    found = session.call("list_cursors", vhost=vhost, name=queue)
    session.warn_missing(found["missing"])
    session.table(found["rows"], chosen)


@command(QUEUES, "[--vhost <vhost>] <queue> <cursor>")
def drop_cursor(
    ctx: typer.Context,
    queue: Annotated[str, typer.Argument(metavar="QUEUE")],
    cursor: Annotated[str, typer.Argument(metavar="CURSOR")],
) -> None:
    """Take a cursor away from a queue: it holds nothing any more, and a reader of it has to begin anew."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f"Dropping cursor '{cursor}' of queue '{queue}' in vhost '{vhost}' ...")
    session.call("drop_cursor", vhost=vhost, name=queue, cursor=cursor)
    session.finish()
