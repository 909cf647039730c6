"""`mirrormq admin` speaks RabbitMQ's API: it does with a RabbitMQ what rabbitmqadmin does."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrormq.ctl.admin.main import main
from tests.support import rabbitmq
from tests.support.rabbitmq import RabbitMQ

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not rabbitmq.installed(), reason="RabbitMQ is not installed"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitMQ]:
    with rabbitmq.running(["rabbitmq_management"]) as node:
        yield node


def test_everything_can_be_done_with_a_rabbitmq(server: RabbitMQ, tmp_path: Path) -> None:
    def admin(line: str, stdin: str = "") -> tuple[int, str]:
        out = io.StringIO()
        words = ["-H", server.host, "-P", str(server.management_port), *shlex.split(line)]
        code = main(words, out=out, stdin=io.StringIO(stdin), environment={})
        return code, out.getvalue()

    assert admin("declare vhost name=shop") == (0, "vhost declared\n")
    assert admin("declare permission vhost=shop user=guest configure=.* write=.* read=.*")[0] == 0
    assert admin("-V shop declare queue name=orders durable=true") == (0, "queue declared\n")
    assert admin("-V shop declare exchange name=x type=fanout") == (0, "exchange declared\n")
    assert admin("-V shop declare binding source=x destination=orders") == (0, "binding declared\n")
    assert admin("-V shop publish exchange=x routing_key=k payload=one") == (0, "Message published\n")
    assert admin("-V shop publish exchange=x routing_key=k", stdin="two") == (0, "Message published\n")
    assert admin("-V shop publish routing_key=never payload=x") == (0, "Message published but NOT routed\n")
    code, shown = admin("-V shop -f raw_json get queue=orders count=5")
    assert [row["payload"] for row in json.loads(shown)] == ["one", "two"]
    assert admin(f"-V shop get queue=orders payload_file={tmp_path / 'one'}")[0] == 0
    assert (tmp_path / "one").read_text() == "one"
    assert admin("-V shop -f bash list queues") == (0, "orders\n")
    assert admin(f"export {tmp_path / 'all.json'}")[0] == 0
    assert admin(f"import {tmp_path / 'all.json'}")[0] == 0
    assert admin("-V shop purge queue name=orders") == (0, "queue purged\n")
    assert admin("-V shop delete queue name=orders") == (0, "queue deleted\n")
    assert admin("-V shop delete queue name=orders")[0] == 1
    assert admin("show overview rabbitmq_version -f tsv") == (0, f"rabbitmq_version\n{rabbitmq.version()}\n")
    assert admin("delete vhost name=shop") == (0, "vhost deleted\n")
    assert code == 0
