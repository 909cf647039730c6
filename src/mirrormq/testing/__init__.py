"""A real broker for tests: the pytest fixture `mirrormq`, and `running()` for everything else.

The broker is a process of its own that ends with the process that started it, however that ends, and takes
its data folder with it. See docs/testing.md.
"""

from mirrormq.testing.broker import Broker, BrokerError, running

__all__ = ["Broker", "BrokerError", "running"]
