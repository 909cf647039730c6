"""Promises about frames and fields: field tables of every type, long bodies, nowait, flow, heartbeats."""

from __future__ import annotations

import datetime
import decimal
import struct
import threading
import time
from typing import Any

import pytest
from pamqp import body, commands, header, heartbeat

from tests.interop.rawclient import raw_frame
from tests.interop.talk import publish, queue

# Every type letter that RabbitMQ reads, with the bytes of one value.
FIELD_TYPES = {
    "t": b"\x01",
    "b": b"\xff",
    "B": b"\xff",
    "s": b"\x80\x00",
    "u": b"\x80\x00",
    "I": b"\x80\0\0\0",
    "i": b"\x80\0\0\0",
    "l": b"\x80" + bytes(7),
    "f": struct.pack(">f", 1.5),
    "d": struct.pack(">d", -2.25),
    "D": b"\x02\x00\x00\x01\x00",
    "S": b"\x00\x00\x00\x03abc",
    "x": b"\x00\x00\x00\x03\x00\xff\x7f",
    "A": b"\x00\x00\x00\x07" + b"t\x01" + b"I\x00\x00\x00\x05",
    "T": b"\0\0\0\0\x65\x43\x21\x00",
    "F": b"\x00\x00\x00\x07" + b"\x01at\x01" + b"\x01bV",
    "V": b"",
}


@pytest.mark.parametrize("letter", list(FIELD_TYPES))
def test_a_header_of_any_field_type_comes_back_byte_by_byte(raw: Any, letter: str) -> None:
    client = raw()
    client.channel()
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    entry = b"\x03key" + letter.encode() + FIELD_TYPES[letter]
    table = struct.pack(">I", len(entry)) + entry
    properties = struct.pack(">H", 0x2000) + table
    head = struct.pack(">HHQ", 60, 0, 4) + properties
    client.send(1, commands.Basic.Publish(exchange="", routing_key="q"))
    client.send_bytes(raw_frame(2, 1, head) + raw_frame(3, 1, b"body"))
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    client.send(1, commands.Basic.Get(queue="q", no_ack=True))
    client.expect(commands.Basic.GetOk, 1)
    while len(client.buffer) < 8 + len(head):
        client._fill(time.monotonic() + 5)
    assert bytes(client.buffer[7 : 7 + len(head)]) == head


@pytest.mark.parametrize("letter", list(FIELD_TYPES))
def test_arguments_of_any_field_type_are_understood(raw: Any, letter: str) -> None:
    client = raw()
    client.channel()
    entry = b"\x09my-number" + letter.encode() + FIELD_TYPES[letter]
    arguments = struct.pack(">I", len(entry)) + entry
    client.send_method(1, struct.pack(">HHH", 50, 10, 0) + b"\x01q" + b"\0" + arguments)
    assert client.expect(commands.Queue.DeclareOk, 1).queue == "q"
    client.send_method(
        1, struct.pack(">HHH", 50, 20, 0) + b"\x01q" + b"\x0bamq.headers" + b"\x00" + b"\0" + arguments
    )
    client.expect(commands.Queue.BindOk, 1)


def test_python_values_in_headers_survive_the_trip(channel: Any) -> None:
    queue(channel, "q")
    headers = {
        "true": True,
        "false": False,
        "int": -7,
        "long": 2**40,
        "text": "grüße",
        "none": None,
        "decimal": decimal.Decimal("3.14"),
        "bytes": b"\x00\xff",
        "list": [1, "two", {"three": 3}],
        "table": {"nested": {"deep": [None, True]}},
        "time": datetime.datetime(2024, 2, 29, 12, 0, tzinfo=datetime.UTC),
    }
    publish(channel, "q", "m", headers=headers)
    _, properties, _ = channel.basic_get("q", auto_ack=True)
    assert properties.headers == headers


@pytest.mark.parametrize("size", [0, 1, 131064, 131065, 262128, 1_000_000])
def test_a_body_of_any_number_of_frames_arrives_whole(raw: Any, size: int) -> None:
    client = raw()
    client.channel(confirm=True)
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    data = bytes(number % 251 for number in range(1000)) * (size // 1000) + bytes(size % 1000)
    client.publish(1, "q", data)
    client.expect(commands.Basic.Ack, 1)
    client.call(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
    got = client.expect_content(commands.Basic.Deliver, 1)
    assert got.body == data
    assert got.frames == -(-size // 131064)


def test_a_body_is_cut_for_the_frame_max_of_each_consumer(raw: Any) -> None:
    writer, reader = raw(), raw(frame_max=4096)
    for client in (writer, reader):
        client.channel()
    writer.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    reader.call(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
    writer.publish(1, "q", b"x" * 20_000)
    got = reader.expect_content(commands.Basic.Deliver, 1)
    assert (len(got.body), got.frames) == (20_000, 5)


def test_body_frames_may_be_smaller_than_allowed_and_empty(raw: Any) -> None:
    client = raw()
    client.channel(confirm=True)
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    client.send(1, commands.Basic.Publish(exchange="", routing_key="q"))
    client.send(1, header.ContentHeader(0, 6, commands.Basic.Properties()))
    for part in (b"ab", b"", b"c", b"def"):
        client.send(1, body.ContentBody(part))
    client.expect(commands.Basic.Ack, 1)
    client.send(1, commands.Basic.Get(queue="q", no_ack=True))
    assert client.expect_content(commands.Basic.GetOk, 1).body == b"abcdef"


def test_contents_of_several_channels_may_interleave(raw: Any) -> None:
    client = raw()
    for number in (1, 2):
        client.channel(number, confirm=True)
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    for number in (1, 2):
        client.send(number, commands.Basic.Publish(exchange="", routing_key="q"))
    for number in (2, 1):
        client.send(number, header.ContentHeader(0, 4, commands.Basic.Properties()))
    for part in (b"ab", b"cd"):
        for number in (1, 2):
            client.send(number, body.ContentBody(part))
    for _ in range(2):
        client.expect(commands.Basic.Ack)
    for _ in range(2):
        client.send(1, commands.Basic.Get(queue="q", no_ack=True))
        assert client.expect_content(commands.Basic.GetOk, 1).body == b"abcd"


def test_nowait_forms_do_their_work_without_an_answer(raw: Any) -> None:
    client = raw()
    client.channel(confirm=True)
    silent = [
        commands.Exchange.Declare(exchange="e", exchange_type="fanout", nowait=True),
        commands.Exchange.Declare(exchange="f", exchange_type="fanout", nowait=True),
        commands.Exchange.Bind(destination="f", source="e", nowait=True),
        commands.Queue.Declare(queue="q", nowait=True),
        commands.Queue.Bind(queue="q", exchange="f", nowait=True),
        commands.Basic.Consume(queue="q", consumer_tag="c", no_ack=True, nowait=True),
    ]
    for method in silent:
        client.send(1, method)
    client.publish(1, "", b"through", exchange="e")
    got = {type(client.receive()[1]) for _ in range(4)}
    assert got == {commands.Basic.Deliver, header.ContentHeader, body.ContentBody, commands.Basic.Ack}
    for method in (
        commands.Basic.Cancel(consumer_tag="c", nowait=True),
        commands.Queue.Purge(queue="q", nowait=True),
        commands.Exchange.Unbind(destination="f", source="e", nowait=True),
        commands.Queue.Delete(queue="q", nowait=True),
        commands.Exchange.Delete(exchange="e", nowait=True),
    ):
        client.send(1, method)
    client.send(1, commands.Queue.Declare(queue="q", passive=True))
    assert client.expect(commands.Channel.Close, 1).reply_code == 404


def test_channel_flow_active_is_answered_and_inactive_is_not_implemented(raw: Any) -> None:
    client = raw()
    client.channel()
    assert client.call(1, commands.Channel.Flow(active=True), commands.Channel.FlowOk).active is True
    client.send(1, commands.Channel.Flow(active=False))
    closed = client.expect(commands.Connection.Close, 0)
    assert (closed.reply_code, closed.reply_text) == (540, "NOT_IMPLEMENTED - active=false")


def test_the_broker_sends_heartbeats(raw: Any) -> None:
    client = raw(beat=1)
    beats = [client.expect(heartbeat.Heartbeat, 0, 5) for _ in range(2)]
    assert len(beats) == 2


def test_a_silent_client_loses_its_connection_and_one_that_beats_keeps_it(raw: Any) -> None:
    silent, alive = raw(beat=1), raw(beat=1)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.3):
            alive.send_heartbeat()

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        started = time.monotonic()
        silent.wait_closed()
        assert 1.5 <= time.monotonic() - started <= 6
        alive.channel()
    finally:
        stop.set()
        beating.join()


def test_a_heartbeat_of_zero_switches_them_off(raw: Any, clients: Any) -> None:
    quiet, beating = raw(beat=0), raw(beat=1)
    beating.expect(heartbeat.Heartbeat, 0, 5)
    quiet.sock.setblocking(False)
    with pytest.raises(BlockingIOError):
        quiet.sock.recv(1)


def test_many_channels_of_one_connection_work_side_by_side(raw: Any) -> None:
    client = raw()
    for number in range(1, 201):
        client.channel(number)
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    for number in range(1, 201):
        client.publish(number, "q", b"%d" % number)
    client.call(1, commands.Basic.Consume(queue="q", no_ack=True), commands.Basic.ConsumeOk)
    got = {int(client.expect_content(commands.Basic.Deliver, 1).body) for _ in range(200)}
    assert got == set(range(1, 201))


def test_access_request_of_old_clients_gets_a_ticket(raw: Any) -> None:
    """Class access left AMQP with 0-9-1; clients that still ask are answered and nothing depends on it."""
    client = raw()
    client.channel()
    client.send_method(1, struct.pack(">HH", 30, 10) + b"\x05/data" + b"\x1f")
    while len(client.buffer) < 14:
        client._fill(time.monotonic() + 5)
    assert bytes(client.buffer) == raw_frame(1, 1, struct.pack(">HHH", 30, 11, 1))
