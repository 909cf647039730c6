"""Each command of `mirrormqctl` against a real node: as table, as JSON, what it refuses and its exit code."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from mirrormq.__main__ import main_ctl
from mirrormq.ctl.commands.absent import SENTENCES
from mirrormq.ctl.main import main
from mirrormq.ctl.options import Options
from mirrormq.ctl.registry import COMMANDS
from mirrormq.ctl.session import Session
from mirrormq.testing import Broker, running
from tests.interop.certificates import Authority

ELSEWHERE = {
    # Commands that stop, start or change a whole node or cluster have tests of their own.
    *("stop", "shutdown", "stop_app", "start_app", "reset", "force_reset", "force_boot"),
    *("join_cluster", "leave_cluster", "forget_cluster_node", "change_cluster_node_type"),
    *("sync_queue", "cancel_sync_queue", "move_master", "force_promote", "quorum_status"),
    *("list_cursors", "drop_cursor", "inspect_log", "verify_log", "promote_mirror"),
    *("consume_event_stream", "log_tail_stream", "wait", "help", "backup", "haproxy_config"),
    *("drain", "revive", "rebalance", "rebalance_status", "cancel_rebalance", "check_ready_to_serve_clients"),
    *("set_feature_level", "add_queue", "repair_queue"),
}


@dataclass(frozen=True)
class Case:
    """A command: a good line with what it shows, and a bad one with its code and reason."""

    line: str
    """`{n}` is another word each time it is run, and `{port}` the port of AMQP."""
    shows: str
    """Pattern of the lines."""
    bad: str
    code: int
    says: str
    """Pattern of the reason."""
    has: str = '"result": "ok"'
    """Part of the JSON."""

    @property
    def name(self) -> str:
        return self.line.split()[0]


NO_VHOST = "Virtual host 'nowhere' does not exist"
CASES = [
    # --- virtual hosts ---
    Case("add_vhost new{n}", r'Adding vhost "new', "add_vhost", 64, "not enough arguments"),
    Case("delete_vhost old{n}", r'Deleting vhost "old', "delete_vhost nowhere", 65, "does not exist"),
    Case("list_vhosts name tags", r"shop\t\[a\]", "list_vhosts size", 64, "size", has='"name": "shop"'),
    Case("set_vhost_tags tagged b c", r"\[b, c\]", "set_vhost_tags nowhere b", 65, NO_VHOST),
    Case(
        'set_vhost_limits -p shop {{"max-queues":9}}',
        "Setting vhost limits",
        "set_vhost_limits {{",
        65,
        "JSON",
    ),
    Case(
        "list_vhost_limits -p limited",
        r"\{\"max-queues\":5\}",
        "list_vhost_limits -p nowhere",
        65,
        NO_VHOST,
        has="5",
    ),
    Case("clear_vhost_limits -p tagged", "Clearing vhost", "clear_vhost_limits -p nowhere", 65, NO_VHOST),
    # --- users ---
    Case("add_user new{n} pw", 'Adding user "new', "add_user ann pw", 70, "already exists"),
    Case("delete_user old{n}", 'Deleting user "old', "delete_user nobody", 67, "does not exist"),
    Case("change_password ann pw", "Changing password", "change_password nobody pw", 67, "does not exist"),
    Case("clear_password bob", "Clearing password", "clear_password nobody", 67, "does not exist"),
    Case("authenticate_user ann pw", "Success", "authenticate_user ann wrong", 65, "failed|invalid"),
    Case("set_user_tags bob monitoring", "Setting tags", "set_user_tags nobody a", 67, "does not exist"),
    Case("list_users", r"ann\t\[\]", "list_users x", 64, "too many", has='"user": "ann"'),
    Case(
        'set_user_limits bob {{"max-channels":3}}', "Setting user limits", "set_user_limits bob x", 65, "JSON"
    ),
    Case(
        "list_user_limits --user eve",
        r"\{\"max-channels\":7\}",
        "list_user_limits --user nobody",
        67,
        "exist",
        has="7",
    ),
    Case("clear_user_limits bob all", "Clearing", "clear_user_limits nobody all", 67, "does not exist"),
    # --- permissions ---
    Case(
        "set_permissions -p shop bob .* .* .*",
        "Setting permissions",
        "set_permissions bob ( . .",
        65,
        "regex|pattern",
    ),
    Case(
        "list_permissions -p shop",
        r"ann\t\.\*",
        "list_permissions -p nowhere",
        65,
        NO_VHOST,
        has='"user": "ann"',
    ),
    Case(
        "list_user_permissions ann",
        r"shop\t\.\*",
        "list_user_permissions nobody",
        67,
        "exist",
        has='"vhost": "shop"',
    ),
    Case(
        "clear_permissions -p shop bob",
        "Clearing permissions",
        "clear_permissions nobody",
        67,
        "does not exist",
    ),
    Case(
        "set_topic_permissions -p shop bob amq.topic a b",
        "Setting topic",
        "set_topic_permissions nobody x a b",
        67,
        "exist",
    ),
    Case(
        "list_topic_permissions -p shop",
        "ann\tamq.topic",
        "list_topic_permissions -p nowhere",
        65,
        NO_VHOST,
        has="amq.topic",
    ),
    Case(
        "list_user_topic_permissions ann",
        "shop\tamq.topic",
        "list_user_topic_permissions nobody",
        67,
        "exist",
        has="amq.topic",
    ),
    Case(
        "clear_topic_permissions -p shop bob",
        "Clearing topic",
        "clear_topic_permissions nobody",
        67,
        "does not exist",
    ),
    # --- policies and parameters ---
    Case('set_policy -p shop p{n} ^p {{"max-length":5}}', "Setting policy", "set_policy p ^p {{", 65, "JSON"),
    Case(
        "list_policies -p shop", "shop\tkept", "list_policies -p nowhere", 65, NO_VHOST, has='"name": "kept"'
    ),
    Case(
        "clear_policy -p shop gone{n}",
        "Clearing policy",
        "clear_policy never",
        69,
        "[Nn]ot found|does not exist",
    ),
    Case(
        'set_operator_policy o{n} ^p {{"max-length":5}}',
        "Setting operator",
        'set_operator_policy p ^p {{"x":1}}',
        65,
        "x",
    ),
    Case(
        "list_operator_policies -p shop",
        "shop\tbound",
        "list_operator_policies -p nowhere",
        65,
        NO_VHOST,
        has='"name": "bound"',
    ),
    Case(
        "clear_operator_policy -p shop ogone{n}",
        "Clearing operator",
        "clear_operator_policy never",
        69,
        "found|exist",
    ),
    Case("set_global_parameter g{n} 1", "Setting global", "set_global_parameter g {{", 65, "JSON"),
    Case(
        "list_global_parameters", "kept\t", "list_global_parameters x", 64, "too many", has='"name": "kept"'
    ),
    Case(
        "clear_global_parameter gone{n}", "Clearing global", "clear_global_parameter never", 69, "found|exist"
    ),
    Case(
        'set_parameter -p shop vhost-limits limits {{"max-queues":9}}',
        "Setting runtime",
        "set_parameter x y {{",
        65,
        "JSON",
    ),
    Case(
        "list_parameters -p limited",
        "vhost-limits\tlimits",
        "list_parameters -p nowhere",
        65,
        NO_VHOST,
        has="vhost-limits",
    ),
    Case(
        "clear_parameter -p cleared{n} vhost-limits limits",
        "Clearing runtime",
        "clear_parameter x y",
        69,
        "found|exist|no",
    ),
    Case("set_cluster_name us", "Setting cluster name", "set_cluster_name", 64, "not enough"),
    # --- lists ---
    Case(
        "list_queues -p shop name messages",
        "orders\t2",
        "list_queues -p nowhere",
        65,
        NO_VHOST,
        has='"messages": 2',
    ),
    Case(
        "list_exchanges -p shop",
        "amq.topic\ttopic",
        "list_exchanges -p nowhere",
        65,
        NO_VHOST,
        has='"type": "topic"',
    ),
    Case(
        "list_bindings -p shop",
        "amq.topic\texchange\torders",
        "list_bindings -p nowhere",
        65,
        NO_VHOST,
        has='"routing_key": "k"',
    ),
    Case(
        "list_connections user vhost",
        "guest\tshop",
        "list_connections colour",
        64,
        "colour",
        has='"vhost": "shop"',
    ),
    Case(
        "list_channels user vhost", "guest\tshop", "list_channels colour", 64, "colour", has='"vhost": "shop"'
    ),
    Case(
        "list_consumers -p shop",
        "idle\t",
        "list_consumers -p nowhere",
        65,
        NO_VHOST,
        has='"queue_name": "idle"',
    ),
    Case(
        "list_unresponsive_queues -p shop",
        "Listing unresponsive",
        "list_unresponsive_queues -p nowhere",
        65,
        NO_VHOST,
        has="[]",
    ),
    Case(
        "list_feature_flags",
        "quorum_queue\tenabled",
        "list_feature_flags colour",
        64,
        "colour",
        has='"state": "enabled"',
    ),
    Case("enable_feature_flag all", "Enabling all", "enable_feature_flag no_such_flag", 64, "not supported"),
    # --- the node ---
    Case("status", "Node name: ", "status x", 64, "too many", has='"alarms": []'),
    Case("cluster_status", "Disk Nodes", "cluster_status x", 64, "too many", has='"running_nodes"'),
    Case("environment", "heartbeat = 60", "environment x", 64, "too many", has='"heartbeat": 60'),
    Case("ping", "Ping succeeded", "ping x", 64, "too many"),
    Case("version", r"^\d+\.\d+", "version x", 64, "too many", has='"version"'),
    Case("server_version", r"\d+\.\d+", "server_version x", 64, "too many"),
    Case("await_startup", "", "await_startup x", 64, "too many"),
    Case("await_online_nodes 1", "Will wait", "await_online_nodes 9 -t 0.1", 70, "Not enough nodes"),
    Case("report", "Queues of virtual host shop", "report x", 64, "too many", has='"list_users"'),
    Case("autocomplete list_q", "list_queues", "autocomplete a b", 64, "too many", has='"list_queues"'),
    Case("listeners", "port: {port}, protocol: amqp", "listeners x", 64, "too many", has='"port": {port}'),
    Case("alarms", "reported no alarms", "alarms x", 64, "too many", has='"local": []'),
    Case("is_running", "fully booted", "is_running x", 64, "too many", has='"running": true'),
    Case("is_booting", "not booting", "is_booting x", 64, "too many", has='"booting": false'),
    Case("log_location", "node.log", "log_location x", 64, "too many", has="node.log"),
    Case(
        "log_tail -N 1",
        "memory alarm|accepting|info",
        "log_tail -N 0",
        64,
        "--number",
        has='"lines"',
    ),
    Case(
        "memory_breakdown --unit mb",
        r"other: [\d.]+ mb \([\d.]+%\)",
        "memory_breakdown --unit ell",
        64,
        "ell",
        has='"total"',
    ),
    Case(
        "command_line_arguments",
        "mirrormq.testing",
        "command_line_arguments x",
        64,
        "too many",
        has="mirrormq.testing",
    ),
    Case("os_env", r"RABBITMQ_TEST_PASSWORD=\[hidden\]", "os_env x", 64, "too many", has='"[hidden]"'),
    Case(
        "list_network_interfaces",
        "lo\t.*127.0.0.1",
        "list_network_interfaces x",
        64,
        "too many",
        has='"127.0.0.1"',
    ),
    Case(
        "resolve_hostname localhost",
        r"127\.0\.0\.1|::1",
        "resolve_hostname no.such.host.invalid",
        69,
        "no address",
    ),
    Case("discover_peers", "No peers", "discover_peers x", 64, "too many", has='"nodes": []'),
    Case("tls_versions", "tlsv1.3\ntlsv1.2", "tls_versions x", 64, "too many", has='"tlsv1.3"'),
    Case(
        "cipher_suites",
        "TLS_AES_256_GCM_SHA384",
        "cipher_suites --format erlang",
        64,
        "OpenSSL",
        has='"openssl"',
    ),
    Case(
        "certificates",
        "CN=localhost\tCN=interop test authority",
        "certificates x",
        64,
        "too many",
        has="CN=localhost",
    ),
    Case(
        "check_certificate_expiration --within 0",
        "No certificate",
        "check_certificate_expiration",
        69,
        "valid until",
    ),
    Case("check_running", "fully booted and running", "check_running x", 64, "too many"),
    Case("check_alarms", "no alarms", "check_alarms x", 64, "too many"),
    Case("check_local_alarms", "no local alarms", "check_local_alarms x", 64, "too many"),
    Case("check_virtual_hosts", "all vhosts as running", "check_virtual_hosts x", 64, "too many"),
    Case("check_port_connectivity", "Successfully connected", "check_port_connectivity x", 64, "too many"),
    Case("check_port_listener {port}", "is running", "check_port_listener 1", 69, "No listener for port 1"),
    Case(
        "check_protocol_listener amqp",
        "is running",
        "check_protocol_listener mqtt",
        69,
        "No listener for protocol",
    ),
    Case(
        "check_if_node_is_mirror_sync_critical",
        "alone",
        "check_if_node_is_mirror_sync_critical x",
        64,
        "too many",
    ),
    Case("check_if_node_is_quorum_critical", "alone", "check_if_node_is_quorum_critical x", 64, "too many"),
    Case("await_online_quorum_plus_one", "can stop", "await_online_quorum_plus_one x", 64, "too many"),
    Case(
        "await_online_synchronized_mirror", "can stop", "await_online_synchronized_mirror x", 64, "too many"
    ),
    Case("node_health_check", "passed", "node_health_check x", 64, "too many"),
    Case("rotate_logs", "Reopening the log", "rotate_logs x", 64, "too many"),
    Case("suspend_listeners", "Will suspend", "suspend_listeners x", 64, "too many"),
    Case("resume_listeners", "Will resume", "resume_listeners x", 64, "too many"),
    Case("set_log_level info", "Setting log level", "set_log_level loud", 64, "loud"),
    Case(
        "set_vm_memory_high_watermark 0.7", "above", "set_vm_memory_high_watermark 7", 64, "between 0 and 1"
    ),
    Case(
        "set_disk_free_limit 1MB",
        "below 1000000 bytes",
        "set_disk_free_limit much",
        65,
        "much",
        has="1000000",
    ),
    # --- acting ---
    Case("purge_queue -p shop purged", "Purging queue", "purge_queue never", 69, "never"),
    Case("delete_queue -p shop gone{n}", "deleted with 0", "delete_queue never", 64, "not found"),
    Case("close_connection {pid} bye", "Closing connection", "close_connection never bye", 69, "never|[Nn]o"),
    Case("close_all_connections -p tagged bye", "Closed 0", "close_all_connections", 64, "not enough"),
    Case(
        "close_all_user_connections eve bye", "Closed 0", "close_all_user_connections eve", 64, "not enough"
    ),
    Case(
        "export_definitions -",
        '"vhosts"',
        "export_definitions /no/such/folder/x",
        65,
        "does not exist",
        has='"vhosts"',
    ),
    Case(
        "import_definitions {file}", "Successfully", "import_definitions /no/such/file", 65, "does not exist"
    ),
]
IDS = [case.name for case in CASES]


def test_every_command_has_a_case_or_a_test_of_its_own() -> None:
    assert set(COMMANDS) == {*IDS, *SENTENCES, *(ELSEWHERE & set(COMMANDS))}
    assert len(set(IDS)) == len(IDS)


@dataclass
class Result:
    """What a run left behind."""

    code: int
    out: str
    err: str


@dataclass
class Ctl:
    """Runs lines against the node."""

    broker: Broker
    words: dict[str, Any]
    capsys: pytest.CaptureFixture[str]

    def run(self, line: str, *more: str, n: str = "") -> Result:
        given = [word.format(n=n, port=self.broker.port, **self.words) for word in line.split()]
        code = main_ctl(["--data", str(self.broker.process.folder), *given, *more])
        shown = self.capsys.readouterr()
        return Result(code, shown.out, shown.err)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("ctl")
    authority = Authority(folder)
    pair = authority.issue("localhost", server=True)
    config = [
        "log.file = node.log",
        f"log.dir = {folder}",
        "listeners.ssl.1 = 127.0.0.1:0",
        f"ssl_options.certfile = {pair.certificate}",
        f"ssl_options.keyfile = {pair.key}",
        f"ssl_options.cacertfile = {authority.certificate}",
    ]
    definitions = folder / "definitions.json"
    definitions.write_text(json.dumps({"vhosts": [{"name": "imported"}]}))
    os.environ["RABBITMQ_TEST_PASSWORD"] = "secret"
    try:
        with running(config, admin=True) as broker:
            del os.environ["RABBITMQ_TEST_PASSWORD"]
            with prepared(broker) as pid:
                yield broker, {"file": str(definitions), "pid": pid}
    finally:
        os.environ.pop("RABBITMQ_TEST_PASSWORD", None)


@contextlib.contextmanager
def prepared(broker: Broker) -> Iterator[str]:
    """What the cases are about."""
    ask = broker.ask
    for name in ("shop", "limited", "tagged", "oldt", "oldj", "clearedt", "clearedj"):
        ask("add_vhost", name=name, tags=["a"], actor="guest")
    for name in ("ann", "bob", "eve", "oldt", "oldj"):
        ask("add_user", name=name, password="pw")
    for vhost in ("limited", "clearedt", "clearedj"):
        ask("set_vhost_limits", vhost=vhost, limits={"max-queues": 5})
    ask("set_user_limits", user="eve", limits={"max-channels": 7})
    ask("set_permissions", vhost="shop", user="ann", configure=".*", write=".*", read=".*")
    ask("set_topic_permissions", vhost="shop", user="ann", exchange="amq.topic", write="a", read="b")
    for name in ("kept", "gonet", "gonej"):
        ask("set_global_parameter", name=name, value=1)
        ask("set_policy", vhost="shop", name=name, pattern="^none", definition={"max-length": 5})
    for name in ("bound", "ogonet", "ogonej"):
        bound = {"definition": {"max-length": 5}, "operator": True}
        ask("set_policy", vhost="shop", name=name, pattern="^none", **bound)
    for name in ("orders", "purged", "idle", "gonet", "gonej"):
        ask("declare_queue", vhost="shop", name=name)
    ask(
        "bind",
        vhost="shop",
        source="amq.topic",
        destination="orders",
        destination_type="queue",
        routing_key="k",
    )
    at = pika.ConnectionParameters(broker.host, broker.port, "shop", heartbeat=0)
    victims = [pika.BlockingConnection(at) for _ in range(2)]
    connection = pika.BlockingConnection(at)
    channel = connection.channel()
    channel.confirm_delivery()
    for _ in range(2):
        channel.basic_publish("", "orders", b"x")
    channel.basic_consume("idle", lambda *_: None)
    yield "none"
    connection.close()
    for victim in victims:
        with contextlib.suppress(pika.exceptions.AMQPError):
            victim.close()


@pytest.fixture
def ctl(node: tuple[Broker, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> Ctl:
    return Ctl(*node, capsys)


def victim(ctl: Ctl) -> None:
    """A connection that may be closed."""
    rows = json.loads(ctl.run("list_connections pid channels --json").out)
    ctl.words["pid"] = next((row["pid"] for row in rows if not row["channels"]), "none")


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_command_shows_its_result_as_lines(ctl: Ctl, case: Case) -> None:
    victim(ctl)
    result = ctl.run(case.line, n="t")
    assert (result.code, result.err) == (0, ""), result
    shows = case.shows.replace("{port}", str(ctl.broker.port))
    assert re.search(shows, result.out, re.MULTILINE), result.out


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_command_shows_its_result_as_json_and_nothing_else(ctl: Ctl, case: Case) -> None:
    victim(ctl)
    result = ctl.run(case.line, "--json", n="j")
    assert (result.code, result.err) == (0, ""), result
    assert case.has.replace("{port}", str(ctl.broker.port)) in json.dumps(json.loads(result.out)), result.out


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_command_refuses_with_its_code_and_a_reason(ctl: Ctl, case: Case) -> None:
    result = ctl.run(case.bad, "-q")
    assert (result.code, result.out) == (case.code, ""), result
    assert re.search(case.says, result.err), result.err
    assert "Traceback" not in result.err
    as_json = ctl.run(case.bad, "--json")
    assert as_json.code == case.code
    shown = json.loads(as_json.err)
    assert shown["result"] == "error"
    assert re.search(case.says, shown["message"]), shown


@pytest.mark.parametrize("name", ["csv", "erlang", "pretty_table", "json_stream"])
def test_lists_come_in_every_format(ctl: Ctl, name: str) -> None:
    found = ctl.run(f"list_queues -p shop name messages --formatter {name} -q").out
    shown = {
        "csv": '"orders","2"\n',
        "erlang": '[{name,"orders"},{messages,2}]',
        "pretty_table": "│ orders │ 2        │",
        "json_stream": '{"name":"orders","messages":2}\n',
    }
    assert shown[name] in found


def test_suspended_listeners_take_nobody_and_keep_those_who_are_in() -> None:
    with running(admin=True) as broker:
        at = pika.ConnectionParameters(broker.host, broker.port, heartbeat=0, connection_attempts=1)
        folder = str(broker.process.folder)
        with contextlib.closing(pika.BlockingConnection(at)) as inside:
            assert main_ctl(["--data", folder, "suspend_listeners"]) == 0
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                pika.BlockingConnection(at)
            assert health(broker) == (503, {"status": "failed", "reason": "no listener for clients is open"})
            inside.channel().queue_declare("still")
            assert main_ctl(["--data", folder, "resume_listeners"]) == 0
            pika.BlockingConnection(at).close()
            assert health(broker) == (200, {"status": "ok"})


def health(broker: Broker) -> tuple[int, Any]:
    """What a load balancer sees, without a log-in."""
    try:
        with urllib.request.urlopen(f"{broker.admin_url}/health/ready", timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_file_that_was_moved_away_is_let_go_and_the_level_counts(ctl: Ctl) -> None:
    file = Path(json.loads(ctl.run("log_location --json").out)["paths"][0])
    moved = file.rename(file.with_suffix(".1"))
    assert ctl.run("rotate_logs").code == 0
    assert ctl.run("set_disk_free_limit 2MB").code == 0
    assert "the disk alarm has another limit" in file.read_text()
    assert ctl.run("set_log_level error").code == 0
    assert ctl.run("set_disk_free_limit 3MB").code == 0
    assert "3000000" not in file.read_text()
    assert ctl.run("set_log_level info").code == 0
    moved.unlink()


def test_alarms_come_and_go_with_their_limits(ctl: Ctl) -> None:
    assert ctl.run("set_vm_memory_high_watermark absolute 1MB").code == 0
    assert ctl.run("check_local_alarms").code == 69
    assert "memory\t" in ctl.run("alarms").out
    assert ctl.run("set_vm_memory_high_watermark 0.9").code == 0
    assert ctl.run("check_local_alarms").code == 0


@pytest.mark.parametrize(
    ("line", "moves"), [("import_definitions {file}", "Imported"), ("backup {file}", "Copied")]
)
def test_long_work_shows_a_bar_to_people_and_none_to_pipes(
    node: tuple[Broker, dict[str, Any]], tmp_path: Path, line: str, moves: str
) -> None:
    file = tmp_path / "work"
    if moves == "Imported":
        users = [{"name": f"many{n}", "password_hash": "", "tags": ""} for n in range(1500)]
        file.write_text(json.dumps({"users": users}))
    words = [word.format(file=file) for word in line.split()]
    out = Terminal()
    session = Session(Options(), out=out)
    assert main(["--data", str(node[0].process.folder), *words], session=session) == 0
    assert moves in out.getvalue()
    assert "100 %" in out.getvalue()
    piped = io.StringIO()
    session = Session(Options(), out=piped)
    words[1:] = [str(tmp_path / "other")] if moves == "Copied" else words[1:]
    assert main(["--data", str(node[0].process.folder), *words], session=session) == 0
    assert moves not in piped.getvalue()


class Terminal(io.StringIO):
    """Looks like a person's."""

    def isatty(self) -> bool:
        return True
