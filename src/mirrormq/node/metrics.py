"""What monitoring reads of a node, as families of samples in Prometheus' terms.

Guarantees
- One look at a queue gives all samples about it, and looking is done one queue at a time (`facts`), so that
  whoever asks can stop after a slice: ten thousand queues never hold the loop.
- A queue is counted on the node that is its master, so the sum over all nodes counts it once. What has no
  master is counted by every node alike, since each knows it from the metadata.

Names that RabbitMQ's own exporter has mean the same here; the others begin with `mirrormq_`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mirrormq import __version__
from mirrormq.broker.mirrorqueue import stored
from mirrormq.meta import system, views
from mirrormq.meta.state import MetaState
from mirrormq.node import report, report_mirrors
from mirrormq.node.happenings import Counters
from mirrormq.node.report_cluster import ClusterSource, cluster_name

if TYPE_CHECKING:
    from mirrormq.node.switch import Switch

GAUGE, COUNTER = "gauge", "counter"

Labels = tuple[tuple[str, str], ...]


class Family(NamedTuple):
    """One metric with its samples."""

    name: str
    kind: str
    help: str
    samples: Iterable[tuple[Labels, float]]


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
    state: str = report_mirrors.RUNNING
    cursors: tuple[tuple[str, int], ...] = ()
    """(name, records behind the durable mark) of its readers."""


class Totals:
    """Sums over the queues mastered here."""

    def __init__(self) -> None:
        self.queues = self.ready = self.unacked = self.mirrored = self.below = self.in_sync = self.behind = 0
        self.held = self.syncing = self.lag = 0
        self.progress = 100.0

    def add(self, fact: QueueFacts) -> None:
        """Count a queue."""
        self.queues += 1
        self.ready += fact.ready
        self.unacked += fact.unacked
        if fact.epoch:
            self.mirrored += 1
            self.below += fact.in_sync < fact.wanted
            self.in_sync += fact.in_sync
            self.behind += fact.behind
            self.held += fact.state == report_mirrors.HELD
            self.syncing += fact.state == report_mirrors.SYNCING
            self.lag = max(self.lag, fact.lag)
            self.progress = min(self.progress, fact.progress)


class MetricSource(ClusterSource, Protocol):
    """The node, as monitoring reads it."""

    switch: "Switch"


def facts(source: MetricSource) -> Iterator[QueueFacts]:
    """Every queue mastered here."""
    for live in list(source.switch.masters.values()):
        record = live.record
        if system.is_system(record.vhost, record.name):
            continue
        fact = QueueFacts(
            record.vhost, record.name, stored(live), live.core.unacked, len(live.consumers.members)
        )
        kept = live.log.kept
        if kept is not None and len(kept.cursors):
            upto = int(live.log.durable) + 1
            behind = tuple((cursor.name, max(0, upto - cursor.seq)) for cursor in kept.cursors.cursors())
            fact = fact._replace(cursors=behind)
        told = report_mirrors.described(source, record, report.queue_pid)
        if told:
            measured = report_mirrors.measured(source, live)
            percent = measured.get("sync_progress")
            fact = fact._replace(
                in_sync=len(told["in_sync"]),
                wanted=told["copies_wanted"],
                behind=len(told["unsynchronised"]),
                lag=measured.get("mirror_lag", 0),
                progress=100.0 if percent is None else float(percent),
                epoch=told["epoch"],
                losses=told["losses"],
                state=measured["state"],
            )
        yield fact


def without_master(state: MetaState) -> int:
    """How many mirrored queues of the cluster nobody serves."""
    found = {view.identity for view in state.views_unled()}
    for node in state.nodes.values():
        if not node.is_live:
            found.update(view.identity for view in state.views_led_by(node.name))
    users = [identity for identity in found if not system.is_system(*identity)]
    return sum(not views.has_master(state.nodes, state.views[identity]) for identity in users)


def of_node(source: MetricSource, totals: Totals) -> Iterator[Family]:
    """The node as a whole."""
    counts = report.totals(source)
    yield _one("mirrormq_build_info", "The version of the node.", 1, ("version", __version__))
    names = (("node", source.node_name), ("cluster", cluster_name(source)))
    yield _one("mirrormq_identity_info", "The node and its cluster.", 1, *names)
    leads = source.membership.raft.is_leader
    yield _one("mirrormq_metadata_leader", "1 on the node that orders the metadata.", int(leads))
    text = "How often this node could not act for a while because its lease had run out."
    yield Family("mirrormq_lease_lapses_total", COUNTER, text, [((), source.switch.lapses)])
    yield _one("rabbitmq_connections", "Connections currently open.", counts["connections"])
    yield _one("rabbitmq_channels", "Channels currently open.", counts["channels"])
    yield _one("rabbitmq_consumers", "Consumers currently connected.", counts["consumers"])
    memory, disk = source.memory_used, source.disk_free
    yield _one("rabbitmq_process_resident_memory_bytes", "Memory used.", memory)
    limit = source.settings.memory_limit
    yield _one("rabbitmq_resident_memory_limit_bytes", "Memory above which publishers are held.", limit)
    yield _one("rabbitmq_disk_space_available_bytes", "Disk space free.", disk)
    limit = source.settings.disk_free_limit
    yield _one("rabbitmq_disk_space_available_limit_bytes", "Disk space kept free.", limit)
    for alarm, name in (("memory", "memory_used"), ("disk", "free_disk_space")):
        text = f"1 while the {alarm} alarm of this node is set."
        yield _one(f"rabbitmq_alarms_{name}_watermark", text, int(alarm in source.alarms))
    yield _one("rabbitmq_queues", "Queues whose master is this node.", totals.queues)
    yield _one("rabbitmq_queue_messages_ready", "Messages ready to be delivered.", totals.ready)
    yield _one("rabbitmq_queue_messages_unacked", "Messages delivered and not acknowledged.", totals.unacked)
    yield from _of_mirrors(source, totals)


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


def of_queues(found: Sequence[QueueFacts]) -> Iterator[Family]:
    """Each queue by itself."""
    mirrored = [fact for fact in found if fact.epoch]
    yield _each("rabbitmq_queue_messages_ready", "Messages ready to be delivered.", found, "ready")
    yield _each("rabbitmq_queue_messages_unacked", "Messages not acknowledged yet.", found, "unacked")
    yield _each("rabbitmq_queue_consumers", "Consumers on a queue.", found, "consumers")
    text = "Copies in sync, the master's included."
    yield _each("mirrormq_queue_in_sync_copies", text, mirrored, "in_sync")
    yield _each("mirrormq_queue_wanted_copies", "Copies the policy wants.", mirrored, "wanted")
    text = "Mirrors that are not in sync."
    yield _each("mirrormq_queue_unsynchronised_mirrors", text, mirrored, "behind")
    text = "Records that the slowest mirror in sync has not flushed yet."
    yield _each("mirrormq_queue_mirror_lag_records", text, mirrored, "lag")
    samples = ((_labels(fact), fact.progress / 100) for fact in mirrored)
    text = "Progress of the mirror that is furthest behind; 1 if all are in sync."
    yield Family("mirrormq_queue_sync_progress_ratio", GAUGE, text, samples)
    readers = (((*_labels(fact), ("cursor", name)), lag) for fact in found for name, lag in fact.cursors)
    text = "Records that the reader of a cursor has not taken yet."
    yield Family("mirrormq_cursor_lag_records", GAUGE, text, readers)
    yield _each("mirrormq_queue_epoch", "Number of the view.", mirrored, "epoch")
    lossy = ((_labels(fact), fact.losses) for fact in mirrored)
    text = "Promotions of a copy that was not in sync, since the queue was declared."
    yield Family("mirrormq_queue_lossy_promotions_total", COUNTER, text, lossy)


def _one(name: str, text: str, value: float, *labels: tuple[str, str]) -> Family:
    return Family(name, GAUGE, text, [(labels, value)])


def _each(name: str, text: str, found: Iterable[QueueFacts], field: str) -> Family:
    return Family(name, GAUGE, text, ((_labels(fact), getattr(fact, field)) for fact in found))


def _labels(fact: QueueFacts) -> Labels:
    return (("vhost", fact.vhost), ("queue", fact.name))


# --- the text format ---------------------------------------------------------------------------------------


def lines(families: Iterable[Family]) -> Iterator[bytes]:
    """Families in Prometheus' text format (version 0.0.4), a line at a time."""
    for family in families:
        yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n".encode()
        for labels, value in family.samples:
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
            number = int(value) if value == int(value) else value
            yield f"{family.name}{'{' + shown + '}' if shown else ''} {number}\n".encode()


def _escaped(text: str) -> str:
    readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return readable.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
