"""`mirrormq admin` against a real node: rabbitmqadmin's forms, formats and codes, beside the original."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pika
import pytest

from mirrormq.ctl.admin.main import main
from mirrormq.ctl.admin.objects import DECLARES, DELETES, LISTS
from mirrormq.testing import Broker, running

ORIGINAL = shutil.which("rabbitmqadmin")


class Result(NamedTuple):
    """What a run left behind."""

    code: int
    out: str
    err: str


Admin = Callable[..., Result]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running(admin=True) as found:
        found.ask("add_vhost", name="two", actor="guest")
        found.ask("declare_queue", vhost="/", name="q1", durable=True, arguments={"x-max-length": 5})
        found.ask("declare_queue", vhost="two", name="q2")
        found.ask("set_policy", vhost="/", name="p", pattern="^x", definition={"max-length": 5}, priority=1)
        found.ask(
            "set_policy", vhost="/", name="o", pattern="^x", definition={"max-length": 5}, operator=True
        )
        found.ask("set_vhost_limits", vhost="two", limits={"max-queues": 50})
        connection = pika.BlockingConnection(pika.URLParameters(found.url))
        connection.channel().basic_consume("q1", lambda *_: None)
        yield found
        connection.close()


def port(broker: Broker) -> str:
    return str(broker.admin_url).rpartition(":")[2]


@pytest.fixture
def admin(broker: Broker, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Admin:
    def run(line: str, *more: str, stdin: str = "") -> Result:
        out = io.StringIO()
        words = ["-H", "127.0.0.1", "-P", port(broker), *shlex.split(line), *more]
        code = main(words, out=out, stdin=io.StringIO(stdin), environment={"HOME": str(tmp_path)})
        return Result(code, out.getvalue(), capsys.readouterr().err)

    return run


SAME = [
    *(f"list {kind}" for kind in LISTS if kind not in ("nodes", "users")),
    *(f"-f {form} list queues name messages" for form in ("tsv", "kvp", "long", "bash", "raw_json")),
    "-f pretty_json list queues name arguments",
    "-f bash list queues vhost name",
    "list queues vhost name messages",
    "-f tsv list nodes name type",
    "-f kvp list users name tags",
    "list users name tags",
    "-V two list queues name",
    "-V two list exchanges name",
    "-V two list bindings",
    "-V nowhere list queues name",
    "-S name -R list queues name",
    "list queues nosuchcolumn",
    "list queues name -V two",
    "-d 2 list consumers",
    "-f tsv list policies name pattern",
    "show overview",
    "show overview node",
    "-f tsv show overview",
    "list parameters",
    "-u guest -p wrong list queues",
    "delete queue name=never",
    "purge queue name=never",
    "close connection name=never",
    "delete binding source=amq.topic destination_type=queue destination=q1",
    "list nothing",
    "declare nothing name=x",
    "declare queue",
    "declare queue name=x colour=red",
    "declare user name=x tags=",
    "bogus",
    "get",
    "publish payload=x",
    "--nosuch list queues",
    "-c /no/such/file list queues",
    "declare queue name=q1 durable=false",
]


@pytest.mark.slow
@pytest.mark.skipif(ORIGINAL is None, reason="rabbitmqadmin is not installed")
@pytest.mark.parametrize("line", SAME)
def test_a_line_gives_what_rabbitmqadmin_gives(
    broker: Broker, admin: Admin, line: str, tmp_path: Path
) -> None:
    words = [str(ORIGINAL), "-H", "127.0.0.1", "-P", port(broker), *shlex.split(line)]
    original = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin"},
    )
    ours = admin(line)
    assert (ours.code, ours.out.rstrip()) == (original.returncode, original.stdout.rstrip()), ours.err
    if ours.code == 1:
        said = [text.strip() for text in original.stderr.splitlines() if text.strip()]
        assert ours.err.split("\n")[0].startswith(said[0].partition("?")[0]), (ours.err, said)


DECLARED = {
    "exchange": ("name=x{n} type=fanout durable=false", "name=x{n}", "list exchanges", "x{n}"),
    "queue": ('name=q{n} arguments={{"x-max-length":3}}', "name=q{n}", "list queues", "q{n}"),
    "binding": (
        "source=amq.fanout destination=q1 routing_key=k{n}",
        "source=amq.fanout destination=q1 destination_type=queue properties_key=k{n}",
        "list bindings",
        "k{n}",
    ),
    "vhost": ("name=v{n}", "name=v{n}", "list vhosts", "v{n}"),
    "user": ("name=u{n} password=pw tags=monitoring", "name=u{n}", "list users name", "u{n}"),
    "permission": (
        "vhost=two user=guest configure=c{n} write=.* read=.*",
        "vhost=two user=guest",
        "list permissions",
        "c{n}",
    ),
    "parameter": (
        'component=vhost-limits name=limits value={{"max-queues":7{n}}}',
        "component=vhost-limits name=limits",
        "list parameters value",
        "7{n}",
    ),
    "policy": (
        'name=p{n} pattern=. definition={{"max-length":3}} priority=2',
        "name=p{n}",
        "list policies name",
        "p{n}",
    ),
    "operator_policy": (
        'name=o{n} pattern=. definition={{"max-length":3}} apply-to=queues',
        "name=o{n}",
        "list operator_policies",
        "o{n}",
    ),
    "vhost_limit": (
        "vhost=/ name=max-queues value=8{n}",
        "vhost=/ name=max-queues",
        "list vhost_limits",
        "8{n}",
    ),
}


@pytest.mark.parametrize("kind", sorted(DECLARES))
def test_what_is_declared_is_listed_until_it_is_deleted(admin: Admin, kind: str) -> None:
    assert set(DECLARED) == set(DECLARES) == set(DELETES)
    made, gone, listed, mark = (text.format(n=15) for text in DECLARED[kind])
    assert admin(f"declare {kind}", *shlex.split(made, posix=False)) == (0, f"{kind} declared\n", "")
    assert mark in admin(listed).out
    assert admin(f"-q declare {kind}", *shlex.split(made, posix=False)) == (0, "", "")
    assert admin(f"delete {kind} {gone}") == (0, f"{kind} deleted\n", "")
    assert mark not in admin(listed).out
    again = admin(f"delete {kind} {gone}")
    assert again.code in (0, 1)
    assert "Traceback" not in again.err
    if kind == "permission":
        admin("declare permission vhost=two user=guest configure=.* write=.* read=.*")


def test_a_queue_gets_its_type_and_its_defaults(admin: Admin, broker: Broker) -> None:
    assert admin("declare queue name=typed queue_type=quorum").code == 0
    found = json.loads(admin("-f raw_json list queues name durable auto_delete arguments").out)
    row = next(row for row in found if row["name"] == "typed")
    assert (row["durable"], row["auto_delete"], row["arguments"]) == (True, False, {"x-queue-type": "quorum"})
    assert admin("delete queue name=typed").code == 0


def test_a_queue_is_purged_and_a_connection_closed(admin: Admin, broker: Broker) -> None:
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("full")
        channel.basic_publish("", "full", b"1")
        assert admin("purge queue name=full") == (0, "queue purged\n", "")
        assert channel.queue_declare("full").method.message_count == 0
        channel.queue_delete("full")
        name = json.loads(admin("-f raw_json list connections name").out)[-1]["name"]
    victim = pika.BlockingConnection(pika.URLParameters(broker.url))
    names = {row["name"] for row in json.loads(admin("-f raw_json list connections name").out)}
    own = next(found for found in names if f":{victim._impl._transport._sock.getsockname()[1]} ->" in found)
    assert own != name
    assert admin("close connection", f"name={own}") == (0, "connection closed\n", "")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
        victim.process_data_events(10)


def test_definitions_are_exported_and_imported(admin: Admin, broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    said = f'Exported definitions for 127.0.0.1 to "{file}"\n'
    assert admin(f"export {file}") == (0, said, "")
    found = json.loads(file.read_text())
    assert {vhost["name"] for vhost in found["vhosts"]} >= {"/", "two"}
    found["vhosts"].append({"name": "three"})
    file.write_text(json.dumps(found))
    assert admin(f"import {file}").code == 0
    assert "three" in admin("list vhosts").out
    one = tmp_path / "one.json"
    assert admin(f"-V two export {one}").code == 0
    assert [queue["name"] for queue in json.loads(one.read_text())["queues"]] == ["q2"]
    assert admin("import", str(tmp_path / "never")).err.startswith("*** ")
    broken = tmp_path / "broken"
    broken.write_text("{")
    assert "is not JSON" in admin("import", str(broken)).err
    assert "cannot be written" in admin("export /no/such/folder/file").err
    broker.ask("delete_vhost", name="three")


def test_settings_come_from_the_section_of_a_file_and_the_line_wins(
    broker: Broker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / ".rabbitmqadmin.conf"
    file.write_text(
        f"[default]\nhostname = 127.0.0.1\nport = {port(broker)}\nformat = tsv # lines\n"
        f"[two]\nhostname = 127.0.0.1\nport = {port(broker)}\nvhost = two\n"
        "username = guest\npassword = wrong\n"
        "[bad]\ncolour = red\n"
    )

    def run(*words: str, **environment: str) -> Result:
        out = io.StringIO()
        code = main(words, out=out, environment={"HOME": str(tmp_path), **environment})
        return Result(code, out.getvalue(), capsys.readouterr().err)

    assert run("list", "queues").out == "name\tmessages\nq1\t0\nq2\t0\n"
    assert run("list", "queues", "-f", "bash").out == "q1 q2\n"
    assert run("-N", "two", "list", "queues").err.startswith("*** Access refused: /api/queues/two")
    assert run("-N", "two", "-p", "guest", "-f", "bash", "list", "queues").out == "q2\n"
    assert run("-c", str(file), "-N", "two", "-p", "guest", "-f", "bash", "list", "queues").out == "q2\n"
    assert "there are: default, two, bad" in run("-N", "three", "list", "queues").err
    assert "unknown key 'colour'" in run("-N", "bad", "list", "queues").err
    url = f"http://127.0.0.1:{port(broker)}"
    assert run("-U", url, "list", "queues", HOME="/no/such").code == 0
    assert run("-U", url, "list", "queues", HOME="/no/such", MIRRORMQ_PASSWORD="wrong").code == 1


def test_a_list_of_one_virtual_host_has_nothing_of_others(admin: Admin) -> None:
    # rabbitmqadmin shows the policies of all of them.
    assert admin("-V two list policies").out == "No items\n"
    assert "two" not in admin("-V / list vhost_limits").out
    assert admin("-V / -f bash list connections").out.count("->") == 1
    assert admin("-V two list connections").out == "No items\n"


def test_messages_are_published_and_got(admin: Admin, broker: Broker, tmp_path: Path) -> None:
    broker.ask("declare_queue", vhost="two", name="letters")
    at = "-V two"
    assert admin(f"{at} publish routing_key=letters payload=one").out == "Message published\n"
    assert admin(f"{at} publish routing_key=letters", stdin="two").out == "Message published\n"
    assert admin(f"{at} publish routing_key=never payload=x").out == "Message published but NOT routed\n"
    assert admin(f"{at} publish exchange=never routing_key=x payload=x").code == 1
    shown = admin(f"{at} -f tsv get queue=letters count=2").out.splitlines()
    assert shown[0].split("\t")[:4] == ["routing_key", "exchange", "message_count", "payload"]
    assert [line.split("\t")[3] for line in shown[1:]] == ["one", "two"]
    file = tmp_path / "payload"
    assert admin(f"{at} get queue=letters ackmode=ack_requeue_false payload_file={file}").code == 0
    assert file.read_bytes() == b"one"
    coded = json.loads(
        admin(f"{at} -f raw_json get queue=letters ackmode=ack_requeue_false encoding=base64").out
    )
    assert (coded[0]["payload"], coded[0]["payload_encoding"]) == ("dHdv", "base64")
    assert admin(f"{at} get queue=letters").out == "No items\n"
    assert admin(f"{at} get queue=never").err.startswith("*** Not found: /api/queues/two/never/get")
    broker.ask("delete_queue", vhost="two", name="letters")


def test_nobody_at_home_is_one_sentence(admin: Admin) -> None:
    result = admin("-P 1 list queues")
    assert result.code == 1
    assert result.err.startswith("*** Could not connect: http://127.0.0.1:1 does not answer")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("list queus", "did you mean queues?"),
        ("declare queue nme=x", "did you mean name?"),
        ("declare queue name", "name=value"),
        ("declare queue name=x durable=perhaps", "true or false"),
        ("declare policy name=x pattern=. definition={", "Could not parse JSON"),
        ("declare policy name=x pattern=. definition={} priority=high", "is a number"),
        ("declare binding source=a destination=b destination_type=house", "queue or exchange"),
        ("get queue=q count=2 payload_file=f", "count must not be set"),
        ("list", "list what?"),
        ("-f xml list queues", "no format 'xml'"),
        ("help nothing", "subcommands, config"),
        ("", "a subcommand is missing"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(admin: Admin, line: str, says: str) -> None:
    result = admin(line)
    assert result.code == 1
    assert says in result.err


def test_help_names_every_subcommand_and_option(admin: Admin) -> None:
    shown = admin("help subcommands").out
    for kind in DECLARES:
        assert f"declare {kind} " in shown
    for kind in LISTS:
        assert f"list {kind} " in shown
    options = admin("--help").out
    for option in ("--config", "--node", "--host", "--vhost", "--ssl-insecure", "--sort-reverse", "--depth"):
        assert option in options
    assert "[production]" in admin("help config").out
    assert admin("--version").out.startswith("mirrormq admin ")
    assert "complete -o default -F" in admin("--bash-completion").out
