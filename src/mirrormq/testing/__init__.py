"""Real brokers for tests: the pytest fixtures `mirrormq` and `mirrormq_cluster`, `running()` and `cluster()`.

The broker is a process of its own that ends with the process that started it, however that ends, and takes
its data folder with it. See docs/testing.md.
"""

from mirrormq.testing.broker import Broker, BrokerError, running
from mirrormq.testing.cluster import Cluster, ClusterNode, cluster

__all__ = ["Broker", "BrokerError", "Cluster", "ClusterNode", "cluster", "running"]
