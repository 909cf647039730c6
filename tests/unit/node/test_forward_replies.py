"""Direct reply-to across nodes: the requester on one node, the server that answers on another."""

from mirrormq.base import limits
from mirrormq.wire import methods
from mirrormq.wire.properties import Properties, decode_properties, encode_properties
from tests.support.clusterkit import ClusterKit
from tests.support.nodekit import Client

QUEUE = "amq.rabbitmq.reply-to"


def requester(kit: ClusterKit, node: str = "home", tag: str = "answers") -> Client:
    client = kit[node].client()
    client.consume(QUEUE, tag, no_ack=True)
    return client


def address_of(kit: ClusterKit, client: Client) -> str:
    """Publish a request; the address its server on `master` is told to answer to."""
    server = kit["master"].client()
    server.declare("rpc")
    client.publish("rpc", b"?", properties=encode_properties(Properties(reply_to=QUEUE)))
    server.send(methods.BasicGet(queue="rpc", no_ack=True))
    raw = next(item[0] for item in server.take() if isinstance(item, tuple))
    address = decode_properties(raw).reply_to
    assert address is not None
    return address


def test_an_answer_reaches_the_requester_on_another_node():
    kit = ClusterKit()
    client = requester(kit)
    address = address_of(kit, client)
    server = kit["master"].client()
    server.publish(address, b"!", properties=encode_properties(Properties(correlation_id="7")))
    delivered = client.expect(methods.BasicDeliver)
    assert delivered == methods.BasicDeliver("answers", 1, False, "", address)
    properties, body = client.take()[0]
    assert (decode_properties(properties).correlation_id, body) == ("7", b"!")


def test_each_requester_of_a_node_gets_its_own_answers_and_those_of_others_nothing():
    kit = ClusterKit("home", "master", "other")
    first, second, third = requester(kit), requester(kit), requester(kit, "other")
    addresses = [address_of(kit, client) for client in (first, second, third)]
    server = kit["master"].client()
    for number, address in enumerate(addresses):
        server.publish(address, b"%d" % number)
    assert [client.deliveries() for client in (first, second, third)] == [[b"0"], [b"1"], [b"2"]]


def test_an_answer_on_a_third_node_that_holds_neither_queue_nor_requester_arrives():
    kit = ClusterKit("home", "master", "other")
    client = requester(kit)
    kit["other"].client().publish(address_of(kit, client), b"!")
    assert client.deliveries() == [b"!"]


def test_a_mandatory_answer_to_another_node_is_returned_and_confirmed_as_on_one_node():
    heard = []
    for node in ("home", "master"):
        kit = ClusterKit()
        client = requester(kit)
        address = address_of(kit, client)
        server = kit[node].client()
        server.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
        server.publish(address, b"!", mandatory=True)
        heard.append([type(item) for item in server.take()])
        assert client.deliveries() == [b"!"]
    assert heard[0] == heard[1]


def test_declaring_an_address_asks_its_node_whether_somebody_listens():
    kit = ClusterKit()
    client = requester(kit)
    address = address_of(kit, client)
    server = kit["master"].client()
    assert server.declare(address, passive=True) == methods.QueueDeclareOk(address, 0, 1)
    client.ask(methods.BasicCancel("answers"), methods.BasicCancelOk)
    server.send(methods.QueueDeclare(queue=address, passive=True))
    closed = server.expect(methods.ChannelClose)
    assert (closed.reply_code, closed.reply_text) == (404, f"NOT_FOUND - no queue '{address}' in vhost '/'")


def test_declaring_an_address_of_a_node_out_of_reach_is_answered_404():
    kit = ClusterKit()
    address = address_of(kit, requester(kit))
    server = kit["master"].client()
    kit.hold("home", "master")
    server.send(methods.QueueDeclare(queue=address, passive=True))
    assert server.take() == []
    kit.cut("home", "master")
    kit.run()
    assert server.expect(methods.ChannelClose).reply_code == 404
    other = kit["master"].client()
    other.send(methods.QueueDeclare(queue=address, passive=True))
    assert other.expect(methods.ChannelClose).reply_code == 404


def test_answers_to_a_requester_that_is_gone_reach_nobody():
    kit = ClusterKit()
    client = requester(kit)
    address = address_of(kit, client)
    client.close_socket()
    requester(kit)
    server = kit["master"].client()
    server.publish(address, b"late")
    assert not kit.cuts
    assert server.take() == []


def test_an_address_of_an_earlier_process_reaches_nobody():
    kit = ClusterKit()
    address = address_of(kit, requester(kit))
    kit.kill("home")
    kit.restart("home")
    client = requester(kit)  # with the same connection and channel numbers
    kit["master"].client().publish(address, b"late")
    assert client.take() == []


def test_answers_over_a_broken_link_are_dropped_and_later_ones_arrive():
    kit = ClusterKit()
    client = requester(kit)
    address = address_of(kit, client)
    server = kit["master"].client()
    kit.cut("home", "master")
    server.publish(address, b"lost")
    kit.heal("home", "master")
    server.publish(address, b"found")
    assert client.deliveries() == [b"found"]


def test_answers_wait_for_a_full_link_up_to_a_bound_and_keep_their_order():
    kit = ClusterKit()
    client = requester(kit)
    address = address_of(kit, client)
    server = kit["master"].client()
    kit.node("master").link_full(kit.now, "home")
    size = limits.forward_reply_bytes_max // 16
    for number in range(20):
        server.publish(address, b"%02d" % number + bytes(size))
    assert client.take() == []
    assert any("direct reply-to" in note.text for note in kit["master"].notes)
    kit.node("master").link_writable(kit.now, "home")
    server.publish(address, b"20")
    assert [int(body[:2]) for body in client.deliveries()] == [*range(15), 20]
