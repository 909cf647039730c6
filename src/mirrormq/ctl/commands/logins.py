"""rabbitmq-diagnostics about log-ins of a node: how many succeeded and failed, and where they came from."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrormq.ctl.registry import MONITORING, command, session_of

COUNTS = ("auth_attempts", "auth_attempts_failed", "auth_attempts_succeeded")
COLUMNS = ("protocol", *COUNTS)
SOURCE_COLUMNS = ("remote_address", "username", "protocol", *COUNTS)


@command(MONITORING, "[--by-source]")
def list_node_auth_attempt_stats(
    ctx: typer.Context,
    *,
    is_by_source: Annotated[bool, typer.Option("--by-source", help="by remote address and username")] = False,
) -> None:
    """List how many log-ins succeeded and failed on the node, by protocol or by where they came from."""
    session = session_of(ctx)
    name = session.node_name
    session.say(f"Listing authentication attempts on node {name} ...")
    found = session.call("list_node_auth_attempt_stats", by_source=is_by_source)
    if session.formatter == "json":
        session.finish(node=name, attempts=found)
        return
    session.table(found, SOURCE_COLUMNS if is_by_source else COLUMNS)


@command(MONITORING)
def reset_node_auth_attempt_metrics(ctx: typer.Context) -> None:
    """Count the log-ins of the node anew from now on."""
    session = session_of(ctx)
    session.say(f"Resetting authentication attempt metrics on node {session.node_name} ...")
    session.call("reset_node_auth_attempt_metrics")
    session.finish()


@command(MONITORING)
def enable_auth_attempt_source_tracking(ctx: typer.Context) -> None:
    """Count log-ins by remote address and username, too, as a node does from its start."""
    session = session_of(ctx)
    session.say("Enabling authentication attempt source tracking ...")
    session.call("track_auth_attempt_sources", wanted=True)
    session.finish()


@command(MONITORING)
def disable_auth_attempt_source_tracking(ctx: typer.Context) -> None:
    """Forget remote addresses and usernames of log-ins, and keep none until it is enabled or the node
    restarts.
    """
    session = session_of(ctx)
    session.say("Disabling authentication attempt source tracking ...")
    session.call("track_auth_attempt_sources", wanted=False)
    session.finish()
