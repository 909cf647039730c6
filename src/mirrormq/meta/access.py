"""What a user may do: permissions and topic permissions, as RabbitMQ decides them.

A permission is a regular expression searched for in the resource's name; no permission record in a vhost
means no access at all. Without a topic permission for an exchange, every routing key of it is allowed.
Decisions are cached per (user, vhost) and forgotten when a permission there changes.
"""

import re
from typing import Literal

from mirrormq.base import limits
from mirrormq.meta import hidden, system
from mirrormq.meta.patterns import Pattern, permission_pattern
from mirrormq.meta.records import Permission, TopicPermission, User
from mirrormq.meta.state import MetaState
from mirrormq.meta.tables import Change

Right = Literal["configure", "write", "read"]
TopicRight = Literal["write", "read"]

DEFAULT_EXCHANGE = "amq.default"
"""The name under which permissions know the exchange whose name is empty."""

_RIGHTS: tuple[Right, ...] = ("configure", "write", "read")


class Access:
    """Answers permission questions about one state."""

    def __init__(self, state: MetaState) -> None:
        """Watch `state` for changes of permissions."""
        self._state = state
        self._grants: dict[tuple[str, str], _Grants] = {}
        self._topic_patterns: dict[tuple[str, ...], Pattern | None] = {}
        state.watch(self._on_changes)

    def may_open(self, user: str, vhost: str) -> bool:
        """Whether a user may connect to a vhost: any permission record there is enough."""
        return vhost in self._state.vhosts and (user, vhost) in self._state.permissions

    def may(self, user: str, vhost: str, right: Right, resource: str) -> bool:
        """Whether a user has a right on a queue or exchange (the default exchange by its empty name).

        Nobody has any on what belongs to the broker itself; the cluster's own queues can be read, and nothing
        else, whatever the permissions say.
        """
        if hidden.is_staging(resource):
            return False
        if right != "read" and system.is_system(vhost, resource):
            return False
        grants = self._grants.get((user, vhost))
        if grants is None:
            grants = self._grants[user, vhost] = _Grants(self._state.permissions.get((user, vhost)))
        return grants.covers(right, resource or DEFAULT_EXCHANGE)

    def may_topic(
        self,
        user: str,
        vhost: str,
        right: TopicRight,
        exchange: str,
        routing_key: str | bytes,
        *,
        client_id: str | None = None,
    ) -> bool:
        """Whether a user may publish to (`write`) or bind with (`read`) a routing key of a topic exchange."""
        permission = self._state.topic_permissions.get((user, vhost, exchange))
        if permission is None:
            return True
        text = permission.write if right == "write" else permission.read
        key = (text, user, vhost, client_id or "")
        if key not in self._topic_patterns:
            if len(self._topic_patterns) >= limits.access_cache_max:
                self._topic_patterns.clear()
            variables = {"username": user, "vhost": vhost}
            if client_id is not None:
                variables["client_id"] = client_id
            self._topic_patterns[key] = permission_pattern(expand(text, variables))
        pattern = self._topic_patterns[key]
        return pattern is not None and pattern.matches(routing_key)

    def tags(self, user: str) -> tuple[str, ...]:
        """Tags of a user; none for an unknown one."""
        record = self._state.users.get(user)
        return () if record is None else record.tags

    def _on_changes(self, changes: list[Change]) -> None:
        for change in changes:
            record = change.record
            if isinstance(record, Permission):
                self._grants.pop((record.user, record.vhost), None)
            elif isinstance(record, TopicPermission | User):
                self._topic_patterns.clear()


def expand(pattern: str, variables: dict[str, str]) -> str:
    """Put values in place of `{name}`. They are escaped: a name is never read as a regular expression."""
    for name, value in variables.items():
        pattern = pattern.replace("{" + name + "}", re.escape(value))
    return pattern


class _Grants:
    """The compiled rights of one user in one vhost, with the decisions made so far."""

    def __init__(self, permission: Permission | None) -> None:
        self._patterns: dict[Right, Pattern | None] = {}
        if permission is not None:
            texts = (permission.configure, permission.write, permission.read)
            self._patterns = {
                right: permission_pattern(text) for right, text in zip(_RIGHTS, texts, strict=True)
            }
        self._decided: dict[tuple[Right, str], bool] = {}

    def covers(self, right: Right, name: str) -> bool:
        decision = self._decided.get((right, name))
        if decision is None:
            pattern = self._patterns.get(right)
            decision = pattern is not None and pattern.matches(name)
            # Names come from clients, so the number of decisions kept must not be theirs to choose.
            if len(self._decided) >= limits.access_cache_max:
                self._decided.clear()
            self._decided[right, name] = decision
        return decision
