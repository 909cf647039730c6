"""What nodes hear of each other, when, and what becomes of it when a link breaks."""

from typing import Any

import msgspec
import pytest

from mirrormq import __version__
from mirrormq.base import limits
from mirrormq.meta import commands as c
from mirrormq.meta.records import VHost
from mirrormq.node import effects as fx
from mirrormq.node import news
from mirrormq.node.news import Facts
from mirrormq.node.peerframes import BadFrame
from mirrormq.peer.handshake import VERSIONS
from mirrormq.wire import methods
from tests.support.clusterkit import LEADER, ClusterKit
from tests.support.nodekit import Client, NodeKit

PAUSE_S = limits.news_pause_us / 1_000_000
PERIOD_S = limits.news_period_us / 1_000_000


def facts(cluster: ClusterKit, at: str, about: str) -> Facts:
    found = cluster.node(at).news.of(about)
    assert found is not None, f"{at} knows nothing of {about}"
    return found


def apply(cluster: ClusterKit, command: c.Command) -> None:
    cluster.node(cluster.names[0]).propose(command, lambda outcome: None, False)
    cluster.run()


def try_to_open(cluster: ClusterKit, node: str, vhost: str = "/") -> Client:
    """A client that has logged in and asked for a vhost; what it is answered is in its inbox."""
    client = cluster[node].connect()
    client.feed(b"AMQP\x00\x00\x09\x01")
    client.expect(methods.ConnectionStart, 0)
    client.send(methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"), 0)
    tune = client.expect(methods.ConnectionTune, 0)
    client.send(methods.ConnectionTuneOk(tune.channel_max, tune.frame_max, 0), 0)
    client.send(methods.ConnectionOpen(vhost), 0)
    return client


def live(cluster: ClusterKit, name: str) -> list[str]:
    """Whom a node hears, but for the one that no test sees."""
    return [other for other in cluster.node(name).news.live() if other != LEADER]


def reports(cluster: ClusterKit, source: str, target: str) -> list[bytes]:
    """Frames with news from now on, as they are sent."""
    sent: list[bytes] = []
    carry = cluster.carry

    def listen(one: str, other: str, payload: bytes) -> None:
        if (one, other) == (source, target) and payload[:1] == news.FIRST:
            sent.append(payload)
        carry(one, other, payload)

    cluster.carry = listen  # type: ignore[method-assign]
    return sent


# --- reports ---


def test_a_report_arrives_as_soon_as_the_link_is_open() -> None:
    cluster = ClusterKit("a", "b")
    assert live(cluster, "a") == ["a", "b"]
    heard = facts(cluster, "a", "b")
    assert (heard.version, heard.protocols) == (__version__, VERSIONS)
    assert heard.started_at == cluster.node("b").started_at.wall


def test_a_change_is_told_after_a_pause_and_once() -> None:
    cluster = ClusterKit("a", "b")
    cluster["b"].client()
    cluster.advance(PAUSE_S)
    cluster["b"].client()
    cluster["b"].client()
    assert facts(cluster, "a", "b").connections < 3
    cluster.advance(PAUSE_S)
    heard = facts(cluster, "a", "b")
    assert (heard.connections, heard.vhosts, heard.users, heard.channels) == (
        3,
        {"/": 3},
        {"guest": 3},
        {"guest": 3},
    )
    sent = reports(cluster, "b", "a")
    cluster.advance(PAUSE_S)
    assert not sent


def test_without_a_change_a_report_comes_every_second() -> None:
    cluster = ClusterKit("a", "b")
    cluster.advance(PERIOD_S)
    sent = reports(cluster, "a", "b")
    cluster.advance(PERIOD_S)
    assert len(sent) == 1


def test_the_node_asks_to_be_woken_for_its_next_report() -> None:
    cluster = ClusterKit("a", "b")
    cluster.advance(PERIOD_S)
    assert cluster.node("a").news.next_at() == cluster.now.mono + limits.news_period_us
    cluster["a"].client()
    assert cluster.node("a").news.next_at() == cluster.now.mono + limits.news_pause_us
    assert cluster.node("a").next_timer() <= cluster.now.mono + limits.news_pause_us


def test_a_node_that_is_alone_tells_nobody_and_wakes_for_nothing() -> None:
    kit = NodeKit()
    kit.client()
    kit.advance(PERIOD_S)
    assert kit.node.next_timer() is None
    assert kit.node.news.live() == [kit.node.node_name]


def test_messages_are_those_ready_and_unacked_in_queues_mastered_there() -> None:
    cluster = ClusterKit("a", "b")
    client = cluster["b"].client()
    client.declare("q")
    for _ in range(3):
        client.publish("q")
    client.consume("q")
    far = cluster["a"].client()
    far.publish("q")
    cluster.advance(PERIOD_S)
    assert facts(cluster, "a", "b").messages == 4
    assert facts(cluster, "b", "a").messages == 0
    assert cluster.node("a").news.totals() == cluster.node("b").news.totals() == (2, 4)


def test_many_queues_are_counted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "news_queues_walked", 2)
    cluster = ClusterKit("a", "b")
    client = cluster["a"].client()
    for number in range(5):
        client.declare(f"q{number}")
        client.publish(f"q{number}")
    for _ in range(3):
        cluster.advance(PERIOD_S)
    assert facts(cluster, "b", "a").messages == 5


def test_memory_disk_and_listeners_are_told() -> None:
    cluster = ClusterKit("a", "b", memory_limit=1000, disk_free_limit=10)
    cluster.node("b").news.set_listeners([("amqp", "[::]", 5672), ("http", "127.0.0.1", 15672)])
    cluster.node("b").gauges(cluster.now, 400, 77)
    cluster.advance(PAUSE_S)
    heard = facts(cluster, "a", "b")
    assert [(it.protocol, it.interface, it.port) for it in heard.listeners] == [
        ("amqp", "[::]", 5672),
        ("http", "127.0.0.1", 15672),
    ]
    assert (heard.memory_used, heard.memory_limit, heard.disk_free, heard.disk_free_limit) == (
        400,
        1000,
        77,
        10,
    )


def test_what_a_node_said_goes_with_its_link_and_comes_back_with_it() -> None:
    cluster = ClusterKit("a", "b", "c")
    cluster.cut("a", "b")
    assert cluster.node("a").news.of("b") is None
    assert live(cluster, "a") == ["a", "c"]
    assert live(cluster, "c") == ["a", "b", "c"]
    cluster.heal("a", "b")
    assert live(cluster, "a") == ["a", "b", "c"]


def test_a_node_whose_link_is_open_counts_only_when_it_was_heard() -> None:
    cluster = ClusterKit("a", "b")
    cluster.cut("a", "b")
    cluster.hold("b", "a")
    cluster.heal("a", "b")
    assert live(cluster, "a") == ["a"]
    cluster.release()
    assert live(cluster, "a") == ["a", "b"]


# --- bytes ---


def own_report() -> bytes:
    return news.encode(ClusterKit("a").node("a").news.own())


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xf5",
        b"\xf5\x02\x90",
        b"\xf5\x01",
        b"\xf5\x01\xc1",
        b"\xf5\x01\x93\x01\x02",
        b"\xf5\x01" + b"\x91" * 50_000,
        own_report()[:-1],
        own_report() + b"\0",
        own_report() + bytes(limits.peer_chunk_bytes),
    ],
)
def test_what_is_no_report_is_a_bad_frame(payload: bytes) -> None:
    with pytest.raises(BadFrame):
        news.decode(payload)


def test_numbers_below_zero_and_floods_of_alarms_are_bad_frames() -> None:
    good = ClusterKit("a").node("a").news.own()
    for changes in ({"connections": -1}, {"vhosts": {"/": -1}}, {"alarms": ["memory"] * 9}):
        with pytest.raises(BadFrame):
            news.decode(news.encode(msgspec.structs.replace(good, **changes)))


def test_fields_that_a_later_version_appends_are_passed_over() -> None:
    good = ClusterKit("a").node("a").news.own()
    fields: list[Any] = msgspec.msgpack.decode(own_report()[2:])
    later = own_report()[:2] + msgspec.msgpack.encode([*fields, "more"])
    assert news.decode(later).version == good.version


def test_a_bad_report_costs_the_link() -> None:
    cluster = ClusterKit("a", "b")
    cluster.node("b").effects.send("a", 0, b"\xf5\x01\xc1")
    cluster.run()
    assert [(cut[0], cut[1]) for cut in cluster.cuts] == [("a", "b")]
    assert live(cluster, "a") == ["a"]
    cluster.heal("a", "b")
    assert live(cluster, "a") == ["a", "b"]


def test_reports_travel_on_the_control_lane_in_one_frame() -> None:
    cluster = ClusterKit("a")
    node = cluster.node("a")
    for number in range(3000):
        node.census.connection_opened(f"{number:04}" + "ü" * 120, f"{number:04}" + "u" * 250)
        node.census.channel_opened(f"{number:04}" + "u" * 250)
    apply(cluster, c.PutVHost(VHost("0001" + "ü" * 120)))
    apply(cluster, c.SetVHostLimits("0001" + "ü" * 120, {"max-connections": 5}))
    node.news.link_change("z", True)
    (sent,) = [it for it in node.effects.take() if isinstance(it, fx.Send)]
    assert (sent.peer, sent.lane) == ("z", 0)
    assert len(sent.payload) <= limits.peer_chunk_bytes
    assert news.decode(sent.payload).vhosts == {"0001" + "ü" * 120: 1}


def test_when_names_do_not_fit_those_closest_to_their_limit_are_told() -> None:
    cluster = ClusterKit("a")
    node = cluster.node("a")
    names = [f"{number:04}" + "v" * 200 for number in range(400)]
    for number, name in enumerate(names):
        apply(cluster, c.PutVHost(VHost(name)))
        apply(cluster, c.SetVHostLimits(name, {"max-connections": 1 + number}))
        node.census.connection_opened(name, "guest")
    told = list(news.decode(news.encode(node.news.own())).vhosts)
    assert told == names[: len(told)]
    assert 50 < len(told) < 100


def test_all_names_are_told_while_they_are_few() -> None:
    cluster = ClusterKit("a")
    node = cluster.node("a")
    for number in range(limits.news_names_max):
        node.census.connection_opened(f"v{number}", f"u{number}")
    assert len(node.news.own().vhosts) == len(node.news.own().users) == limits.news_names_max
    node.census.connection_opened("one more", "u0")
    assert node.news.own().vhosts == {}
    assert len(node.news.own().users) == limits.news_names_max


def test_a_report_of_a_node_without_a_link_is_dropped() -> None:
    cluster = ClusterKit("a")
    cluster.node("a").news.frame("stranger", own_report())
    assert live(cluster, "a") == ["a"]


# --- alarms ---


@pytest.fixture
def cluster() -> ClusterKit:
    return ClusterKit("a", "b", "c", memory_limit=1000, disk_free_limit=100)


def raise_alarm(cluster: ClusterKit, node: str, memory: int = 2000, disk: int = 1000) -> None:
    cluster.node(node).gauges(cluster.now, memory, disk)
    cluster.advance(PAUSE_S)


def clear_alarm(cluster: ClusterKit, node: str) -> None:
    raise_alarm(cluster, node, 500)


def test_an_alarm_of_one_node_holds_publishers_of_all(cluster: ClusterKit) -> None:
    far, other = cluster["b"].client(), cluster["c"].client()
    far.declare("q")
    raise_alarm(cluster, "a")
    for client in (far, other):
        client.publish("q")
        assert client.expect(methods.ConnectionBlocked, 0).reason == "low on memory"
    assert cluster.node("b").alarms == set()
    assert cluster.node("b").shortages() == ["memory"]
    clear_alarm(cluster, "a")
    for client in (far, other):
        client.expect(methods.ConnectionUnblocked, 0)
    assert far.declare("q", passive=True).message_count == 2


def test_publishers_go_on_only_when_the_last_alarm_is_over(cluster: ClusterKit) -> None:
    client = cluster["c"].client()
    client.declare("q")
    raise_alarm(cluster, "a")
    raise_alarm(cluster, "b", memory=0, disk=1)
    client.publish("q")
    assert client.expect(methods.ConnectionBlocked, 0).reason == "low on disk & memory"
    assert cluster.node("c").news.alarms() == {"a": ["memory"], "b": ["disk"]}
    clear_alarm(cluster, "a")
    assert not client.inbox
    clear_alarm(cluster, "b")
    client.expect(methods.ConnectionUnblocked, 0)


def test_the_alarm_of_a_node_goes_away_with_the_node(cluster: ClusterKit) -> None:
    client = cluster["b"].client()
    client.declare("q")
    raise_alarm(cluster, "a")
    client.publish("q")
    client.expect(methods.ConnectionBlocked, 0)
    cluster.kill("a")
    client.expect(methods.ConnectionUnblocked, 0)
    assert client.declare("q", passive=True).message_count == 1


def test_an_alarm_that_stands_already_is_heard_with_the_link(cluster: ClusterKit) -> None:
    cluster.cut("a", "b")
    raise_alarm(cluster, "a")
    client = cluster["b"].client()
    assert cluster.node("b").shortages() == []
    cluster.heal("a", "b")
    client.publish("nowhere")
    client.expect(methods.ConnectionBlocked, 0)


def test_a_client_that_connects_while_another_node_has_an_alarm_is_held(cluster: ClusterKit) -> None:
    raise_alarm(cluster, "a")
    client = cluster["c"].client()
    client.publish("nowhere")
    client.expect(methods.ConnectionBlocked, 0)


def test_the_operator_is_told_of_alarms_of_other_nodes_once(cluster: ClusterKit) -> None:
    raise_alarm(cluster, "a")
    cluster.advance(PERIOD_S)
    clear_alarm(cluster, "a")
    texts = [note.text for note in cluster["b"].notes if "alarm" in note.text]
    assert texts == [
        "memory alarm on node 'a': publishers are held",
        "no node has an alarm: publishers go on",
    ]


def test_an_alarm_nobody_knows_yet_is_passed_over(cluster: ClusterKit) -> None:
    node = cluster.node("b")
    report = msgspec.structs.replace(facts(cluster, "b", "a"), alarms=["temperature"])
    node.peer_frame(cluster.now, "a", news.encode(report))
    assert node.shortages() == []


# --- limits that count the whole cluster ---


def test_max_connections_of_a_vhost_counts_all_nodes() -> None:
    cluster = ClusterKit("a", "b")
    apply(cluster, c.SetVHostLimits("/", {"max-connections": 2}))
    first = cluster["a"].client()
    cluster["a"].client()
    cluster.advance(PAUSE_S)
    close = try_to_open(cluster, "b").expect(methods.ConnectionClose, 0)
    assert close.reply_text.endswith(
        "access to vhost '/' refused for user 'guest': connection limit (2) is reached"
    )
    first.close_socket()
    cluster.advance(PAUSE_S)
    try_to_open(cluster, "b").expect(methods.ConnectionOpenOk, 0)


def test_max_connections_of_a_user_counts_all_nodes() -> None:
    cluster = ClusterKit("a", "b")
    apply(cluster, c.SetUserLimits("guest", {"max-connections": 1}))
    cluster["a"].client()
    cluster.advance(PAUSE_S)
    close = try_to_open(cluster, "b").expect(methods.ConnectionClose, 0)
    assert "user connection limit (1) is reached" in close.reply_text


def test_max_channels_of_a_user_counts_all_nodes() -> None:
    cluster = ClusterKit("a", "b")
    apply(cluster, c.SetUserLimits("guest", {"max-channels": 2}))
    cluster["a"].client()
    second = cluster["b"].client()
    cluster.advance(PAUSE_S)
    second.send(methods.ChannelOpen(), 2)
    close = second.expect(methods.ConnectionClose, 0)
    assert "maximum allowed user limit of (2)" in close.reply_text


def test_max_queues_counts_all_nodes() -> None:
    cluster = ClusterKit("a", "b")
    apply(cluster, c.SetVHostLimits("/", {"max-queues": 1}))
    cluster["a"].client().declare("one")
    client = cluster["b"].client()
    close = client.ask(methods.QueueDeclare(queue="two"), methods.ChannelClose)
    assert "queue limit in vhost '/' (1) is reached" in close.reply_text


def test_connections_of_a_node_that_is_gone_count_no_more() -> None:
    cluster = ClusterKit("a", "b")
    apply(cluster, c.SetVHostLimits("/", {"max-connections": 1}))
    cluster["a"].client()
    cluster.advance(PAUSE_S)
    cluster.kill("a")
    try_to_open(cluster, "b").expect(methods.ConnectionOpenOk, 0)


def test_nothing_is_counted_once_everything_is_closed() -> None:
    cluster = ClusterKit("a", "b")
    gone = cluster["a"].client()
    gone.open(2)
    closed = cluster["a"].client()
    closed.ask(methods.ChannelClose(200, "", 0, 0), methods.ChannelCloseOk)
    closed.ask(methods.ConnectionClose(200, "", 0, 0), methods.ConnectionCloseOk, 0)
    gone.close_socket()
    closed.close_socket()
    census = cluster.node("a").census
    assert (census.connections, census.vhosts, census.users, census.channels) == (0, {}, {}, {})
