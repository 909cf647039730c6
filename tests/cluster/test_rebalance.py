"""Promises about rebalancing, kept for real clients of real processes while masters move under them.

All masters begin on the first node, and the clients are on the others; `tests/unit/node/test_failover.py` is
about clients of the node that gives a queue away.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mirrormq.client.admin import Refused
from mirrormq.ctl.main import main
from mirrormq.ctl.options import Options
from mirrormq.ctl.session import Session
from mirrormq.node.balancing import STRATEGIES
from tests.cluster import kit
from tests.cluster.kit import Cluster, Node, until
from tests.cluster.steady import flowing

pytestmark = pytest.mark.slow

MIRRORED = {"vhost": "/", "name": "ha", "pattern": "^q", "definition": {"ha-mode": "all"}}
QUEUES = [f"q{number}" for number in range(6)]
PLAIN = [f"plain{number}" for number in range(3)]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster for all tests: what they promise holds whatever happened before."""
    with kit.cluster(tmp_path_factory.mktemp("balance")) as made:
        made[0].ctl("set_policy", **MIRRORED)
        yield made


def declare(node: Node, names: Sequence[str]) -> None:
    channel = node.channel()
    for name in names:
        channel.queue_delete(name)
        channel.queue_declare(name, durable=True)
    channel.connection.close()


def masters(node: Node, prefix: str = "") -> Counter[str]:
    rows = node.ctl("list_queues")
    found = Counter(row["node"] for row in rows if row["name"].startswith(prefix))
    return Counter({name.partition("@")[0]: count for name, count in found.items()})


def ctl(node: Node, *words: str) -> tuple[int, Any]:
    """`mirrormqctl --json`: exit code and what it printed."""
    out = io.StringIO()
    session = Session(Options(), out=out)
    code = main(["--data", str(node.folder), "--json", *words], session=session)
    text = out.getvalue()
    return code, json.loads(text) if text else None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_masters_move_under_clients_that_notice_nothing(three: Cluster, strategy: str) -> None:
    declare(three[0], QUEUES)
    with flowing(three.nodes[1:], QUEUES) as flow:
        code, found = ctl(three[1], "rebalance", "all", "--queue-pattern", "^q", "--strategy", strategy)
        assert (code, found["moved"], found["failed"]) == (0, found["planned"], 0)
        flow.progress()
    if strategy in ("connections", "messages"):
        # How many clients and messages there are changes from moment to moment.
        assert found["moved"] >= 2
    else:
        assert masters(three[2], "q") == {"n1": 2, "n2": 2, "n3": 2}
    assert max(flow.slowest.values()) < 3, flow.slowest


def test_queues_without_mirrors_move_by_a_copy_under_clients_that_notice_nothing(three: Cluster) -> None:
    declare(three[0], PLAIN)
    with flowing(three.nodes[1:], PLAIN) as flow:
        code, found = ctl(three[2], "rebalance", "classic", "--queue-pattern", "^plain")
        assert (code, found["moved"]) == (0, 2)
        flow.progress()
    assert masters(three[0], "plain") == {"n1": 1, "n2": 1, "n3": 1}

    def copies() -> bool:
        rows = three[0].ctl("list_queues")
        return all(len(row.get("in_sync", [0])) == 1 for row in rows if row["name"] in PLAIN)

    until(copies, "temporary copies are gone")


def test_an_operator_appoints_the_moves_by_name_or_by_an_edited_plan(three: Cluster, tmp_path: Path) -> None:
    declare(three[0], QUEUES)
    code, plan = ctl(three[1], "rebalance", "--dry-run", "--queue-pattern", "^q")
    assert (code, len(plan)) == (0, 4)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps([{**row, "to": three[2].name} for row in plan]))
    with flowing(three.nodes[1:], QUEUES) as flow:
        code, found = ctl(three[1], "rebalance", "--plan", str(file))
        assert (code, found["moved"], found["trigger"]) == (0, 4, "appoint")
        code, found = ctl(three[1], "rebalance", "--move", f"q5={three[1].name}")
        assert (code, found["moved"]) == (0, 1)
        flow.progress()
    assert masters(three[0], "q")["n2"] == 1


def test_http_begins_one_as_rabbitmqs_api_does(three: Cluster) -> None:
    declare(three[0], QUEUES)
    three[0].post("rebalance/queues", {})

    def is_even() -> bool:
        counts = masters(three[0]).values()
        return len(counts) == 3 and max(counts) - min(counts) <= 1

    until(is_even, "masters are spread")


def test_the_cluster_spreads_masters_by_the_clock_and_at_a_start(tmp_path: Path) -> None:
    settings = ("cluster_rebalance=timer", "cluster_rebalance.interval=1s")
    with kit.cluster(tmp_path, settings=settings) as made:
        made[0].ctl("set_policy", **MIRRORED)
        declare(made[0], QUEUES)
        with flowing(made.nodes[1:], QUEUES) as flow:
            until(lambda: masters(made[1], "q") == {"n1": 2, "n2": 2, "n3": 2}, "spread by the clock")
            flow.progress()
        for node in made:
            node.settings.append("cluster_rebalance=run")
        made[2].stop()
        until(lambda: "n3" not in masters(made[0], "q"), "handed over")
        made.start(made[2])
        until(lambda: masters(made[0], "q") == {"n1": 2, "n2": 2, "n3": 2}, "spread after the start")


def test_a_second_call_is_refused_while_the_first_one_runs(three: Cluster) -> None:
    declare(three[0], PLAIN)
    channel = three[0].channel(confirms=False)
    for _ in range(3000):
        channel.basic_publish("", PLAIN[0], b"x" * 20_000)
    channel.connection.close()
    until(lambda: _depth(three[0], PLAIN[0]) == 3000, "messages are there")
    three[0].ctl("rebalance", queue_pattern="^plain", moves=[("/", PLAIN[0], three[1].name)])
    with pytest.raises(Refused, match=f"rebalance in progress: node {three[0].name}"):
        three[2].ctl("rebalance", queue_pattern="^plain")
    with pytest.raises(Refused) as refused:
        three[1].post("rebalance/queues", {})
    assert refused.value.status == 409
    status = three[1].ctl("rebalance_status")
    assert (status["running"], status["node"], status["run"]["planned"]) == (True, three[0].name, 1)
    three[1].ctl("cancel_rebalance")
    until(lambda: not three[1].ctl("rebalance_status")["running"], "it has ended")
    assert _depth(three[2], PLAIN[0]) == 3000


def _depth(node: Node, queue: str) -> int:
    rows = node.ctl("list_queues")
    return int(next(row["messages"] for row in rows if row["name"] == queue))
