"""Families of `/metrics/detailed` that are about the whole cluster, RabbitMQ's `rabbitmq_cluster_*`."""

from collections.abc import Callable, Iterator
from typing import Any

from mirrormq.node.metrics_format import GAUGE, Family


def vhost_status(source: Any, vhosts: set[str]) -> Iterator[Family]:
    """Which vhosts are served."""
    samples = (
        ((("vhost", name),), int(name in source.vhosts))
        for name in sorted(source.state.vhosts)
        if not vhosts or name in vhosts
    )
    yield Family("rabbitmq_cluster_vhost_status", GAUGE, "1 while a vhost is served.", samples)


def exchange_bindings(source: Any, vhosts: set[str]) -> Iterator[Family]:
    """How many bindings each exchange has."""
    state = source.state
    samples = (
        (_labels(found), len(list(state.bindings_from(found.vhost, found.name))))
        for found in list(state.exchanges.values())
        if not vhosts or found.vhost in vhosts
    )
    yield Family("rabbitmq_cluster_exchange_bindings", GAUGE, "Bindings of an exchange.", samples)


def exchange_names(source: Any, vhosts: set[str]) -> Iterator[Family]:
    """Which exchanges there are."""
    samples = (
        (_labels(found), 1)
        for found in list(source.state.exchanges.values())
        if not vhosts or found.vhost in vhosts
    )
    yield Family("rabbitmq_cluster_exchange_name", GAUGE, "Exchanges.", samples)


def _labels(found: Any) -> tuple[tuple[str, str], ...]:
    return (("vhost", found.vhost), ("exchange", found.name), ("type", found.type))


FAMILIES: dict[str, Callable[[Any, set[str]], Iterator[Family]]] = {
    "vhost_status": vhost_status,
    "exchange_bindings": exchange_bindings,
    "exchange_names": exchange_names,
}

SILENT = (
    "connection_churn_metrics",
    "node_coarse_metrics",
    "node_metrics",
    "node_persister_metrics",
    "ra_metrics",
    "auth_attempt_metrics",
    "auth_attempt_detailed_metrics",
    "channel_process_metrics",
)
"""RabbitMQ's families about the node, which are at /metrics and not repeated here."""
