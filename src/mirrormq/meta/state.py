"""The metadata as a pure state machine: the same commands in the same order give the same state on every
node.

A command happens as a whole or not at all. `execute` changes the state and tells nobody, so that the store
can log the command before anyone reacts to it; `notify` then tells the watchers, in the order of the commands
even when a watcher issues a further one. `apply` is both at once, for those who keep no log.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from mirrormq.meta import accounts, balance, commands, members, merges, partings, topology, views
from mirrormq.meta.codec import decode_capture, encode_capture
from mirrormq.meta.passwords import algorithm_of
from mirrormq.meta.records import Permission, Record, User, VHost
from mirrormq.meta.tables import Change, Refused, Tables

Watcher = Callable[[list[Change]], None]


class Outcome(NamedTuple):
    """What became of a command.

    `error` is one of: `exists`, `missing`, `in_use`, `reserved`, `limit`, `no_vhost`, `no_user`, `no_source`,
    `no_destination`, `guard`, `unknown` (it may have happened). `record` is what was put, deleted or found in
    the way; `detail` is in words.
    """

    ok: bool
    error: str | None
    record: Record | None
    changes: list[Change]
    detail: str = ""


class MetaState(Tables):
    """All definitions, changed by commands only."""

    def __init__(self) -> None:
        """No vhost, no user: see `bootstrap_commands` for what a fresh node begins with."""
        super().__init__()
        self._watchers: list[Watcher] = []
        self._untold: list[list[Change]] = []
        self._telling = False

    def apply(self, command: commands.Command) -> Outcome:
        """Execute a command and tell the watchers."""
        outcome = self.execute(command)
        self.notify(outcome.changes)
        return outcome

    def execute(self, command: commands.Command) -> Outcome:
        """Change the state. A refused command changes nothing."""
        assert not self.changes, self.changes
        last_id = self.last_id
        try:
            record = self._run(command)
        except Refused as refusal:
            self.undo()
            self.last_id = last_id
            return Outcome(False, refusal.error, refusal.record, [], refusal.detail)
        return Outcome(True, None, record, self.take_changes())

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` with the changes of every later command."""
        self._watchers.append(watcher)

    def notify(self, changes: list[Change]) -> None:
        """Tell the watchers. Changes made by a watcher wait until all watchers have heard of these."""
        if not changes:
            return
        self._untold.append(changes)
        if self._telling:
            return
        self._telling = True
        try:
            while self._untold:
                told = self._untold.pop(0)
                for watcher in self._watchers:
                    watcher(told)
        finally:
            self._telling = False

    def vhost_limit(self, vhost: str, name: str) -> int | None:
        """`max-connections` or `max-queues` of a vhost; None for no limit."""
        return topology.vhost_limit(self, vhost, name)

    def user_limit(self, user: str, name: str) -> int | None:
        """`max-connections` or `max-channels` of a user; None for no limit."""
        return accounts.user_limit(self, user, name)

    def snapshot(self) -> bytes:
        """The whole state in bytes."""
        return encode_capture(self.last_id, list(self.records()))

    def restore(self, data: bytes) -> None:
        """Become the state that `snapshot` saw. Watchers are not told: they begin with the restored state."""
        last_id, records = decode_capture(data)
        self.load(last_id, records)

    def load(self, last_id: int, records: list[Record]) -> None:
        """Fill an empty state with records."""
        assert not self.vhosts, "restore needs an empty state"
        for record in records:
            self.put(record)
        self.take_changes()
        self.last_id = last_id

    def _run(self, command: commands.Command) -> Record | None:
        if isinstance(command, commands.Transaction):
            return self._run_all(command)
        rule: Callable[[Tables, Any], Record | None] = _RULES[type(command)]
        return rule(self, command)

    def _run_all(self, transaction: commands.Transaction) -> Record | None:
        for guard in transaction.guards:
            if not self._holds(guard):
                wanted = "is not there" if guard.present else "is there"
                raise Refused("guard", f"{guard.kind} {'/'.join(guard.key)} {wanted}")
        record = None
        for command in transaction.commands:
            record = self._run(command)
        return record

    def _holds(self, guard: commands.Guard) -> bool:
        key = guard.key[0] if len(guard.key) == 1 else guard.key
        record = getattr(self, _GUARDED[guard.kind]).get(key)
        if guard.id is not None and record is not None and record.id != guard.id:
            record = None
        return (record is not None) == guard.present


def bootstrap_commands(
    default_user: str, default_pass_hash: str, default_vhost: str, tags: tuple[str, ...]
) -> list[commands.Command]:
    """What a fresh data folder begins with: one vhost and one user with all rights in it."""
    # One transaction: a crash half-way must not leave a node that nobody can log in to.
    return [
        commands.Transaction(
            (),
            (
                commands.PutVHost(VHost(default_vhost, description="Default virtual host")),
                commands.PutUser(
                    User(default_user, default_pass_hash, algorithm_of(default_pass_hash), tags=tags)
                ),
                commands.SetPermission(Permission(default_user, default_vhost, ".*", ".*", ".*")),
            ),
        )
    ]


_GUARDED = {
    "vhost": "vhosts",
    "user": "users",
    "permission": "permissions",
    "exchange": "exchanges",
    "queue": "queues",
    "parameter": "parameters",
    "global-parameter": "global_parameters",
}

_RULES: dict[type, Callable[[Tables, Any], Record | None]] = {
    commands.PutVHost: topology.put_vhost,
    commands.PromoteMirror: topology.promote_mirror,
    commands.DeleteVHost: topology.delete_vhost,
    commands.PutUser: accounts.put_user,
    commands.DeleteUser: accounts.delete_user,
    commands.SetPermission: accounts.set_permission,
    commands.ClearPermission: accounts.clear_permission,
    commands.SetTopicPermission: accounts.set_topic_permission,
    commands.ClearTopicPermission: accounts.clear_topic_permission,
    commands.DeclareExchange: topology.declare_exchange,
    commands.DeleteExchange: topology.delete_exchange,
    commands.DeclareQueue: topology.declare_queue,
    commands.DeleteQueue: topology.delete_queue,
    commands.Bind: topology.bind,
    commands.Unbind: topology.unbind,
    commands.SetPolicy: accounts.set_policy,
    commands.ClearPolicy: accounts.clear_policy,
    commands.SetParameter: accounts.set_parameter,
    commands.ClearParameter: accounts.clear_parameter,
    commands.SetGlobalParameter: accounts.set_global_parameter,
    commands.ClearGlobalParameter: accounts.clear_global_parameter,
    commands.SetVHostLimits: accounts.set_vhost_limits,
    commands.ClearVHostLimits: accounts.clear_vhost_limits,
    commands.SetUserLimits: accounts.set_user_limits,
    commands.ClearUserLimits: accounts.clear_user_limits,
    commands.ConnectionGone: topology.connection_gone,
    commands.NodeRestarted: members.node_restarted,
    commands.PutNode: members.put_node,
    commands.ForgetNode: members.forget_node,
    commands.NodeDead: members.node_dead,
    commands.NodeReturned: members.node_returned,
    commands.SetLevel: members.set_level,
    commands.SetDrained: balance.set_drained,
    commands.BeginRebalance: balance.begin_rebalance,
    commands.EndRebalance: balance.end_rebalance,
    commands.CancelRebalance: balance.cancel_rebalance,
    commands.ChangeView: views.change_view,
    commands.ChangeViews: views.change_views,
    commands.PromoteRestarted: views.promote_restarted,
    commands.ForcePromote: views.force_promote,
    commands.NoteLoss: partings.note_loss,
    commands.NoteSalvaged: partings.note_salvaged,
    commands.NoteMerge: merges.note_merge,
}
