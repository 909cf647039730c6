"""What is lost under a query is named, and passed over only by those who said that they accept it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrormq.client.bulk import BulkClient, Target
from mirrormq.testing import Cluster, cluster
from tests.spark.kit import Queues, bodies, numbers, once, streaming, written
from tests.spark.test_cluster import facts, node_named, publish, reading

HELD_BYTES = 4_000


def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(600):
        if condition():
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"not within a minute: {what}")


def is_lost(queue: Queues, cursor: str) -> bool:
    with BulkClient(Target([(queue.host, queue.port)])) as client:
        rows = client.call("cursor_list", queue=queue.name)["cursors"]
    return any(row["name"] == cursor and row["lost"] for row in rows)


def low(queue: Queues) -> int:
    with BulkClient(Target([(queue.host, queue.port)])) as client:
        return int(client.call("queues", queue=queue.name)["queues"][0]["low"])


def test_what_a_lost_cursor_held_is_data_loss_once_it_is_given_up_unless_that_is_accepted(
    spark: Any, queue: Queues, tmp_path: Path
) -> None:
    queue.delete()
    queue.declare(**{"x-cursor-max-bytes": HELD_BYTES})

    def run(**options: Any) -> list[str]:
        frame = streaming(spark, queue, cursor="held", **options).where("length(body) < 1000")
        once(frame, tmp_path)
        return bodies(written(spark, tmp_path))

    queue.fill(5)
    run()
    middle = [f"{number:04d}" + "x" * 200 for number in range(100)]
    queue.publish(*middle)
    queue.take(105)
    queue.fill(3, 500)
    until(lambda: is_lost(queue, "held"), "the cursor is lost")
    # The files are still there: nothing is missing.
    kept = [*numbers(5), *middle, *numbers(3, 500)]
    assert run() == kept
    position = low(queue)
    # More than the journal keeps.
    queue.publish(*(b"x" * (4 << 20) for _ in range(40)))
    queue.purge()
    queue.fill(3, 600)
    until(lambda: is_lost(queue, "held") and low(queue) > position, "records were given up")
    with pytest.raises(Exception, match="are gone"):
        run()
    found = run(failOnDataLoss=False)
    assert found == kept + numbers(3, 600)


@pytest.fixture
def risky() -> Iterator[Cluster]:
    """Three nodes whose queues go on without what a mirror lacks, rather than not at all."""
    with cluster(nodes=3) as made:
        yield made


def policy(made: Cluster, *nodes: str) -> None:
    definition = {
        "ha-mode": "nodes",
        "ha-params": list(nodes),
        "ha-sync-mode": "manual",
        "ha-promote-on-failure": "always",
    }
    made.ask("set_policy", name="risky", pattern=".*", vhost="/", apply_to="queues", definition=definition)


def test_a_lossy_promotion_is_data_loss_unless_that_is_accepted(
    spark: Any, risky: Cluster, tmp_path: Path
) -> None:
    names = [node.name for node in risky.nodes]
    policy(risky, names[0])
    publish(risky, "q", 0, 10)
    once(reading(spark.readStream, risky, "q"), tmp_path)
    assert bodies(written(spark, tmp_path)) == numbers(10)
    publish(risky, "q", 10, 10)
    master = node_named(risky, facts(risky, "q")["master"])
    other = next(name for name in names if name != master.name)
    policy(risky, master.name, other)
    until(lambda: len(facts(risky, "q")["members"]) == 2, "a mirror without the old messages")
    master.kill()
    until(lambda: facts(risky, "q").get("master") == other, "the mirror is the master")
    publish(risky, "q", 100, 5)
    with pytest.raises(Exception, match="data loss"):
        once(reading(spark.readStream, risky, "q"), tmp_path)
    once(reading(spark.readStream, risky, "q", failOnDataLoss="false"), tmp_path)
    assert sorted(bodies(written(spark, tmp_path))) == sorted(numbers(10) + numbers(5, 100))
