"""pytest plugin: the fixture `mirrormq` is a real broker with a virtual host that only this test sees, and
`mirrormq_cluster` is several.

One broker process, or one cluster, serves a whole test run (with pytest-xdist, one per worker); it is started
by the first test that asks for it. Importing this module costs nothing, since pytest imports it in every
project of the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mirrormq.testing.broker import Broker
    from mirrormq.testing.cluster import Cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings of the broker to pytest's configuration."""
    parser.addini("mirrormq_admin", "serve the HTTP admin API of the test broker", type="bool", default=False)
    parser.addini(
        "mirrormq_config",
        "settings of the test broker, as lines of rabbitmq.conf",
        type="linelist",
        default=[],
    )
    parser.addini("mirrormq_nodes", "nodes of the test cluster", default="3")


@pytest.fixture(scope="session")
def mirrormq_server(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """The broker of this test run, seen through its default virtual host `/`."""
    from mirrormq.testing.broker import running

    with running(
        pytestconfig.getini("mirrormq_config"), admin=pytestconfig.getini("mirrormq_admin")
    ) as broker:
        yield broker


@pytest.fixture
def mirrormq(mirrormq_server: Broker, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker with a fresh virtual host: url, host, port, vhost, user, password."""
    with mirrormq_server.fresh_vhost(f"test-{_next_number(request.config)}") as broker:
        yield broker


@pytest.fixture(scope="session")
def mirrormq_cluster_server(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The cluster of this test run, seen through its default virtual host `/`."""
    from mirrormq.testing.cluster import cluster

    nodes, config = int(pytestconfig.getini("mirrormq_nodes")), pytestconfig.getini("mirrormq_config")
    with cluster(nodes, config, admin=pytestconfig.getini("mirrormq_admin")) as made:
        yield made


@pytest.fixture
def mirrormq_cluster(mirrormq_cluster_server: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster with a fresh virtual host; whatever a test kills, stops or pauses runs again after it."""
    with mirrormq_cluster_server.fresh_vhost(f"test-{_next_number(request.config)}") as made:
        yield made


_counts = pytest.StashKey[int]()


def _next_number(config: pytest.Config) -> int:
    number = config.stash.get(_counts, 0) + 1
    config.stash[_counts] = number
    return number
