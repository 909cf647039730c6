"""Promises about maintenance, kept for real clients: a drained node serves nobody, and nobody misses it."""

from __future__ import annotations

from collections.abc import Iterator

import pika.exceptions
import pytest

from mirrormq.client.admin import Refused
from tests.cluster import kit
from tests.cluster.kit import Cluster, until
from tests.cluster.steady import flowing
from tests.cluster.test_rebalance import MIRRORED, PLAIN, QUEUES, ctl, declare, masters

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with kit.cluster(tmp_path_factory.mktemp("drain")) as made:
        made[0].ctl("set_policy", **MIRRORED)
        yield made


def test_a_drained_node_gives_all_away_and_clients_elsewhere_notice_nothing(three: Cluster) -> None:
    first, *others = three
    declare(first, [*QUEUES, *PLAIN])
    with flowing(others, [*QUEUES, *PLAIN]) as flow:
        code, found = ctl(first, "drain")
        assert (code, found["masters"]) == (0, 0)
        flow.progress()
    assert set(masters(others[0])) == {"n2", "n3"}
    ctl(first, "revive")


def test_its_clients_are_told_why_and_find_no_listener(three: Cluster) -> None:
    first = three[0]
    client = first.connect()
    ctl(first, "drain")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        until(lambda: client.process_data_events(0.1), "it is closed")
    assert closed.value.reply_code == 320
    assert f"node {first.name} is in maintenance" in closed.value.reply_text
    assert not first.accepts()
    ctl(first, "revive")
    until(first.accepts, "clients are let in again")


def test_every_node_and_every_check_says_so_until_it_is_revived_over_a_restart(three: Cluster) -> None:
    first, second, _ = three
    ctl(first, "drain")
    status = second.status()
    assert status["maintenance_status"][first.name] == "marked for maintenance"
    rows = {row["name"]: row for row in second.get("nodes")}
    assert rows[first.name]["being_drained"]
    assert not rows[second.name]["being_drained"]
    for check in ("ready-to-serve-clients", "is-in-service", f"port-listener/{kit.AMQP}"):
        with pytest.raises(Refused) as refused:
            first.get(f"health/checks/{check}")
        assert refused.value.status == 503
        assert second.get(f"health/checks/{check}")["status"] == "ok"
    assert ctl(first, "check_ready_to_serve_clients")[0] == 69
    assert ctl(first, "status")[1]["maintenance"]["is_drained"]

    first.stop()
    first.start()
    first.wait_for("running, without accepting connections")
    assert not first.accepts()
    assert ctl(first, "check_ready_to_serve_clients")[0] == 69
    assert ctl(first, "revive")[0] == 0
    until(first.accepts, "clients are let in again")
    assert ctl(first, "check_ready_to_serve_clients")[0] == 0
    assert second.status()["maintenance_status"][first.name] == "not under maintenance"
