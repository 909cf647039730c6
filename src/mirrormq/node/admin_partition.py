"""An administrator's word on what this node does while it is cut off; until its process starts again."""

from dataclasses import replace
from typing import Protocol

from mirrormq.broker.host import BrokerSettings
from mirrormq.node import partition, requests
from mirrormq.node.partition import Partition
from mirrormq.node.report import Row, Source
from mirrormq.node.steps import Operation, Refusal


class PartitionHost(Source, Protocol):
    """The node, as these requests see it."""

    settings: BrokerSettings
    partition: Partition


def set_partition_handling(host: PartitionHost, request: requests.SetPartitionHandling) -> Row:
    """Take another mode; it is in force from the end of this pass on, also on a node that is cut off now."""
    try:
        mode = partition.chosen(request.mode)
    except ValueError as error:
        raise Refusal("bad_request", str(error)) from None
    host.settings = replace(host.settings, partition_handling=mode)
    host.partition.changed()
    return host.partition.status()


def show_partition_handling(host: PartitionHost, _: requests.PartitionHandling) -> Row:
    """Which mode is in force, which side this node is on, and why."""
    return host.partition.status()


OPERATIONS: dict[type[requests.Request], Operation] = {
    requests.SetPartitionHandling: set_partition_handling,
    requests.PartitionHandling: show_partition_handling,
}
