"""The bulk protocol over real sockets: the blocking client against a running node."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from mirrormq.client.amqp import AmqpClient, Confirmed
from mirrormq.client.bulk import BulkClient, BulkError, Gone, Target
from mirrormq.testing import Broker, running
from tests.support.bulkkit import bodies


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with running() as found:
        yield found


def target(node: Broker, **more: object) -> Target:
    fields = {"user": node.user, "password": node.password, "vhost": node.vhost, **more}
    return Target([(node.host, node.port)], **fields)  # type: ignore[arg-type]


def publish(node: Broker, queue: str, messages: list[bytes]) -> None:
    with AmqpClient(node.host, node.port, timeout=10, user=node.user, password=node.password) as client:
        client.declare(queue)
        last = 0
        for body in messages:
            last = client.publish(queue, body)
        confirmed = 0
        while confirmed < last:
            event = client.next_event()
            if isinstance(event, Confirmed):
                confirmed = max(confirmed, event.tag)


def test_what_was_confirmed_is_read_back_in_order(node: Broker) -> None:
    sent = [b"%06d" % number + b"x" * 200 for number in range(5_000)]
    publish(node, "plain", sent)
    with BulkClient(target(node)) as client:
        (facts,) = client.call("queues", queue="plain")["queues"]
        found = b"".join(
            client.read(queue="plain", id=facts["id"], start=facts["low"], end=facts["next"],
                        end_epoch=facts["end_epoch"])
        )  # fmt: skip
    assert bodies(found) == sent
    assert client.ended["position"] == facts["next"]


def test_a_message_larger_than_a_frame_is_read_whole(node: Broker) -> None:
    sent = [b"small", b"y" * (40 * 1024 * 1024), b"last"]
    publish(node, "large", sent)
    with BulkClient(target(node)) as client:
        (facts,) = client.call("queues", queue="large")["queues"]
        pieces = list(client.read(queue="large", id=facts["id"], start=1, end=facts["next"], live=True))
    assert bodies(b"".join(pieces)) == sent


def test_runs_that_take_each_others_place_are_right_until_the_next_one_comes(node: Broker) -> None:
    sent = [b"%06d" % number + b"x" * 1_000 for number in range(5_000)]
    sent += [b"y" * (20 * 1024 * 1024), b"last"]  # in parts, which stay until they are put together
    publish(node, "over", sent)
    found = bytearray()
    with BulkClient(target(node)) as client:
        (facts,) = client.call("queues", queue="over")["queues"]
        for run in client.read_over(queue="over", id=facts["id"], start=1, end=facts["next"]):
            found += run
        again = b"".join(client.read(queue="over", id=facts["id"], start=1, end=facts["next"]))
    assert bodies(bytes(found)) == sent
    assert again == found


def test_a_stream_that_is_left_early_does_not_disturb_the_next_call(node: Broker) -> None:
    publish(node, "left", [b"z" * 1000] * 5_000)
    with BulkClient(target(node)) as client:
        (facts,) = client.call("queues", queue="left")["queues"]
        stream = client.read(queue="left", id=facts["id"], start=1, end=facts["next"])
        next(stream)
        with contextlib.suppress(StopIteration):
            stream.close()  # type: ignore[attr-defined]
        assert client.call("queues", queue="left")["queues"][0]["next"] == facts["next"]


def test_errors_have_codes_and_the_connection_stays(node: Broker) -> None:
    with BulkClient(target(node)) as client:
        with pytest.raises(BulkError) as error:
            client.call("queues", queue="nowhere")
        assert error.value.code == "not-found"
        assert client.is_connected


def test_another_host_of_the_list_is_taken_if_one_does_not_answer(node: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dead = listening.getsockname()[:2]
    hosts = [dead, (node.host, node.port)]
    with BulkClient(Target(hosts, node.user, node.password, node.vhost)) as client:
        assert client.call("queues", pattern="none")["queues"] == []
        assert client.host == hosts[1]


def test_a_wrong_password_is_an_error_at_once(node: Broker) -> None:
    with BulkClient(target(node, password="wrong")) as client, pytest.raises(BulkError) as error:
        client.call("queues", pattern=".*")
    assert error.value.code == "access"


@pytest.mark.parametrize(
    ("greeting", "words"),
    [(b"AMQP\x00\x00\x09\x01", "no MirrorMQ"), (b"MMQB\x00\x00\x00\x02", "another version")],
)
def test_a_server_of_another_kind_is_told_apart(greeting: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            made, _ = listening.accept()
            with made:
                made.recv(8)
                made.sendall(greeting)

        thread = threading.Thread(target=answer)
        thread.start()
        client = BulkClient(Target([listening.getsockname()[:2]], timeout_s=5))
        with pytest.raises(BulkError, match=words):
            client.call("queues", pattern=".*")
        thread.join()


def test_nobody_there_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dead = listening.getsockname()[:2]
    with pytest.raises(Gone, match="no host answers"):
        BulkClient(Target([dead]), retry_s=0.1).call("queues", pattern=".*")
