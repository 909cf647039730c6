"""Writing to RabbitMQ itself, which has confirms and nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.spark.kit import Queues, numbers, reading
from tests.support.rabbitmq import RabbitMQ, installed

pytestmark = pytest.mark.skipif(not installed(), reason="rabbitmq-server is not installed")


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[RabbitMQ]:
    node = RabbitMQ.start()
    yield node
    node.stop()


def test_ordinary_confirms_write_to_rabbitmq_and_everything_else_is_refused(
    spark: Any, rabbitmq: RabbitMQ
) -> None:
    queue = Queues(rabbitmq.port, "from-spark")
    frame = spark.range(0, 2000, numPartitions=2).selectExpr("CAST(id AS STRING) AS body")
    writer = (
        frame.write.format("mirrormq").mode("append").option("url", queue.url).option("queue", queue.name)
    )
    writer.option("delivery", "at-least-once").save()
    assert sorted(queue.bodies()) == sorted(number.encode() for number in numbers(2000))
    with pytest.raises(Exception, match="no MirrorMQ"):
        writer.option("delivery", "exactly-once").save()
    with pytest.raises(Exception, match="no MirrorMQ"):
        reading(spark, queue).collect()
    queue.close()
