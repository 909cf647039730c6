"""The definitions of a folder without a node, and folders that are copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrormq.base.errors import FolderUnusable
from mirrormq.cluster.folder import read_definitions
from mirrormq.cluster.metadata import Metadata
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft import messages as ms
from mirrormq.cluster.raft.raft import Myself, Raft
from mirrormq.cluster.raft.recovery import SNAPSHOT
from mirrormq.meta import commands, records
from mirrormq.meta.layout import MetaDamaged, MetaTooNew
from mirrormq.meta.state import MetaState
from mirrormq.runtime import offline
from mirrormq.sim.disk import MemoryDisk
from mirrormq.sim.machine import SeededRng
from mirrormq.sim.metaworld import MetaWorld, ReadingDisk
from tests.support import version1


def cluster_with(*vhosts: str) -> MetaWorld:
    cluster = MetaWorld(log_bytes_max=1 << 20)
    for vhost in vhosts:
        cluster.propose("n2", vhost)
        cluster.until(lambda vhost=vhost: bool(cluster.done[vhost]))
    cluster.settle(1_000)
    return cluster


def on_disk(folder: Path, disk: MemoryDisk) -> Path:
    for name in disk.list(""):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(disk.read(name))
    (folder / "VERSION").write_text("1\n", encoding="ascii")
    return folder


def test_the_folder_of_a_member_shows_term_vote_members_and_entries() -> None:
    cluster = cluster_with("a", "b")
    found = read_definitions(cluster.nodes["n3"].disk)
    assert list(found.state.vhosts) == ["a", "b"]
    facts = found.facts()
    raft = cluster.nodes["n3"].raft
    assert (facts["term"], facts["vote"], facts["last_index"]) == (raft.term, raft.vote, raft.log.last_index)
    assert [(member["name"], member["role"]) for member in facts["members"]] == [
        ("n1", "voter"),
        ("n2", "voter"),
        ("n3", "voter"),
    ]
    rows = [(row["command"], row["node"], row["number"]) for row in found.entries()]
    assert rows[-2:] == [("put-vhost", "n2", 1), ("put-vhost", "n2", 2)]
    assert rows[0] == ("configuration", "", 0)


def test_the_folder_of_a_version_without_clusters_is_read_as_well() -> None:
    files = {
        SNAPSHOT: version1.snapshot((4, 1), 7, [records.VHost("a")]),
        "meta/log-0000000000000005": version1.log_file(5, [commands.PutVHost(records.VHost("b"))]),
    }
    found = read_definitions(MemoryDisk(files))
    assert list(found.state.vhosts) == ["a", "b"]
    assert found.facts()["format"] == 1
    assert found.facts()["members"] == []
    assert [row["command"] for row in found.entries()] == ["put-vhost"]


def test_what_a_later_version_wrote_is_refused_with_a_sentence() -> None:
    cluster = MetaWorld(names=("n1",))
    node = cluster.nodes["n1"]
    node.raft.propose(b"\x81\xa2do\xa5later", None)
    with pytest.raises(MetaTooNew, match="its command is unknown here"):
        cluster.settle()
    with pytest.raises(MetaTooNew, match="its command is unknown here"):
        read_definitions(node.disk)


def test_a_copy_of_a_member_starts_as_a_node_of_its_own_and_its_cluster_refuses_it() -> None:
    cluster = cluster_with("a", "b")
    original = cluster.nodes["n2"]
    copy = ReadingDisk({SNAPSHOT: b"".join(original.metadata.image())})
    cluster.crash("n2")
    state = MetaState()
    me = Myself("n2", b"another identity", 1, (b"t" * 16,))
    restored = Metadata(state, ("n2", 1), lambda machine: Raft(me, machine, copy, SeededRng("x")), print)
    restored.raft.start(cluster.now, copy)
    assert restored.raft.is_leader
    assert list(state.vhosts) == ["a", "b"]
    assert restored.raft.config.names == ("n2",)
    heard: list = []
    restored.propose(commands.PutVHost(records.VHost("c")), heard.append)
    for _ in range(20):
        restored.end_pass(cluster.now)
        if (token := copy.finish_next()) is not None:
            restored.raft.disk_done(cluster.now, token)
    assert heard[0].ok
    told: list[ev.Event] = []
    leader = cluster.leader
    leader.metadata.on_event = told.append
    leader.raft.link_up(cluster.now, "n2")
    leader.raft.receive(cluster.now, "n2", ms.encode(ms.Hello(me.identity, me.start, me.tokens)))
    leader.end_pass()
    notes = [event.text for event in told if isinstance(event, ev.Note)]
    (note,) = notes
    assert note.startswith("n2 is refused: its data folder is new or older than")
    assert note.endswith("forget_cluster_node, then join")


def test_tools_show_and_check_a_members_folder(tmp_path: Path) -> None:
    folder = on_disk(tmp_path, cluster_with("a").nodes["n3"].disk)
    found = offline.verify(str(folder), None)
    assert found["faults"] == []
    assert len(found["definitions"]["members"]) == 3
    shown = offline.definitions(str(folder), None)
    assert shown["log"][-1]["command"] == "put-vhost"


def test_tools_name_what_is_damaged(tmp_path: Path) -> None:
    disk = cluster_with("a", "b").nodes["n3"].disk
    name = disk.list("meta/log-")[0]
    disk.damage(name, 60)
    with pytest.raises(MetaDamaged, match=name):
        read_definitions(disk)
    folder = on_disk(tmp_path, disk)
    assert [fault["file"] for fault in offline.verify(str(folder), None)["faults"]] == [name]
    with pytest.raises(FolderUnusable, match="is damaged"):
        offline.definitions(str(folder), None)
