"""What the cluster holds at this moment: queues, exchanges, bindings, connections, channels, consumers.

Whichever node is asked, the lists are of all nodes; one that does not answer is named on stderr.
Columns have rabbitmqctl's names. A virtual host that does not exist is an error here, where rabbitmqctl shows
an empty list: a typing mistake should not look like an empty broker.
"""

from __future__ import annotations

from typing import Annotated

import typer

from mirrormq.ctl.registry import MONITORING, columns_of, command, session_of

SILENT = "does not answer"
"""Why the rows of a node are missing that runs and does not answer in time."""

UNUSABLE = ("down", "stopped_clean", "damaged", "crashed")
"""States of queues that cannot be used."""

Columns = Annotated[list[str] | None, typer.Argument(metavar="[COLUMN]...", show_default=False)]

QUEUES = (
    "name",
    "durable",
    "auto_delete",
    "arguments",
    "policy",
    "pid",
    "owner_pid",
    "exclusive",
    "exclusive_consumer_pid",
    "exclusive_consumer_tag",
    "messages_ready",
    "messages_unacknowledged",
    "messages",
    "messages_ready_ram",
    "messages_unacknowledged_ram",
    "messages_ram",
    "messages_persistent",
    "message_bytes",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
    "message_bytes_ram",
    "message_bytes_persistent",
    "head_message_timestamp",
    "disk_reads",
    "disk_writes",
    "consumers",
    "consumer_utilisation",
    "consumer_capacity",
    "memory",
    "slave_pids",
    "synchronised_slave_pids",
    "mirror_pids",
    "synchronised_mirror_pids",
    "recoverable_slaves",
    "master",
    "epoch",
    "in_sync",
    "unsynchronised",
    "copies_wanted",
    "mirrors",
    "sync_progress",
    "sync_messages",
    "durable_mark",
    "mirror_lag",
    "losses",
    "replication",
    "loss_window_records",
    "loss_window_bytes",
    "loss_window_seconds",
    "to_salvage",
    "salvaged",
    "salvage_dropped",
    "state",
    "type",
    "leader",
    "members",
    "online",
    "node",
    "operator_policy",
    "effective_policy_definition",
    "single_active_consumer_tag",
)
EXCHANGES = ("name", "type", "durable", "auto_delete", "internal", "arguments", "policy")
BINDINGS = ("source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments")
CONNECTIONS = (
    "pid",
    "name",
    "user_provided_name",
    "port",
    "host",
    "peer_port",
    "peer_host",
    "ssl",
    "ssl_protocol",
    "ssl_key_exchange",
    "ssl_cipher",
    "ssl_hash",
    "peer_cert_subject",
    "peer_cert_issuer",
    "peer_cert_validity",
    "state",
    "channels",
    "protocol",
    "auth_mechanism",
    "user",
    "vhost",
    "timeout",
    "frame_max",
    "channel_max",
    "client_properties",
    "recv_oct",
    "recv_cnt",
    "send_oct",
    "send_cnt",
    "send_pend",
    "connected_at",
)
CHANNELS = (
    "pid",
    "connection",
    "name",
    "number",
    "user",
    "vhost",
    "transactional",
    "confirm",
    "consumer_count",
    "messages_unacknowledged",
    "messages_uncommitted",
    "acks_uncommitted",
    "messages_unconfirmed",
    "prefetch_count",
    "global_prefetch_count",
)
CONSUMERS = (
    "queue_name",
    "channel_pid",
    "consumer_tag",
    "ack_required",
    "prefetch_count",
    "active",
    "activity_status",
    "arguments",
)


@command(
    MONITORING,
    "[--vhost <vhost>] [--online] [--offline] [--local] [--system] [--no-table-headers] [<column>, ...]",
)
def list_queues(
    ctx: typer.Context,
    column: Columns = None,
    *,
    online: Annotated[bool, typer.Option("--online", help="only queues that can be used")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="only queues that cannot be used")] = False,
    local: Annotated[bool, typer.Option("--local", help="only queues whose master is this node")] = False,
    system: Annotated[bool, typer.Option("--system", help="the cluster's own queues, too")] = False,
) -> None:
    """List queues and their properties."""
    columns = columns_of(column, ("name", "messages"), QUEUES)
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f"Timeout: {session.timeout} seconds ...")
    session.say(f"Listing queues for vhost {vhost} ...")
    # As with rabbitmqctl, --local wins, and --online with --offline is all of them.
    asked = [name for name, is_wanted in (("local", local), ("system", system)) if is_wanted]
    rows = session.call("list_queues", vhost=vhost, **dict.fromkeys(asked, True))
    if online != offline and not local:
        rows = [row for row in rows if (row["state"] not in UNUSABLE) == online]
    session.table(rows, columns)


@command(MONITORING, "[--vhost <vhost>] [--no-table-headers] [<column> ...]")
def list_exchanges(ctx: typer.Context, column: Columns = None) -> None:
    """List exchanges."""
    columns = columns_of(column, ("name", "type"), EXCHANGES)
    session = session_of(ctx)
    session.say(f"Listing exchanges for vhost {session.options.vhost} ...")
    session.table(session.call("list_exchanges", vhost=session.options.vhost), columns)


@command(MONITORING, "[--vhost <vhost>] [--no-table-headers] [<column> ...]")
def list_bindings(ctx: typer.Context, column: Columns = None) -> None:
    """List all bindings of a virtual host."""
    columns = columns_of(column, BINDINGS, BINDINGS)
    session = session_of(ctx)
    session.say(f"Listing bindings for vhost {session.options.vhost}...")
    session.table(session.call("list_bindings", vhost=session.options.vhost), columns)


@command(MONITORING, "[--no-table-headers] [<column> ...]")
def list_connections(ctx: typer.Context, column: Columns = None) -> None:
    """List AMQP 0-9-1 connections of all nodes."""
    columns = columns_of(column, ("user", "peer_host", "peer_port", "state"), CONNECTIONS)
    session = session_of(ctx)
    session.say("Listing connections ...")
    session.table(session.call("list_connections"), columns)


@command(MONITORING, "[--no-table-headers] [<column> ...]")
def list_channels(ctx: typer.Context, column: Columns = None) -> None:
    """List all channels of all nodes."""
    columns = columns_of(column, ("pid", "user", "consumer_count", "messages_unacknowledged"), CHANNELS)
    session = session_of(ctx)
    session.say("Listing channels ...")
    session.table(session.call("list_channels"), columns)


@command(MONITORING, "[--vhost <vhost>] [--no-table-headers] [<column> ...]")
def list_consumers(ctx: typer.Context, column: Columns = None) -> None:
    """List all consumers of a virtual host."""
    default = tuple(name for name in CONSUMERS if name != "activity_status")
    columns = columns_of(column, default, CONSUMERS)
    session = session_of(ctx)
    session.say(f"Listing consumers in vhost {session.options.vhost} ...")
    session.table(session.call("list_consumers", vhost=session.options.vhost), columns)


@command(
    MONITORING,
    "[--vhost <vhost>] [--local] [--queue-timeout <milliseconds>] [--no-table-headers] [<column> ...]",
)
def list_unresponsive_queues(
    ctx: typer.Context,
    column: Columns = None,
    *,
    local: Annotated[
        bool, typer.Option("--local", help="only of this node: a node that answers has none")
    ] = False,
    _patience: Annotated[
        int, typer.Option("--queue-timeout", help="accepted: nodes are asked, for 5 seconds", min=1)
    ] = 15_000,
) -> None:
    """List queues that do not answer: those of nodes that do not, because queues live in their loops."""
    columns = columns_of(column, ("name",), QUEUES)
    session = session_of(ctx)
    session.say(f"Listing unresponsive queues for vhost {session.options.vhost} ...")
    rows = session.call("list_queues", vhost=session.options.vhost)
    silent = {node for node, reason in session.client.missing.items() if reason == SILENT and not local}
    session.table([row for row in rows if row["node"] in silent], columns)
