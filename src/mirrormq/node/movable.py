"""Where the masters of queues are, and where else they may be.

Guarantee: a node named here as able to be the master of a queue is live, serves clients, is wanted by the
policy of the queue and, if the queue is mirrored, has a copy that is in sync.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mirrormq.meta import mirroring, views
from mirrormq.meta.records import Node as NodeRecord
from mirrormq.meta.records import Queue, View

if TYPE_CHECKING:
    from mirrormq.node.node import Node


def sites(node: "Node") -> dict[str, int]:
    """The nodes that take masters, with the connections of clients they have."""
    found = {name: connections for name, connections, _ in node.news.loads()}
    return {name: found[name] for name in open_nodes(node.meta.nodes) if name in found}


def open_nodes(nodes: Mapping[str, NodeRecord]) -> list[str]:
    """The nodes that may have masters and are not in maintenance."""
    hosts = mirroring.hosts(nodes).items()
    return [name for name, record in hosts if record.is_live and not record.is_drained]


def is_alone(node: "Node", record: Queue) -> bool:
    """Is the queue meant to have no mirror, so that it has to be copied to move?"""
    return mirroring.mirroring_of(node.meta, record, node.settings.ha_defaults).mode == "none"


def able(node: "Node", record: Queue, among: Iterable[str]) -> list[str]:
    """Those of some nodes that could be the master of a queue; its own node included if it is one of them."""
    meta = node.meta
    found = mirroring.mirroring_of(meta, record, node.settings.ha_defaults)
    if record.exclusive:
        return []
    if found.mode == "none":
        return list(among)
    view = meta.views.get(record.identity)
    if view is None or not views.has_master(meta.nodes, view):
        return []
    wanted = mirroring.wanted(found, view, meta.nodes, {}, {})
    return [name for name in among if name in wanted and is_in_sync(meta.nodes, view, name)]


def is_in_sync(nodes: Mapping[str, NodeRecord], view: View, name: str) -> bool:
    """Could this node take over without a loss, now?"""
    entry = view.member(name)
    return entry is not None and not entry.is_restarted and views.is_live(nodes, entry)
