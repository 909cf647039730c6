"""Commands: what they ask of the node, what they print, how they exit. Texts and codes are rabbitmqctl's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mirrormq.client.admin import Unreachable
from mirrormq.ctl.commands.absent import SENTENCES
from mirrormq.ctl.registry import COMMANDS
from tests.unit.ctl.fakes import Terminal, refused

STATUS: dict[str, Any] = {
    "node": "mirrormq@here",
    "cluster_name": "c",
    "pid": 7,
    "os": "Linux",
    "uptime_seconds": 3,
    "mirrormq_version": "0.1.0",
    "rabbitmq_version": "3.10.8",
    "python_version": "3.11.7",
    "data_directory": "/data",
    "config_files": [],
    "log_files": ["<stderr>"],
    "alarms": [],
    "cluster_alarms": {},
    "memory": {"used": 50_000_000, "limit": 1_000_000_000},
    "disk": {"free": 2_000_000_000, "limit": 50_000_000},
    "file_descriptors": {"used": 5, "limit": 100},
    "totals": {"connections": 1, "queues": 2, "vhosts": 3},
    "listeners": [
        {
            "node": "mirrormq@here",
            "protocol": "amqp",
            "interface": "[::]",
            "port": 5672,
            "purpose": "AMQP 0-9-1",
        }
    ],
}
CLUSTER_STATUS: dict[str, Any] = {
    "node": "mirrormq@here",
    "cluster_name": "c",
    "cluster_id": "0a0b",
    "members": [
        {"name": "mirrormq@here", "role": "voter", "running": True, "leader": True, "address": "here:25672"},
        {"name": "w@there", "role": "witness", "running": False, "leader": False, "address": ""},
    ],
    "leader": "mirrormq@here",
    "disk_nodes": ["mirrormq@here", "w@there"],
    "ram_nodes": [],
    "running_nodes": ["mirrormq@here"],
    "versions": {"mirrormq@here": {"mirrormq_version": "0.1.0"}},
    "alarms": [],
    "partitions": {},
    "paused": False,
    "listeners": {"mirrormq@here": STATUS["listeners"]},
    "feature_level": 1,
    "feature_flags": [{"name": "quorum_queue", "state": "enabled"}],
    "failures_tolerated": 0,
    "tolerance": "tolerates 0 failures; add a witness",
}


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


CHANGES = [
    (
        "add_vhost v --description d --tags a,b",
        "add_vhost",
        {"name": "v", "description": "d", "tags": ["a", "b"]},
    ),
    ("add_vhost v --mirror-of west", "add_vhost", {"name": "v", "mirror_of": "west"}),
    ("promote_mirror v", "promote_mirror", {"name": "v"}),
    ("delete_vhost v", "delete_vhost", {"name": "v"}),
    ("add_user u p", "add_user", {"name": "u", "password": "p"}),
    ("delete_user u", "delete_user", {"name": "u"}),
    ("change_password u p", "change_password", {"name": "u", "password": "p"}),
    ("clear_password u", "clear_password", {"name": "u"}),
    ("set_user_tags u a b", "set_user_tags", {"name": "u", "tags": ["a", "b"]}),
    ("set_user_tags u", "set_user_tags", {"name": "u", "tags": []}),
    (
        "-p v set_permissions u c w r",
        "set_permissions",
        {"vhost": "v", "user": "u", "configure": "c", "write": "w", "read": "r"},
    ),
    ("clear_permissions -p v u", "clear_permissions", {"vhost": "v", "user": "u"}),
    (
        "set_topic_permissions u x w r",
        "set_topic_permissions",
        {"vhost": "/", "user": "u", "exchange": "x", "write": "w", "read": "r"},
    ),
    ("clear_topic_permissions u", "clear_topic_permissions", {"vhost": "/", "user": "u", "exchange": None}),
    ('set_vhost_limits {"max-queues":1}', "set_vhost_limits", {"vhost": "/", "limits": {"max-queues": 1}}),
    ("clear_vhost_limits -p v", "clear_vhost_limits", {"vhost": "v"}),
    ('set_user_limits u {"max-channels":1}', "set_user_limits", {"user": "u", "limits": {"max-channels": 1}}),
    ("clear_user_limits u all", "clear_user_limits", {"user": "u", "limit": "all"}),
    ("stop_app", "stop_app", {}),
    ("start_app", "start_app", {}),
    ("reset", "reset", {"force": False}),
    ("reset --force", "reset", {"force": True}),
    ("force_reset", "force_reset", {}),
    ("leave_cluster --force", "leave_cluster", {"force": True}),
    ("enable_feature_flag all", "enable_feature_flag", {"name": "all"}),
    ("set_feature_level 2", "set_feature_level", {"level": 2}),
    ("clear_policy p", "clear_policy", {"vhost": "/", "name": "p"}),
    ("clear_operator_policy p", "clear_policy", {"vhost": "/", "name": "p", "operator": True}),
    ("set_global_parameter g 1", "set_global_parameter", {"name": "g", "value": 1}),
    ("set_cluster_name c", "set_global_parameter", {"name": "cluster_name", "value": "c"}),
    ("close_connection <pid> why", "close_connection", {"connection": "<pid>", "reason": "why"}),
]


@pytest.mark.parametrize(("line", "command", "arguments"), CHANGES, ids=[line for line, _, _ in CHANGES])
def test_a_change_is_asked_of_the_node_with_its_arguments(
    ctl: Terminal, line: str, command: str, arguments: dict[str, Any]
) -> None:
    result = ctl.run(*line.split())
    assert result.code == 0, result.err
    assert [asked for asked in ctl.node.asked if asked[0] != "ping"] == [(command, arguments)]
    assert "..." in result.out


def test_a_policy_is_sent_with_everything_that_was_given(ctl: Terminal) -> None:
    words = [
        "set_policy",
        "--priority",
        "3",
        "--apply-to",
        "queues",
        "p",
        "^x",
        '{"max-length":5}',
        "-p",
        "v",
    ]
    result = ctl.run(*words)
    expected = (
        'Setting policy "p" for pattern "^x" to "{"max-length":5}" with priority "3" for vhost "v" ...\n'
    )
    assert result.out == expected
    assert ctl.node.asked[0][1] == {
        "vhost": "v",
        "name": "p",
        "pattern": "^x",
        "definition": {"max-length": 5},
        "priority": 3,
        "apply_to": "queues",
        "operator": False,
    }


def test_quiet_prints_nothing_but_the_result(ctl: Terminal) -> None:
    assert ctl.run("-q", "delete_user", "u").out == ""
    ctl.node.answers["list_users"] = [{"user": "u", "tags": []}]
    assert ctl.run("-q", "list_users").out == "user\ttags\nu\t[]\n"
    assert ctl.run("-s", "list_users").out == "u\t[]\n"
    assert ctl.run("list_users", "--no-table-headers").out == "Listing users ...\nu\t[]\n"


def test_json_answers_every_change_with_its_result(ctl: Terminal) -> None:
    result = ctl.run("--json", "add_vhost", "v")
    assert json.loads(result.out) == {"result": "ok", "node": "mirrormq@here"}


def test_a_password_left_out_is_read_from_stdin(ctl: Terminal) -> None:
    ctl.stdin = "secret\n"
    assert ctl.run("add_user", "u").code == 0
    assert ctl.node.asked == [("add_user", {"name": "u", "password": "secret"})]
    ctl.stdin = ""
    assert ctl.run("add_user", "u").code == 65


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("no_such_user", 67),
        ("no_such_vhost", 65),
        ("user_exists", 70),
        ("bad_request", 65),
        ("not_authorised", 77),
        ("not_found", 69),
        ("app_stopped", 64),
        ("cannot_start", 69),
    ],
)
def test_refusals_of_the_node_have_their_exit_codes(ctl: Terminal, kind: str, code: int) -> None:
    ctl.node.answers["delete_user"] = refused(kind, "because")
    result = ctl.run("delete_user", "u")
    assert (result.code, result.err) == (code, "Error:\nbecause\n")
    assert json.loads(ctl.run("--json", "delete_user", "u").err) == {"result": "error", "message": "because"}


def test_a_wrong_password_exits_with_65_and_rabbitmqctls_words(ctl: Terminal) -> None:
    ctl.node.answers["authenticate_user"] = refused("authentication_failed", "user 'u' - invalid credentials")
    result = ctl.run("authenticate_user", "u", "p")
    assert result.code == 65
    assert result.err == "Error:\nError: failed to authenticate user \"u\"\nuser 'u' - invalid credentials\n"


def test_deleting_a_missing_queue_exits_with_64_as_rabbitmqctl_does(ctl: Terminal) -> None:
    ctl.node.answers["delete_queue"] = refused("no_such_queue", "no queue 'q' in vhost '/'")
    result = ctl.run("delete_queue", "q", "--if-empty")
    assert (result.code, result.err) == (64, "Error:\nQueue not found\n")
    assert result.out == "Deleting queue 'q' on vhost '/' if queue is empty ...\n"
    ctl.node.answers["delete_queue"] = {"messages": 2}
    assert ctl.run("-q", "delete_queue", "q").out == "Queue was successfully deleted with 2 ready messages\n"


# --- misuse ---


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("set_permissions", "not enough arguments."),
        ("add_vhost a b", "too many arguments."),
        ("list_queues --bogus", "Invalid options for this command:\n--bogus"),
        ("list_queues bogus", "Info key(s) bogus are not supported"),
        ("set_policy --priority x a b c", "Invalid value for '--priority'"),
        ("export_definitions --format erlang f", "only json"),
    ],
)
def test_misuse_exits_with_64_and_shows_the_usage(ctl: Terminal, line: str, text: str) -> None:
    result = ctl.run(*line.split())
    assert result.code == 64
    assert f"Error (argument validation): {text}" in result.err or text in result.err
    assert "Usage" in result.err
    assert ctl.node.asked == []


def test_an_unknown_command_suggests_the_nearest_one(ctl: Terminal) -> None:
    result = ctl.run("list_queue")
    assert result.code == 64
    assert "Command 'list_queue' not found.\nDid you mean 'list_queues'?" in result.err


@pytest.mark.parametrize("name", sorted(SENTENCES))
def test_commands_that_cannot_exist_here_say_so_in_a_sentence(ctl: Terminal, name: str) -> None:
    result = ctl.run(name, "some", "words")
    assert result.code == 64
    assert result.err == f"Error:\n{name}: {SENTENCES[name]}\n"


def test_help_is_the_same_however_it_is_asked_for(ctl: Terminal) -> None:
    overview = ctl.run("help").out
    for name, entry in COMMANDS.items():
        assert entry.is_hidden or f"   {name} " in overview, name
    assert ctl.run("--help").out == ctl.run().out == overview
    assert ctl.run("set_policy", "--help").out == ctl.run("help", "set_policy").out
    assert ctl.run("help", "nope").code == 64


# --- the node and its health ---


def test_status_has_rabbitmqctls_sections(ctl: Terminal) -> None:
    ctl.node.answers["status"] = STATUS
    text = ctl.run("status").out
    for line in ("Runtime", "OS PID: 7", "Alarms\n\n(none)", "Queue count: 2", "port: 5672, protocol: amqp"):
        assert line in text
    assert json.loads(ctl.run("status", "--json").out) == STATUS


def test_status_of_a_stopped_application_leaves_out_what_nobody_knows(ctl: Terminal) -> None:
    known = {key: STATUS[key] for key in STATUS if key not in ("memory", "disk", "totals", "alarms")}
    ctl.node.answers["status"] = {**known, "app": "stopped", "app_detail": "Port 1 is used"}
    text = ctl.run("status").out
    assert "Application: stopped\nIt says: Port 1 is used\n" in text
    assert "Alarms" not in text
    assert ctl.run("check_local_alarms").code == 64
    assert ctl.run("check_running").code == 69


def test_cluster_status_has_rabbitmqctls_sections_and_the_members(ctl: Terminal) -> None:
    ctl.node.answers["cluster_status"] = CLUSTER_STATUS
    text = ctl.run("cluster_status").out
    for line in (
        "Cluster id: 0a0b",
        "The cluster tolerates 0 failures; add a witness",
        "Running Nodes\n\nmirrormq@here\n",
        "mirrormq@here: voter, running, leader, at here:25672",
        "w@there: witness, not running",
        "Network Partitions\n\n(none)",
        "Node: mirrormq@here, interface: [::], port: 5672",
        "Flag: quorum_queue, state: enabled",
    ):
        assert line in text
    assert json.loads(ctl.run("cluster_status", "--json").out) == CLUSTER_STATUS
    alarms = [{"type": "resource_limit", "resource": "disk", "node": "w@there"}]
    paused = {"paused": True, "partitions": {"mirrormq@here": ["w@there"]}, "alarms": alarms}
    ctl.node.answers["cluster_status"] = {**CLUSTER_STATUS, **paused}
    text = ctl.run("cluster_status").out
    for line in ("is paused", "mirrormq@here does not hear w@there", "disk alarm on node w@there"):
        assert line in text
    assert ctl.run("check_alarms").code == 69


def test_roles_and_members_are_named_as_rabbitmqctl_names_them(ctl: Terminal) -> None:
    ctl.node.answers["join_cluster"] = {"node": "a@b", "address": "b:25672"}
    asked = [
        ("forget_cluster_node a@b", ("forget_cluster_node", {"node": "a@b"})),
        ("change_cluster_node_type witness", ("change_cluster_node_type", {"role": "witness"})),
        ("change_cluster_node_type ram", ("change_cluster_node_type", {"role": "voter"})),
        ("join_cluster a@b --disc", ("join_cluster", {"node": "a@b", "address": None})),
        ("join_cluster --ram --address b:1 a@b", ("join_cluster", {"node": "a@b", "address": "b:1"})),
    ]
    for line, request in asked:
        result = ctl.run(*line.split())
        assert result.code == 0, result.err
        assert ctl.node.asked[-1] == request
        assert ("every MirrorMQ node keeps its data on disk" in result.out) == ("ram" in line)
    assert ctl.run("join_cluster", "--disc", "--ram", "a@b").code == 64
    assert ctl.run("forget_cluster_node", "--offline", "a@b").code == 64


def test_a_start_that_takes_long_is_told_with_what_it_waits_for(ctl: Terminal) -> None:
    ctl.node.answers["start_app"] = Unreachable("http://fake:1 does not answer: timed out")
    ctl.node.answers["status"] = {**STATUS, "app": "starting", "app_detail": "waits for b@c"}
    result = ctl.run("start_app", "--timeout", "3")
    assert result.code == 69
    assert "application of node mirrormq@here is starting (waits for b@c) after 3 s" in result.err


def test_health_checks_exit_with_69_when_something_is_wrong(ctl: Terminal) -> None:
    ctl.node.answers["status"] = STATUS
    ctl.node.answers["cluster_status"] = CLUSTER_STATUS
    for line in ("check_running", "check_local_alarms", "check_alarms", "check_port_listener 5672"):
        assert ctl.run(*line.split()).code == 0, line
    assert ctl.run("check_protocol_listener", "amqp").code == 0
    ctl.node.answers["status"] = {
        **STATUS,
        "alarms": ["disk"],
        "cluster_alarms": {"mirrormq@there": ["disk"]},
        "listeners": [],
    }
    for line in (
        "check_local_alarms",
        "check_port_listener 5672",
        "check_protocol_listener amqp",
    ):
        assert ctl.run(*line.split()).code == 69, line
    ctl.node.answers["list_vhosts"] = [{"name": "/", "cluster_state": {"mirrormq@here": "down"}}]
    assert ctl.run("check_virtual_hosts").code == 69


def test_settings_are_shown_as_lines_of_a_configuration_file(ctl: Terminal) -> None:
    ctl.node.answers["environment"] = {"heartbeat": 60, "proxy_protocol": False, "listeners.tcp": ["5672"]}
    text = ctl.run("-q", "environment").out
    assert text == "heartbeat = 60\nlisteners.tcp = 5672\nproxy_protocol = false\n"


# --- definitions ---


def test_definitions_go_to_and_come_from_a_file(ctl: Terminal, tmp_path: Path) -> None:
    ctl.node.answers["export_definitions"] = {"vhosts": [{"name": "v"}]}
    file = tmp_path / "d.json"
    assert ctl.run("export_definitions", str(file)).code == 0
    assert ctl.run("import_definitions", str(file)).code == 0
    assert ctl.node.asked[-1] == ("import_definitions", {"definitions": {"vhosts": [{"name": "v"}]}})
    ctl.stdin = '{"users": []}'
    assert ctl.run("import_definitions").code == 0
    assert ctl.node.asked[-1] == ("import_definitions", {"definitions": {"users": []}})
    assert json.loads(ctl.run("export_definitions", "-").out) == {"vhosts": [{"name": "v"}]}


def test_files_that_cannot_be_used_exit_with_65(ctl: Terminal, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("nonsense")
    for line in (
        f"import_definitions {tmp_path}/missing.json",
        f"import_definitions {tmp_path}/bad.json",
        f"export_definitions {tmp_path}/missing/d.json",
    ):
        assert ctl.run(*line.split()).code == 65, line
    assert ctl.node.asked == []


def test_a_node_that_cannot_be_found_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from mirrormq.ctl.main import main

    assert main(["--data", str(tmp_path), "list_queues"]) == 69
    assert capsys.readouterr().err.startswith(f"Error:\nno node runs below {tmp_path}; start one with")
    assert main(["--url", "http://127.0.0.1:1", "--password-file", "/nope", "list_queues"]) == 66
    assert main(["--url", "ftp://x", "--password-file", "/dev/null", "list_queues"]) == 64
    assert main(["--url", "http://127.0.0.1:1", "--password-file", "/dev/null", "ping"]) == 69
