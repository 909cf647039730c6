"""Metrics of queues, channels, connections and exchanges, each by itself, with RabbitMQ's names.

Guarantees
- One look at an object gives all columns of its kind, and objects are looked at one at a time.
- Counters of channels are added up by vhost in the kernel: sums over all channels (`channel_totals`) never go
  back when a channel closes, unlike a sum over those that are open.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mirrormq.broker.mirrorqueue import stored
from mirrormq.kernel.tally import CHANNEL_COUNTS
from mirrormq.meta import system
from mirrormq.node import metrics, report
from mirrormq.node.metrics import QueueFacts
from mirrormq.node.metrics_format import COUNTER, GAUGE, Column, Family, Labels, Row

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.connection import Connection
    from mirrormq.broker.queue import Queue

_COARSE, _COUNT, _QUEUE = "queue_coarse_metrics", "queue_consumer_count", "queue_metrics"
_DELIVERY, _PUBLISHED, _MIRRORS = "queue_delivery_metrics", "channel_queue_exchange_metrics", "mirror_metrics"
_CHANNEL, _EXCHANGE, _TAKEN = "channel_metrics", "channel_exchange_metrics", "channel_queue_metrics"
_CONNECTION, _OCTETS = "connection_metrics", "connection_coarse_metrics"

QUEUE_COLUMNS = (
    Column(_COARSE, "queue_messages_ready", GAUGE, "Messages ready to be delivered."),
    Column(_COARSE, "queue_messages_unacked", GAUGE, "Messages delivered and not acknowledged yet."),
    Column(_COARSE, "queue_messages", GAUGE, "Messages ready and unacknowledged."),
    Column(_COUNT, "queue_consumers", GAUGE, "Consumers on a queue."),
    Column(_QUEUE, "queue_process_memory_bytes", GAUGE, "Bytes of its messages in memory."),
    Column(_QUEUE, "queue_messages_bytes", GAUGE, "Bytes of messages ready and unacknowledged."),
    Column(_QUEUE, "queue_messages_ready_bytes", GAUGE, "Bytes of messages ready."),
    Column(_QUEUE, "queue_messages_unacked_bytes", GAUGE, "Bytes of messages unacknowledged."),
    Column(_PUBLISHED, "queue_messages_published_total", COUNTER, "Messages published to a queue."),
    Column(_DELIVERY, "queue_messages_delivered_ack_total", COUNTER, "Delivered, to be acknowledged."),
    Column(_DELIVERY, "queue_messages_delivered_total", COUNTER, "Delivered, not to be acknowledged."),
    Column(_DELIVERY, "queue_get_ack_total", COUNTER, "Fetched by basic.get, to be acknowledged."),
    Column(_DELIVERY, "queue_get_total", COUNTER, "Fetched by basic.get, not to be acknowledged."),
    Column(_DELIVERY, "queue_get_empty_total", COUNTER, "Times that basic.get found nothing."),
    Column(_DELIVERY, "queue_messages_redelivered_total", COUNTER, "Delivered again."),
    Column(_DELIVERY, "queue_messages_acked_total", COUNTER, "Acknowledged."),
)

MIRROR_COLUMNS = (
    Column(_MIRRORS, "queue_in_sync_copies", GAUGE, "Copies in sync, the master's included.", True),
    Column(_MIRRORS, "queue_wanted_copies", GAUGE, "Copies the policy wants.", True),
    Column(_MIRRORS, "queue_unsynchronised_mirrors", GAUGE, "Mirrors that are not in sync.", True),
    Column(
        _MIRRORS,
        "queue_mirror_lag_records",
        GAUGE,
        "Records that the slowest mirror in sync has not flushed yet.",
        True,
    ),
    Column(
        _MIRRORS,
        "queue_sync_progress_ratio",
        GAUGE,
        "Progress of the mirror that is furthest behind; 1 if all are in sync.",
        True,
    ),
    Column(_MIRRORS, "queue_epoch", GAUGE, "Number of the view.", True),
    Column(
        _MIRRORS,
        "queue_lossy_promotions_total",
        COUNTER,
        "Promotions of a copy that was not in sync, since the queue was declared.",
        True,
    ),
    Column(
        _MIRRORS,
        "queue_salvaged_messages_total",
        COUNTER,
        "Messages salvaged from copies that such promotions passed over.",
        True,
    ),
    Column(
        _MIRRORS,
        "queue_loss_window_records",
        GAUGE,
        "With asynchronous replication: records that a mirror in sync may not have flushed.",
        True,
    ),
    Column(_MIRRORS, "queue_loss_window_bytes", GAUGE, "Bytes of those records.", True),
    Column(_MIRRORS, "queue_loss_window_seconds", GAUGE, "Age of the oldest of those records.", True),
)

CURSOR_COLUMNS = (
    Column(_MIRRORS, "cursor_lag_records", GAUGE, "Records that the reader of a cursor has not taken.", True),
)

CHANNEL_COLUMNS = (
    Column(_CHANNEL, "channel_consumers", GAUGE, "Consumers on a channel."),
    Column(_CHANNEL, "channel_messages_unacked", GAUGE, "Messages delivered and not acknowledged yet."),
    Column(_CHANNEL, "channel_messages_unconfirmed", GAUGE, "Messages published and not confirmed yet."),
    Column(_CHANNEL, "channel_messages_uncommitted", GAUGE, "Messages of a transaction not committed yet."),
    Column(_CHANNEL, "channel_acks_uncommitted", GAUGE, "Acknowledgements not committed yet."),
    Column(_CHANNEL, "consumer_prefetch", GAUGE, "Most unacknowledged messages of each consumer."),
    Column(_CHANNEL, "channel_prefetch", GAUGE, "Most unacknowledged messages of all consumers together."),
)

COUNTER_COLUMNS = (
    Column(_EXCHANGE, "channel_messages_published_total", COUNTER, "Messages published."),
    Column(_EXCHANGE, "channel_messages_confirmed_total", COUNTER, "Messages confirmed."),
    Column(
        _EXCHANGE,
        "channel_messages_unroutable_returned_total",
        COUNTER,
        "Mandatory messages returned because no queue took them.",
    ),
    Column(
        _EXCHANGE,
        "channel_messages_unroutable_dropped_total",
        COUNTER,
        "Messages dropped because no queue took them.",
    ),
    Column(_TAKEN, "channel_messages_delivered_ack_total", COUNTER, "Delivered, to be acknowledged."),
    Column(_TAKEN, "channel_messages_delivered_total", COUNTER, "Delivered, not to be acknowledged."),
    Column(_TAKEN, "channel_get_ack_total", COUNTER, "Fetched by basic.get, to be acknowledged."),
    Column(_TAKEN, "channel_get_total", COUNTER, "Fetched by basic.get, not to be acknowledged."),
    Column(_TAKEN, "channel_get_empty_total", COUNTER, "Times that basic.get found nothing."),
    Column(_TAKEN, "channel_messages_redelivered_total", COUNTER, "Delivered again."),
    Column(_TAKEN, "channel_messages_acked_total", COUNTER, "Acknowledged."),
)
assert len(COUNTER_COLUMNS) == len(CHANNEL_COUNTS), "in the order of the kernel's counters"

CONNECTION_COLUMNS = (
    Column(_OCTETS, "connection_incoming_bytes_total", COUNTER, "Bytes received on a connection."),
    Column(_OCTETS, "connection_outgoing_bytes_total", COUNTER, "Bytes sent on a connection."),
    Column(_CONNECTION, "connection_incoming_packets_total", COUNTER, "Reads of the socket."),
    Column(_CONNECTION, "connection_channels", GAUGE, "Channels on a connection."),
)

EXCHANGE_COLUMNS = (
    Column(
        "exchange_metrics", "exchange_messages_published_total", COUNTER, "Messages published to it.", True
    ),
    Column("exchange_metrics", "exchange_messages_routed_total", COUNTER, "Copies it put into queues.", True),
)

GLOBAL_NAMES = (
    ("messages_received_total", ("publish",), "Messages published by clients."),
    ("messages_confirmed_total", ("confirm",), "Messages confirmed."),
    ("messages_unroutable_returned_total", ("return_unroutable",), "Messages returned as unroutable."),
    ("messages_unroutable_dropped_total", ("drop_unroutable",), "Messages dropped as unroutable."),
    (
        "messages_delivered_total",
        ("deliver", "deliver_no_ack", "get", "get_no_ack"),
        "Messages delivered to clients.",
    ),
    ("messages_delivered_consume_manual_ack_total", ("deliver",), "Of these to consumers that acknowledge."),
    ("messages_delivered_consume_auto_ack_total", ("deliver_no_ack",), "Of these to consumers that do not."),
    ("messages_delivered_get_manual_ack_total", ("get",), "Of these by basic.get, to be acknowledged."),
    ("messages_delivered_get_auto_ack_total", ("get_no_ack",), "Of these by basic.get, not to be."),
    ("messages_get_empty_total", ("get_empty",), "Times that basic.get found nothing."),
    ("messages_redelivered_total", ("redeliver",), "Messages delivered again."),
    ("messages_acknowledged_total", ("ack",), "Messages acknowledged."),
)
"""RabbitMQ's `rabbitmq_global_*`, and the counters each is the sum of."""

Source = metrics.MetricSource


def queues(source: Source) -> Iterator["Queue"]:
    """Queues mastered here that are users'."""
    for live in list(source.switch.masters.values()):
        if not system.is_system(live.record.vhost, live.record.name):
            yield live


def queue_row(live: "Queue") -> Row:
    """The columns of a queue."""
    core = live.core
    ready, unacked = stored(live), core.unacked
    ready_bytes, unacked_bytes = core.ready_bytes, core.unacked_bytes
    total = ready_bytes + unacked_bytes
    return (
        ready,
        unacked,
        ready + unacked,
        len(live.consumers.members),
        total,
        total,
        ready_bytes,
        unacked_bytes,
        core.published,
        core.delivered,
        core.delivered_no_ack,
        core.got - core.got_no_ack,
        core.got_no_ack,
        core.got_nothing,
        core.redelivered,
        core.acked,
    )


def mirror_row(fact: QueueFacts) -> Row:
    """The columns of a mirrored queue."""
    progress = fact.progress / 100
    shown = (fact.in_sync, fact.wanted, fact.behind, fact.lag, progress, fact.epoch, fact.losses)
    return (*shown, fact.salvaged, *fact.window)


def queue_labels(vhost: str, name: str) -> Labels:
    """How a queue is told from others."""
    return (("vhost", vhost), ("queue", name))


def channel_row(found: "Channel") -> Row:
    """The columns of a channel, and its counters."""
    return (
        len(found.consumers),
        found.messages_unacknowledged,
        found.messages_unconfirmed,
        found.messages_uncommitted,
        found.acks_uncommitted,
        found.prefetch_count,
        found.global_prefetch_count,
        *found.core.tally.of_channel(),
    )


def channel_labels(source: Source, found: "Channel") -> Labels:
    """RabbitMQ names it by its process; the vhost is ours."""
    owner = found.connection
    pid = report.channel_pid(source.node_name, owner.conn_id, found.number)
    return (("channel", pid), ("vhost", found.vhost.name))


def connection_row(found: "Connection") -> Row:
    """The columns of a connection."""
    return (found.recv_oct, found.send_oct, found.recv_cnt, len(found.channels))


def connection_labels(source: Source, found: "Connection") -> Labels:
    """RabbitMQ names it by its process; the vhost is ours."""
    vhost = "" if found.vhost is None else found.vhost.name
    return (("connection", report.connection_pid(source.node_name, found.conn_id)), ("vhost", vhost))


def counted(source: Source) -> dict[str, int]:
    """What all channels of this node have done, those that are closed included."""
    rows = [vhost.tally.of_channel() for vhost in source.vhosts.values()]
    return {name: sum(row[number] for row in rows) for number, name in enumerate(CHANNEL_COUNTS)}


def totals(source: Source) -> Iterator[Family]:
    """Counters of channels and of the whole node as sums."""
    counts = counted(source)
    for column, name in zip(COUNTER_COLUMNS, CHANNEL_COUNTS, strict=True):
        yield Family("rabbitmq_" + column.name, column.kind, column.help, [((), counts[name])])


def of_protocol(source: Source) -> Iterator[Family]:
    """`rabbitmq_global_*`: the same by protocol, of which there is one."""
    counts = counted(source)
    label = (("protocol", "amqp091"),)
    for name, parts, text in GLOBAL_NAMES:
        value = sum(counts[part] for part in parts)
        yield Family("rabbitmq_global_" + name, COUNTER, text, [(label, value)])
    routed = sum(
        place.tally.of_exchange()[1] for vhost in source.vhosts.values() for place in vhost.router.places()
    )
    text = "Copies of messages put into queues by exchanges."
    yield Family("rabbitmq_global_messages_routed_total", COUNTER, text, [(label, routed)])
    publishers = sum(bool(channel.core.tally.of_channel()[0]) for channel in source.channels.values())
    text = "Channels that have published."
    yield Family("rabbitmq_global_publishers", GAUGE, text, [(label, publishers)])
    consumers = sum(len(channel.consumers) for channel in source.channels.values())
    yield Family("rabbitmq_global_consumers", GAUGE, "Consumers.", [(label, consumers)])
