"""Commands of `mirrormqctl` that are seldom needed, carried out on real nodes: as lines, as JSON, refused.

Those that leave a node or a cluster changed have one of their own for that.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mirrormq.client.bulk import BulkClient, Target
from tests.cluster import kit
from tests.cluster.kit import AMQP, Cluster, Node, declare, until
from tests.cluster.mirrorclients import PERSISTENT
from tests.cluster.test_ctl import Ctl, Result

pytestmark = pytest.mark.slow


def refused(ctl: Ctl, line: str, code: int, says: str, *, at: int = 0) -> None:
    """A reason in words and in JSON, with its code and without a result."""
    result = ctl.run(line, "-q", at=at)
    assert (result.code, result.out) == (code, ""), result
    assert re.search(says, result.err), result.err
    as_json = ctl.run(line, "--json", at=at)
    assert as_json.code == code
    assert re.search(says, json.loads(as_json.err)["message"])


def lines(result: Result) -> str:
    """What a command that succeeded shows to people."""
    assert (result.code, result.err) == (0, ""), result
    return result.out


def fill(node: Node, queue: str, count: int) -> None:
    """Messages that are confirmed: to a mirror that comes later they are old ones."""
    channel = node.channel()
    channel.confirm_delivery()
    declare(channel, queue)
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)


# --- one node ---


def test_cursors_are_dropped_by_name_and_hold_nothing_any_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kit.cluster(tmp_path, 1) as cluster:
        ctl = Ctl(cluster, capsys)
        fill(cluster[0], "q", 3)
        with BulkClient(Target([(cluster[0].host, AMQP)])) as client:
            for name in ("one", "two"):
                client.call("cursor_open", queue="q", name=name, at="earliest", reader=name, query="follow")
        assert [row["name"] for row in ctl.json("list_cursors")] == ["one", "two"]
        shown = lines(ctl.run("drop_cursor q one"))
        assert "Dropping cursor 'one' of queue 'q' in vhost '/'" in shown
        assert re.search(r"^q\ttwo\t", lines(ctl.run("list_cursors --queue q")), re.MULTILINE)
        assert ctl.json("drop_cursor q two")["result"] == "ok"
        assert ctl.json("list_cursors") == []
        refused(ctl, "drop_cursor q two", 69, "two")
        refused(ctl, "drop_cursor never two", 69, "never")
        refused(ctl, "drop_cursor q", 64, "not enough arguments")


def test_mirrors_of_another_cluster_are_promoted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kit.cluster(tmp_path, 1) as cluster:
        ctl = Ctl(cluster, capsys)
        for name in ("east", "west"):
            cluster[0].ctl("add_vhost", name=name, mirror_of="elsewhere", actor="guest")
        assert 'Promoting mirror "east" ...' in lines(ctl.run("promote_mirror east"))
        assert ctl.json("promote_mirror west")["result"] == "ok"
        mirrors = {row["name"]: row["mirror_of"] for row in cluster[0].get("vhosts")}
        assert mirrors == {"/": "", "east": "", "west": ""}
        refused(ctl, "promote_mirror east", 65, "is no mirror, or was promoted before")
        refused(ctl, "promote_mirror never", 65, "never")
        refused(ctl, "promote_mirror", 64, "not enough arguments")


def test_the_folder_of_a_stopped_node_is_looked_into_and_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kit.cluster(tmp_path, 1) as cluster:
        ctl, node = Ctl(cluster, capsys), cluster[0]
        fill(node, "looked", 4)
        assert node.stop() == 0

        row = next(row for row in ctl.json("inspect_log") if row["name"] == "looked")
        assert (row["vhost"], row["live"], row["damage"]) == ("/", 4, None)
        shown = lines(ctl.run("inspect_log --queue looked"))
        assert re.search(r"^/\tlooked\t.*journal.*batches", shown, re.MULTILINE), shown
        kinds = [record["kind"] for record in ctl.json("inspect_log --queue looked --records")]
        assert sum("publish" in kind.lower() for kind in kinds) == 4, kinds
        assert node.name in lines(ctl.run("inspect_log --definitions"))
        assert ctl.json("inspect_log --definitions")["members"][0]["name"] == node.name
        refused(ctl, "inspect_log --queue never", 65, "never")

        assert "0 faults" in lines(ctl.run("verify_log"))
        checked = ctl.json("verify_log")
        assert checked["faults"] == []
        assert checked["live"] >= 4  # the queues of the cluster itself are there, too
        refused(ctl, "verify_log more", 64, "too many arguments")

        spoil(node.folder)
        result = ctl.run("verify_log")
        assert result.code == 65, result
        assert re.search(r"\d faults? in .*mirrormq restore", result.err), result.err
        assert json.loads(ctl.run("verify_log", "--json").out)["faults"]


def spoil(folder: Path) -> None:
    """Turn bits of the first message in the journal."""
    (file,) = [path for path in sorted(folder.glob("journal/*")) if path.stat().st_size > 100][:1]
    data = bytearray(file.read_bytes())
    at = data.find(b"looked")
    assert at > 0
    data[at] ^= 0xFF
    file.write_bytes(data)


# --- several nodes ---


def test_a_node_is_reset_out_of_its_cluster_and_comes_back_as_a_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kit.cluster(tmp_path, 3) as cluster:
        ctl = Ctl(cluster, capsys)
        refused(ctl, "reset", 64, "stop_app", at=1)
        refused(ctl, "reset now", 64, "too many arguments")
        for at, is_json in ((1, True), (2, False)):
            name = cluster[at].name
            assert ctl.run("stop_app", at=at).code == 0
            if is_json:
                assert ctl.json("reset", at=at)["result"] == "ok"
            else:
                assert f"Resetting node {name} ..." in lines(ctl.run("reset", at=at))
            until(lambda name=name: name not in members(cluster[0]), "it is no member any more")
            assert ctl.run("start_app", at=at).code == 0
            cluster.wait_whole()  # its settings name the others, so it joins them anew


def test_a_node_with_the_last_copy_of_a_message_is_reset_by_force_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kit.cluster(tmp_path, 3) as cluster:
        ctl, node = Ctl(cluster, capsys), cluster[1]
        node.ctl("set_policy", vhost="/", name="ha", pattern="^mirrored$", definition={"ha-mode": "all"})
        for queue in ("mirrored", "lone"):
            node.ctl("declare_queue", vhost="/", name=queue, durable=True)
            channel = node.channel()
            for _ in range(3):
                channel.basic_publish("", queue, b"kept", PERSISTENT)
            channel.connection.close()
        until(lambda: len(told(cluster[0])["synchronised_slave_nodes"]) == 2, "it has mirrors")
        assert ctl.run("stop_app", at=1).code == 0
        refused(ctl, "reset", 69, "3 messages are only here, of queue 'lone' in vhost '/'", at=1)
        assert ctl.run("reset --force", at=1).code == 0
        until(lambda: node.name not in members(cluster[0]), "it is no member any more")
        until(lambda: told(cluster[0])["messages"] == 3, "another node has it")


def told(node: Node) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in node.get("queues")}
    return rows["mirrored"]


def members(node: Node) -> list[str]:
    return sorted(member["name"] for member in node.status().get("members", ()))


def test_a_node_whose_others_are_lost_is_made_to_start_alone_with_what_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kit.cluster(tmp_path, 2) as cluster:
        ctl, (first, second) = Ctl(cluster, capsys), (cluster[0], cluster[1])
        first.ctl("declare_queue", vhost="/", name="kept", durable=True)
        until(lambda: "kept" in second.queues(), "the definition is everywhere")
        refused(ctl, "force_boot", 64, "stop_app")
        refused(ctl, "force_boot now", 64, "too many arguments")
        first.kill()
        second.kill()
        assert ctl.json("force_boot", at=1) == {"result": "ok"}
        assert lines(ctl.run("force_boot", at=1)) == ""
        second.start()
        second.wait_ready()
        assert members(second) == [second.name]
        assert "kept" in second.queues()
        assert ctl.run("stop_app", at=1).code == 0
        assert ctl.json("force_boot", at=1)["result"] == "ok"
        assert ctl.run("force_boot", at=1).code == 0
        assert ctl.run("start_app", at=1).code == 0
        assert "kept" in second.queues()


def test_a_queue_without_a_master_is_given_to_a_copy_that_lacks_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kit.cluster(tmp_path, 3) as cluster:
        ctl = Ctl(cluster, capsys)
        names = ("lost", "gone")
        for name in names:
            fill(cluster[0], name, 5)
        definition = {"ha-mode": "all", "ha-sync-mode": "manual"}
        cluster[0].ctl("set_policy", vhost="/", name="m", pattern="^(lost|gone)$", definition=definition)
        for name in names:
            until(lambda name=name: len(behind(cluster, name)) == 2, "both mirrors are there, not in sync")
        refused(ctl, "force_promote lost", 69, "has a master|is the master|master", at=1)
        cluster[0].kill()
        for name in names:
            plan = {"vhost": "/", "name": name, "node": "", "plan": True}
            until(lambda plan=plan: cluster[1].asked("force_promote", **plan), "nobody is the master")

        shown = ctl.run("force_promote lost", at=1)
        assert shown.code == 64, shown
        assert "LOSS: everything is lost" in shown.out
        assert "nothing was done; give --yes" in shown.err
        told = lines(ctl.run("force_promote lost --node {n2} --yes", at=1))
        assert f"Node {cluster[1].name} is the master of queue 'lost' now" in told
        done = ctl.json("force_promote gone --node {n3}", at=1)
        assert done["node"] == cluster[2].name
        for name in names:
            until(lambda name=name: state(cluster, name) == "running", "it is served again")
            fill(cluster[1], name, 1)
        refused(ctl, "force_promote never", 69, "never", at=1)
        refused(ctl, "force_promote", 64, "not enough arguments", at=1)


def row_of(cluster: Cluster, name: str) -> dict[str, Any]:
    rows = cluster[1].get("queues")
    return next((row for row in rows if row["name"] == name), {})


def behind(cluster: Cluster, name: str) -> list[str]:
    return list(row_of(cluster, name).get("unsynchronised", ()))


def state(cluster: Cluster, name: str) -> str:
    return str(row_of(cluster, name).get("state", ""))
