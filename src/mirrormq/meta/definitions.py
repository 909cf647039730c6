"""Definition files as RabbitMQ 3.x writes and reads them.

What `export` returns can be imported by RabbitMQ 3.10 and here; what either has exported, `import_` turns
into commands. Queues that belong to a connection, the exchanges every vhost has and the bindings of the
default exchange are not part of a file. As in RabbitMQ, importing leaves existing queues and exchanges as
they are, skips `amq.` names and bindings that lead nowhere, and ignores fields it does not know.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from mirrormq.meta import commands, hidden, policy, system
from mirrormq.meta.definition_entry import DefinitionError, Entry, entries
from mirrormq.meta.passwords import ALGORITHMS, ARGON2ID, MD5, SHA256
from mirrormq.meta.records import (
    Binding,
    Exchange,
    Permission,
    Policy,
    Queue,
    Table,
    TopicPermission,
    User,
    VHost,
)
from mirrormq.meta.tables import Tables

__all__ = ["DefinitionError", "export", "import_", "plain_passwords", "sections"]

RABBITMQ_VERSION = "3.10.8"
"""The version whose files these are."""

Check = Callable[[Queue | Exchange], str | None]

VHOST_LIMITS = ("max-connections", "max-queues")
USER_LIMITS = ("max-connections", "max-channels")

_LIMITS_COMPONENT = "vhost-limits"
_OPERATOR_COMPONENT = "operator_policy"
_POLICY_COMPONENT = "policy"


# --- export ---


def export(tables: Tables, vhost: str | None = None) -> Table:
    """Everything, or the objects of one vhost (without `vhost` fields, so that any vhost can import them)."""
    return {name: found if isinstance(found, str) else list(found) for name, found in sections(tables, vhost)}


def sections(tables: Tables, vhost: str | None = None) -> Iterator[tuple[str, str | Iterator[Table]]]:
    """The parts of an export in order: texts, and lists whose rows are made as they are taken.

    Whoever takes them may let commands happen in between; each list shows what was there when it began.
    """
    yield "rabbit_version", RABBITMQ_VERSION
    if vhost is None:
        yield "rabbitmq_version", RABBITMQ_VERSION
        yield "product_name", "RabbitMQ"
        yield "product_version", RABBITMQ_VERSION
        yield "users", (_user_row(user) for user in list(tables.users.values()))
        yield "vhosts", (_vhost_row(tables, record) for record in list(tables.vhosts.values()))
        yield "permissions", (_permission_row(record) for record in list(tables.permissions.values()))
        topics = list(tables.topic_permissions.values())
        yield "topic_permissions", (_topic_permission_row(record) for record in topics)
    yield from _objects(tables, vhost)


def _objects(tables: Tables, vhost: str | None) -> Iterator[tuple[str, Iterator[Table]]]:
    names = list(tables.vhosts) if vhost is None else [vhost]
    strip = vhost is not None
    yield "parameters", (row for name in names for row in _parameter_rows(tables, name))
    if not strip:
        shared = list(tables.global_parameters.values())
        yield "global_parameters", ({"name": record.name, "value": record.value} for record in shared)
    policies = [record for name in names for record in tables.policies_in(name)]
    yield "policies", (_policy_row(record) for record in policies if not record.operator)
    queues = [record for name in names for record in tables.queues_in(name)]
    yield "queues", (_queue_row(record, strip) for record in system.ordinary(queues) if _is_public(record))
    exchanges = [record for name in names for record in tables.exchanges_in(name)]
    yield "exchanges", (_exchange_row(record, strip) for record in exchanges if _is_ours(record.name))
    bindings = [record for name in names for record in tables.bindings_in(name)]
    yield "bindings", (_binding_row(record, strip) for record in bindings if _is_exported(tables, record))


def _permission_row(record: Permission) -> Table:
    return {
        "user": record.user,
        "vhost": record.vhost,
        "configure": record.configure,
        "write": record.write,
        "read": record.read,
    }


def _topic_permission_row(record: TopicPermission) -> Table:
    return {
        "user": record.user,
        "vhost": record.vhost,
        "exchange": record.exchange,
        "write": record.write,
        "read": record.read,
    }


def _user_row(user: User) -> Table:
    stored = user.password_hash
    if user.hashing_algorithm == ARGON2ID:
        # RabbitMQ refuses a file with a hash that is not base64; it accepts any name of an algorithm.
        stored = base64.b64encode(stored.encode()).decode("ascii")
    return {
        "name": user.name,
        "password_hash": stored,
        "hashing_algorithm": user.hashing_algorithm or SHA256,
        "tags": list(user.tags),
        "limits": dict(user.limits),
    }


def _vhost_row(tables: Tables, vhost: VHost) -> Table:
    metadata: Table = {"description": vhost.description, "tags": list(vhost.tags)}
    if vhost.default_queue_type:
        metadata["default_queue_type"] = vhost.default_queue_type
    if vhost.mirror_of:
        metadata["mirror_of"] = vhost.mirror_of
    limits = tables.vhost_limits.get(vhost.name)
    return {"name": vhost.name, "limits": dict(limits.limits) if limits else [], "metadata": metadata}


def _parameter_rows(tables: Tables, vhost: str) -> Iterator[Table]:
    limits = tables.vhost_limits.get(vhost)
    if limits is not None:
        yield _parameter_row(vhost, _LIMITS_COMPONENT, "limits", dict(limits.limits))
    for record in list(tables.policies_in(vhost)):
        if record.operator:
            value = _policy_row(record)
            del value["vhost"], value["name"]
            yield _parameter_row(vhost, _OPERATOR_COMPONENT, record.name, value)
    for parameter in list(tables.parameters_in(vhost)):
        yield _parameter_row(vhost, parameter.component, parameter.name, parameter.value)


def _parameter_row(vhost: str, component: str, name: str, value: Any) -> Table:
    return {"vhost": vhost, "component": component, "name": name, "value": value}


def _policy_row(record: Policy) -> Table:
    return {
        "vhost": record.vhost,
        "name": record.name,
        "pattern": record.pattern,
        "apply-to": record.apply_to,
        "definition": record.definition,
        "priority": record.priority,
    }


def _queue_row(record: Queue, strip: bool) -> Table:
    return {
        "name": record.name,
        **({} if strip else {"vhost": record.vhost}),
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "arguments": _json(record.arguments),
    }


def _exchange_row(record: Exchange, strip: bool) -> Table:
    return {
        "name": record.name,
        **({} if strip else {"vhost": record.vhost}),
        "type": record.type,
        "durable": record.durable,
        "auto_delete": record.auto_delete,
        "internal": record.internal,
        "arguments": _json(record.arguments),
    }


def _binding_row(record: Binding, strip: bool) -> Table:
    return {
        "source": record.source,
        **({} if strip else {"vhost": record.vhost}),
        "destination": record.destination,
        "destination_type": record.destination_type,
        "routing_key": record.routing_key,
        "arguments": _json(record.arguments),
    }


def _is_ours(name: str) -> bool:
    return bool(name) and not name.startswith("amq.") and not hidden.is_staging(name)


def _is_public(record: Queue) -> bool:
    return not record.exclusive and not hidden.is_staging(record.name)


def _is_exported(tables: Tables, binding: Binding) -> bool:
    if binding.destination_type == "exchange":
        return True
    queue = tables.queues.get((binding.vhost, binding.destination))
    return queue is not None and not queue.exclusive


def _json(value: Any) -> Any:
    """An AMQP value as RabbitMQ shows it in JSON."""
    if isinstance(value, dict):
        return {name: _json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return f"Not UTF-8, base64 is: {base64.b64encode(value).decode('ascii')}"
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


# --- import ---


def plain_passwords(definitions: Table) -> dict[str, str]:
    """Passwords a file gives in the clear, by user: hash them first and pass the results to `import_`."""
    return {
        entry.text("name"): entry.text("password")
        for entry in entries(definitions, "users")
        if entry.has("password") and not entry.has("password_hash")
    }


def import_(
    definitions: Table,
    vhost: str | None = None,
    *,
    hashes: Mapping[str, tuple[str, str]] | None = None,
    node: str = "",
    rename: Mapping[str, str] | None = None,
    check: Check | None = None,
) -> list[commands.Command]:
    """Turn a file into commands, in an order in which each finds what it needs; `DefinitionError` if wrong.

    With `vhost`, only that vhost's objects are taken, and put there. `hashes` are (hash, algorithm) of
    `plain_passwords`; `node` is where queues are declared; `rename` maps node names in policies; `check` may
    refuse the arguments of a queue or exchange with a sentence.
    """
    return list(read(definitions, vhost, hashes=hashes, node=node, rename=rename, check=check))


def read(
    definitions: Table,
    vhost: str | None = None,
    *,
    hashes: Mapping[str, tuple[str, str]] | None = None,
    node: str = "",
    rename: Mapping[str, str] | None = None,
    check: Check | None = None,
) -> Iterator[commands.Command]:
    """The same one by one, for a file of very many objects."""
    if vhost is None:
        version = definitions.get("rabbitmq_version", definitions.get("rabbit_version"))
        for entry in entries(definitions, "users"):
            yield from _read_user(entry, str(version), hashes or {})
        yield from map(_read_vhost, entries(definitions, "vhosts"))
        yield from map(_read_permission, entries(definitions, "permissions"))
        yield from map(_read_topic_permission, entries(definitions, "topic_permissions"))
        for entry in entries(definitions, "global_parameters"):
            yield commands.SetGlobalParameter(entry.text("name"), entry.any("value"))
    for entry in entries(definitions, "exchanges", vhost):
        yield from _read_exchange(entry, check)
    for entry in entries(definitions, "policies", vhost):
        yield _read_policy(entry, rename)
    last: list[commands.Command] = []
    for entry in entries(definitions, "parameters", vhost):
        # A limit must not stop the queues of the file it stands in, so limits come last.
        command = _read_parameter(entry, rename)
        if isinstance(command, commands.SetVHostLimits):
            last.append(command)
        else:
            yield command
    for entry in entries(definitions, "queues", vhost):
        yield from _read_queue(entry, node, check)
    for entry in entries(definitions, "bindings", vhost):
        yield from _read_binding(entry)
    yield from last


def _read_user(
    entry: Entry, version: str, hashes: Mapping[str, tuple[str, str]]
) -> Iterator[commands.Command]:
    name = entry.text("name")
    stored, algorithm = "", ""
    if entry.has("password") and entry.has("password_hash"):
        raise entry.refusal("has both a password and a password_hash")
    if entry.has("password"):
        if name not in hashes:
            raise entry.error("password", "is in the clear; give a password_hash instead")
        stored, algorithm = hashes[name]
    elif entry.has("password_hash"):
        stored, algorithm = _read_hash(entry, version)
    if entry.has("administrator") and not entry.has("tags"):
        is_administrator = str(entry.any("administrator")).lower() == "true"
        tags: tuple[str, ...] = ("administrator",) if is_administrator else ()
    else:
        tags = entry.tags("tags")
    limits = entry.limits("limits", USER_LIMITS)
    yield commands.PutUser(User(name, stored, algorithm, tags=tags, limits=limits))
    if entry.has("permissions"):
        for vhost in entry.object("permissions"):
            inner = entry.inner("permissions").inner(vhost)
            rights = (inner.pattern("configure"), inner.pattern("write"), inner.pattern("read"))
            yield commands.SetPermission(Permission(name, vhost, *rights))


def _read_hash(entry: Entry, version: str) -> tuple[str, str]:
    old = version.startswith(("3.0.", "3.1.", "3.2.", "3.3.", "3.4.", "3.5."))
    algorithm = entry.text("hashing_algorithm", MD5 if old else SHA256)
    if algorithm not in ALGORITHMS:
        raise entry.error("hashing_algorithm", f"'{algorithm}' is unknown; there are {', '.join(ALGORITHMS)}")
    raw = entry.base64("password_hash")
    if not raw:
        return "", ""
    if algorithm != ARGON2ID:
        return entry.text("password_hash"), algorithm
    try:
        stored = raw.decode("ascii")
    except UnicodeDecodeError:
        stored = ""
    if not stored.startswith("$argon2id$"):
        raise entry.error("password_hash", "is not an argon2id string in base64")
    return stored, algorithm


def _read_vhost(entry: Entry) -> commands.Command:
    metadata = entry.inner("metadata") if entry.has("metadata") else entry
    source = entry if entry.has("description") else metadata
    tagged = entry if entry.has("tags") else metadata
    return commands.PutVHost(
        VHost(
            entry.text("name"),
            description=source.text("description", ""),
            tags=tagged.tags("tags", ()),
            default_queue_type=_queue_type(metadata.text("default_queue_type", "")),
            mirror_of=metadata.text("mirror_of", ""),
        )
    )


def _queue_type(name: str) -> str:
    """RabbitMQ writes `undefined` where nothing is set."""
    return "" if name == "undefined" else name


def _read_permission(entry: Entry) -> commands.Command:
    rights = (entry.pattern("configure"), entry.pattern("write"), entry.pattern("read"))
    return commands.SetPermission(Permission(entry.text("user"), entry.text("vhost"), *rights))


def _read_topic_permission(entry: Entry) -> commands.Command:
    # Not checked as a pattern: `{username}` is only replaced when it is used.
    rights = (entry.text("write"), entry.text("read"))
    where = (entry.text("user"), entry.text("vhost"), entry.text("exchange"))
    return commands.SetTopicPermission(TopicPermission(*where, *rights))


def _read_exchange(entry: Entry, check: Check | None) -> Iterator[commands.Command]:
    if not _is_ours(entry.text("name")):
        return
    exchange = Exchange(
        vhost=entry.text("vhost"),
        name=entry.text("name"),
        type=entry.text("type"),
        durable=entry.flag("durable", default=True),
        auto_delete=entry.flag("auto_delete", default=False),
        internal=entry.flag("internal", default=False),
        arguments=entry.arguments(),
    )
    _check(entry, exchange, check)
    yield commands.DeclareExchange(exchange, or_keep=True)


def _read_queue(entry: Entry, node: str, check: Check | None) -> Iterator[commands.Command]:
    if not _is_ours(entry.text("name")) or system.is_system(entry.text("vhost"), entry.text("name")):
        return
    queue = Queue(
        vhost=entry.text("vhost"),
        name=entry.text("name"),
        durable=entry.flag("durable", default=True),
        auto_delete=entry.flag("auto_delete", default=False),
        arguments=entry.arguments(),
        node=node,
    )
    _check(entry, queue, check)
    yield commands.DeclareQueue(queue, or_keep=True)


def _check(entry: Entry, record: Queue | Exchange, check: Check | None) -> None:
    wrong = None if check is None else check(record)
    if wrong is not None:
        raise entry.refusal(wrong)


def _read_binding(entry: Entry) -> Iterator[commands.Command]:
    kind = entry.text("destination_type")
    if kind not in ("queue", "exchange"):
        raise entry.error("destination_type", f"must be queue or exchange, not '{kind}'")
    if not entry.text("source"):
        return
    binding = Binding(
        vhost=entry.text("vhost"),
        source=entry.text("source"),
        destination=entry.text("destination"),
        destination_type="queue" if kind == "queue" else "exchange",
        routing_key=entry.text("routing_key", ""),
        arguments=entry.arguments(),
    )
    yield commands.Bind(binding, or_skip=True)


def _read_policy(entry: Entry, rename: Mapping[str, str] | None) -> commands.Command:
    return _policy_command(entry, (entry.text("vhost"), entry.text("name")), rename, operator=False)


def _policy_command(
    entry: Entry, where: tuple[str, str], rename: Mapping[str, str] | None, *, operator: bool
) -> commands.Command:
    definition = entry.object("definition")
    nodes = definition.get("ha-params")
    if rename and isinstance(nodes, list):
        definition = {**definition, "ha-params": [rename.get(str(name), name) for name in nodes]}
    apply_to = entry.text("apply-to", "all")
    record = Policy(
        *where,
        pattern=entry.text("pattern"),
        definition=definition,
        apply_to="all" if apply_to == "all" else "queues" if apply_to == "queues" else "exchanges",
        priority=entry.integer("priority", 0),
        operator=operator,
    )
    wrong = policy.problems(record, is_stored=True)
    if apply_to not in ("all", "queues", "exchanges"):
        wrong.append(f"apply-to '{apply_to}' unrecognised; should be 'queues', 'exchanges' or 'all'")
    if wrong:
        raise entry.refusal("; ".join(wrong))
    return commands.SetPolicy(record)


def _read_parameter(entry: Entry, rename: Mapping[str, str] | None) -> commands.Command:
    vhost, component, name = entry.text("vhost"), entry.text("component"), entry.text("name")
    if component in (_POLICY_COMPONENT, _OPERATOR_COMPONENT):
        operator = component == _OPERATOR_COMPONENT
        return _policy_command(entry.inner("value"), (vhost, name), rename, operator=operator)
    if component == _LIMITS_COMPONENT:
        return commands.SetVHostLimits(vhost, entry.limits("value", VHOST_LIMITS), replace=True)
    return commands.SetParameter(vhost, component, name, entry.any("value"))
