"""pytest plugin: the fixture `mirrormq` is a real broker with a virtual host that only this test sees.

One broker process serves a whole test run (with pytest-xdist, one per worker); it is started by the first
test that asks for it. Importing this module costs nothing, since pytest imports it in every project of the
environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mirrormq.testing.broker import Broker


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the settings of the broker to pytest's configuration."""
    parser.addini("mirrormq_admin", "serve the HTTP admin API of the test broker", type="bool", default=False)
    parser.addini(
        "mirrormq_config",
        "settings of the test broker, as lines of rabbitmq.conf",
        type="linelist",
        default=[],
    )


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


_counts = pytest.StashKey[int]()


def _next_number(config: pytest.Config) -> int:
    number = config.stash.get(_counts, 0) + 1
    config.stash[_counts] = number
    return number
