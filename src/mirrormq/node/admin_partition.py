"""An administrator's word on what this node does while it is cut off; until its process starts again."""

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from mirrormq.broker.host import BrokerSettings
from mirrormq.node import partition, requests
from mirrormq.node.partition import Partition
from mirrormq.node.report import Row, Source
from mirrormq.node.steps import Operation, Refusal

if TYPE_CHECKING:
    from mirrormq.node.copies import Copies


class PartitionHost(Source, Protocol):
    """The node, as these requests see it."""

    settings: BrokerSettings
    partition: Partition
    copies: "Copies | None"


def set_partition_handling(host: PartitionHost, request: requests.SetPartitionHandling) -> Row:
    """Take another mode; it is in force from the end of this pass on, also on a node that is cut off now."""
    nodes = host.settings.partition_nodes if request.nodes is None else request.nodes
    try:
        mode = partition.chosen(request.mode)
        partition.check_nodes(mode, nodes)
    except ValueError as error:
        raise Refusal("bad_request", str(error)) from None
    if mode not in host.partition.modes:
        raise Refusal("bad_request", f"with coordinator = etcd there is only {partition.PAUSE_MINORITY}")
    host.settings = replace(host.settings, partition_handling=mode, partition_nodes=nodes)
    host.partition.changed(warning := partition.warning_about(request.mode))
    if host.copies is not None:
        host.copies.policy.look_at_all()
    return host.partition.status() | ({"warning": warning} if warning else {})


def show_partition_handling(host: PartitionHost, _: requests.PartitionHandling) -> Row:
    """Which mode is in force, which side this node is on, and why."""
    return host.partition.status()


OPERATIONS: dict[type[requests.Request], Operation] = {
    requests.SetPartitionHandling: set_partition_handling,
    requests.PartitionHandling: show_partition_handling,
}
