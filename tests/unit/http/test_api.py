"""The admin API over a whole node: RabbitMQ's paths, fields, status codes, and who may see what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import pytest_asyncio

from mirrormq.node import news
from mirrormq.node import requests as ask
from tests.support.adminkit import KEY, AdminKit, Api, KitProcess, serving

NOT_FOUND = (404, {"error": "Object Not Found", "reason": "Not Found"})
FOREIGN_VHOST = "User not authorised to access virtual host"
FOREIGN_OBJECT = "User not authorised to access object"


@pytest.fixture
def kit() -> AdminKit:
    return AdminKit()


@pytest_asyncio.fixture
async def api(kit: AdminKit) -> AsyncIterator[Api]:
    async with serving(kit) as found:
        yield found


def add_user(kit: AdminKit, name: str, tag: str, vhost: str | None = None) -> None:
    kit.ask(ask.AddUser(name=name, password=name, tags=(tag,) if tag else ()))
    if vhost is not None:
        kit.ask(ask.SetPermissions(vhost=vhost, user=name, configure=".*", write=".*", read=".*"))


# --- who may ---


async def test_without_credentials_the_realm_is_named(api: Api) -> None:
    status, found = await api.call("GET", "whoami", user=None)
    assert status == 401
    assert found["error"] == "not_authorized"


async def test_a_wrong_password_is_told_nothing_more(api: Api) -> None:
    for user in ("guest", "nobody"):
        status, found = await api.call("GET", "whoami", user=user, password="wrong")
        assert (status, found) == (401, {"error": "not_authorized", "reason": "Login failed"})


async def test_credentials_that_are_no_base64_are_refused(api: Api) -> None:
    for header in ("Basic ???", "Basic Z3Vlc3Q=", "Bearer x", "Basic"):
        status, _ = await api.call("GET", "whoami", user=None, headers={"Authorization": header})
        assert status == 401, header


async def test_the_nodes_key_makes_an_administrator(api: Api) -> None:
    headers = {"Authorization": f"MirrorMQ-Key {KEY}"}
    status, found = await api.call("GET", "users", user=None, headers=headers)
    assert status == 200
    assert [row["name"] for row in found] == ["guest"]


async def test_a_wrong_or_empty_key_opens_nothing(api: Api) -> None:
    for key in ("", KEY[:-1], KEY + "0"):
        headers = {"Authorization": f"MirrorMQ-Key {key}"}
        assert (await api.call("GET", "users", user=None, headers=headers))[0] == 401


ACCESS = [
    # path, management, policymaker, monitoring, administrator (none of them has permissions anywhere)
    ("whoami", 200, 200, 200, 200),
    ("overview", 200, 200, 200, 200),
    ("vhosts", 200, 200, 200, 200),
    ("vhosts/%2F", 401, 401, 401, 200),
    ("users", 401, 401, 401, 200),
    ("users/guest", 401, 401, 401, 200),
    ("permissions", 401, 401, 401, 200),
    ("topic-permissions", 401, 401, 401, 200),
    ("queues", 200, 200, 200, 200),
    ("queues/%2F", 401, 401, 401, 200),
    ("exchanges/%2F", 401, 401, 401, 200),
    ("bindings/%2F", 401, 401, 401, 200),
    ("connections", 200, 200, 200, 200),
    ("vhosts/%2F/connections", 401, 401, 401, 200),
    ("channels", 200, 200, 200, 200),
    ("consumers/%2F", 200, 200, 200, 200),
    ("nodes", 401, 401, 200, 200),
    ("definitions", 401, 401, 401, 200),
    ("policies", 200, 200, 200, 200),
    ("policies/%2F", 401, 401, 401, 200),
    ("parameters", 401, 200, 401, 200),
    ("global-parameters", 401, 200, 401, 200),
    ("vhost-limits", 200, 200, 200, 200),
    ("user-limits", 200, 200, 200, 200),
    ("health/checks/alarms", 200, 200, 200, 200),
    ("aliveness-test/%2F", 401, 401, 401, 401),
    ("feature-flags", 401, 401, 401, 200),
]


async def test_each_tag_sees_what_rabbitmq_shows_it(api: Api, kit: AdminKit) -> None:
    tags = ("management", "policymaker", "monitoring", "administrator")
    for tag in (*tags, ""):
        add_user(kit, tag or "untagged", tag)
    for path, *expected in ACCESS:
        found = [(await api.call("GET", path, user=tag))[0] for tag in tags]
        assert found == expected, path
        status, body = await api.call("GET", path, user="untagged")
        assert (status, body["reason"]) == (401, "Not management user"), path


async def test_changes_need_the_right_tag(api: Api, kit: AdminKit) -> None:
    for tag in ("management", "policymaker", "monitoring"):
        add_user(kit, tag, tag, "/")
        for verb, path in (
            ("PUT", "vhosts/v"),
            ("PUT", "users/u"),
            ("DELETE", "users/guest"),
            ("POST", "definitions"),
        ):
            status, body = await api.call(verb, path, {"tags": ""}, user=tag)
            assert (status, body["reason"]) == (401, "Not administrator user"), (tag, path)
    policy = {"pattern": "^a", "definition": {"max-length": 3}}
    assert (await api.put("policies/%2F/p", policy, user="management"))[1]["reason"] == FOREIGN_OBJECT
    assert (await api.put("policies/%2F/p", policy, user="policymaker"))[0] == 201
    assert (await api.put("operator-policies/%2F/p", policy, user="policymaker"))[0] == 401


async def test_lists_show_only_vhosts_the_user_may_use(api: Api, kit: AdminKit) -> None:
    kit.ask(ask.AddVHost(name="v"))
    kit.ask(ask.DeclareQueue(vhost="/", name="q"))
    kit.ask(ask.DeclareQueue(vhost="v", name="r"))
    add_user(kit, "u", "management", "v")
    assert [row["name"] for row in await api.get("queues", user="u")] == ["r"]
    assert [row["name"] for row in await api.get("vhosts", user="u")] == ["v"]
    assert {row["vhost"] for row in await api.get("exchanges", user="u")} == {"v"}
    status, body = await api.call("GET", "queues/%2F", user="u")
    assert (status, body["reason"]) == (401, FOREIGN_VHOST)


async def test_users_see_only_their_own_connections(api: Api, kit: AdminKit) -> None:
    add_user(kit, "u", "management", "/")
    add_user(kit, "watcher", "monitoring")
    kit.client()
    kit.client("u", "u")
    assert [row["user"] for row in await api.get("connections", user="u")] == ["u"]
    assert len(await api.get("connections", user="watcher")) == 2
    name = next(row["name"] for row in await api.get("connections") if row["user"] == "guest")
    status, _ = await api.call("DELETE", f"connections/{name.replace(' ', '%20')}", user="u")
    assert status == 401


# --- mistakes ---


@pytest.mark.parametrize(
    "path",
    [
        "nope",
        "vhosts/nope",
        "users/nope",
        "queues/nope",
        "queues/%2F/nope",
        "exchanges/%2F/nope",
        "permissions/%2F/nope",
        "policies/%2F/nope",
        "connections/nope",
        "channels/nope",
        "consumers/nope",
        "vhost-limits/nope",
        "bindings/%2F/e/a/q/b/c",
        "nodes/nope",
    ],
)
async def test_what_does_not_exist_is_answered_by_404(api: Api, path: str) -> None:
    assert await api.call("GET", path) == NOT_FOUND


@pytest.mark.parametrize(
    "body", ["nonsense", "[]", '"text"', "1", "[" * 9_000, '{"tags": NaN}', '{"a": "\\ud800"}']
)
async def test_a_body_that_is_no_object_is_refused(api: Api, body: str) -> None:
    assert await api.call("PUT", "vhosts/v", body) == (400, {"error": "bad_request", "reason": "not_json"})


async def test_a_body_that_is_no_utf8_is_refused(api: Api) -> None:
    assert (await api.call("PUT", "vhosts/v", b"\xff\xfe{"))[0] == 400


async def test_numbers_too_large_to_keep_are_refused(api: Api) -> None:
    status, body = await api.put("queues/%2F/q", '{"arguments": {"x": 100000000000000000000000}}')
    assert (status, body["error"]) == (400, "bad_request")
    assert await api.call("GET", "queues/%2F/q") == NOT_FOUND


@pytest.mark.parametrize("text", ["²", "٣", "+1", "1_0", "--5", "1.0", "9" * 5_000, ""])
async def test_what_is_no_number_somebody_means_is_refused_wherever_one_is_wanted(
    api: Api, kit: AdminKit, text: str
) -> None:
    kit.ask(ask.DeclareQueue(vhost="/", name="q"))
    given = quote(text, safe="")
    paths = [f"queues?page=1&page_size={given}", f"overview?lengths_age={given}&lengths_incr=5"]
    if text:  # an empty part makes another path
        paths.append(f"health/checks/port-listener/{given}")
        paths.append(f"health/checks/certificate-expiration/{given}/days")
    for path in paths:
        status, found = await api.call("GET", path)
        assert (status, found["error"]) == (400, "bad_request"), path[:80]
    for field in ("count", "truncate"):
        body = {"count": 1, "encoding": "auto", "ackmode": "ack_requeue_true", field: text}
        status, found = await api.call("POST", "queues/%2F/q/get", body)
        assert (status, found["error"]) == (400, "bad_request"), field


async def test_an_unknown_verb_lists_those_that_work(api: Api) -> None:
    assert (await api.call("POST", "vhosts/v", {}))[0] == 405


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("users/u", {"password": "x"}, "tags_not_present"),
        (
            "users/u",
            {"password": "x", "password_hash": "", "tags": ""},
            "both_password_and_password_hash_are_provided",
        ),
        ("permissions/%2F/guest", {"configure": "", "write": ""}, "[{key_missing,read}]"),
        ("permissions/%2F/nope", {"configure": "", "write": "", "read": ""}, "vhost_or_user_not_found"),
        ("queues/%2F/q", {"auto_delete": "yes"}, ["not_boolean", "yes"]),
        ("policies/%2F/p", {"pattern": "x"}, "[{key_missing,definition}]"),
        (
            "vhost-limits/%2F/foo",
            {"value": 3},
            'Validation failed\n\nUnrecognised terms [{<<"foo">>,3}] in limits\n',
        ),
        ("user-limits/nope/max-channels", {"value": 3}, ["no_such_user", "nope"]),
    ],
)
async def test_wrong_bodies_are_refused_with_rabbitmqs_reasons(
    api: Api, path: str, body: Any, reason: Any
) -> None:
    assert await api.put(path, body) == (400, {"error": "bad_request", "reason": reason})


async def test_a_fault_of_the_node_is_noted_and_answered_without_the_stack(api: Api, kit: AdminKit) -> None:
    kit.node.state.vhosts["broken"] = object()  # type: ignore[assignment]
    status, body = await api.call("GET", "vhosts")
    assert (status, body["error"]) == (500, "internal_error")
    assert "Traceback" not in str(body)
    kit.run()
    assert any("Traceback" in note.text for note in kit.notes)


# --- resources ---


async def test_putting_something_new_is_201_and_changing_it_204(api: Api, kit: AdminKit) -> None:
    add_user(kit, "w", "")
    for path, body in [
        ("vhosts/v", None),
        ("users/u", {"password": "u", "tags": "management"}),
        ("permissions/%2F/w", {"configure": "", "write": "", "read": ""}),
        ("topic-permissions/%2F/w", {"exchange": "amq.topic", "write": "a", "read": "b"}),
        ("queues/%2F/q", {"durable": True}),
        ("exchanges/%2F/e", {"type": "topic"}),
        ("policies/%2F/p", {"pattern": "x", "definition": {"max-length": 1}}),
        ("operator-policies/%2F/p", {"pattern": "x", "definition": {"max-length": 1}}),
        ("global-parameters/g", {"value": 1}),
    ]:
        assert (await api.put(path, body))[0] == 201, path
        assert (await api.put(path, body))[0] == 204, path
        status, _ = await api.call("GET", path)
        assert status == 200, path
        assert (await api.call("DELETE", path))[0] == 204, path
        assert (await api.call("DELETE", path))[0] == 404, path


async def test_a_mirror_of_another_cluster_is_shown_as_such_until_it_is_promoted(api: Api) -> None:
    assert (await api.put("vhosts/m", {"mirror_of": "west"}))[0] == 201
    assert (await api.call("GET", "vhosts/m"))[1]["mirror_of"] == "west"
    assert (await api.put("vhosts/m", {"description": "new"}))[0] == 204
    assert (await api.call("GET", "vhosts/m"))[1]["mirror_of"] == "west"
    assert (await api.call("POST", "vhosts/m/promote"))[0] == 204
    assert (await api.call("GET", "vhosts/m"))[1]["mirror_of"] == ""
    assert (await api.call("POST", "vhosts/m/promote"))[0] == 400
    assert (await api.put("vhosts/m", {"mirror_of": "west"}))[0] == 400


async def test_names_with_slashes_and_blanks_work_in_paths(api: Api) -> None:
    assert (await api.put("vhosts/a%2Fb%20c"))[0] == 201
    assert (await api.put("queues/a%2Fb%20c/q%2F1%25"))[0] == 201
    found = await api.get("queues/a%2Fb%20c/q%2F1%25")
    assert (found["vhost"], found["name"]) == ("a/b c", "q/1%")


async def test_a_binding_is_found_and_removed_by_the_location_given_when_it_was_made(api: Api) -> None:
    await api.put("queues/%2F/q")
    path = "bindings/%2F/e/amq.topic/q/q"
    for body in ({"routing_key": "a b/%", "arguments": {}}, {"routing_key": "k", "arguments": {"x": 1}}):
        assert (await api.call("POST", path, body))[0] == 201
    rows = await api.get(path)
    assert len(rows) == 2
    for row in rows:
        key = row["properties_key"].replace("%", "%25").replace("+", "%2B")
        assert (await api.get(f"{path}/{key}"))["routing_key"] == row["routing_key"]
        assert (await api.call("DELETE", f"{path}/{key}"))[0] == 204
    assert await api.get(path) == []
    assert [row["source"] for row in await api.get("queues/%2F/q/bindings")] == [""]


async def test_the_default_exchange_has_a_name_in_paths(api: Api) -> None:
    assert (await api.get("exchanges/%2F/amq.default"))["name"] == ""


async def test_a_binding_to_a_missing_queue_is_404_with_its_name(api: Api) -> None:
    status, body = await api.call("POST", "bindings/%2F/e/amq.topic/q/nope", {"routing_key": "k"})
    assert (status, body) == (404, {"error": "not_found", "reason": "no queue 'nope' in vhost '/'"})


async def test_closing_a_connection_gives_the_client_the_reason(api: Api, kit: AdminKit) -> None:
    client = kit.client()
    name = (await api.get("connections"))[0]["name"].replace(" ", "%20").replace(">", "%3E")
    assert (await api.call("DELETE", f"connections/{name}", headers={"X-Reason": "bye"}))[0] == 204
    assert client.take()[-1].reply_text == "CONNECTION_FORCED - bye"


async def test_queues_can_be_paged_sorted_filtered_and_cut_to_columns(api: Api, kit: AdminKit) -> None:
    for name in ("b", "a", "cc", "c"):
        kit.ask(ask.DeclareQueue(vhost="/", name=name))
    kit.client().publish("c")
    assert [row["name"] for row in await api.get("queues")] == ["a", "b", "c", "cc"]
    rows = await api.get("queues?columns=name,messages&sort=messages&sort_reverse=true")
    assert rows[0] == {"name": "c", "messages": 1}
    page = await api.get("queues?page=2&page_size=3")
    assert (page["item_count"], page["page_count"], page["total_count"]) == (1, 2, 4)
    assert [row["name"] for row in page["items"]] == ["cc"]
    page = await api.get("queues?page=1&name=C")
    assert [row["name"] for row in page["items"]] == ["c", "cc"]
    page = await api.get("queues?page=1&name=^c$&use_regex=true")
    assert [row["name"] for row in page["items"]] == ["c"]
    status, body = await api.call("GET", "queues?page=9&page_size=1")
    assert (status, body["error"]) == (400, "page_out_of_range")
    status, body = await api.call("GET", "queues?page=x")
    assert (status, body["reason"]) == (400, "Pagination parameters are invalid")


async def test_a_filter_that_would_take_for_ever_is_matched_at_once_or_refused(
    api: Api, kit: AdminKit
) -> None:
    long = "a" * 200
    for name in (long, f"{long}!"):
        kit.ask(ask.DeclareQueue(vhost="/", name=name))
    page = await api.get("queues?page=1&name=(a%2B)%2B$&use_regex=true")
    assert [row["name"] for row in page["items"]] == [long]
    status, body = await api.call("GET", "queues?page=1&name=(a%2B)%2B\\1x&use_regex=true")
    assert (status, body["error"]) == (400, "bad_request")
    assert "could take for ever" in body["reason"]
    status, body = await api.call("GET", f"queues?page=1&name={'a' * 300}&use_regex=true")
    assert status == 400
    assert "too long" in body["reason"]
    assert (await api.get("queues?page=1&name=(&use_regex=true"))["items"] == []


async def test_a_policy_whose_pattern_nobody_can_match_in_time_is_refused(api: Api) -> None:
    body = {"pattern": "(a+)+\\1x", "definition": {"max-length": 1}}
    status, found = await api.call("PUT", "policies/%2f/p", body)
    assert status == 400
    assert "could take for ever" in found["reason"]
    await api.put("policies/%2f/p", {"pattern": "^(?!amq\\.).*", "definition": {"max-length": 1}})


async def test_a_list_too_long_to_hold_arrives_whole(api: Api, kit: AdminKit) -> None:
    names = [f"q{n:04}" for n in range(1_500)]
    queues = [{"name": name, "vhost": "/", "durable": True, "arguments": {}} for name in names]
    kit.ask(ask.ImportDefinitions(definitions={"queues": queues}))
    assert [row["name"] for row in await api.get("queues")] == names
    assert await api.get("consumers") == []


async def test_definitions_exported_and_imported_give_the_same_definitions(api: Api) -> None:
    await api.put("vhosts/v")
    await api.put("users/u", {"password": "u", "tags": "management"})
    await api.put("queues/v/q", {"durable": True, "arguments": {"x-max-length": 3}})
    exported = await api.get("definitions")
    assert (await api.call("DELETE", "vhosts/v"))[0] == 204
    assert (await api.call("DELETE", "users/u"))[0] == 204
    assert (await api.call("POST", "definitions", exported))[0] == 204
    again = await api.get("definitions")
    for kind in ("vhosts", "users", "permissions", "queues"):
        assert sorted(map(str, again[kind])) == sorted(map(str, exported[kind])), kind


async def test_definitions_of_one_vhost_go_into_another(api: Api) -> None:
    await api.put("vhosts/a")
    await api.put("vhosts/b")
    await api.put("queues/a/q", {"durable": True})
    exported = await api.get("definitions/a")
    assert (await api.call("POST", "definitions/b", exported))[0] == 204
    assert (await api.get("queues/b/q"))["durable"] is True
    assert (await api.call("GET", "definitions/nope"))[0] == 400


async def test_wrong_definitions_are_refused_with_the_place(api: Api) -> None:
    assert (await api.call("POST", "definitions", "zzz"))[1]["reason"] == "failed_to_parse_json"
    status, body = await api.call("POST", "definitions", {"queues": [{"name": "q", "vhost": "nope"}]})
    assert (status, body["error"]) == (400, "bad_request")


# --- health ---


async def test_health_checks_fail_with_503_while_an_alarm_is_on(api: Api, kit: AdminKit) -> None:
    assert await api.get("health/checks/local-alarms") == {"status": "ok"}
    kit.node.alarms.add("memory")
    status, body = await api.call("GET", "health/checks/local-alarms")
    assert (status, body["status"], body["alarms"][0]["resource"]) == (503, "failed", "memory")


async def test_an_alarm_of_another_node_fails_the_check_of_the_cluster_only(api: Api, kit: AdminKit) -> None:
    kit.node.news.link_change("other@host", True)
    kit.node.effects.take()
    there = msgspec.structs.replace(kit.node.news.own(), alarms=["disk"])
    kit.node.peer_frame(kit.now, "other@host", news.encode(there))
    assert await api.get("health/checks/local-alarms") == {"status": "ok"}
    status, body = await api.call("GET", "health/checks/alarms")
    assert (status, body["alarms"]) == (503, [{"node": "other@host", "resource": "disk"}])


async def test_listener_checks_know_ports_and_protocols(api: Api) -> None:
    assert await api.get("health/checks/port-listener/5672") == {"status": "ok", "port": 5672}
    status, body = await api.call("GET", "health/checks/port-listener/1")
    assert (status, body["ports"]) == (503, [5672])
    assert (await api.call("GET", "health/checks/port-listener/x"))[0] == 400
    assert (await api.get("health/checks/protocol-listener/amqp"))["status"] == "ok"
    assert (await api.call("GET", "health/checks/protocol-listener/mqtt"))[0] == 503


async def test_the_overview_counts_messages_and_objects(api: Api, kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    client.publish("q")
    found = await api.get("overview")
    depths = {name: value for name, value in found["queue_totals"].items() if isinstance(value, int)}
    assert depths == {"messages": 1, "messages_ready": 1, "messages_unacknowledged": 0}
    assert (found["object_totals"]["queues"], found["object_totals"]["connections"]) == (1, 1)
    assert (found["rabbitmq_version"], found["node"]) == ("3.10.8", "mirrormq@test")


# --- what the command line calls ---


async def test_ctl_commands_tell_kinds_of_refusal_apart(api: Api) -> None:
    assert await api.ctl("delete_user", name="nope") == (
        400,
        {"error": "no_such_user", "reason": 'User "nope" does not exist'},
    )
    assert (await api.ctl("list_queues", vhost="nope"))[1]["error"] == "no_such_vhost"
    assert (await api.ctl("add_user"))[1]["error"] == "bad_request"
    assert (await api.ctl("add_user", name="u", surprise=1))[1]["error"] == "bad_request"
    assert (await api.ctl("bogus"))[1]["error"] == "unknown_command"


async def test_ctl_commands_need_an_administrator(api: Api, kit: AdminKit) -> None:
    add_user(kit, "watcher", "monitoring")
    assert (await api.call("POST", "ctl/list_queues", {}, user="watcher"))[0] == 401


async def test_every_list_command_answers(api: Api, kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    client.consume("q")
    kit.ask(ask.SetVHostLimits(vhost="/", limits={"max-queues": 5}))
    kit.ask(ask.SetUserLimits(user="guest", limits={"max-channels": 5}))
    for name in (
        "vhosts",
        "users",
        "permissions",
        "vhost_limits",
        "user_limits",
        "queues",
        "exchanges",
        "bindings",
    ):
        status, rows = await api.ctl(f"list_{name}")
        assert status == 200, name
        assert rows, name
    for name in ("connections", "channels", "consumers", "parameters", "global_parameters"):
        assert len((await api.ctl(f"list_{name}"))[1]) == 1, name
    for name in ("user_permissions", "user_topic_permissions"):
        assert (await api.ctl(f"list_{name}", user="guest"))[0] == 200, name
    assert (await api.ctl("list_policies", operator=True)) == (200, [])
    assert (await api.ctl("environment"))[1]["default_pass"] == "[hidden]"
    assert (await api.ctl("status"))[1]["pid"] == 4711


# --- while the application is stopped ---


async def test_a_stopped_application_answers_503_and_ctl_as_far_as_it_can(kit: AdminKit) -> None:
    process = KitProcess(kit)
    async with serving(kit, process) as api:
        process.state = "stopped"
        for path in ("overview", "queues", "whoami", "health/checks/alarms"):
            status, answer = await api.call("GET", path)
            assert (status, answer["error"]) == (503, "app_stopped"), path
        assert (await api.ctl("ping"))[1] == {"node": process.name}
        status, found = await api.ctl("status")
        assert (status, found["app"], found["pid"]) == (200, "stopped", 4711)
        assert "totals" not in found
        assert (await api.ctl("environment"))[0] == 200
        for command in ("list_queues", "add_vhost", "cluster_status", "backup", "export_definitions"):
            status, answer = await api.ctl(command, name="v")
            assert (status, answer["error"]) == (503, "app_stopped"), command
        status, answer = await api.ctl("nonsense")
        assert status == 404


async def test_commands_about_the_process_are_its_own(kit: AdminKit) -> None:
    process = KitProcess(kit)
    async with serving(kit, process) as api:
        assert (await api.ctl("stop_app"))[0] == 200
        process.state = "stopped"
        assert (await api.ctl("join_cluster", node="a@b"))[0] == 200
        assert (await api.ctl("stop", reason="enough"))[0] == 200
    assert process.commands == [
        ("stop_app", {}),
        ("join_cluster", {"node": "a@b"}),
        ("stop", {"reason": "enough"}),
    ]
    assert kit.stop_reasons == []


async def test_only_administrators_command_the_process(kit: AdminKit) -> None:
    process = KitProcess(kit)
    async with serving(kit, process) as api:
        assert (await api.call("POST", "ctl/stop_app", {}, user=None))[0] == 401
        kit.ask(ask.AddUser(name="mo", password="mo", tags=("monitoring",)))
        assert (await api.call("POST", "ctl/stop_app", {}, user="mo"))[0] == 401
    assert process.commands == []


async def test_what_is_no_ascii_where_base64_is_wanted_is_refused(api: Api) -> None:
    status, found = await api.put("users/u", {"tags": "", "password_hash": "ä"})
    assert (status, found["reason"]) == (400, "password_hash is not valid base64")
    headers = {"Authorization": "Basic ä"}
    assert (await api.call("GET", "whoami", user=None, headers=headers))[0] == 401
