"""What the tests of the web UI share: one cluster of real nodes, one real browser, and a person who uses it.

Nobody sleeps: the browser waits for what it should show. Every page is watched: an error in its console, an
exception, or a request to anywhere but the nodes fails the test that made it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from mirrormq.client.bulk import BulkClient, Target
from tests.cluster import kit
from tests.cluster.kit import Cluster
from tests.web.person import Person, browser_path, launched

SHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes with something to show; tests leave it as they found it, all nodes running."""
    with kit.cluster(tmp_path_factory.mktemp("web"), settings=("events=on",)) as made:
        node = made[0]
        for name, pattern, definition in (
            ("ha-all", "^(orders|audit)", {"ha-mode": "all", "ha-sync-mode": "automatic"}),
            ("limited", "^payments", {"max-length": 5000}),
        ):
            node.ctl(
                "set_policy",
                vhost="/",
                name=name,
                pattern=pattern,
                definition=definition,
                apply_to="queues",
            )
        node.ctl("add_user", name="watcher", password="watcher", tags=["monitoring"])
        node.ctl("set_permissions", vhost="/", user="watcher", configure=".*", write=".*", read=".*")
        channel = node.channel()
        kit.declare(channel, "orders")
        kit.declare(channel, "audit", arguments={"x-message-ttl": 600_000, "x-dead-letter-exchange": "dead"})
        kit.declare(channel, "payments", arguments={"x-max-priority": 5})
        channel.exchange_declare("shop", "topic", durable=True)
        channel.queue_bind("orders", "shop", "order.#")
        channel.queue_bind("audit", "shop", "#")
        for number in range(20):
            channel.basic_publish("shop", "order.new", b'{"order": %d}' % number)
        other = made[1].channel()
        other.basic_consume("payments", lambda *_: None)
        with BulkClient(Target([(node.host, kit.AMQP)])) as reader:
            wanted = {"queue": "orders", "name": "lake", "at": "earliest", "reader": "r1", "query": "follow"}
            reader.call("cursor_open", **wanted)
        yield made


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A real Chromium."""
    if browser_path() is None:
        pytest.skip("there is no Chromium, e.g. 'sudo apt-get install chromium'")
    with launched() as found:
        yield found


@pytest.fixture
def person(cluster: Cluster, browser: Browser) -> Iterator[Person]:
    """Somebody in front of an empty browser."""
    found = Person(browser, cluster)
    yield found
    found.leave()


@pytest.fixture
def admin(person: Person) -> Person:
    """Logged in as an administrator, at the first node."""
    person.log_in()
    return person


@pytest.fixture(scope="session")
def shots() -> Path:
    """Where screenshots go; those of the last run are gone."""
    folder = Path(os.environ.get("SCREENSHOTS", SHOTS))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
