"""Every command line, URI and setting of the five texts this broker is measured by, as they are printed.

Each has an id, the row of the feature map that says what becomes of it here, and whether that is built. Tests
take the text from here by its id; the manual lists all of them, and `test_manual` compares the two.
"""

from __future__ import annotations

from typing import NamedTuple

OPEN = ""
"""In place of the name of a test: not built yet."""


class Line(NamedTuple):
    """A line of a text."""

    id: str
    row: str
    text: str
    test: str
    """Where it is tried, or OPEN."""


COMMANDS, SETTINGS, URIS, CLIENTS = "test_commands", "test_settings", "test_uris", "test_clients"

LINES = (
    # text 000: principles, copies, mirrored exchanges
    Line("000-partition-ignore", "A11", "cluster_partition_handling = ignore", SETTINGS),
    Line("000-partition-pause", "A11", "cluster_partition_handling = pause", SETTINGS),
    Line("000-memory", "A12", "vm_memory_high_watermark = 0.4", SETTINGS),
    Line("000-stop-app", "A13", "sudo rabbitmqctl stop_app", COMMANDS),
    Line("000-reset", "A13", "sudo rabbitmqctl reset", COMMANDS),
    Line("000-start", "A13", "sudo systemctl start rabbitmq-server", COMMANDS),
    Line(
        "000-declare",
        "A14",
        "sudo rabbitmqadmin declare queue name=myqueue durable=true auto_delete=false mirrored=false",
        COMMANDS,
    ),
    Line(
        "000-declare-alternate",
        "A14",
        "sudo rabbitmqadmin declare queue name=myqueue alternate durable=true auto_delete=false mirrored=true"
        " copy_from=myqueue routing_key=#",
        COMMANDS,
    ),
    Line(
        "000-declare-backup",
        "A14",
        "sudo rabbitmqadmin declare queue name=myqueue backup durable=true auto_delete=false mirrored=true"
        " copy_from=myqueue routing_key=#",
        COMMANDS,
    ),
    Line(
        "000-bind",
        "A15",
        'sudo rabbitmqadmin bind exchange source="amq.direct" destination="myqueue" routing_key="*"',
        COMMANDS,
    ),
    Line(
        "000-uri-master",
        "A17",
        "amqp://guest:guest@localhost:5672/%2F?connection_attempts=3&heartbeat=60",
        URIS,
    ),
    Line(
        "000-uri-vhost",
        "A17",
        "amqp://guest:guest@localhost:5672/myvhost?connection_attempts=3&heartbeat=60",
        URIS,
    ),
    Line(
        "000-uri-login",
        "A17",
        "amqp://username:password@localhost:5672/myvhost?connection_attempts=3&heartbeat=60",
        URIS,
    ),
    Line(
        "000-add-queue",
        "A19",
        """rabbitmqctl add_queue myqueue mirroring='{"copies": [{"src_name": "otherq", "dst_tag": ""}]}'""",
        OPEN,
    ),
    # text 001: persistence and mirrors (no command lines; what it says of clients)
    Line("001-durable", "B1", "durable = true, for the exchange and the queue", CLIENTS),
    Line("001-exclusive", "B2", "exclusive queue, even if durable", CLIENTS),
    Line("001-delivery-mode", "B5", "deliveryMode = 2", CLIENTS),
    # text 002: fail-over and policies
    Line("002-all", "C16", "ha-mode: all", COMMANDS),
    Line("002-exactly", "C16", "ha-mode: exactly", COMMANDS),
    Line("002-nodes", "C16", "ha-mode: nodes", COMMANDS),
    Line("002-automatic", "C18", "ha-sync-mode: automatic", COMMANDS),
    Line("002-manual", "C18", "ha-sync-mode: manual", COMMANDS),
    Line("002-sync", "C18", "rabbitmqctl sync_queue ${queueName}", COMMANDS),
    Line(
        "002-list",
        "C18",
        "rabbitmqctl list_queues ${queue_name} slave_pids synchronised_slave_pids",
        COMMANDS,
    ),
    Line("002-cancel-sync", "C18", "rabbitmqctl cancel_sync_queue ${queueName}", COMMANDS),
    Line("002-when-synced", "C19", "ha-promote-on-shutdown: when-synced", COMMANDS),
    Line("002-always", "C19", "ha-promote-on-shutdown: always", COMMANDS),
    Line("002-stop", "C19", "rabbitmqctl stop", COMMANDS),
    Line("002-cancel-on-failover", "C12", "x-cancel-on-ha-failover", CLIENTS),
    # text 003: mirror nodes
    Line("003-sync-interval", "D4", "sync_interval = 10s", SETTINGS),
    Line("003-sync-full", "D3", "sync_strategy = full", SETTINGS),
    Line("003-sync-incremental", "D3", "sync_strategy = incremental", SETTINGS),
    Line("003-mirroring", "D2", "node.role = mirror", OPEN),
    Line("003-tx-and-confirms", "D7", "channel.txSelect(); channel.waitForConfirms()", CLIENTS),
    Line("003-expiration", "D7", '.expiration("")', CLIENTS),
    Line("003-mirroring-policy", "D9", "mirroring_policy", SETTINGS),
    Line(
        "003-set-policy",
        "D9",
        'rabbitmqctl set_policy [vhost] [policy name] "[parameters]" --priority [priority]',
        COMMANDS,
    ),
    Line("003-overview", "D10", "rabbitmqadmin declare overview", COMMANDS),
    Line("003-log", "D10", "mirror node (in the log)", OPEN),
    # text 004: clusters, partitions, balance
    Line("004-disc-copies", "E6", "cluster_nodes.disc_copies = rabbit@host", SETTINGS),
    Line("004-disc-copies-queues", "E6", "disc_copies = queue1,queue2", SETTINGS),
    Line("004-disc-copies-empty", "E6", "disc_copies =", SETTINGS),
    Line("004-partition-autoupgrade", "E7", "cluster_partition_handling = autoupgrade", SETTINGS),
    Line("004-partition-stop", "E7", "cluster_partition_handling = stop_processing", SETTINGS),
    Line("004-partition-autoheal", "E7", "cluster_partition_handling = autoheal", SETTINGS),
    Line("004-rebalance-run", "E8", "cluster_rebalance = run", SETTINGS),
    Line("004-rebalance-timer", "E8", "cluster_rebalance = timer", SETTINGS),
    Line("004-rebalance-interval", "E8", "cluster_rebalance.interval = 60s", SETTINGS),
    Line("004-rebalance-appoint", "E8", "cluster_rebalance = appoint", SETTINGS),
    Line("004-rebalance-on-demand", "E8", "cluster_rebalance = on-demand", SETTINGS),
    Line("004-least-connections", "E11", "cluster_rebalance.strategy = least-connections", SETTINGS),
    Line("004-least-messages", "E11", "cluster_rebalance.strategy = least-messages", SETTINGS),
    Line("004-random", "E11", "cluster_rebalance.strategy = random", SETTINGS),
    Line("004-round-robin", "E11", "cluster_rebalance.strategy = round-robin", SETTINGS),
    Line("004-event", "E4", "sync_strategy = event", SETTINGS),
    Line("004-join", "E9", "rabbitmqctl join_cluster rabbit@host", COMMANDS),
    Line("004-leave", "E10", "rabbitmqctl leave_cluster", COMMANDS),
)

BY_ID = {line.id: line for line in LINES}


def text(line: str) -> str:
    """A line as it is printed."""
    return BY_ID[line].text


def tried(test: str) -> set[str]:
    """The ids of the lines that a file of tests is to try."""
    return {line.id for line in LINES if line.test == test}
