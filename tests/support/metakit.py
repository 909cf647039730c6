"""Helpers for tests of definitions: short commands, comparing states, random commands for property tests."""

from typing import Any

from hypothesis import strategies as st

from mirrormq.meta import commands as c
from mirrormq.meta.records import (
    Binding,
    Exchange,
    Member,
    Node,
    Permission,
    Policy,
    Queue,
    TopicPermission,
    User,
    VHost,
    View,
)
from mirrormq.meta.state import MetaState, Outcome
from mirrormq.meta.tables import _INDEXES, Tables
from mirrormq.wire.table import Timestamp


def must(state: MetaState, command: c.Command) -> Outcome:
    """Apply a command that has to succeed."""
    outcome = state.apply(command)
    assert outcome.ok, outcome
    return outcome


def declare_queue(state: MetaState, name: str, vhost: str = "/", **fields: Any) -> Queue:
    """Declare a queue and return its record."""
    record = must(state, c.DeclareQueue(Queue(vhost, name, **fields))).record
    assert isinstance(record, Queue)
    return record


def declare_exchange(state: MetaState, name: str, vhost: str = "/", **fields: Any) -> Exchange:
    """Declare an exchange and return its record."""
    record = must(state, c.DeclareExchange(Exchange(vhost, name, **fields))).record
    assert isinstance(record, Exchange)
    return record


def cluster(*names: str, start: int = 1) -> MetaState:
    """A state with a vhost and live nodes."""
    state = MetaState()
    must(state, c.PutVHost(VHost("/")))
    for name in names:
        must(state, c.NodeRestarted(name, alone=False, start=start))
    return state


def declare_mirrored(state: MetaState, name: str, *nodes: str, **fields: Any) -> View:
    """Declare a queue that is born in sync on nodes, the master first, and return its view."""
    members = tuple(Member(node, state.nodes[node].start) for node in nodes)
    must(state, c.DeclareQueue(Queue("/", name, node=nodes[0], **fields), members=members))
    return state.views["/", name]


def change(state: MetaState, name: str, kind: c.ViewChange, node: str = "", **fields: Any) -> Outcome:
    """Change a view as its master would now."""
    queue, view = state.queues["/", name], state.views.get(("/", name))
    start = state.nodes[node].start if node in state.nodes else 0
    epoch = view.epoch if view is not None else 1
    wanted = {"id": queue.id, "epoch": epoch, "node": node, "start": start, **fields}
    return state.apply(c.ChangeView("/", name, change=kind, **wanted))


def changed(state: MetaState, name: str, kind: c.ViewChange, node: str = "", **fields: Any) -> View:
    """Change a view, which has to succeed, and return it."""
    outcome = change(state, name, kind, node, **fields)
    assert outcome.ok, outcome
    return state.views["/", name]


def to_queue(source: str, queue: str, key: str = "", vhost: str = "/", **fields: Any) -> Binding:
    """A binding to a queue."""
    return Binding(vhost, source, queue, "queue", key, **fields)


def to_exchange(source: str, exchange: str, key: str = "", vhost: str = "/") -> Binding:
    """A binding to an exchange."""
    return Binding(vhost, source, exchange, "exchange", key)


def contents(tables: Tables) -> dict[str, Any]:
    """Everything a state holds, for comparing; the order of records does not count."""
    found: dict[str, Any] = {kind.__name__: dict(table) for kind, table in tables._tables.items()}
    found["last_id"] = tables.last_id
    return found


def check_indexes(tables: Tables) -> None:
    """Every index holds exactly what a walk through the tables finds; what has no key is in none."""
    expected: dict[str, dict[Any, dict[Any, Any]]] = {name: {} for name in tables._indexes}
    views_of: dict[str, dict[Any, None]] = {}
    for identity, view in tables.views.items():
        for entry in (*view.members, *view.learners, *view.last_in_sync):
            views_of.setdefault(entry.node, {})[identity] = None
    assert tables._views_of == views_of
    unled = {view.identity for view in tables.views.values() if view.members[0].is_restarted}
    assert set(tables._views_unled) == unled
    for kind, indexes in _INDEXES.items():
        for identity, record in tables._tables[kind].items():
            assert record.identity == identity
            for name, key_of in indexes:
                if (key := key_of(record)) is not None:
                    expected[name].setdefault(key, {})[identity] = record
    assert tables._indexes == expected


def check_references(tables: Tables) -> None:
    """Nothing refers to something that is not there."""
    for queue in tables.queues.values():
        assert queue.vhost in tables.vhosts
    for exchange in tables.exchanges.values():
        assert exchange.vhost in tables.vhosts
    for view in tables.views.values():
        queue = tables.queues[view.identity]
        assert (queue.id, queue.log_id, queue.node) == (view.id, view.log_id, view.master)
    for binding in tables.bindings.values():
        assert (binding.vhost, binding.source) in tables.exchanges
        ends = tables.queues if binding.destination_type == "queue" else tables.exchanges
        assert (binding.vhost, binding.destination) in ends
    for permission in (*tables.permissions.values(), *tables.topic_permissions.values()):
        assert permission.user in tables.users
        assert permission.vhost in tables.vhosts


VHOSTS = st.sampled_from(["/", "a", "b"])
NAMES = st.sampled_from(["n1", "n2", "n3", "n4"])
USERS = st.sampled_from(["u1", "u2"])
FLAGS = st.booleans()
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(0, 2**64 - 1).map(Timestamp),
    st.decimals(0, 1000, places=3),
)
TABLES = st.dictionaries(st.text(max_size=5), VALUES | st.lists(VALUES, max_size=2), max_size=3)
JSON = st.dictionaries(st.text(max_size=5), st.integers(0, 9) | st.text(max_size=5), max_size=2)
BINDINGS = st.builds(
    Binding, VHOSTS, NAMES, NAMES, st.sampled_from(["queue", "exchange"]), st.sampled_from(["", "k"]), TABLES
)
NODES = st.sampled_from(["x@h", "y@h"])
STARTS = st.integers(0, 3)
MEMBERS = st.lists(st.builds(Member, NODES, STARTS), max_size=2).map(tuple)
CHANGES: st.SearchStrategy[c.ChangeView] = st.builds(
    c.ChangeView,
    VHOSTS,
    NAMES,
    st.integers(1, 60),
    st.integers(1, 3),
    st.sampled_from(["begin", "add_learner", "remove_learner", "admit", "demote", "remove", "transfer"]),
    NODES,
    STARTS,
    st.sampled_from(["safe", "rabbitmq"]),
)
LIMITS = st.dictionaries(st.sampled_from(["max-queues", "max-connections"]), st.integers(-1, 3), max_size=2)

SIMPLE_COMMANDS: st.SearchStrategy[c.Command] = st.one_of(
    st.builds(c.PutVHost, st.builds(VHost, VHOSTS, st.text(max_size=5))),
    st.builds(c.DeleteVHost, VHOSTS),
    st.builds(c.PutUser, st.builds(User, USERS, st.text(max_size=5)), FLAGS),
    st.builds(c.DeleteUser, USERS),
    st.builds(c.SetPermission, st.builds(Permission, USERS, VHOSTS, NAMES, NAMES, NAMES)),
    st.builds(c.ClearPermission, USERS, VHOSTS),
    st.builds(c.SetTopicPermission, st.builds(TopicPermission, USERS, VHOSTS, NAMES, NAMES, NAMES)),
    st.builds(c.ClearTopicPermission, USERS, VHOSTS, st.none() | NAMES),
    st.builds(
        c.DeclareExchange,
        st.builds(Exchange, VHOSTS, NAMES, st.just("fanout"), FLAGS, FLAGS, FLAGS, TABLES),
    ),
    st.builds(c.DeleteExchange, VHOSTS, NAMES, FLAGS),
    st.builds(
        c.DeclareQueue,
        st.builds(
            Queue,
            VHOSTS,
            NAMES,
            durable=FLAGS,
            exclusive=FLAGS,
            owner=st.none() | st.integers(1, 2),
            arguments=TABLES,
            node=NODES,
        ),
        members=MEMBERS,
    ),
    st.builds(c.DeleteQueue, VHOSTS, NAMES, st.none() | st.integers(1, 60)),
    st.builds(c.Bind, BINDINGS),
    st.builds(c.Unbind, BINDINGS),
    st.builds(c.SetPolicy, st.builds(Policy, VHOSTS, NAMES, NAMES, JSON, operator=FLAGS)),
    st.builds(c.ClearPolicy, VHOSTS, NAMES, FLAGS),
    st.builds(c.SetParameter, VHOSTS, NAMES, NAMES, st.integers(0, 9)),
    st.builds(c.ClearParameter, VHOSTS, NAMES, NAMES),
    st.builds(c.SetGlobalParameter, NAMES, st.integers(0, 9)),
    st.builds(c.ClearGlobalParameter, NAMES),
    st.builds(c.SetVHostLimits, VHOSTS, LIMITS, FLAGS),
    st.builds(c.ClearVHostLimits, VHOSTS, st.none() | st.just(("max-queues",))),
    st.builds(c.SetUserLimits, USERS, st.just({"max-channels": 3})),
    st.builds(c.ClearUserLimits, USERS),
    st.builds(c.ConnectionGone, st.integers(1, 2), st.sampled_from(["", "x@h"])),
    st.builds(c.NodeRestarted, NODES, FLAGS, STARTS),
    st.builds(c.PutNode, st.builds(Node, NODES, role=st.sampled_from(["voter", "witness"]))),
    st.builds(c.NodeDead, NODES, STARTS, st.sampled_from(["safe", "rabbitmq"])),
    st.builds(c.NodeReturned, NODES, STARTS),
    st.builds(c.ForgetNode, NODES),
    st.builds(c.SetDrained, NODES, FLAGS),
    st.builds(c.BeginRebalance, NODES, STARTS, st.just("timer"), st.just("masters"), st.just(5)),
    st.builds(c.EndRebalance, st.integers(1, 60)),
    st.builds(c.CancelRebalance),
    CHANGES,
    st.builds(c.ChangeViews, st.lists(CHANGES, max_size=2).map(tuple)),
    st.builds(c.PromoteRestarted, NODES, STARTS),
    st.builds(c.ForcePromote, VHOSTS, NAMES, st.none() | st.integers(1, 60), st.just("") | NODES),
)
"""Commands over few names, so that they meet each other often."""

GUARDS = st.builds(
    c.Guard,
    st.just("queue"),
    st.tuples(VHOSTS, NAMES),
    FLAGS,
    st.none() | st.integers(1, 60),
)
COMMANDS: st.SearchStrategy[c.Command] = SIMPLE_COMMANDS | st.builds(
    c.Transaction,
    st.lists(GUARDS, max_size=1).map(tuple),
    st.lists(SIMPLE_COMMANDS, max_size=4).map(tuple),
)
