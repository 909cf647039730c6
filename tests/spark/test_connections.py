"""The connector over TLS, and past members that workers cannot reach: the contact node relays."""

from __future__ import annotations

import dataclasses
import logging
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from mirrormq.spark import reading
from mirrormq.spark.datasource import MirrorMQSource
from mirrormq.spark.options import read_options
from mirrormq.spark.plan import Piece
from mirrormq.spark.schema import check_schema, schema_of
from mirrormq.spark.source import BatchReader
from tests.integration.process import running
from tests.interop.certificates import Authority
from tests.spark.kit import Queues, bodies, numbers, once, written


class Tls(NamedTuple):
    """A node with a TLS listener."""

    queue: Queues
    options: dict[str, str]
    authority: Authority


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    folder = tmp_path_factory.mktemp("tls")
    (folder / "pki").mkdir()
    authority = Authority(folder / "pki")
    served = authority.issue("localhost", server=True)
    settings = [
        "listeners.ssl=127.0.0.1:0",
        f"ssl_options.certfile={served.certificate}",
        f"ssl_options.keyfile={served.key}",
        f"ssl_options.cacertfile={authority.certificate}",
    ]
    with running(folder, *(word for setting in settings for word in ("--set", setting))) as node:
        url = next(url for url in node.announced["amqp"] if url.startswith("amqps://"))
        queue = Queues(node.port, "secure")
        options = {
            "url": f"amqps://guest@localhost:{url.rpartition(':')[2]}/",
            "tls.ca": str(authority.certificate),
        }
        yield Tls(queue, options, authority)
        queue.close()


def test_batches_streams_and_sinks_work_over_tls(spark: Any, tls: Tls, tmp_path: Path) -> None:
    tls.queue.fill(40)
    read = spark.read.format("mirrormq").options(**tls.options).option("queue", "secure")
    frame = read.option("minPartitions", 2).load()
    assert bodies(frame.orderBy("seq").collect()) == numbers(40)
    tls.queue.declare("copied")
    writer = frame.select("seq", "body").orderBy("seq").select("body").write.format("mirrormq")
    writer.options(**tls.options).option("queue", "copied").mode("append").save()
    assert tls.queue.bodies("copied") == [text.encode() for text in numbers(40)]
    stream = spark.readStream.format("mirrormq").options(**tls.options).option("queue", "copied")
    once(stream.load(), tmp_path)
    assert bodies(written(spark, tmp_path)) == numbers(40)


def test_a_certificate_that_nobody_vouches_for_ends_the_query(spark: Any, tls: Tls, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "somebody else")
    options = {**tls.options, "tls.ca": str(other.certificate), "timeout": "10s", "queue": "secure"}
    with pytest.raises(Exception, match=r"(?i)certificate"):
        spark.read.format("mirrormq").options(**options).load().count()
    # Unless nothing is to be checked. A certificate of the client's own may be shown.
    pair = tls.authority.issue("app one", server=False)
    shown = {"tls.cert": str(pair.certificate), "tls.key": str(pair.key), "tls.verify": "false"}
    assert spark.read.format("mirrormq").options(**{**options, **shown}).load().count() == tls.queue.count()


# --- members out of reach -----------------------------------------------------------------------------------


def out_of_reach(pieces: Sequence[InputPartition], port: int) -> list[InputPartition]:
    """The same tasks, with addresses at which nobody answers."""
    found: list[InputPartition] = []
    for piece in pieces:
        assert isinstance(piece, Piece)
        fields = {field.name: getattr(piece, field.name) for field in dataclasses.fields(piece)}
        members = tuple(dataclasses.replace(member, port=port) for member in piece.members)
        found.append(Piece(**{**fields, "members": members}))
    return found


def closed_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


class FarReader(BatchReader):
    """A read whose workers stand on the other side of a wall."""

    def partitions(self) -> Sequence[InputPartition]:
        return out_of_reach(super().partitions(), closed_port())


class FarSource(MirrorMQSource):
    """The data source with that reader."""

    @classmethod
    def name(cls) -> str:
        return "far"

    def reader(self, schema: StructType) -> FarReader:
        options = read_options(self.options)
        check_schema(schema, options.mode)
        return FarReader(options, schema)


def test_rows_of_members_that_workers_cannot_reach_are_relayed(spark: Any, queue: Queues) -> None:
    queue.fill(50)
    spark.dataSource.register(FarSource)
    read = spark.read.format("far").option("url", queue.url).option("queue", queue.name)
    frame = read.option("minPartitions", 3).load()
    assert bodies(frame.orderBy("seq").collect()) == numbers(50)


def test_one_warning_names_the_node_and_the_key_to_set(
    queue: Queues, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.fill(30)
    monkeypatch.setattr(reading, "_warned", set())
    options = read_options({"url": queue.url, "queue": queue.name, "minPartitions": "3"})
    schema = schema_of(options.mode)
    pieces = out_of_reach(BatchReader(options, schema).partitions(), closed_port())
    assert len(pieces) == 3
    with caplog.at_level(logging.WARNING, "mirrormq.spark"):
        rows = [
            row
            for piece in pieces
            for batch in reading.read_piece(piece, schema, options, changes=False)
            for row in batch.column("body").to_pylist()
        ]
    assert [row.decode() for row in rows] == numbers(30)
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "mirrormq.spark"]
    assert "cluster_advertise" in warning
    assert "127.0.0.1" in warning
