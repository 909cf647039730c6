"""Promises about publisher confirms, mandatory returns, transactions and their order on the wire."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import body, commands, frame, header
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.interop.rawclient import RawClient
from tests.interop.talk import depth, publish, publish_all, queue, take_all


def confirmed_up_to(client: RawClient, last: int) -> list[tuple[type, int, bool]]:
    """All confirms until every number up to `last` is covered, in order of arrival."""
    seen: list[tuple[type, int, bool]] = []
    covered: set[int] = set()
    while not covered >= set(range(1, last + 1)):
        _, answer = client.receive()
        assert isinstance(answer, commands.Basic.Ack | commands.Basic.Nack), answer
        seen.append((type(answer), answer.delivery_tag, answer.multiple))
        numbers = range(1, answer.delivery_tag + 1) if answer.multiple else [answer.delivery_tag]
        covered |= set(numbers)
    return seen


def test_every_publish_is_confirmed_with_consecutive_numbers(raw: Any) -> None:
    client = raw()
    client.channel(confirm=True)
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    for number in range(100):
        client.publish(1, "q", b"%d" % number)
    answers = confirmed_up_to(client, 100)
    assert all(kind is commands.Basic.Ack for kind, _, _ in answers)
    assert answers[-1][1] == 100 or any(multiple for _, _, multiple in answers)


def test_unroutable_messages_are_confirmed_too(channel: Any) -> None:
    publish(channel, "no such queue", "m")


def test_numbers_start_with_confirm_select(raw: Any) -> None:
    client = raw()
    client.channel()
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    client.publish(1, "q", b"before")
    client.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    client.publish(1, "q", b"after")
    assert confirmed_up_to(client, 1) == [(commands.Basic.Ack, 1, False)]


def test_a_mandatory_unroutable_message_is_returned_before_its_confirm(raw: Any) -> None:
    client = raw()
    client.channel(confirm=True)
    properties = commands.Basic.Properties(message_id="id", headers={"a": 1})
    client.publish(1, "nowhere", b"body", exchange="amq.direct", mandatory=True, properties=properties)
    returned = client.expect_content(commands.Basic.Return, 1)
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("amq.direct", "nowhere")
    assert (returned.body, returned.properties.message_id, returned.properties.headers) == (
        b"body",
        "id",
        {"a": 1},
    )
    assert client.expect(commands.Basic.Ack, 1).delivery_tag == 1


def test_returns_stand_before_the_confirm_that_covers_them_in_a_mixed_burst(raw: Any) -> None:
    client = raw()
    client.channel(confirm=True)
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    for number in range(20):
        client.publish(1, "q" if number % 2 else "missing", b"%d" % number, mandatory=True)
    returned: set[int] = set()
    covered: set[int] = set()
    while len(covered) < 20:
        _, value = client.receive()
        if isinstance(value, commands.Basic.Return):
            client.expect(object)
            returned.add(int(client.expect(object).value) + 1)
        else:
            assert isinstance(value, commands.Basic.Ack)
            covered |= set(range(1, value.delivery_tag + 1)) if value.multiple else {value.delivery_tag}
            assert {number for number in covered if number % 2} <= returned
    assert returned == set(range(1, 21, 2))


def test_mandatory_messages_that_are_routed_are_not_returned(channel: Any) -> None:
    queue(channel, "q")
    channel.basic_publish("", "q", b"m", mandatory=True)
    assert depth(channel, "q") == 1
    with pytest.raises(UnroutableError):
        channel.basic_publish("", "missing", b"m", mandatory=True)


def test_immediate_is_not_implemented(raw: Any) -> None:
    client = raw()
    client.channel()
    client.send(1, commands.Basic.Publish(exchange="", routing_key="q", immediate=True))
    client.send(1, header.ContentHeader(0, 0, commands.Basic.Properties()))
    closed = client.expect(commands.Connection.Close, 0)
    assert (closed.reply_code, closed.reply_text) == (540, "NOT_IMPLEMENTED - immediate=true")


def test_confirms_of_two_channels_are_independent(raw: Any) -> None:
    client = raw()
    for number in (1, 2):
        client.channel(number, confirm=True)
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    for number in (2, 1, 2):
        client.publish(number, "q", b"")
    tags: dict[int, int] = {}
    while tags != {1: 1, 2: 2}:
        number, answer = client.receive()
        assert isinstance(answer, commands.Basic.Ack)
        tags[number] = answer.delivery_tag


def test_a_refused_message_is_nacked_and_its_neighbours_acked(raw: Any) -> None:
    client = raw()
    client.channel(confirm=True)
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    client.call(1, commands.Queue.Declare(queue="full", arguments=arguments), commands.Queue.DeclareOk)
    client.call(1, commands.Queue.Declare(queue="open"), commands.Queue.DeclareOk)
    for key in ("full", "full", "full", "open", "full"):
        client.publish(1, key, b"m")
    answers = confirmed_up_to(client, 5)
    nacked: set[int] = set()
    acked: set[int] = set()
    for kind, tag, multiple in answers:
        already = nacked | acked
        (nacked if kind is commands.Basic.Nack else acked).update(
            number for number in (range(1, tag + 1) if multiple else [tag]) if number not in already
        )
    assert (acked, nacked) == ({1, 2, 4}, {3, 5})


def test_confirm_select_without_an_answer(raw: Any) -> None:
    client = raw()
    client.channel()
    client.send(1, commands.Confirm.Select(nowait=True))
    client.publish(1, "nowhere", b"")
    assert client.expect(commands.Basic.Ack, 1).delivery_tag == 1


def test_tx_holds_publishes_and_acks_until_commit(clients: Any, channel: Any) -> None:
    queue(channel, "in")
    queue(channel, "out")
    publish(channel, "in", "work")
    transaction = clients.channel(confirm=False)
    transaction.tx_select()
    method, _, _ = transaction.basic_get("in")
    publish_all(transaction, "out", "1", "2")
    transaction.basic_ack(method.delivery_tag)
    assert (depth(channel, "out"), depth(channel, "in")) == (0, 0)
    transaction.tx_commit()
    assert take_all(channel, "out") == ["1", "2"]
    transaction.connection.close()
    assert depth(channel, "in") == 0


def test_tx_rollback_forgets_publishes_and_acks(clients: Any, channel: Any) -> None:
    queue(channel, "in")
    queue(channel, "out")
    publish(channel, "in", "work")
    transaction = clients.channel(confirm=False)
    transaction.tx_select()
    method, _, _ = transaction.basic_get("in")
    publish(transaction, "out", "1")
    transaction.basic_ack(method.delivery_tag)
    transaction.tx_rollback()
    transaction.basic_ack(method.delivery_tag)
    transaction.tx_commit()
    transaction.basic_recover(requeue=True)
    assert (depth(channel, "out"), depth(channel, "in")) == (0, 0)


def test_closing_a_channel_rolls_its_transaction_back(clients: Any, channel: Any) -> None:
    queue(channel, "in")
    queue(channel, "out")
    publish(channel, "in", "work")
    transaction = clients.channel(confirm=False)
    transaction.tx_select()
    method, _, _ = transaction.basic_get("in")
    transaction.basic_ack(method.delivery_tag)
    publish(transaction, "out", "1")
    transaction.close()
    assert (depth(channel, "out"), take_all(channel, "in")) == (0, ["work"])


def test_nacks_belong_to_the_transaction(clients: Any, channel: Any) -> None:
    queue(channel, "q")
    publish(channel, "q", "m")
    transaction = clients.channel(confirm=False)
    transaction.tx_select()
    method, _, _ = transaction.basic_get("q")
    transaction.basic_nack(method.delivery_tag, requeue=True)
    queue(transaction, "barrier")
    assert depth(channel, "q") == 0
    transaction.tx_commit()
    assert take_all(channel, "q") == ["m"]


def test_a_mandatory_message_in_a_transaction_is_returned_at_commit(raw: Any) -> None:
    client = raw()
    client.channel()
    client.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
    client.publish(1, "missing", b"m", mandatory=True)
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    client.send(1, commands.Tx.Commit())
    returned = client.expect_content(commands.Basic.Return, 1)
    assert returned.method.reply_code == 312
    client.expect(commands.Tx.CommitOk, 1)


@pytest.mark.parametrize(("first", "second"), [("tx", "confirm"), ("confirm", "tx")])
def test_tx_and_confirm_exclude_each_other(clients: Any, first: str, second: str) -> None:
    channel = clients.channel(confirm=False)
    turn = {"tx": channel.tx_select, "confirm": channel.confirm_delivery}
    turn[first]()
    with pytest.raises(ChannelClosedByBroker) as caught:
        turn[second]()
    assert caught.value.reply_code == 406
    assert caught.value.reply_text == f"PRECONDITION_FAILED - cannot switch from {first} to {second} mode"


@pytest.mark.parametrize("act", ["tx_commit", "tx_rollback"])
def test_commit_and_rollback_need_a_transaction(clients: Any, act: str) -> None:
    channel = clients.channel(confirm=False)
    channel._tx_selected = True
    with pytest.raises(ChannelClosedByBroker) as caught:
        getattr(channel, act)()
    assert (caught.value.reply_code, caught.value.reply_text) == (
        406,
        "PRECONDITION_FAILED - channel is not transactional",
    )


def test_a_publish_error_inside_a_transaction_shows_at_once(clients: Any) -> None:
    channel = clients.channel(confirm=False)
    channel.tx_select()
    publish(channel, "k", "m", "missing exchange")
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.tx_commit()
    assert caught.value.reply_code == 404


def test_a_channels_requests_see_what_it_published_before_them(raw: Any) -> None:
    """Everything is sent at once and nothing is confirmed: order alone must be enough."""
    client = raw()
    client.channel()
    limited = {"x-max-length": 2}
    client.call(1, commands.Queue.Declare(queue="q"), commands.Queue.DeclareOk)
    client.call(1, commands.Queue.Declare(queue="short", arguments=limited), commands.Queue.DeclareOk)
    burst = b"".join(published(key, b"%d" % number) for number in range(3) for key in ("q", "short"))
    burst += frame.marshal(commands.Basic.Get(queue="short", no_ack=True), 1)
    burst += published("q", b"3") + frame.marshal(commands.Queue.Purge(queue="q"), 1)
    burst += published("q", b"4") + frame.marshal(commands.Queue.Delete(queue="q"), 1)
    client.send_bytes(burst)
    got = client.expect_content(commands.Basic.GetOk, 1)
    assert (got.body, got.method.message_count) == (b"1", 1)
    assert client.expect(commands.Queue.PurgeOk, 1).message_count == 4
    assert client.expect(commands.Queue.DeleteOk, 1).message_count == 1


def published(key: str, data: bytes) -> bytes:
    parts = (
        commands.Basic.Publish(exchange="", routing_key=key),
        header.ContentHeader(0, len(data), commands.Basic.Properties()),
        body.ContentBody(data),
    )
    return b"".join(frame.marshal(part, 1) for part in parts)
