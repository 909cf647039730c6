"""tx: what is held back, what commit does, what rollback undoes."""

import pytest

from mirrormq.base import limits
from mirrormq.wire import methods
from tests.support.fakehost import Client, FakeHost, connected, method_frame


def transactional(host: FakeHost | None = None) -> Client:
    client = connected(host)
    client.declare("q")
    client.call(methods.TxSelect(), methods.TxSelectOk)
    return client


def failed(client: Client, method) -> str:
    close = client.call(method, methods.ChannelClose)
    assert (close.class_id, close.method_id) == (method.class_id_of, method.method_id_of)
    return close.reply_text


def ready(host: FakeHost) -> int:
    return host.vhosts["/"].queues["q"].message_count


def holding(count: int) -> tuple[FakeHost, Client]:
    """A transactional channel that holds `count` unacknowledged messages, tags 1..count."""
    host = FakeHost()
    client = connected(host)
    client.declare("q")
    for number in range(count):
        client.publish("q", b"%d" % number)
    client.call(methods.TxSelect(), methods.TxSelectOk)
    for _ in range(count):
        client.call(methods.BasicGet(queue="q"), methods.BasicGetOk)
    return host, client


def test_publishes_appear_at_commit():
    host = FakeHost()
    client = transactional(host)
    client.publish("q", b"1")
    client.publish("q", b"2")
    assert ready(host) == 0
    assert client.connection.channels[1].messages_uncommitted == 2
    client.call(methods.TxCommit(), methods.TxCommitOk)
    assert ready(host) == 2
    assert client.connection.channels[1].messages_uncommitted == 0


def test_commit_is_answered_after_the_barrier_and_nothing_overtakes_it():
    host = FakeHost()
    client = transactional(host)
    client.publish("q", b"1")
    client.raw(method_frame(1, methods.TxCommit()) + method_frame(1, methods.BasicQos()), end_pass=False)
    assert client.all() == []
    host.end_pass()
    assert [type(method) for method in client.all()] == [methods.TxCommitOk, methods.BasicQosOk]


def test_an_empty_commit_is_answered_at_once():
    transactional().call(methods.TxCommit(), methods.TxCommitOk)


def test_rolled_back_publishes_never_happened():
    host = FakeHost()
    client = transactional(host)
    client.publish("q", b"1")
    client.call(methods.TxRollback(), methods.TxRollbackOk)
    client.call(methods.TxCommit(), methods.TxCommitOk)
    assert ready(host) == 0


def test_a_channel_that_closes_without_commit_published_nothing():
    host = FakeHost()
    client = transactional(host)
    client.publish("q", b"1")
    client.call(methods.ChannelClose(), methods.ChannelCloseOk)
    assert ready(host) == 0


def test_mistakes_in_a_publish_are_told_at_once():
    client = transactional()
    client.publish("k", exchange="none")
    assert client.expect(methods.ChannelClose).reply_text == "NOT_FOUND - no exchange 'none' in vhost '/'"


def test_unroutable_mandatory_messages_come_back_at_commit():
    client = transactional()
    client.publish("nowhere", b"x", mandatory=True)
    assert client.all() == []
    client.send(methods.TxCommit())
    assert [type(method) for method in client.all()] == [methods.BasicReturn, methods.TxCommitOk]


def test_acks_take_effect_at_commit():
    host, client = holding(2)
    client.send(methods.BasicAck(1))
    channel = client.connection.channels[1]
    assert channel.core.unacked == 2
    assert (channel.messages_unacknowledged, channel.acks_uncommitted) == (1, 1)
    client.call(methods.TxCommit(), methods.TxCommitOk)
    assert channel.core.unacked == 1
    assert (channel.messages_unacknowledged, channel.acks_uncommitted) == (1, 0)
    client.connection.on_closed()
    host.end_pass()
    assert ready(host) == 1


def test_rolled_back_acks_leave_the_messages_outstanding_not_requeued():
    host, client = holding(2)
    client.send(methods.BasicAck(2, multiple=True))
    client.call(methods.TxRollback(), methods.TxRollbackOk)
    assert ready(host) == 0
    client.send(methods.BasicAck(1))
    client.send(methods.BasicAck(2))
    client.call(methods.TxCommit(), methods.TxCommitOk)
    assert client.connection.channels[1].core.unacked == 0


def test_uncommitted_acks_are_lost_with_the_channel():
    host, client = holding(2)
    client.send(methods.BasicAck(0, multiple=True))
    client.call(methods.ChannelClose(), methods.ChannelCloseOk)
    host.end_pass()
    assert ready(host) == 2


@pytest.mark.parametrize(
    "acks",
    [
        [methods.BasicAck(1), methods.BasicAck(1)],
        [methods.BasicAck(2, multiple=True), methods.BasicAck(1)],
        [methods.BasicAck(2, multiple=True), methods.BasicAck(2, multiple=True)],
        [methods.BasicAck(0, multiple=True), methods.BasicReject(3)],
        [methods.BasicAck(9)],
    ],
)
def test_a_tag_held_already_is_unknown(acks):
    _, client = holding(3)
    for method in acks[:-1]:
        client.send(method)
    last = acks[-1]
    assert failed(client, last) == f"PRECONDITION_FAILED - unknown delivery tag {last.delivery_tag}"


def test_all_outstanding_means_those_outstanding_when_it_was_sent():
    _, client = holding(2)
    client.send(methods.BasicAck(0, multiple=True))
    client.publish("q", b"new")
    client.call(methods.TxCommit(), methods.TxCommitOk)
    client.call(methods.BasicGet(queue="q"), methods.BasicGetOk)
    client.send(methods.BasicAck(0, multiple=True))
    client.send(methods.BasicNack(0, multiple=True))
    client.call(methods.TxCommit(), methods.TxCommitOk)
    assert client.connection.channels[1].core.unacked == 0


def test_mixed_settlements_are_applied_in_the_order_they_were_sent():
    host, client = holding(4)
    client.send(methods.BasicReject(2, requeue=True))
    client.send(methods.BasicAck(3, multiple=True))
    client.send(methods.BasicNack(4, requeue=True))
    client.call(methods.TxCommit(), methods.TxCommitOk)
    bodies = []
    for _ in range(2):
        client.send(methods.BasicGet(queue="q", no_ack=True))
        bodies.append(client.next().body)
    assert bodies == [b"1", b"3"]
    assert ready(host) == 0


def test_recover_leaves_held_acks_alone():
    host, client = holding(4)
    client.send(methods.BasicAck(2))
    client.call(methods.BasicRecover(requeue=True), methods.BasicRecoverOk)
    assert ready(host) == 3
    client.call(methods.TxCommit(), methods.TxCommitOk)
    assert client.connection.channels[1].core.unacked == 0
    assert ready(host) == 3


def test_a_queue_that_refuses_makes_the_commit_partial():
    client = connected()
    client.declare("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    client.call(methods.TxSelect(), methods.TxSelectOk)
    client.publish("q", b"1")
    client.publish("q", b"2")
    assert failed(client, methods.TxCommit()) == "PRECONDITION_FAILED - partial tx completion"


def test_a_commit_whose_queue_lost_its_master_before_it_was_durable_is_not_acknowledged():
    client = transactional()
    client.host.is_sure = False
    client.publish("q", b"1")
    assert failed(client, methods.TxCommit()) == "PRECONDITION_FAILED - partial tx completion"


@pytest.mark.parametrize("method", [methods.TxCommit(), methods.TxRollback()])
def test_tx_must_be_selected_first(method):
    assert failed(connected(), method) == "PRECONDITION_FAILED - channel is not transactional"


def test_tx_and_confirm_exclude_each_other():
    client = transactional()
    client.call(methods.TxSelect(), methods.TxSelectOk)
    assert failed(client, methods.ConfirmSelect()) == (
        "PRECONDITION_FAILED - cannot switch from tx to confirm mode"
    )
    other = connected()
    other.call(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    assert failed(other, methods.TxSelect()) == "PRECONDITION_FAILED - cannot switch from confirm to tx mode"


def test_a_transaction_with_too_many_publishes_closes_its_channel_and_has_done_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(limits, "tx_methods_max", 3)
    host = FakeHost()
    client = transactional(host)
    for _ in range(4):
        client.publish("q", b"1")
    [close] = client.all()
    assert (close.reply_code, close.method_id) == (406, methods.BasicPublish.method_id_of)
    assert close.reply_text.endswith("holds 3 publishes and acknowledgements at most: commit sooner")
    host.end_pass()
    assert ready(host) == 0


def test_a_transaction_with_too_many_acknowledgements_closes_its_channel(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "tx_methods_max", 3)
    _, client = holding(4)
    for tag in (1, 2, 3):
        client.send(methods.BasicAck(tag))
    assert "at most" in failed(client, methods.BasicAck(4))


def test_a_transaction_with_too_many_bytes_closes_its_channel_and_what_was_committed_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(limits, "tx_bytes_max", 1024**2)
    host = FakeHost()
    client = transactional(host)
    for _ in range(8):
        client.publish("q", bytes(131_000))
    client.call(methods.TxCommit(), methods.TxCommitOk)
    for _ in range(9):
        client.publish("q", bytes(131_000))
    [close] = client.all()
    assert close.reply_code == 406
    assert close.reply_text.endswith("a transaction holds 1 MiB of messages at most: commit sooner")
    assert ready(host) == 8


def test_one_message_may_be_larger_than_a_transaction(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "tx_bytes_max", 0)
    host = FakeHost()
    client = transactional(host)
    client.publish("q", b"1")
    client.call(methods.TxCommit(), methods.TxCommitOk)
    assert ready(host) == 1
