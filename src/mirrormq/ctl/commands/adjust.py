"""What rabbitmqctl changes of a running node: limits of alarms, log, listeners, tags of a virtual host."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrormq.ctl.faults import DATA, Failure, Misuse
from mirrormq.ctl.registry import CLUSTER, CONFIGURATION, NODES, OPERATIONS, VHOSTS, command, session_of

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", "none")


@command(CONFIGURATION, "<fraction> | absolute <value>", name="set_vm_memory_high_watermark")
def set_memory_limit(
    ctx: typer.Context,
    limit: Annotated[str, typer.Argument(metavar="FRACTION|absolute")],
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]")] = None,
) -> None:
    """Change how much memory raises the alarm, until the node starts again."""
    session = session_of(ctx)
    if limit == "absolute":
        if value is None:
            raise Misuse("not enough arguments.")
        given: dict[str, object] = {"size": value}
    else:
        given = {"share": _fraction(limit, value)}
    session.say(f"Setting memory threshold on {session.node_name} to {value or limit} ...")
    found = session.call("set_vm_memory_high_watermark", **given)
    session.finish(f"The memory alarm is raised above {found['memory_limit']} bytes", **found)


@command(CONFIGURATION, "<disk_limit> | mem_relative <fraction>")
def set_disk_free_limit(
    ctx: typer.Context,
    limit: Annotated[str, typer.Argument(metavar="LIMIT|mem_relative")],
    value: Annotated[str | None, typer.Argument(metavar="[FRACTION]")] = None,
) -> None:
    """Change how little disk raises the alarm, until the node starts again."""
    session = session_of(ctx)
    if limit == "mem_relative":
        if value is None:
            raise Misuse("not enough arguments.")
        given: dict[str, object] = {"share": _fraction(value, None, most=1024)}
    elif value is not None:
        raise Misuse("too many arguments.")
    else:
        given = {"size": limit}
    session.say(f"Setting disk free limit on {session.node_name} to {value or limit} ...")
    found = session.call("set_disk_free_limit", **given)
    session.finish(f"The disk alarm is raised below {found['disk_free_limit']} bytes", **found)


@command(CLUSTER, "[<mode> [<node> ...]]", name="partition_handling")
def partition_handling(
    ctx: typer.Context,
    mode: Annotated[str | None, typer.Argument(metavar="[MODE]")] = None,
    nodes: Annotated[list[str] | None, typer.Argument(metavar="[NODE ...]")] = None,
) -> None:
    """Show what the node does while it is cut off, or choose that until its process starts again."""
    session = session_of(ctx)
    if mode is not None:
        session.say(f"Setting partition handling on {session.node_name} to {mode} ...")
        found = session.call("set_partition_handling", mode=mode, **({"nodes": nodes} if nodes else {}))
    else:
        found = session.call("partition_handling")
    text = f"{found['handling']}; this node is on the side of the {found['side']}: {found['why']}"
    branches = found.get("branches", {})
    if branches.get("open") or branches.get("merging"):
        counts = "{open} branches serve clients, {merging} are being merged, with {messages} messages"
        text += f"\n{counts.format(**branches)}."
    if "warning" in found:
        text += f"\nWarning: {found['warning']}."
    session.finish(text, **found)


@command(CONFIGURATION, "<log_level>")
def set_log_level(ctx: typer.Context, level: Annotated[str, typer.Argument(metavar="LEVEL")]) -> None:
    """Change what the node writes to its log, until its process starts again."""
    if level not in LEVELS:
        raise Misuse(f"'{level}' is no log level; there are {', '.join(LEVELS)}.")
    session = session_of(ctx)
    session.say(f'Setting log level to "{level}" on {session.node_name} ...')
    session.call("set_log_level", level=level)
    session.finish()


@command(NODES)
def rotate_logs(ctx: typer.Context) -> None:
    """Open the log file anew, after something moved it away; by size it is rotated by itself."""
    session = session_of(ctx)
    session.say(f"Reopening the log of node {session.node_name} ...")
    session.call("rotate_logs")
    session.finish()


@command(OPERATIONS)
def suspend_listeners(ctx: typer.Context) -> None:
    """Let no new clients in until resume_listeners; those that are in stay."""
    session = session_of(ctx)
    session.say(f"Will suspend client connection listeners on node {session.node_name} ...")
    session.call("suspend_listeners")
    session.finish()


@command(OPERATIONS)
def resume_listeners(ctx: typer.Context) -> None:
    """Let clients in again after suspend_listeners."""
    session = session_of(ctx)
    session.say(f"Will resume client connection listeners on node {session.node_name} ...")
    session.call("resume_listeners")
    session.finish()


@command(VHOSTS, "<vhost> <tag> [...]")
def set_vhost_tags(
    ctx: typer.Context,
    vhost: str,
    tags: Annotated[list[str] | None, typer.Argument(metavar="[TAG]...")] = None,
) -> None:
    """Replace the tags of a virtual host; none takes them away."""
    session = session_of(ctx)
    wanted = [tag for word in tags or () for tag in word.split(",") if tag]
    session.say(f'Setting tags for virtual host "{vhost}" to [{", ".join(wanted)}] ...')
    if all(row["name"] != vhost for row in session.call("list_vhosts")):
        raise Failure(f"Virtual host '{vhost}' does not exist", DATA)
    session.call("add_vhost", name=vhost, tags=wanted)
    session.finish()


def _fraction(text: str, extra: str | None, most: float = 1.0) -> float:
    if extra is not None:
        raise Misuse("too many arguments.")
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= most:
        raise Misuse(f"'{text}' is no part of the memory: give a number between 0 and {most:g}.")
    return found
