"""A vhost follows the metadata, and its remembered routes never say more than the slow way would."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.base.types import Now
from mirrormq.broker.arguments import QueueSettings
from mirrormq.broker.deadletter import make_dead_letter
from mirrormq.broker.replyto import ReplyConsumer
from mirrormq.broker.vhost import Routed, VHost
from mirrormq.kernel.cores import QueueCore, Worklist
from mirrormq.kernel.frames import Route
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.message import Message
from mirrormq.meta import commands as c
from mirrormq.meta import records as r
from mirrormq.meta.access import Access
from mirrormq.meta.state import MetaState
from mirrormq.meta.tables import Change
from mirrormq.wire.properties import Properties, encode_properties
from tests.support.fakehost import NotCutOff


class FakeQueue:
    """What the vhost needs of a queue: a core, settings, and to be told."""

    def __init__(self, host: Any, vhost: Any, record: r.Queue, effective: QueueSettings) -> None:
        self.record = record
        self.name = record.name
        self.settings = effective
        self.core = QueueCore(host.work, host.grave, self, 0)
        self.configured = 0
        self.is_destroyed = False

    def configure(self, effective: QueueSettings) -> None:
        self.settings = effective
        self.configured += 1

    def destroy(self) -> None:
        self.is_destroyed = True


class World:
    """One vhost `/` that watches a real metadata state; user `guest` may do everything."""

    pid = 1

    def __init__(self) -> None:
        self.state = MetaState()
        self.access = Access(self.state)
        self.channels: dict[int, Any] = {}
        self.partition = NotCutOff()
        self.work = Worklist()
        self.grave = Graveyard()
        self.vhost = VHost(self, "/", FakeQueue)  # type: ignore[arg-type]
        self.state.watch(self._on_changes)
        self.do(c.PutVHost(r.VHost("/")))
        self.user("guest")

    def _on_changes(self, changes: list[Change]) -> None:
        for change in changes:
            record = change.record
            if isinstance(record, r.Permission | r.TopicPermission):
                self.vhost.forget_routes()
            elif not isinstance(record, r.VHost | r.User):
                self.vhost.apply(change)

    def far_listener(self, pid: int, address: bytes) -> None:
        """There is no other node."""

    def do(self, command: c.Command) -> None:
        outcome = self.state.apply(command)
        assert outcome.ok, outcome
        while self.vhost.following.is_under_way:
            self.vhost.follow_on()  # as the passes that follow do

    def user(self, name: str, write: str = ".*") -> None:
        self.do(c.PutUser(r.User(name)))
        self.do(c.SetPermission(r.Permission(name, "/", ".*", write, ".*")))

    def exchange(self, name: str, kind: str = "direct", **more: Any) -> None:
        self.do(c.DeclareExchange(r.Exchange("/", name, kind, **more)))

    def queue(self, name: str, **arguments: Any) -> Any:
        table = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.do(c.DeclareQueue(r.Queue("/", name, arguments=table)))
        return self.vhost.queues[name]

    def bind(self, source: str, queue: str, key: str = "", **arguments: Any) -> None:
        self.do(c.Bind(r.Binding("/", source, queue, "queue", key, arguments)))

    def policy(self, pattern: str, **definition: Any) -> None:
        table = {key.replace("_", "-"): value for key, value in definition.items()}
        self.do(c.SetPolicy(r.Policy("/", "p", pattern, table)))

    def resolve(self, exchange: str, key: str, user: str = "guest") -> Route:
        return self.vhost.resolve(user, exchange.encode(), key.encode())

    def route(self, exchange: str, key: str, extra: tuple[bytes, ...] = (), **properties: Any) -> list[str]:
        return [queue.name for queue in self.send(exchange, key, extra, **properties).queues]

    def send(self, exchange: str, key: str, extra: tuple[bytes, ...] = (), **properties: Any) -> Routed:
        raw = encode_properties(Properties(**properties))
        return self.vhost.route_message(Message(exchange.encode(), key.encode(), raw, b""), extra)


def targets(route: Route) -> list[str]:
    return [core.owner.name for core in route.targets]


@pytest.fixture
def world() -> World:
    return World()


def test_every_vhost_has_its_predeclared_exchanges(world: World) -> None:
    for name in ("", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"):
        assert world.vhost.router.place(name) is not None, name


def test_declared_queues_and_bindings_are_routed_to_and_deleted_ones_are_not(world: World) -> None:
    queue = world.queue("q")
    world.exchange("x")
    world.bind("x", "q", "k")
    assert world.route("", "q") == world.route("x", "k") == ["q"]
    world.do(c.DeleteQueue("/", "q"))
    assert queue.is_destroyed
    assert world.route("", "q") == world.route("x", "k") == []
    world.do(c.DeleteExchange("/", "x"))
    assert not world.send("x", "k").exchange_found


def test_an_auto_delete_exchange_goes_with_its_last_binding(world: World) -> None:
    world.queue("q")
    world.exchange("x", auto_delete=True)
    world.bind("x", "q", "k")
    world.do(c.DeleteQueue("/", "q"))
    assert world.vhost.router.place("x") is None


def test_a_missing_exchange_is_told_from_an_unroutable_message(world: World) -> None:
    assert world.send("nope", "k") == ([], False, [])
    assert world.send("amq.direct", "k") == ([], True, [])


def test_cc_and_bcc_keys_reach_further_queues_once(world: World) -> None:
    for name in ("a", "b", "c"):
        world.queue(name)
    assert world.route("", "a", (b"b", b"c", b"a", b"nope")) == ["a", "b", "c"]


def test_headers_are_read_from_the_message(world: World) -> None:
    world.queue("q")
    world.bind("amq.headers", "q", "", colour="red")
    assert world.route("amq.headers", "", headers={"colour": "red"}) == ["q"]
    assert world.route("amq.headers", "") == []
    routed = world.vhost.route("amq.headers", b"", {"colour": "red"})
    assert [queue.name for queue in routed.queues] == ["q"]


# --- what the compiled lane may do by itself ---


def test_a_route_is_plain_if_exchange_and_key_decide_and_a_queue_is_reached(world: World) -> None:
    world.queue("q")
    world.queue("r")
    world.exchange("x", "topic")
    world.bind("x", "q", "a.#")
    world.bind("x", "r", "*.b")
    route = world.resolve("x", "a.b")
    assert (route.plain, targets(route)) == (True, ["q", "r"])
    assert (route.exchange, route.routing_key) == (b"x", b"a.b")


def test_a_route_is_not_plain_without_exchange_queue_or_certainty(world: World) -> None:
    world.queue("q")
    world.exchange("x", arguments={"alternate-exchange": "amq.fanout"})
    world.exchange("internal", "fanout", internal=True)
    world.exchange("by-header", "x-consistent-hash", arguments={"hash-header": "h"})
    world.bind("amq.fanout", "q")
    world.bind("internal", "q")
    world.bind("by-header", "q", "1")
    world.bind("amq.headers", "q")
    for exchange in ("nope", "x", "internal", "by-header", "amq.headers", "amq.direct"):
        route = world.resolve(exchange, "k")
        assert (route.plain, route.targets) == (False, []), exchange
    assert world.route("x", "k") == ["q"]


def test_a_route_is_not_plain_for_a_user_who_may_not_write(world: World) -> None:
    world.queue("q")
    world.user("reader", write="^$")
    world.user("some", write="^amq\\.default$")
    world.bind("amq.direct", "q", "k")
    assert not world.resolve("amq.direct", "k", "reader").plain
    assert not world.resolve("", "q", "reader").plain
    assert not world.resolve("amq.direct", "k", "some").plain
    assert world.resolve("", "q", "some").plain
    assert not world.resolve("", "q", "nobody").plain


def test_topic_permissions_count_for_topic_exchanges_only(world: World) -> None:
    world.queue("q")
    for exchange in ("amq.topic", "amq.direct"):
        world.bind("amq.topic", "q", "#")
        world.bind("amq.direct", "q", "b.1")
        world.do(c.SetTopicPermission(r.TopicPermission("guest", "/", exchange, "^a\\.", ".*")))
    assert world.resolve("amq.topic", "a.1").plain
    assert not world.resolve("amq.topic", "b.1").plain
    assert world.resolve("amq.direct", "b.1").plain


def test_names_that_are_not_utf8_are_resolved_without_an_exception(world: World) -> None:
    route = world.vhost.resolve("guest", b"\xff", b"\xfe")
    assert (route.exchange, route.routing_key, route.plain) == (b"\xff", b"\xfe", False)
    assert not world.vhost.resolve("guest", b"", b"\xfe").plain
    world.queue("q")
    world.bind("amq.topic", "q", "#")
    assert world.vhost.resolve("guest", b"amq.topic", b"\xfe").plain


def test_every_change_of_topology_makes_remembered_routes_void(world: World) -> None:
    versions = [world.vhost.version]

    def changed() -> bool:
        versions.append(world.vhost.version)
        return versions[-1] > versions[-2]

    world.queue("q")
    assert changed()
    world.exchange("x")
    assert changed()
    world.bind("x", "q", "k")
    assert changed()
    world.policy("^x$", alternate_exchange="amq.fanout")
    assert changed()
    world.do(c.SetPermission(r.Permission("guest", "/", "", "", "")))
    assert changed()
    world.do(c.DeleteQueue("/", "q"))
    assert changed()


def test_a_users_memo_is_shared_by_connections_and_kept_through_changes(world: World) -> None:
    memo = world.vhost.memo_for("guest")
    world.queue("q")
    assert world.vhost.memo_for("guest") is memo
    assert world.vhost.memo_for("other") is not memo


class Publish(NamedTuple):
    exchange: str
    key: str
    colour: str


exchanges = st.sampled_from(["d", "t", "f", "h", "c"])
keys = st.sampled_from(["1", "2", "a.b", ""])
bindings = st.lists(
    st.tuples(exchanges, st.sampled_from(["q1", "q2", "d", "t", "f", "h"]), keys), max_size=14
)


@settings(deadline=None, max_examples=60)
@given(bindings, st.lists(st.builds(Publish, exchanges, keys, st.sampled_from(["", "1", "2"])), max_size=8))
def test_a_plain_route_is_what_the_slow_way_gives_whatever_the_properties(
    bound: list[tuple[str, str, str]], published: list[Publish]
) -> None:
    world = World()
    kinds = {"d": "direct", "t": "topic", "f": "fanout", "h": "headers", "c": "x-consistent-hash"}
    for name, kind in kinds.items():
        alternate = {"alternate-exchange": "f"} if name == "d" else {}
        world.exchange(name, kind, arguments=alternate)
    for name in ("q1", "q2"):
        world.queue(name)
    for source, destination, key in bound:
        to: r.DestinationType = "queue" if destination.startswith("q") else "exchange"
        arguments = {"colour": key} if source == "h" else {}
        key = "1" if source == "c" else key
        world.do(c.Bind(r.Binding("/", source, destination, to, key, arguments)))
    for publish in published:
        route = world.resolve(publish.exchange, publish.key)
        slow = world.route(publish.exchange, publish.key, headers={"colour": publish.colour})
        if route.plain:
            assert targets(route) == slow


# --- settings ---


def test_a_queue_gets_its_arguments_and_the_policy_that_matches(world: World) -> None:
    world.policy("^q", max_length=5, message_ttl=1)
    assert world.queue("q1", x_max_length=9).settings == QueueSettings(max_length=5, ttl_us=1000)
    assert world.queue("other").settings == QueueSettings()


def test_a_policy_set_or_cleared_reconfigures_only_what_it_changes(world: World) -> None:
    queue, other = world.queue("q"), world.queue("other")
    world.policy("^q$", max_length=5)
    assert (queue.settings.max_length, queue.configured, other.configured) == (5, 1, 0)
    world.do(c.ClearPolicy("/", "p"))
    assert (queue.settings, queue.configured) == (QueueSettings(), 2)


def test_an_alternate_exchange_comes_from_the_argument_or_else_the_policy(world: World) -> None:
    world.queue("q")
    world.bind("amq.fanout", "q")
    world.exchange("x")
    world.exchange("y", arguments={"alternate-exchange": "amq.topic"})
    assert world.route("x", "k") == []
    world.policy("^(x|y)$", alternate_exchange="amq.fanout")
    assert world.route("x", "k") == ["q"]
    assert world.route("y", "k") == []
    world.do(c.ClearPolicy("/", "p"))
    assert world.route("x", "k") == []


def test_a_policy_set_before_an_exchange_is_declared_counts_too(world: World) -> None:
    world.queue("q")
    world.bind("amq.fanout", "q")
    world.policy("^x$", alternate_exchange="amq.fanout")
    world.exchange("x")
    assert world.route("x", "k") == ["q"]


# --- answers and dead letters ---


def test_an_answer_reaches_its_requester_and_is_never_remembered(world: World) -> None:
    rng = SimpleNamespace(token=bytes)
    channel: Any = SimpleNamespace(host=SimpleNamespace(pid=1, rng=rng), uid=7)
    channel.reply_consumer = ReplyConsumer(channel, "tag")
    world.channels[7] = channel
    address = channel.reply_consumer.address.decode()
    assert world.send("", address) == ([], True, [channel.reply_consumer])
    assert world.send("amq.direct", address).replies == []
    assert not world.resolve("", address).plain
    del world.channels[7]
    assert world.send("", address).replies == []


def test_a_dead_letter_is_routed_by_all_its_keys_but_not_into_a_cycle(world: World) -> None:
    for name in ("q", "r", "s"):
        world.queue(name)
    raw = encode_properties(Properties(headers={"CC": ["r", "s"]}))
    letter = make_dead_letter(
        Message(b"", b"q", raw, b""), "expired", Now(0, 0), queue="q", exchange="", key=None
    )
    assert [queue.name for queue in world.vhost.dead_letter_targets("", letter)] == ["r", "s"]
    assert world.vhost.dead_letter_targets("nope", letter) == []


def test_destroying_a_vhost_destroys_its_queues(world: World) -> None:
    queues = [world.queue("q"), world.queue("r")]
    world.vhost.destroy()
    assert all(queue.is_destroyed for queue in queues)
    assert not world.vhost.queues


@pytest.mark.timeout(30)
def test_ten_thousand_queues_are_declared_bound_and_deleted_without_quadratic_cost(world: World) -> None:
    world.vhost.memo_for("guest")
    for i in range(10_000):
        world.queue(f"q{i}")
        world.bind("amq.topic", f"q{i}", f"k.{i}")
    assert targets(world.resolve("amq.topic", "k.77")) == ["q77"]
    for i in range(10_000):
        world.do(c.DeleteQueue("/", f"q{i}"))
    assert not world.vhost.queues
