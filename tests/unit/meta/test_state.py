"""The state machine of definitions: what commands change and refuse, and that none is left half done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.meta import commands as c
from mirrormq.meta.records import (
    Binding,
    Exchange,
    Permission,
    Queue,
    TopicPermission,
    User,
    VHost,
)
from mirrormq.meta.state import MetaState, bootstrap_commands
from mirrormq.meta.tables import Change
from tests.support import metakit
from tests.support.metakit import declare_exchange, declare_queue, must, to_exchange, to_queue


@pytest.fixture
def state() -> MetaState:
    state = MetaState()
    for command in bootstrap_commands("guest", "$argon2id$x", "/", ("administrator",)):
        must(state, command)
    return state


# --- vhosts ---


def test_a_fresh_node_has_one_vhost_and_an_administrator_with_all_rights(state: MetaState) -> None:
    assert list(state.vhosts) == ["/"]
    assert state.users["guest"] == User("guest", "$argon2id$x", "argon2id", tags=("administrator",))
    assert state.permissions["guest", "/"] == Permission("guest", "/", ".*", ".*", ".*")


def test_bootstrap_is_one_command_so_that_a_crash_cannot_halve_it() -> None:
    assert len(bootstrap_commands("guest", "", "/", ())) == 1


def test_a_vhost_is_born_with_the_standard_exchanges(state: MetaState) -> None:
    must(state, c.PutVHost(VHost("v")))
    found = {x.name: (x.type, x.durable, x.internal) for x in state.exchanges_in("v")}
    assert found == {
        "": ("direct", True, False),
        "amq.direct": ("direct", True, False),
        "amq.fanout": ("fanout", True, False),
        "amq.headers": ("headers", True, False),
        "amq.match": ("headers", True, False),
        "amq.rabbitmq.trace": ("topic", True, True),
        "amq.topic": ("topic", True, False),
    }


def test_putting_an_existing_vhost_changes_its_description_only(state: MetaState) -> None:
    queue = declare_queue(state, "q")
    outcome = must(state, c.PutVHost(VHost("/", description="new")))
    assert outcome.changes == [Change("put", VHost("/", "new"), VHost("/", "Default virtual host"))]
    assert state.queues["/", "q"] == queue


def test_deleting_a_vhost_takes_everything_in_it_and_nothing_else(state: MetaState) -> None:
    before = metakit.contents(state)
    must(state, c.PutVHost(VHost("v")))
    declare_queue(state, "q", "v")
    declare_exchange(state, "x", "v")
    must(state, c.Bind(to_queue("x", "q", vhost="v")))
    must(state, c.SetPermission(Permission("guest", "v", "", "", "")))
    must(state, c.SetTopicPermission(TopicPermission("guest", "v", "x", "", "")))
    must(state, c.SetParameter("v", "c", "n", 1))
    must(state, c.SetVHostLimits("v", {"max-queues": 5}))
    must(state, c.DeleteVHost("v"))
    after = metakit.contents(state)
    del before["last_id"], after["last_id"]
    assert after == before


def test_a_watcher_hears_of_contents_before_the_vhost_that_goes(state: MetaState) -> None:
    declare_queue(state, "q")
    kinds = [type(change.record) for change in must(state, c.DeleteVHost("/")).changes]
    assert kinds.index(Queue) < kinds.index(VHost)
    assert kinds[-1] is VHost


# --- queues and exchanges ---


def test_each_declaration_of_a_name_gets_an_id_of_its_own(state: MetaState) -> None:
    first = declare_queue(state, "q")
    must(state, c.DeleteQueue("/", "q"))
    second = declare_queue(state, "q")
    assert 0 < first.id < second.id


def test_declaring_an_existing_queue_returns_it_for_comparison(state: MetaState) -> None:
    queue = declare_queue(state, "q", durable=False)
    outcome = state.apply(c.DeclareQueue(Queue("/", "q", durable=True)))
    assert (outcome.ok, outcome.error, outcome.record, outcome.changes) == (False, "exists", queue, [])


def test_declaring_with_or_keep_leaves_what_exists_and_succeeds(state: MetaState) -> None:
    queue = declare_queue(state, "q", durable=False)
    exchange = declare_exchange(state, "x")
    kept = must(state, c.DeclareQueue(Queue("/", "q", durable=True), or_keep=True))
    assert (kept.record, kept.changes) == (queue, [])
    kept = must(state, c.DeclareExchange(Exchange("/", "x", type="topic"), or_keep=True))
    assert (kept.record, kept.changes) == (exchange, [])


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (c.DeclareQueue(Queue("no", "q")), "no_vhost"),
        (c.DeclareExchange(Exchange("no", "x")), "no_vhost"),
        (c.DeleteVHost("no"), "no_vhost"),
        (c.DeleteQueue("/", "no"), "missing"),
        (c.DeleteExchange("/", "no"), "missing"),
        (c.DeleteExchange("/", "amq.topic"), "reserved"),
        (c.DeleteExchange("/", ""), "reserved"),
        (c.Bind(Binding("/", "no", "q", "queue", "")), "no_source"),
        (c.Bind(Binding("/", "amq.topic", "no", "queue", "")), "no_destination"),
        (c.Bind(Binding("/", "amq.topic", "no", "exchange", "")), "no_destination"),
        (c.Unbind(Binding("/", "amq.topic", "amq.direct", "exchange", "")), "missing"),
        (c.DeleteUser("no"), "no_user"),
        (c.SetPermission(Permission("no", "/", "", "", "")), "no_user"),
        (c.SetPermission(Permission("guest", "no", "", "", "")), "no_vhost"),
        (c.ClearPermission("guest", "no"), "missing"),
        (c.ClearTopicPermission("guest", "/"), "missing"),
        (c.ClearPolicy("/", "no"), "missing"),
        (c.ClearParameter("/", "c", "no"), "missing"),
        (c.ClearGlobalParameter("no"), "missing"),
        (c.SetVHostLimits("no", {}), "no_vhost"),
        (c.SetUserLimits("no", {}), "no_user"),
        (c.PutUser(User("guest"), only_new=True), "exists"),
    ],
)
def test_a_refused_command_names_its_error_and_changes_nothing(
    state: MetaState, command: c.Command, error: str
) -> None:
    before = metakit.contents(state)
    outcome = state.apply(command)
    assert (outcome.ok, outcome.error, outcome.changes) == (False, error, [])
    assert outcome.detail
    assert metakit.contents(state) == before


def test_delete_by_id_spares_a_later_declaration_of_the_name(state: MetaState) -> None:
    old = declare_queue(state, "q")
    must(state, c.DeleteQueue("/", "q", old.id))
    new = declare_queue(state, "q")
    assert state.apply(c.DeleteQueue("/", "q", old.id)).error == "missing"
    assert state.queues["/", "q"] == new


def test_an_exchange_with_bindings_is_in_use(state: MetaState) -> None:
    declare_queue(state, "q")
    exchange = declare_exchange(state, "x")
    must(state, c.Bind(to_queue("x", "q")))
    outcome = state.apply(c.DeleteExchange("/", "x", if_unused=True))
    assert (outcome.error, outcome.record) == ("in_use", exchange)
    must(state, c.DeleteExchange("/", "x"))


def test_an_exchange_that_is_only_a_destination_is_unused(state: MetaState) -> None:
    declare_exchange(state, "x")
    must(state, c.Bind(to_exchange("amq.topic", "x")))
    must(state, c.DeleteExchange("/", "x", if_unused=True))
    assert not state.bindings


# --- bindings ---


def test_binding_twice_is_no_error_and_no_change(state: MetaState) -> None:
    declare_queue(state, "q")
    must(state, c.Bind(to_queue("amq.direct", "q", "k")))
    assert must(state, c.Bind(to_queue("amq.direct", "q", "k"))).changes == []


def test_bindings_that_differ_in_arguments_are_two(state: MetaState) -> None:
    declare_queue(state, "q")
    for value in (1, 1.0, "1", True, b"1"):
        must(state, c.Bind(to_queue("amq.headers", "q", arguments={"a": value})))
    assert len(state.bindings) == 5
    assert len({binding.key for binding in state.bindings.values()}) == 5


def test_order_of_arguments_does_not_make_another_binding(state: MetaState) -> None:
    declare_queue(state, "q")
    must(state, c.Bind(to_queue("amq.headers", "q", arguments={"a": 1, "b": 2})))
    must(state, c.Bind(to_queue("amq.headers", "q", arguments={"b": 2, "a": 1})))
    assert len(state.bindings) == 1


@pytest.mark.parametrize(
    ("routing_key", "key"),
    [
        ("", "~"),
        ("a.b-c_d", "a.b-c_d"),
        ("a b", "a+b"),
        ("a~b/c", "a%7Eb%2Fc"),
        ("ü", "%C3%BC"),
        ("#", "%23"),
    ],
)
def test_properties_key_is_quoted_as_in_the_management_api(routing_key: str, key: str) -> None:
    assert to_queue("x", "q", routing_key).key == key


def test_bindings_go_with_either_end(state: MetaState) -> None:
    declare_queue(state, "q")
    declare_exchange(state, "x")
    declare_exchange(state, "y")
    for binding in (to_queue("x", "q"), to_queue("y", "q"), to_exchange("x", "y"), to_exchange("y", "x")):
        must(state, c.Bind(binding))
    must(state, c.DeleteExchange("/", "x"))
    assert list(state.bindings.values()) == [to_queue("y", "q")]
    must(state, c.DeleteQueue("/", "q"))
    assert not state.bindings


def test_an_auto_delete_exchange_goes_with_its_last_binding(state: MetaState) -> None:
    declare_queue(state, "q")
    declare_exchange(state, "x", auto_delete=True)
    must(state, c.Bind(to_queue("x", "q", "1")))
    must(state, c.Bind(to_queue("x", "q", "2")))
    must(state, c.Unbind(to_queue("x", "q", "1")))
    assert ("/", "x") in state.exchanges
    must(state, c.Unbind(to_queue("x", "q", "2")))
    assert ("/", "x") not in state.exchanges


def test_an_auto_delete_exchange_without_any_binding_stays(state: MetaState) -> None:
    declare_exchange(state, "x", auto_delete=True)
    must(state, c.Bind(to_exchange("amq.topic", "x")))
    must(state, c.Unbind(to_exchange("amq.topic", "x")))
    assert ("/", "x") in state.exchanges


def test_deleting_a_queue_takes_a_whole_chain_of_auto_delete_exchanges(state: MetaState) -> None:
    length = 2_000
    declare_queue(state, "q")
    for at in range(length):
        declare_exchange(state, f"x{at}", auto_delete=True)
        must(state, c.Bind(to_exchange(f"x{at}", f"x{at - 1}") if at else to_queue("x0", "q")))
    must(state, c.DeleteQueue("/", "q"))
    assert len(state.exchanges) == 8
    assert not state.bindings


def test_an_import_skips_a_binding_whose_end_is_missing(state: MetaState) -> None:
    outcome = must(state, c.Bind(to_queue("amq.topic", "no"), or_skip=True))
    assert (outcome.record, outcome.changes) == (None, [])


# --- lifetimes ---


def test_exclusive_queues_go_with_their_connection(state: MetaState) -> None:
    declare_queue(state, "mine", exclusive=True, owner=1, node="a@h")
    declare_queue(state, "elsewhere", exclusive=True, owner=1, node="b@h")
    declare_queue(state, "other", exclusive=True, owner=2, node="a@h")
    declare_queue(state, "shared")
    must(state, c.ConnectionGone(1, "a@h"))
    assert [q.name for q in state.queues_in("/")] == ["elsewhere", "other", "shared"]
    must(state, c.ConnectionGone(1))
    assert [q.name for q in state.queues_in("/")] == ["other", "shared"]


def test_a_restart_drops_transient_and_exclusive_objects_and_keeps_durable_ones(state: MetaState) -> None:
    declare_queue(state, "durable")
    declare_queue(state, "transient", durable=False)
    declare_queue(state, "exclusive", exclusive=True, owner=1)
    declare_exchange(state, "x")
    declare_exchange(state, "fleeting", durable=False)
    for binding in (
        to_queue("x", "durable"),
        to_queue("x", "transient"),
        to_queue("fleeting", "durable"),
        to_exchange("x", "fleeting"),
    ):
        must(state, c.Bind(binding))
    must(state, c.NodeRestarted("n@h"))
    assert [q.name for q in state.queues_in("/")] == ["durable"]
    assert ("/", "fleeting") not in state.exchanges
    assert list(state.bindings.values()) == [to_queue("x", "durable")]


def test_a_durable_auto_delete_exchange_outlives_a_restart_that_takes_its_bindings(state: MetaState) -> None:
    declare_queue(state, "transient", durable=False)
    declare_exchange(state, "x", auto_delete=True)
    must(state, c.Bind(to_queue("x", "transient")))
    must(state, c.NodeRestarted("n@h"))
    assert ("/", "x") in state.exchanges


def test_a_restart_among_others_drops_that_nodes_queues_only(state: MetaState) -> None:
    declare_queue(state, "here", durable=False, node="a@h")
    declare_queue(state, "there", durable=False, node="b@h")
    declare_exchange(state, "x", durable=False)
    must(state, c.NodeRestarted("a@h", alone=False))
    assert [q.name for q in state.queues_in("/")] == ["there"]
    assert ("/", "x") in state.exchanges


# --- users, limits ---


def test_deleting_a_user_takes_the_permissions(state: MetaState) -> None:
    must(state, c.SetTopicPermission(TopicPermission("guest", "/", "x", "", "")))
    must(state, c.DeleteUser("guest"))
    assert not state.permissions
    assert not state.topic_permissions


def test_a_new_password_keeps_the_limits_of_a_user(state: MetaState) -> None:
    must(state, c.SetUserLimits("guest", {"max-channels": 7}))
    must(state, c.PutUser(User("guest", "other")))
    assert state.user_limit("guest", "max-channels") == 7
    must(state, c.ClearUserLimits("guest", ("max-channels",)))
    assert state.user_limit("guest", "max-channels") is None


def test_the_queue_limit_of_a_vhost_is_kept(state: MetaState) -> None:
    must(state, c.SetVHostLimits("/", {"max-queues": 2}))
    declare_queue(state, "q1")
    declare_queue(state, "q2")
    outcome = state.apply(c.DeclareQueue(Queue("/", "q3")))
    assert outcome.error == "limit"
    assert outcome.detail == "cannot declare queue 'q3': queue limit in vhost '/' (2) is reached"
    assert state.apply(c.DeclareQueue(Queue("/", "q1"))).error == "exists"
    must(state, c.DeleteQueue("/", "q1"))
    declare_queue(state, "q3")


def test_a_negative_limit_is_no_limit(state: MetaState) -> None:
    must(state, c.SetVHostLimits("/", {"max-queues": -1, "max-connections": 0}))
    declare_queue(state, "q")
    assert state.vhost_limit("/", "max-queues") is None
    assert state.vhost_limit("/", "max-connections") == 0


def test_limits_are_set_one_by_one_and_cleared_one_by_one(state: MetaState) -> None:
    must(state, c.SetVHostLimits("/", {"max-queues": 1}))
    must(state, c.SetVHostLimits("/", {"max-connections": 2}))
    assert state.vhost_limits["/"].limits == {"max-queues": 1, "max-connections": 2}
    must(state, c.ClearVHostLimits("/", ("max-queues",)))
    assert state.vhost_limits["/"].limits == {"max-connections": 2}
    must(state, c.ClearVHostLimits("/"))
    assert not state.vhost_limits


# --- transactions, watches ---


def test_a_transaction_is_all_or_nothing(state: MetaState) -> None:
    before = metakit.contents(state)
    commands = (
        c.DeclareQueue(Queue("/", "q")),
        c.PutVHost(VHost("/", description="changed")),
        c.DeleteUser("guest"),
        c.DeleteQueue("/", "no"),
    )
    outcome = state.apply(c.Transaction((), commands))
    assert (outcome.ok, outcome.error, outcome.changes) == (False, "missing", [])
    assert metakit.contents(state) == before
    metakit.check_indexes(state)


def test_guards_hold_a_transaction_back(state: MetaState) -> None:
    queue = declare_queue(state, "q")
    delete = (c.DeleteQueue("/", "q"),)
    for guard in (
        c.Guard("queue", ("/", "q"), present=False),
        c.Guard("queue", ("/", "q"), id=queue.id + 1),
        c.Guard("queue", ("/", "other")),
        c.Guard("vhost", ("no",)),
    ):
        assert state.apply(c.Transaction((guard,), delete)).error == "guard"
    must(state, c.Transaction((c.Guard("queue", ("/", "q"), id=queue.id), c.Guard("vhost", ("/",))), delete))


def test_watchers_hear_of_commands_in_order_even_if_one_of_them_issues_more(state: MetaState) -> None:
    heard: list[tuple[int, str]] = []

    def first(changes: list[Change]) -> None:
        heard.extend((1, getattr(change.record, "name", "")) for change in changes)
        if heard[-1] == (1, "a"):
            declare_queue(state, "b")

    state.watch(first)
    state.watch(lambda changes: heard.extend((2, getattr(change.record, "name", "")) for change in changes))
    declare_queue(state, "a")
    assert heard == [(1, "a"), (2, "a"), (1, "b"), (2, "b")]


def test_a_refused_command_tells_nobody(state: MetaState) -> None:
    state.watch(lambda _: pytest.fail("told"))
    state.apply(c.DeleteQueue("/", "no"))


# --- properties ---


@given(st.lists(metakit.COMMANDS, max_size=40))
def test_indexes_and_references_hold_after_any_commands(commands: list[c.Command]) -> None:
    state = MetaState()
    mirror = MetaState()
    state.apply(c.PutVHost(VHost("/")))
    mirror.apply(c.PutVHost(VHost("/")))
    for command in commands:
        before = metakit.contents(state)
        outcome = state.apply(command)
        assert outcome.ok or metakit.contents(state) == before
        if outcome.ok:
            mirror.apply(command)
    metakit.check_indexes(state)
    metakit.check_references(state)
    assert metakit.contents(mirror) == metakit.contents(state)


@given(st.lists(metakit.COMMANDS, max_size=40))
def test_a_snapshot_restores_the_whole_state(commands: list[c.Command]) -> None:
    state = MetaState()
    for command in commands:
        state.apply(command)
    restored = MetaState()
    restored.restore(state.snapshot())
    assert metakit.contents(restored) == metakit.contents(state)
    metakit.check_indexes(restored)
