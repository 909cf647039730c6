"""Direct reply-to: requests carry an address, answers reach its owner while it lives, and nobody else."""

import pytest

from mirrormq.wire import methods
from tests.support.fakehost import Client, FakeHost, connected

QUEUE = "amq.rabbitmq.reply-to"


def requester(host: FakeHost, tag: str = "answers") -> Client:
    client = connected(host)
    client.call(methods.BasicConsume(queue=QUEUE, consumer_tag=tag, no_ack=True), methods.BasicConsumeOk)
    return client


def request(host: FakeHost, client: Client) -> tuple[Client, str]:
    """Send a request; return the server that got it and the address to answer to."""
    server = connected(host)
    server.declare("rpc")
    client.publish("rpc", b"question", reply_to=QUEUE)
    server.send(methods.BasicGet(queue="rpc", no_ack=True))
    return server, server.next().properties.reply_to


def test_an_answer_goes_straight_to_the_requester():
    host = FakeHost()
    client = requester(host)
    server, address = request(host, client)
    assert address.startswith(QUEUE + ".")
    server.publish(address, b"answer", correlation_id="1")
    delivered = client.next()
    assert delivered.method == methods.BasicDeliver("answers", 1, False, "", address)
    assert (delivered.body, delivered.properties.correlation_id) == (b"answer", "1")


def test_answers_use_up_no_delivery_tags():
    host = FakeHost()
    client = requester(host)
    server, address = request(host, client)
    server.publish(address, b"1")
    server.publish(address, b"2")
    assert [method.delivery_tag for method in client.all()] == [1, 1]


def test_each_requester_gets_its_own_answers():
    host = FakeHost()
    first, second = requester(host, "a"), requester(host, "b")
    server, address = request(host, second)
    server.publish(address, b"for the second")
    assert first.all() == []
    assert second.next().body == b"for the second"


def test_a_request_without_a_consumer_of_answers_is_refused():
    client = connected()
    client.declare("rpc")
    client.publish("rpc", reply_to=QUEUE)
    close = client.expect(methods.ChannelClose)
    assert close.reply_text == "PRECONDITION_FAILED - fast reply consumer does not exist"


@pytest.mark.parametrize("how", ["cancel", "channel", "connection"])
def test_an_address_dies_with_its_consumer(how):
    host = FakeHost()
    client = requester(host)
    server, address = request(host, client)
    if how == "cancel":
        client.call(methods.BasicCancel("answers"), methods.BasicCancelOk)
    elif how == "channel":
        client.call(methods.ChannelClose(), methods.ChannelCloseOk)
    else:
        client.connection.on_closed()
    server.publish(address, b"too late")
    assert client.all() == []
    passive = methods.QueueDeclare(queue=address, passive=True)
    assert server.call(passive, methods.ChannelClose).reply_code == 404


@pytest.mark.parametrize("key", ["", "nonsense", "!!!!.x", "AAAAAAAAAAE=.forged"])
def test_a_forged_address_reaches_nobody(key):
    host = FakeHost()
    client = requester(host)
    server = connected(host)
    server.publish(f"{QUEUE}.{key}", b"spam", mandatory=True)
    assert client.all() == []
    assert server.expect(methods.BasicReturn).reply_code == 312


def test_an_answer_counts_as_unroutable_to_its_publisher():
    host = FakeHost()
    client = requester(host)
    server, address = request(host, client)
    server.publish(address, b"answer", mandatory=True)
    assert client.next().body == b"answer"
    server.expect(methods.BasicReturn)


def test_whether_somebody_listens_can_be_asked():
    host = FakeHost()
    client = requester(host)
    server, address = request(host, client)
    for name in (address, QUEUE):
        ok = server.call(methods.QueueDeclare(queue=name, passive=True), methods.QueueDeclareOk)
        assert (ok.queue, ok.message_count, ok.consumer_count) == (name, 0, 1)


def test_answers_cannot_be_acknowledged():
    client = connected()
    close = client.call(methods.BasicConsume(queue=QUEUE), methods.ChannelClose)
    assert close.reply_text == "PRECONDITION_FAILED - reply consumer cannot acknowledge"


def test_a_channel_has_one_consumer_of_answers():
    client = requester(FakeHost())
    close = client.call(methods.BasicConsume(queue=QUEUE, no_ack=True), methods.ChannelClose)
    assert close.reply_text == "PRECONDITION_FAILED - reply consumer already set"


def test_a_new_consumer_gets_a_new_address():
    host = FakeHost()
    client = requester(host)
    _, old = request(host, client)
    client.call(methods.BasicCancel("answers"), methods.BasicCancelOk)
    client.call(methods.BasicConsume(queue=QUEUE, no_ack=True), methods.BasicConsumeOk)
    server, new = request(host, client)
    assert old != new
    server.publish(old, b"stale")
    assert client.all() == []
