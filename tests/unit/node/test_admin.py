"""Administrators' requests on a whole node: what they change, what they refuse, and when they answer."""

from __future__ import annotations

import pytest

from mirrormq.base.types import Peer
from mirrormq.node import requests as ask
from mirrormq.node.admin import OPERATIONS
from mirrormq.wire import methods
from tests.support.adminkit import AdminKit


@pytest.fixture
def kit() -> AdminKit:
    return AdminKit()


def test_every_request_has_an_operation() -> None:
    assert set(ask.named_requests().values()) == set(OPERATIONS)


# --- when it answers ---


def test_a_change_is_answered_only_after_the_flush(kit: AdminKit) -> None:
    kit.hold_flushes = True
    answers = kit.begin(ask.AddVHost(name="v"))
    assert "v" in kit.node.vhosts
    assert answers == []
    kit.flush()
    kit.run()
    assert answers[0].value == {"created": True}


def test_a_new_password_is_hashed_off_the_loop_before_anything_changes(kit: AdminKit) -> None:
    kit.hold_hashes = True
    answers = kit.begin(ask.AddUser(name="u", password="secret"))
    assert answers == []
    assert "u" not in kit.node.state.users
    kit.hash()
    kit.run()
    assert answers[0].value == {"created": True}
    assert kit.node.state.users["u"].hashing_algorithm == "argon2id"


def test_a_user_deleted_while_the_new_password_is_hashed_stays_deleted(kit: AdminKit) -> None:
    kit.ask(ask.AddUser(name="u", password="old"))
    kit.hold_hashes = True
    answers = kit.begin(ask.ChangePassword(name="u", password="new"))
    kit.ask(ask.DeleteUser(name="u"))
    kit.hash()
    kit.run()
    assert answers[0].problem is not None
    assert answers[0].problem.kind == "no_such_user"
    assert "u" not in kit.node.state.users


def test_what_cannot_be_stored_is_refused_and_changes_nothing(kit: AdminKit) -> None:
    for value in (1 << 70, "\ud800", {"deep": _nested(5_000)}):
        kind, text = kit.refusal(ask.SetGlobalParameter(name="g", value=value))
        assert kind == "bad_request"
        assert text.startswith("this cannot be stored")
    assert kit.refusal(ask.DeclareQueue(vhost="/", name="q", arguments={"x": 1 << 70}))[0] == "bad_request"
    assert "g" not in kit.node.state.global_parameters
    assert ("/", "q") not in kit.node.state.queues


def _nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "request_",
    [
        ask.AddVHost(name="v" * 256),
        ask.DeclareQueue(vhost="/", name="ü" * 128),
        ask.DeclareExchange(vhost="/", name="e" * 256),
        ask.Bind(
            vhost="/", source="amq.topic", destination="q", destination_type="queue", routing_key="k" * 256
        ),
    ],
)
def test_names_no_client_could_write_are_refused(kit: AdminKit, request_: ask.Request) -> None:
    kind, text = kit.refusal(request_)
    assert kind == "bad_request"
    assert "longer than 255 octets" in text


# --- vhosts ---


def test_a_vhost_made_by_a_user_is_open_to_that_user(kit: AdminKit) -> None:
    kit.ask(ask.AddVHost(actor="guest", name="v"))
    kit.client(vhost="v").declare("q")


def test_a_vhost_that_exists_keeps_what_is_not_given(kit: AdminKit) -> None:
    kit.ask(ask.AddVHost(name="v", description="mine", tags=("a",)))
    assert kit.ask(ask.AddVHost(name="v", tags=("b",))) == {"created": False}
    record = kit.node.state.vhosts["v"]
    assert (record.description, record.tags) == ("mine", ("b",))


def test_a_vhost_with_an_unknown_default_queue_type_is_refused(kit: AdminKit) -> None:
    assert kit.refusal(ask.AddVHost(name="v", default_queue_type="stream"))[0] == "bad_request"


def test_deleting_a_vhost_closes_its_connections(kit: AdminKit) -> None:
    kit.ask(ask.AddVHost(actor="guest", name="v"))
    client = kit.client(vhost="v")
    kit.ask(ask.DeleteVHost(name="v"))
    close = client.expect(methods.ConnectionClose, 0)
    assert close.reply_code == 320
    assert kit.refusal(ask.DeleteVHost(name="v")) == ("no_such_vhost", "Virtual host 'v' does not exist")


# --- users ---


def test_a_new_user_logs_in_with_the_password_and_no_other(kit: AdminKit) -> None:
    kit.ask(ask.AddUser(name="u", password="secret"))
    kit.ask(ask.AuthenticateUser(name="u", password="secret"))
    kind, text = kit.refusal(ask.AuthenticateUser(name="u", password="wrong"))
    assert kind == "authentication_failed"
    assert text == "user 'u' - invalid credentials"


def test_a_cleared_password_opens_nothing(kit: AdminKit) -> None:
    kit.ask(ask.AddUser(name="u", password="secret"))
    kit.ask(ask.ClearPassword(name="u"))
    assert kit.refusal(ask.AuthenticateUser(name="u", password="secret"))[0] == "authentication_failed"


def test_guest_is_refused_from_another_machine(kit: AdminKit) -> None:
    away = Peer("10.1.1.1", 1, "10.1.1.2", 15672)
    kind, text = kit.refusal(ask.AuthenticateUser(name="guest", password="guest", peer=away))
    assert (kind, text) == ("authentication_failed", "user 'guest' can only connect via localhost")


def test_adding_a_user_twice_is_refused_unless_replacing_is_wanted(kit: AdminKit) -> None:
    kit.ask(ask.AddUser(name="u", password="one"))
    assert kit.refusal(ask.AddUser(name="u", password="two")) == ("user_exists", 'User "u" already exists')
    assert kit.ask(ask.AddUser(name="u", password="two", tags=("monitoring",), replace=True)) == {
        "created": False
    }
    kit.ask(ask.AuthenticateUser(name="u", password="two"))


def test_changing_tags_or_password_keeps_the_rest_of_the_user(kit: AdminKit) -> None:
    kit.ask(ask.AddUser(name="u", password="one", tags=("management",)))
    kit.ask(ask.SetUserLimits(user="u", limits={"max-channels": 3}))
    kit.ask(ask.ChangePassword(name="u", password="two"))
    kit.ask(ask.SetUserTags(name="u", tags=("monitoring",)))
    record = kit.node.state.users["u"]
    assert (record.tags, record.limits) == (("monitoring",), {"max-channels": 3})
    kit.ask(ask.AuthenticateUser(name="u", password="two"))


def test_a_hash_made_by_rabbitmq_is_accepted_as_it_is(kit: AdminKit) -> None:
    stored = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
    kit.ask(ask.AddUser(name="u", password_hash=stored))
    kit.ask(ask.AuthenticateUser(name="u", password="test12"))
    assert kit.refusal(ask.AddUser(name="w", password_hash="no base64!"))[0] == "bad_request"


def test_several_users_are_deleted_all_or_none(kit: AdminKit) -> None:
    kit.ask(ask.AddUser(name="a", password="a"))
    assert kit.refusal(ask.DeleteUsers(names=("a", "nobody")))[0] == "no_such_user"
    assert "a" in kit.node.state.users
    kit.ask(ask.DeleteUsers(names=("a",)))
    assert "a" not in kit.node.state.users


def test_deleting_a_user_closes_the_users_connections(kit: AdminKit) -> None:
    kit.ask(ask.AddUser(name="u", password="u"))
    kit.ask(ask.SetPermissions(vhost="/", user="u", configure=".*", write=".*", read=".*"))
    client = kit.client("u", "u")
    kit.ask(ask.DeleteUser(name="u"))
    assert client.expect(methods.ConnectionClose, 0).reply_code == 320


# --- permissions and limits ---


def test_permissions_need_patterns_that_can_be_understood(kit: AdminKit) -> None:
    kind, text = kit.refusal(ask.SetPermissions(vhost="/", user="guest", configure="*", write="", read=""))
    assert kind == "bad_request"
    assert "nothing to repeat" in text


def test_clearing_permissions_that_are_not_there_is_no_error(kit: AdminKit) -> None:
    kit.ask(ask.AddUser(name="u", password="u"))
    kit.ask(ask.ClearPermissions(vhost="/", user="u"))
    kit.ask(ask.ClearTopicPermissions(vhost="/", user="u"))


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max-foo": 5}, 'Validation failed\n\nUnrecognised terms [{<<"max-foo">>,5}] in limits\n'),
        ({"max-queues": "x"}, 'Validation failed\n\nmax-queues should be a number, actually was <<"x">>\n'),
    ],
)
def test_wrong_limits_are_refused_in_rabbitmqs_words(
    kit: AdminKit, limits: dict[str, object], text: str
) -> None:
    assert kit.refusal(ask.SetVHostLimits(vhost="/", limits=limits)) == ("bad_request", text)


def test_one_limit_can_be_cleared_without_the_others(kit: AdminKit) -> None:
    kit.ask(ask.SetVHostLimits(vhost="/", limits={"max-queues": 1, "max-connections": 2}))
    kit.ask(ask.ClearVHostLimits(vhost="/", limit="max-queues"))
    assert kit.node.state.vhost_limits["/"].limits == {"max-connections": 2}
    kit.ask(ask.ClearVHostLimits(vhost="/"))
    assert "/" not in kit.node.state.vhost_limits


# --- policies and parameters ---


def test_a_policy_takes_hold_of_existing_queues(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    kit.ask(ask.SetPolicy(vhost="/", name="p", pattern="^q$", definition={"max-length": 1}))
    for body in (b"1", b"2"):
        client.publish("q", body)
    assert kit.node.vhosts["/"].queues["q"].message_count == 1


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"definition": {}}, "no policy provided"),
        ({"definition": [1]}, "definition should be an object"),
        ({"definition": {"max-length": 1}, "priority": "high"}, "priority should be a number"),
        ({"definition": {"max-length": 1}, "apply_to": "foo"}, "apply-to 'foo' unrecognised"),
        ({"definition": {"max-length": -4}}, "-4 is not a valid maximum length"),
    ],
)
def test_a_wrong_policy_is_refused_with_what_is_wrong(
    kit: AdminKit, wrong: dict[str, object], text: str
) -> None:
    request = ask.SetPolicy(vhost="/", name="p", pattern="q", **wrong)  # type: ignore[arg-type]
    kind, found = kit.refusal(request)
    assert kind == "bad_request"
    assert found.startswith("Validation failed\n\n")
    assert text in found


def test_parameters_of_components_that_do_not_exist_are_refused(kit: AdminKit) -> None:
    request = ask.SetParameter(vhost="/", component="shovel", name="s", value={})
    assert kit.refusal(request) == ("bad_request", "Validation failed\n\ncomponent shovel not found\n")


# --- definitions ---


def test_importing_definitions_brings_all_of_them_into_force(kit: AdminKit) -> None:
    definitions = {
        "vhosts": [{"name": "v"}],
        "users": [{"name": "u", "password": "u", "tags": ["monitoring"]}],
        "permissions": [{"user": "u", "vhost": "v", "configure": ".*", "write": ".*", "read": ".*"}],
        "queues": [{"name": f"q{n}", "vhost": "v", "durable": True, "arguments": {}} for n in range(200)],
    }
    kit.ask(ask.ImportDefinitions(definitions=definitions))
    assert kit.client("u", "u", "v").declare("q199", durable=True).queue == "q199"


def test_a_long_import_goes_in_slices_that_wait_for_the_disk(kit: AdminKit) -> None:
    queues = [{"name": f"q{n}", "vhost": "/", "durable": True, "arguments": {}} for n in range(120)]
    kit.hold_flushes = True
    answers = kit.begin(ask.ImportDefinitions(definitions={"queues": queues}))
    first = len(kit.node.state.queues)
    assert first < 120
    while not answers:
        kit.flush()
        kit.run()
    assert len(kit.node.state.queues) == 120
    assert queues == []  # let go in slices, too: to free a large file at once would take milliseconds


def test_an_import_with_a_wrong_queue_says_which(kit: AdminKit) -> None:
    queue = {"name": "bad", "vhost": "/", "durable": True, "arguments": {"x-max-length": "a"}}
    kind, text = kit.refusal(ask.ImportDefinitions(definitions={"queues": [queue]}))
    assert kind == "bad_request"
    assert "'bad'" in text
    assert "x-max-length" in text


# --- queues, exchanges, bindings ---


def test_declaring_the_same_queue_again_is_accepted_and_a_different_one_refused(kit: AdminKit) -> None:
    assert kit.ask(ask.DeclareQueue(vhost="/", name="q", durable=True)) == {"created": True}
    assert kit.ask(ask.DeclareQueue(vhost="/", name="q", durable=True)) == {"created": False}
    kind, text = kit.refusal(ask.DeclareQueue(vhost="/", name="q", durable=False))
    assert kind == "bad_request"
    assert (
        text
        == "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"
    )


def test_reserved_names_cannot_be_declared(kit: AdminKit) -> None:
    assert kit.refusal(ask.DeclareQueue(vhost="/", name="amq.q"))[0] == "access_refused"
    assert kit.refusal(ask.DeclareExchange(vhost="/", name="amq.e"))[0] == "access_refused"
    assert kit.refusal(ask.DeleteExchange(vhost="/", name="amq.direct"))[0] == "access_refused"


def test_a_user_needs_the_same_permissions_as_over_amqp(kit: AdminKit) -> None:
    kit.ask(ask.AddUser(name="u", password="u"))
    kit.ask(ask.SetPermissions(vhost="/", user="u", configure="^mine", write="^mine", read="^mine"))
    kit.ask(ask.DeclareQueue(actor="u", vhost="/", name="mine"))
    assert kit.refusal(ask.DeclareQueue(actor="u", vhost="/", name="yours"))[0] == "access_refused"
    kit.ask(ask.DeclareQueue(vhost="/", name="yours"))
    assert kit.refusal(ask.PurgeQueue(actor="u", vhost="/", name="yours"))[0] == "access_refused"
    assert kit.refusal(ask.DeleteQueue(actor="u", vhost="/", name="yours"))[0] == "access_refused"
    request = ask.Bind(
        actor="u", vhost="/", source="amq.direct", destination="mine", destination_type="queue"
    )
    assert kit.refusal(request)[0] == "access_refused"


def test_purging_removes_ready_messages_and_counts_them(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    for _ in range(3):
        client.publish("q")
    assert kit.ask(ask.PurgeQueue(vhost="/", name="q")) == {"messages": 3}
    assert client.declare("q").message_count == 0


def test_a_queue_is_deleted_only_if_its_conditions_hold(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    client.publish("q")
    assert (
        kit.refusal(ask.DeleteQueue(vhost="/", name="q", if_empty=True))[1]
        == "queue 'q' in vhost '/' not empty"
    )
    client.consume("q")
    assert (
        kit.refusal(ask.DeleteQueue(vhost="/", name="q", if_unused=True))[1]
        == "queue 'q' in vhost '/' in use"
    )
    client.take()
    kit.ask(ask.DeleteQueue(vhost="/", name="q"))
    assert client.expect(methods.BasicCancel).consumer_tag == "c"
    assert kit.refusal(ask.DeleteQueue(vhost="/", name="q"))[0] == "no_such_queue"


def test_a_binding_routes_until_it_is_removed_by_its_key(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    ends = {"vhost": "/", "source": "amq.topic", "destination": "q", "destination_type": "queue"}
    made = kit.ask(ask.Bind(**ends, routing_key="a.*"))  # type: ignore[arg-type]
    client.publish("a.b", exchange="amq.topic")
    kit.ask(ask.Unbind(**ends, key=made["key"]))  # type: ignore[arg-type]
    client.publish("a.b", exchange="amq.topic")
    assert client.declare("q").message_count == 1
    assert kit.refusal(ask.Unbind(**ends, key=made["key"]))[0] == "not_found"  # type: ignore[arg-type]


def test_binding_to_what_does_not_exist_names_it(kit: AdminKit) -> None:
    request = ask.Bind(vhost="/", source="amq.direct", destination="nope", destination_type="queue")
    assert kit.refusal(request) == ("not_found", "no queue 'nope' in vhost '/'")
    request = ask.Bind(vhost="/", source="nope", destination="nope", destination_type="queue")
    assert kit.refusal(request) == ("not_found", "no exchange 'nope' in vhost '/'")


def test_the_aliveness_test_leaves_its_queue_empty(kit: AdminKit) -> None:
    assert kit.ask(ask.CheckAliveness(actor="guest", vhost="/")) == {"status": "ok"}
    assert kit.node.vhosts["/"].queues["aliveness-test"].message_count == 0


# --- connections and the node ---


@pytest.mark.parametrize("form", ["pid", "name"])
def test_a_connection_is_closed_by_pid_or_name(kit: AdminKit, form: str) -> None:
    client, other = kit.client(), kit.client()
    found = kit.node.connections[client.conn]
    name = found.name if form == "name" else f"<{kit.node.node_name}.1.{client.conn}.0>"
    kit.ask(ask.CloseConnection(connection=name, reason="go away"))
    close = client.expect(methods.ConnectionClose, 0)
    assert (close.reply_code, close.reply_text) == (320, "CONNECTION_FORCED - go away")
    assert not other.inbox


def test_a_long_reason_is_cut_to_what_a_client_can_read(kit: AdminKit) -> None:
    client = kit.client()
    name = kit.node.connections[client.conn].name
    kit.ask(ask.CloseConnection(connection=name, reason="ü" * 300))
    assert client.expect(methods.ConnectionClose, 0).reply_text == "CONNECTION_FORCED - " + "ü" * 100


def test_closing_an_unknown_connection_is_refused(kit: AdminKit) -> None:
    assert kit.refusal(ask.CloseConnection(connection="<mirrormq@test.1.99.0>"))[0] == "no_such_connection"


def test_connections_of_one_user_are_closed_up_to_the_limit(kit: AdminKit) -> None:
    clients = [kit.client() for _ in range(3)]
    assert kit.ask(ask.CloseConnections(user="guest", limit=2)) == {"closed": 2}
    assert sum(bool(client.inbox) for client in clients) == 2
    assert kit.refusal(ask.CloseConnections(vhost="nope"))[0] == "no_such_vhost"


def test_stopping_asks_the_driver_with_the_reason(kit: AdminKit) -> None:
    kit.ask(ask.Stop(reason="maintenance"))
    assert kit.stop_reasons == ["maintenance"]
