"""What monitoring reads of a node, as families of samples in Prometheus' terms.

Guarantees
- One look at a queue gives all samples about it, and looking is done one queue at a time (`facts`), so that
  whoever asks can stop after a slice: ten thousand queues never hold the loop.
- A queue is counted on the node that is its master, so the sum over all nodes counts it once. What has no
  master is counted by every node alike, since each knows it from the metadata.

Names that RabbitMQ's own exporter has mean the same here; the others begin with `mirrormq_`.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mirrormq import __version__
from mirrormq.broker.census import Census
from mirrormq.broker.mirrorqueue import stored
from mirrormq.broker.staging import StagingQueue
from mirrormq.cluster.raft.raft import Raft
from mirrormq.log.journal import Journal
from mirrormq.log.recycler import Recycler
from mirrormq.meta import system, views
from mirrormq.meta.definitions import RABBITMQ_VERSION
from mirrormq.meta.state import MetaState
from mirrormq.node import report, report_mirrors
from mirrormq.node.happenings import Counters
from mirrormq.node.metrics_format import COUNTER, GAUGE, Family, Row
from mirrormq.node.rates import Rates
from mirrormq.node.report_cluster import ClusterSource, cluster_name

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.queue import Queue
    from mirrormq.node.switch import Switch


PYTHON = "Python " + ".".join(map(str, sys.version_info[:3]))


class QueueFacts(NamedTuple):
    """What is measured of one queue mastered here."""

    vhost: str
    name: str
    ready: int
    unacked: int
    consumers: int
    in_sync: int = 1
    wanted: int = 1
    behind: int = 0
    lag: int = 0
    progress: float = 100.0
    epoch: int = 0
    """0: not mirrored."""
    losses: int = 0
    salvaged: int = 0
    window: tuple[int, int, float] = (0, 0, 0.0)
    """Records, bytes and seconds that may be lost with this node, with asynchronous replication."""
    state: str = report_mirrors.RUNNING
    cursors: tuple[tuple[str, int], ...] = ()
    """(name, records behind the durable mark) of its readers."""
    bytes: int = 0
    published: int = 0
    sink: tuple[int, int, int] | None = None
    """Of a staging queue: rows committed, rows skipped, blocks on their way."""


class Totals:
    """Sums over the queues mastered here."""

    def __init__(self) -> None:
        self.queues = self.ready = self.unacked = self.mirrored = self.below = self.in_sync = self.behind = 0
        self.held = self.syncing = self.lag = 0
        self.progress = 100.0
        self.consumers = self.bytes = self.published = self.cursors = self.cursor_lag = 0
        self.sinks = self.sink_rows = self.sink_skipped = self.sink_blocks = 0
        self.channel = [0] * len(_CHANNEL_SUMS)
        self.connection = [0] * len(_CONNECTION_SUMS)

    def add(self, fact: QueueFacts) -> None:
        """Count a queue."""
        self.queues += 1
        self.ready += fact.ready
        self.unacked += fact.unacked
        self.consumers += fact.consumers
        self.bytes += fact.bytes
        self.published += fact.published
        self.cursors += len(fact.cursors)
        self.cursor_lag = max((self.cursor_lag, *(lag for _, lag in fact.cursors)))
        if fact.sink is not None:
            self.sinks += 1
            self.sink_rows += fact.sink[0]
            self.sink_skipped += fact.sink[1]
            self.sink_blocks += fact.sink[2]
        if fact.epoch:
            self.mirrored += 1
            self.below += fact.in_sync < fact.wanted
            self.in_sync += fact.in_sync
            self.behind += fact.behind
            self.held += fact.state == report_mirrors.HELD
            self.syncing += fact.state == report_mirrors.SYNCING
            self.lag = max(self.lag, fact.lag)
            self.progress = min(self.progress, fact.progress)

    def add_channel(self, row: Row) -> None:
        """Count a channel; its row begins with what is summed up here."""
        self.channel = [one + int(other) for one, other in zip(self.channel, row, strict=False)]

    def add_connection(self, row: Row) -> None:
        """Count a connection."""
        self.connection = [one + int(other) for one, other in zip(self.connection, row, strict=False)]

    def families(self) -> Iterator[Family]:
        """The sums under the names of what they are sums of."""
        ready, unacked = self.ready, self.unacked
        yield _one("rabbitmq_queue_messages_ready", "Messages ready to be delivered.", ready)
        yield _one("rabbitmq_queue_messages_unacked", "Messages delivered and not acknowledged.", unacked)
        yield _one("rabbitmq_queue_messages", "Messages ready and unacknowledged.", ready + unacked)
        yield _one("rabbitmq_queue_messages_bytes", "Bytes of these messages.", self.bytes)
        yield _one("rabbitmq_queue_process_memory_bytes", "Bytes of these messages.", self.bytes)
        yield _one("rabbitmq_queue_consumers", "Consumers on queues.", self.consumers)
        text = "Messages published to queues whose master is this node."
        yield _count("rabbitmq_queue_messages_published_total", text, self.published)
        for name, value in zip(_CHANNEL_SUMS, self.channel, strict=True):
            yield _one(f"rabbitmq_{name}", "The sum over all channels that are open.", value)
        for name, value in zip(_CONNECTION_SUMS, self.connection, strict=True):
            text = "The sum over all connections that are open."
            make = _count if name.endswith("_total") else _one
            yield make(f"rabbitmq_{name}", text, value)


_CHANNEL_SUMS = (
    "channel_consumers",
    "channel_messages_unacked",
    "channel_messages_unconfirmed",
    "channel_messages_uncommitted",
    "channel_acks_uncommitted",
)
_CONNECTION_SUMS = (
    "connection_incoming_bytes_total",
    "connection_outgoing_bytes_total",
    "connection_incoming_packets_total",
    "connection_channels",
)


class MetricSource(ClusterSource, Protocol):
    """The node, as monitoring reads it."""

    switch: "Switch"
    rates: Rates
    channels: "dict[int, Channel]"
    census: Census
    journal: Journal
    recycler: Recycler


def facts(source: MetricSource) -> Iterator[QueueFacts]:
    """Every queue mastered here."""
    for live in list(source.switch.masters.values()):
        if not system.is_system(live.record.vhost, live.record.name):
            yield fact_of(source, live)


def fact_of(source: MetricSource, live: "Queue") -> QueueFacts:
    """One queue mastered here."""
    record = live.record
    fact = QueueFacts(
        record.vhost,
        record.name,
        stored(live),
        live.core.unacked,
        len(live.consumers.members),
        bytes=live.core.ready_bytes + live.core.unacked_bytes,
        published=live.core.published,
    )
    kept = live.log.kept
    if kept is not None and len(kept.cursors):
        upto = int(live.log.durable) + 1
        behind = tuple((cursor.name, max(0, upto - cursor.seq)) for cursor in kept.cursors.cursors())
        fact = fact._replace(cursors=behind)
    if isinstance(live, StagingQueue):
        state = live.staging.state
        fact = fact._replace(sink=(state.committed, state.skipped, len(state.sending)))
    told = report_mirrors.described(source, record, report.queue_pid)
    if not told:
        return fact
    measured = report_mirrors.measured(source, live)
    percent = measured.get("sync_progress")
    return fact._replace(
        in_sync=len(told["in_sync"]),
        wanted=told["copies_wanted"],
        behind=len(told["unsynchronised"]),
        lag=measured.get("mirror_lag", 0),
        progress=100.0 if percent is None else float(percent),
        epoch=told["epoch"],
        losses=told["losses"],
        salvaged=told["salvaged"],
        window=(
            measured.get("loss_window_records", 0),
            measured.get("loss_window_bytes", 0),
            measured.get("loss_window_seconds", 0.0),
        ),
        state=measured["state"],
    )


def to_salvage(state: MetaState) -> int:
    """How many copies have messages that only they have."""
    found = [parting for view in state.views.values() for parting in view.partings]
    return sum(len(parting.nodes) for parting in found)


def without_master(state: MetaState) -> int:
    """How many mirrored queues of the cluster nobody serves."""
    found = {view.identity for view in state.views_unled()}
    for node in state.nodes.values():
        if not node.is_live:
            found.update(view.identity for view in state.views_led_by(node.name))
    users = [identity for identity in found if not system.is_system(*identity)]
    return sum(not views.has_master(state.nodes, state.views[identity]) for identity in users)


def of_node(source: MetricSource, totals: Totals, process: Mapping[str, Any]) -> Iterator[Family]:
    """The node as a whole; `process` is what only its process knows."""
    counts = report.totals(source)
    cluster, permanent = cluster_name(source), source.membership.identity.cluster.hex()
    yield _one("mirrormq_build_info", "The version of the node.", 1, ("version", __version__))
    yield _one(
        "rabbitmq_build_info",
        "The version of RabbitMQ whose behaviour the node has, and its own.",
        1,
        # A column each in RabbitMQ's table of nodes: whose names these are, what writes them, what runs it.
        ("rabbitmq_version", RABBITMQ_VERSION),
        ("prometheus_plugin_version", RABBITMQ_VERSION),
        ("prometheus_client_version", __version__),
        ("erlang_version", PYTHON),
        ("mirrormq_version", __version__),
    )
    names = (("node", source.node_name), ("cluster", cluster))
    yield _one("mirrormq_identity_info", "The node and its cluster.", 1, *names)
    names = (("rabbitmq_node", source.node_name), ("rabbitmq_cluster", cluster))
    permanent_name = ("rabbitmq_cluster_permanent_id", permanent)
    yield _one("rabbitmq_identity_info", "The node and its cluster.", 1, *names, permanent_name)
    yield _one("rabbitmq_connections", "Connections currently open.", counts["connections"])
    yield _one("rabbitmq_channels", "Channels currently open.", counts["channels"])
    yield _one("rabbitmq_consumers", "Consumers currently connected.", counts["consumers"])
    yield _one("rabbitmq_queues", "Queues whose master is this node.", totals.queues)
    for alarm, name in _ALARMS:
        text = f"1 while the {alarm} alarm of this node is set."
        yield _one(f"rabbitmq_alarms_{name}", text, int(alarm in source.alarms))
    yield from _of_process(source, process)
    yield from _of_churn(source)
    yield from _of_storage(source)
    yield from _of_metadata(source)
    yield from _of_mirrors(source, totals)
    yield from _of_readers(totals)


_ALARMS = (
    ("memory", "memory_used_watermark"),
    ("disk", "free_disk_space_watermark"),
    ("file", "file_descriptor_limit"),
)


def _of_process(source: MetricSource, process: Mapping[str, Any]) -> Iterator[Family]:
    yield _one("rabbitmq_process_open_fds", "Open file descriptors.", process.get("fd_used", 0))
    yield _one("rabbitmq_process_max_fds", "Most file descriptors.", process.get("fd_limit", 0))
    yield _one("rabbitmq_process_open_tcp_sockets", "Open TCP sockets.", len(source.connections))
    text = "Most TCP sockets: a client is refused above nine tenths of the file descriptors."
    yield _one("rabbitmq_process_max_tcp_sockets", text, process.get("fd_limit", 0) * 9 // 10)
    yield _one("rabbitmq_process_resident_memory_bytes", "Memory used.", source.memory_used)
    limit = source.settings.memory_limit
    yield _one("rabbitmq_resident_memory_limit_bytes", "Memory above which publishers are held.", limit)
    yield _one("rabbitmq_disk_space_available_bytes", "Disk space free.", source.disk_free)
    limit = source.settings.disk_free_limit
    yield _one("rabbitmq_disk_space_available_limit_bytes", "Disk space kept free.", limit)
    uptime = (source.now.mono - source.started_at.mono) / 1_000_000
    yield _one("mirrormq_uptime_seconds", "Time since the application started.", round(uptime, 3))
    yield _one("mirrormq_rates_bytes", "Memory that the past of counters takes.", source.rates.size)


def _of_churn(source: MetricSource) -> Iterator[Family]:
    churn = source.census.churn
    for name, word, what in (
        ("connections", "connection", "Connections"),
        ("channels", "channel", "Channels"),
    ):
        yield _count(f"rabbitmq_{name}_opened_total", f"{what} opened.", churn[f"{word}_created"])
        yield _count(f"rabbitmq_{name}_closed_total", f"{what} closed.", churn[f"{word}_closed"])
    yield _count("rabbitmq_queues_declared_total", "Declares of queues.", churn["queue_declared"])
    yield _count("rabbitmq_queues_created_total", "Queues created on this node.", churn["queue_created"])
    yield _count("rabbitmq_queues_deleted_total", "Queues deleted on this node.", churn["queue_deleted"])
    logins = source.census.logins
    attempts = logins["succeeded"] + logins["failed"]
    yield _count("rabbitmq_auth_attempts_total", "Log-ins tried.", attempts)
    yield _count("rabbitmq_auth_attempts_succeeded_total", "Log-ins that succeeded.", logins["succeeded"])
    yield _count("rabbitmq_auth_attempts_failed_total", "Log-ins that failed.", logins["failed"])


def _of_storage(source: MetricSource) -> Iterator[Family]:
    journal = source.journal
    yield _count("rabbitmq_io_write_bytes_total", "Bytes written to the journal.", journal.added_bytes)
    yield _count("rabbitmq_io_sync_ops_total", "Flushes of the journal.", journal.flush_count)
    took = journal.flush_times.total_us / 1_000_000
    yield _count("rabbitmq_io_sync_time_seconds_total", "Time that flushes of the journal took.", took)
    yield _one("mirrormq_journal_files", "Files of the journal.", len(journal.serials))
    text = "Files of the journal that were emptied into segments and removed."
    yield _count("mirrormq_journal_recycled_files_total", text, source.recycler.recycled_files)
    text = "Bytes of records written again so that old files could go."
    yield _count("mirrormq_rewritten_bytes_total", text, source.recycler.rewritten_bytes)


def _of_metadata(source: MetricSource) -> Iterator[Family]:
    raft = source.membership.raft
    yield _one("mirrormq_metadata_leader", "1 on the node that orders the metadata.", int(raft.is_leader))
    yield _count("rabbitmq_raft_term_total", "Term of the metadata's Raft group.", raft.term)
    snapshot = raft.log.base_index if isinstance(raft, Raft) else raft.snapshot_index
    yield _one("rabbitmq_raft_log_snapshot_index", "Last command in the snapshot.", snapshot)
    yield _one("rabbitmq_raft_log_last_applied_index", "Last command applied.", raft.applied_index)
    yield _one("rabbitmq_raft_log_commit_index", "Last command agreed on.", raft.commit_index)
    yield _one("rabbitmq_raft_log_last_written_index", "Last command flushed here.", raft.durable_index)
    has_lease = source.membership.has_lease()
    yield _one("mirrormq_lease_held", "1 while this node may act for the cluster.", int(has_lease))
    text = "How often this node could not act for a while because its lease had run out."
    yield _count("mirrormq_lease_lapses_total", text, source.switch.lapses)
    branches = source.membership.partition.branch_counts
    text = "Branches of queues on this node (`autoheal`) that serve clients or are being merged."
    yield _one("mirrormq_branches", text, branches["open"] + branches["merging"])
    yield _one("mirrormq_branch_messages", "Messages in branches on this node.", branches["messages"])
    text = "Messages of branches on this node that were brought to their queues."
    yield _count("mirrormq_branch_merged_messages_total", text, branches["merged"])
    text = "Messages of branches on this node that went with their queues, deleted on the other side."
    yield _count("mirrormq_branch_dropped_messages_total", text, branches["dropped"])
    yield _one("mirrormq_cluster_nodes", "Members of the cluster.", len(raft.config.members))
    yield _one("mirrormq_cluster_nodes_running", "Members this node hears.", len(source.news.live()))


def _of_readers(totals: Totals) -> Iterator[Family]:
    yield _one("mirrormq_cursors", "Cursors of queues whose master is this node.", totals.cursors)
    text = "Records that the cursor furthest behind has not taken yet."
    yield _one("mirrormq_cursor_lag_records_max", text, totals.cursor_lag)
    yield _one("mirrormq_sinks", "Sinks whose staging queue has its master here.", totals.sinks)
    yield _one("mirrormq_sink_rows_committed", "Rows these sinks have committed.", totals.sink_rows)
    text = "Rows of these sinks whose queue was deleted before they reached it."
    yield _one("mirrormq_sink_rows_skipped", text, totals.sink_skipped)
    text = "Blocks of rows committed by these sinks that are on their way to their queues."
    yield _one("mirrormq_sink_blocks_waiting", text, totals.sink_blocks)


def _of_mirrors(source: MetricSource, totals: Totals) -> Iterator[Family]:
    here = "of queues whose master is this node"
    yield _one("mirrormq_mirrored_queues", "Mirrored queues whose master is this node.", totals.mirrored)
    yield _one("mirrormq_in_sync_copies", f"Copies in sync {here}, masters included.", totals.in_sync)
    text = "Mirrored queues mastered here with fewer copies in sync than their policy wants."
    yield _one("mirrormq_queues_below_target", text, totals.below)
    text = "Mirrored queues mastered here that take no publishes: fewer copies in sync than ha-min-in-sync."
    yield _one("mirrormq_queues_held", text, totals.held)
    text = "Mirrored queues of the whole cluster that have no master."
    yield _one("mirrormq_queues_without_master", text, without_master(source.state))
    yield _one("mirrormq_unsynchronised_mirrors", f"Mirrors {here} that are not in sync.", totals.behind)
    yield _one("mirrormq_queues_syncing", "Queues mastered here that are being synchronised.", totals.syncing)
    text = f"Progress of the mirror that is furthest behind, {here}; 1 if all are in sync."
    yield _one("mirrormq_sync_progress_ratio", text, totals.progress / 100)
    text = f"Records that the slowest mirror in sync has not flushed yet, {here}."
    yield _one("mirrormq_mirror_lag_records", text, totals.lag)
    counters = Counters() if source.copies is None else source.copies.counters
    yield Family(
        "mirrormq_promotions_total",
        COUNTER,
        "Queues whose master this node became, by the reason.",
        [((("reason", reason),), count) for reason, count in counters.promotions.items()],
    )
    planned = ("transfer",)
    failed = sum(count for reason, count in counters.promotions.items() if reason not in planned)
    yield Family(
        "mirrormq_failovers_total",
        COUNTER,
        "Queues that this node took over although nobody had planned it.",
        [((), failed)],
    )
    yield Family(
        "mirrormq_lossy_promotions_total",
        COUNTER,
        "Queues that this node took over with a copy that was not in sync.",
        [((), counters.lossy)],
    )
    text = "Messages that only this node had after such a take-over, moved to a salvage queue or back."
    yield _count("mirrormq_salvaged_messages_total", text, counters.salvaged)
    text = "Messages that only this node had after such a take-over, given up because the policy says so."
    yield _count("mirrormq_salvage_dropped_messages_total", text, counters.salvage_dropped)
    text = "Copies of queues in the cluster with messages that only they have, not salvaged yet."
    yield _one("mirrormq_copies_to_salvage", text, to_salvage(source.state))
    yield Family(
        "mirrormq_transfers_failed_total",
        COUNTER,
        "Planned transfers from this node that were given up.",
        [((), counters.transfers_failed)],
    )
    yield Family(
        "mirrormq_mirror_changes_total",
        COUNTER,
        f"What became of mirrors {here}.",
        [((("change", change),), count) for change, count in counters.mirrors.items()],
    )


def _one(name: str, text: str, value: float, *labels: tuple[str, str]) -> Family:
    return Family(name, GAUGE, text, [(labels, value)])


def _count(name: str, text: str, value: float) -> Family:
    return Family(name, COUNTER, text, [((), value)])
