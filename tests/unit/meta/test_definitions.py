"""Definition files: what RabbitMQ exports comes in, what we export goes out and in again."""

import base64
import json
from decimal import Decimal
from typing import Any

import pytest

from mirrormq.meta import commands as c
from mirrormq.meta.definitions import DefinitionError, export, import_, plain_passwords
from mirrormq.meta.passwords import ALGORITHMS, MD5, SHA256
from mirrormq.meta.patterns import complaint
from mirrormq.meta.records import (
    Binding,
    Exchange,
    Permission,
    Policy,
    Queue,
    TopicPermission,
    User,
    VHost,
)
from mirrormq.meta.state import MetaState
from mirrormq.wire.table import Timestamp
from tests.support import metakit
from tests.support.metakit import declare_exchange, declare_queue, must, to_queue

ARGON = "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHQ$aGFzaA"


def filled() -> MetaState:
    """A state with something of every kind."""
    state = MetaState()
    for command in (
        c.PutVHost(VHost("/", description="Default virtual host")),
        c.PutVHost(VHost("v", "second", ("a", "b"), "quorum")),
        c.PutUser(User("ann", ARGON, "argon2id", tags=("administrator",), limits={"max-channels": 5})),
        c.PutUser(User("bob", "c2FsdGhhc2g=", SHA256)),
        c.PutUser(User("cert")),
        c.SetPermission(Permission("ann", "/", ".*", ".*", ".*")),
        c.SetTopicPermission(TopicPermission("ann", "/", "amq.topic", "^{username}", ".*")),
        c.SetPolicy(Policy("/", "p", "^q", {"max-length": 5}, apply_to="queues", priority=3)),
        c.SetPolicy(Policy("/", "p", ".*", {"expires": 9}, operator=True)),
        c.SetParameter("/", "federation-upstream", "up", {"uri": "amqp://"}),
        c.SetGlobalParameter("cluster_name", "c@h"),
        c.SetVHostLimits("/", {"max-queues": 100}),
    ):
        must(state, command)
    declare_exchange(state, "x", type="topic", arguments={"alternate-exchange": "amq.fanout"})
    declare_exchange(state, "in", vhost="v", type="headers", internal=True, durable=False)
    declare_queue(state, "q", arguments={"x-message-ttl": 5}, node="n@h")
    declare_queue(state, "t", durable=False, auto_delete=True, node="n@h")
    declare_queue(state, "mine", exclusive=True, owner=1)
    must(state, c.Bind(to_queue("x", "q", "a.#", arguments={"x-match": "all"})))
    must(state, c.Bind(to_queue("amq.topic", "mine", "k")))
    must(state, c.Bind(Binding("/", "x", "amq.fanout", "exchange", "")))
    return state


def through_json(definitions: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(definitions))
    return found


def imported(definitions: dict[str, Any], **options: Any) -> MetaState:
    state = MetaState()
    must(state, c.Transaction((), tuple(import_(definitions, **options))))
    return state


def without_ids(state: MetaState) -> dict[str, Any]:
    """Contents without what a file does not carry: ids, order, queues of connections."""
    found = metakit.contents(state)
    del found["last_id"]
    for kind in ("Queue", "Exchange"):
        found[kind] = {
            identity: repr(record).replace(f"id={record.id},", "").replace(f", id={record.id})", ")")
            for identity, record in found[kind].items()
            if not getattr(record, "exclusive", False)
        }
    found["Binding"] = {key: value for key, value in found["Binding"].items() if value.destination != "mine"}
    return found


def test_an_export_imported_into_a_fresh_node_gives_the_same_definitions() -> None:
    state = filled()
    again = imported(through_json(export(state)), node="n@h")
    assert without_ids(again) == without_ids(state)


def test_an_export_has_rabbitmqs_sections_and_fields_in_its_order() -> None:
    found = export(filled())
    assert list(found) == [
        "rabbit_version",
        "rabbitmq_version",
        "product_name",
        "product_version",
        "users",
        "vhosts",
        "permissions",
        "topic_permissions",
        "parameters",
        "global_parameters",
        "policies",
        "queues",
        "exchanges",
        "bindings",
    ]
    fields = {section: list(found[section][0]) for section in list(found)[4:]}
    assert fields == {
        "users": ["name", "password_hash", "hashing_algorithm", "tags", "limits"],
        "vhosts": ["name", "limits", "metadata"],
        "permissions": ["user", "vhost", "configure", "write", "read"],
        "topic_permissions": ["user", "vhost", "exchange", "write", "read"],
        "parameters": ["vhost", "component", "name", "value"],
        "global_parameters": ["name", "value"],
        "policies": ["vhost", "name", "pattern", "apply-to", "definition", "priority"],
        "queues": ["name", "vhost", "durable", "auto_delete", "arguments"],
        "exchanges": ["name", "vhost", "type", "durable", "auto_delete", "internal", "arguments"],
        "bindings": ["source", "vhost", "destination", "destination_type", "routing_key", "arguments"],
    }


def test_exclusive_queues_and_standard_objects_are_not_exported() -> None:
    found = export(filled())
    assert [row["name"] for row in found["queues"]] == ["q", "t"]
    assert [row["name"] for row in found["exchanges"]] == ["x", "in"]
    assert [(row["source"], row["destination"]) for row in found["bindings"]] == [
        ("x", "q"),
        ("x", "amq.fanout"),
    ]


def test_every_password_hash_is_exported_as_base64_because_rabbitmq_insists() -> None:
    users = {row["name"]: row for row in export(filled())["users"]}
    assert base64.b64decode(users["ann"]["password_hash"]) == ARGON.encode()
    assert users["bob"]["password_hash"] == "c2FsdGhhc2g="
    assert (users["cert"]["password_hash"], users["cert"]["hashing_algorithm"]) == ("", SHA256)


def test_limits_and_operator_policies_are_exported_as_parameters() -> None:
    rows = {(row["component"], row["name"]): row["value"] for row in export(filled())["parameters"]}
    assert rows == {
        ("vhost-limits", "limits"): {"max-queues": 100},
        ("operator_policy", "p"): {
            "pattern": ".*",
            "apply-to": "all",
            "definition": {"expires": 9},
            "priority": 0,
        },
        ("federation-upstream", "up"): {"uri": "amqp://"},
    }


def test_arguments_are_exported_as_json_can_say_them() -> None:
    state = filled()
    arguments = {
        "d": Decimal("1.5"),
        "t": Timestamp(7),
        "b": b"ok",
        "raw": b"\xff",
        "n": [{"x": None}],
        "f": True,
    }
    declare_queue(state, "odd", arguments=arguments)
    row = next(row for row in through_json(export(state))["queues"] if row["name"] == "odd")
    assert row["arguments"] == {
        "d": 1.5,
        "t": 7,
        "b": "ok",
        "raw": "Not UTF-8, base64 is: /w==",
        "n": [{"x": None}],
        "f": True,
    }


def test_one_vhost_is_exported_without_its_name_and_imported_into_another() -> None:
    state = filled()
    found = through_json(export(state, "/"))
    assert list(found) == ["rabbit_version", "parameters", "policies", "queues", "exchanges", "bindings"]
    assert all("vhost" not in row for row in found["queues"] + found["exchanges"] + found["bindings"])
    must(state, c.PutVHost(VHost("copy")))
    for command in import_(found, "copy"):
        must(state, command)
    assert sorted(q.name for q in state.queues_in("copy")) == ["q", "t"]
    assert state.vhost_limit("copy", "max-queues") == 100
    assert ("copy", "p", True) in state.policies


RABBITMQ_FILE: dict[str, Any] = {
    "bindings": [
        {
            "arguments": {},
            "destination": "orders",
            "destination_type": "queue",
            "routing_key": "o",
            "source": "amq.topic",
            "vhost": "/",
        },
        {
            "arguments": {},
            "destination": "amq.gen-skipped",
            "destination_type": "queue",
            "routing_key": "o",
            "source": "amq.topic",
            "vhost": "/",
        },
    ],
    "exchanges": [],
    "global_parameters": [{"name": "cluster_name", "value": "rabbit@host"}],
    "parameters": [
        {"component": "vhost-limits", "name": "limits", "value": {"max-queues": 0}, "vhost": "/"},
    ],
    "permissions": [{"configure": ".*", "read": ".*", "user": "guest", "vhost": "/", "write": ".*"}],
    "policies": [
        {
            "apply-to": "all",
            "definition": {"ha-mode": "nodes", "ha-params": ["rabbit@a", "rabbit@b"]},
            "name": "ha",
            "pattern": "",
            "priority": 0,
            "vhost": "/",
        }
    ],
    "product_name": "RabbitMQ",
    "product_version": "3.10.8",
    "queues": [
        {
            "arguments": {},
            "auto_delete": False,
            "durable": True,
            "name": "orders",
            "type": "classic",
            "vhost": "/",
        },
        {"arguments": {}, "auto_delete": False, "durable": False, "name": "amq.gen-skipped", "vhost": "/"},
    ],
    "rabbit_version": "3.10.8",
    "rabbitmq_version": "3.10.8",
    "topic_permissions": [],
    "users": [
        {
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "limits": {},
            "name": "guest",
            "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
            "tags": ["administrator"],
        }
    ],
    "vhosts": [
        {"limits": [], "metadata": {"description": "Default virtual host", "tags": []}, "name": "/"},
    ],
}
"""As `rabbitmqctl export_definitions` of 3.10.8 writes it."""


def test_a_file_of_rabbitmq_is_imported_as_rabbitmq_would() -> None:
    state = imported(RABBITMQ_FILE)
    assert [q.name for q in state.queues_in("/")] == ["orders"]
    assert [b.destination for b in state.bindings_in("/")] == ["orders"]
    assert state.users["guest"].hashing_algorithm == SHA256
    assert state.vhosts["/"].description == "Default virtual host"
    assert state.vhost_limit("/", "max-queues") == 0
    assert ("/", "amq.gen-skipped") not in state.queues


def test_importing_twice_changes_nothing() -> None:
    state = imported(RABBITMQ_FILE)
    before = metakit.contents(state)
    must(state, c.SetVHostLimits("/", {"max-queues": -1}))
    for command in import_(RABBITMQ_FILE):
        must(state, command)
    assert metakit.contents(state) == before


def test_an_import_leaves_existing_queues_and_exchanges_as_they_are() -> None:
    state = imported({"vhosts": [{"name": "/"}]})
    queue = declare_queue(state, "q", arguments={"x-max-length": 1})
    exchange = declare_exchange(state, "x", type="topic")
    rows = {
        "queues": [{"name": "q", "vhost": "/"}],
        "exchanges": [{"name": "x", "vhost": "/", "type": "direct"}],
    }
    for command in import_(rows):
        must(state, command)
    assert (state.queues["/", "q"], state.exchanges["/", "x"]) == (queue, exchange)


def test_node_names_in_policies_can_be_renamed() -> None:
    state = imported(RABBITMQ_FILE, rename={"rabbit@a": "mirrormq@a"})
    assert state.policies["/", "ha", False].definition["ha-params"] == ["mirrormq@a", "rabbit@b"]


def test_tags_may_be_a_list_or_a_string_with_commas() -> None:
    rows = [
        {"name": "a", "tags": "one, two"},
        {"name": "b", "tags": ["one", "two"]},
        {"name": "c", "tags": ""},
    ]
    state = imported({"users": rows})
    assert [user.tags for user in state.users.values()] == [("one", "two"), ("one", "two"), ()]


def test_the_administrator_flag_of_old_files_is_understood() -> None:
    assert imported({"users": [{"name": "a", "administrator": "true"}]}).users["a"].tags == ("administrator",)


@pytest.mark.parametrize(("version", "algorithm"), [("3.5.8", MD5), ("3.6.0", SHA256), ("3.12.1", SHA256)])
def test_a_hash_without_algorithm_is_that_of_the_files_version(version: str, algorithm: str) -> None:
    definitions = {
        "rabbit_version": version,
        "users": [{"name": "a", "password_hash": "c2FsdGhhc2g=", "tags": ""}],
    }
    assert imported(definitions).users["a"].hashing_algorithm == algorithm


def test_passwords_in_the_clear_are_hashed_by_the_caller() -> None:
    definitions = {"users": [{"name": "a", "password": "secret", "tags": ""}, {"name": "b", "tags": ""}]}
    assert plain_passwords(definitions) == {"a": "secret"}
    with pytest.raises(DefinitionError, match="password is in the clear"):
        import_(definitions)
    state = imported(definitions, hashes={"a": (ARGON, "argon2id")})
    assert state.users["a"] == User("a", ARGON, "argon2id")


def test_limits_of_a_file_do_not_stop_its_own_queues() -> None:
    commands = import_(RABBITMQ_FILE)
    assert isinstance(commands[-1], c.SetVHostLimits)


def test_fields_and_sections_nobody_knows_are_ignored() -> None:
    rows = {"later": [1], "vhosts": [{"name": "/", "later": 1, "tracing": False}]}
    assert list(imported(rows).vhosts) == ["/"]


def test_an_empty_file_changes_nothing() -> None:
    assert import_({}) == []


def test_the_caller_may_refuse_arguments() -> None:
    def check(record: Queue | Exchange) -> str | None:
        return "unknown exchange type 'x-odd'" if isinstance(record, Exchange) else None

    rows = {"exchanges": [{"name": "x", "vhost": "/", "type": "x-odd"}]}
    with pytest.raises(DefinitionError, match=r"^exchanges\[0\] 'x': unknown exchange type 'x-odd'$"):
        import_(rows, check=check)


@pytest.mark.parametrize(
    ("section", "row", "text"),
    [
        ("users", {"name": "u"}, "users[0] 'u': tags is missing"),
        ("users", {"tags": ""}, "users[0]: name is missing"),
        (
            "users",
            {"name": "u", "tags": 5},
            "users[0] 'u': tags must be a list of strings or a string with commas",
        ),
        (
            "users",
            {"name": "u", "tags": "", "password_hash": "?"},
            "users[0] 'u': password_hash is not valid base64",
        ),
        (
            "users",
            {"name": "u", "tags": "", "password_hash": "AA==", "hashing_algorithm": "rot13"},
            f"users[0] 'u': hashing_algorithm 'rot13' is unknown; there are {', '.join(ALGORITHMS)}",
        ),
        (
            "users",
            {"name": "u", "tags": "", "password_hash": "AA==", "hashing_algorithm": "argon2id"},
            "users[0] 'u': password_hash is not an argon2id string in base64",
        ),
        (
            "users",
            {"name": "u", "tags": "", "password": "a", "password_hash": "AA=="},
            "users[0] 'u': has both a password and a password_hash",
        ),
        (
            "users",
            {"name": "u", "tags": "", "limits": {"max-queues": 1}},
            "users[0] 'u': limits has no limit 'max-queues'; there are max-connections and max-channels",
        ),
        ("vhosts", {}, "vhosts[0]: name is missing"),
        ("vhosts", {"name": 7}, "vhosts[0]: name must be a string, not a number"),
        (
            "permissions",
            {"user": "u", "vhost": "/", "configure": "(", "write": "", "read": ""},
            f"permissions[0] 'u': configure {complaint('(')}",
        ),
        (
            "topic_permissions",
            {"user": "u", "vhost": "/", "write": "", "read": ""},
            "topic_permissions[0] 'u': exchange is missing",
        ),
        ("exchanges", {"name": "x", "vhost": "/"}, "exchanges[0] 'x': type is missing"),
        (
            "queues",
            {"name": "q", "vhost": "/", "durable": "yes"},
            "queues[0] 'q': durable must be true or false, not a string",
        ),
        (
            "queues",
            {"name": "q", "vhost": "/", "arguments": [1]},
            "queues[0] 'q': arguments must be an object, not a list",
        ),
        (
            "queues",
            {"name": "q", "vhost": "/", "arguments": {"x": 2**80}},
            "queues[0] 'q': arguments cannot be a field table: integer does not fit 64 bits",
        ),
        (
            "bindings",
            {"source": "x", "destination": "q", "destination_type": "topic", "vhost": "/"},
            "bindings[0] 'x': destination_type must be queue or exchange, not 'topic'",
        ),
        (
            "policies",
            {"name": "p", "vhost": "/", "pattern": "a", "definition": {"max-length": -1}},
            "policies[0] 'p': -1 is not a valid maximum length",
        ),
        (
            "policies",
            {"name": "p", "vhost": "/", "pattern": "a", "definition": {"max-length": 1}, "apply-to": "some"},
            "policies[0] 'p': apply-to 'some' unrecognised; should be 'queues', 'exchanges' or 'all'",
        ),
        (
            "policies",
            {"name": "p", "vhost": "/", "pattern": "a", "definition": {"max-length": 1}, "priority": "1"},
            "policies[0] 'p': priority must be a whole number, not a string",
        ),
        (
            "parameters",
            {"component": "vhost-limits", "name": "limits", "vhost": "/", "value": {"max-queues": "many"}},
            "parameters[0] 'limits' value: max-queues must be a whole number, not a string",
        ),
        (
            "parameters",
            {"component": "operator_policy", "name": "p", "vhost": "/", "value": {"pattern": "a"}},
            "parameters[0] 'p' value: definition is missing",
        ),
        ("global_parameters", {"name": "g"}, "global_parameters[0] 'g': value is missing"),
    ],
)
def test_a_mistake_is_named_by_entry_and_field(section: str, row: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        import_({section: [row]})
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("definitions", "text"),
    [
        ({"queues": {}}, "queues must be a list, not an object"),
        ({"queues": ["q"]}, "queues[0] must be an object, not a string"),
    ],
)
def test_a_section_of_the_wrong_shape_is_named(definitions: dict[str, Any], text: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        import_(definitions)
    assert str(caught.value) == text
