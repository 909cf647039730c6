"""The data folder: copy it while the node runs, look into it and check it while none does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from mirrormq.ctl.faults import DATA, Failure
from mirrormq.ctl.progress import bars
from mirrormq.ctl.registry import STORAGE, command, session_of
from mirrormq.ctl.session import Session

QUEUE_COLUMNS = (
    "vhost",
    "name",
    "id",
    "last_seq",
    "horizon",
    "epoch",
    "dead",
    "live",
    "journal",
    "segments",
    "places",
    "damage",
)
RECORD_COLUMNS = ("file", "offset", "queue", "epoch", "time", "seq", "kind", "flags", "size")
FAULT_COLUMNS = ("file", "offset", "queue", "text")
ENTRY_COLUMNS = ("index", "term", "command", "node", "start", "number", "bytes")


@command(STORAGE, "<directory>")
def backup(ctx: typer.Context, directory: str) -> None:
    """Copy the node's data into an empty directory of its machine, while it goes on."""
    session = session_of(ctx)
    # The node has another current directory; one of another machine is named as it is there.
    target = directory if session.url is not None else str(Path(directory).absolute())
    session.say(f"Backing up node {session.node_name} to {target} ...")
    session.call("backup", target=target)
    with bars(session) as show:
        while not (state := session.call("backup_progress"))["finished"]:
            show("Copied", state["copied_bytes"], state["total_bytes"])
        show("Copied", state["total_bytes"], state["total_bytes"])
    facts = {name: state[name] for name in ("files", "linked_files", "total_bytes", "taken_at")}
    session.finish(
        f"{state['files']} files with {state['total_bytes']} bytes, {state['linked_files']} of them linked",
        **facts,
    )


@command(STORAGE, "[--data <directory>] [--queue <name> [--vhost <vhost>]] [--records | --definitions]")
def inspect_log(
    ctx: typer.Context,
    *,
    queue: Annotated[str | None, typer.Option("--queue", help="only this queue")] = None,
    records: Annotated[bool, typer.Option("--records", help="list the records")] = False,
    definitions: Annotated[
        bool, typer.Option("--definitions", help="the log of the definitions instead")
    ] = False,
) -> None:
    """Show the logs of durable queues in the data folder of a node that does not run."""
    session = session_of(ctx)
    wanted = (session.options.vhost, queue) if queue is not None else None
    if definitions:
        _show_definitions(session, session.offline.definitions(session.data, session.options.node))
        return
    if records:
        found = session.offline.records(session.data, session.options.node, wanted)
        session.table(found, RECORD_COLUMNS)
        return
    rows = session.offline.inspect(session.data, session.options.node, wanted)
    session.table(rows if session.is_json else _in_words(rows), QUEUE_COLUMNS)


@command(STORAGE, "[--data <directory>]")
def verify_log(ctx: typer.Context) -> None:
    """Read and check everything in the data folder of a node that does not run."""
    session = session_of(ctx)
    session.say(f"Checking {session.data} ...")
    found = session.offline.verify(session.data, session.options.node)
    faults = found["faults"]
    if session.is_json:
        session.write_json(found)
    else:
        session.table(faults, FAULT_COLUMNS)
        _write_summary(session, found)
    if faults:
        session.out.flush()
        raise Failure(
            f"{len(faults)} fault{'s' if len(faults) > 1 else ''} in {found['folder']}; "
            "`mirrormq restore` makes a new folder of a backup",
            DATA,
        )


def _show_definitions(session: Session, found: dict[str, Any]) -> None:
    if session.is_json:
        session.write_json(found)
        return
    session.table(found["log"], ENTRY_COLUMNS)
    _write_definitions(session, found)


def _write_definitions(session: Session, found: dict[str, Any]) -> None:
    voted = f"voted for {found['vote']}" if found["vote"] else "no vote"
    members = [f"{member['name']} ({member['role']})" for member in found["members"]]
    session.write(
        f"definitions: term {found['term']}, {voted}, a snapshot up to entry {found['snapshot_index']} and "
        f"{found['entries']} entries up to {found['last_index']}; "
        + (f"members {', '.join(members)}" if members else "never part of a cluster")
    )


def _write_summary(session: Session, found: dict[str, Any]) -> None:
    session.write(
        f"{found['queues']} queues with {found['live']} messages, {found['journal_files']} journal files and "
        f"{found['segments']} segments with {found['batches']} batches, {found['records']} records and "
        f"{found['bytes']} bytes; {len(found['faults'])} faults"
    )
    if found["definitions"]:
        _write_definitions(session, found["definitions"])
    if found["torn_bytes"]:
        session.write(f"{found['torn_bytes']} bytes at the end were not finished and count for nothing")
    if found["orphans"]:
        session.write(f"{found['orphans']} files are no longer needed and go at the next start")


def _in_words(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        journal = [
            f"{part['file']}: {part['batches']} batches, {part['bytes']} bytes" for part in row["journal"]
        ]
        segments = [
            f"{part['file']}: {part['first']} to {part['last']}, {part['live']} live, {part['bytes']} bytes"
            for part in row["segments"]
        ]
        yield {
            **row,
            "journal": "; ".join(journal),
            "segments": "; ".join(segments),
            "places": len(row["places"]),
        }
