"""A cluster on one machine as names, ports, words and files, and what is offered when it cannot start."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import stat
from pathlib import Path

import pytest

from mirrormq.base import limits
from mirrormq.runtime import banner, localcluster, main, up
from mirrormq.runtime.faults import ConfigError, StartError
from mirrormq.runtime.folder import open_folder
from mirrormq.runtime.nodechild import Lines, NodeChild
from mirrormq.runtime.ports import PORT_BASE_MAX
from mirrormq.runtime.settings import DefaultUser, Settings
from mirrormq.runtime.values import Address

ALONE = "mirrormq@here"


def options(*words: str) -> up.argparse.Namespace:
    return up.parser().parse_args(words)


def test_nodes_have_names_folders_and_ports_of_their_own(tmp_path: Path) -> None:
    nodes = localcluster.local_nodes(3, 5672, tmp_path)
    assert [node.name for node in nodes] == [
        "mirrormq-1@localhost",
        "mirrormq-2@localhost",
        "mirrormq-3@localhost",
    ]
    assert [node.ports for node in nodes] == [
        (5672, 15672, 25672),
        (5673, 15673, 25673),
        (5674, 15674, 25674),
    ]
    assert nodes[1].folder == tmp_path / "mirrormq-2@localhost"
    assert nodes[1].short == "mirrormq-2"


def test_the_words_of_a_node_are_settings_that_agree_with_those_of_the_others(tmp_path: Path) -> None:
    nodes = localcluster.local_nodes(3, 6000, tmp_path)
    read = [
        main.load_settings(main.parser().parse_args(localcluster.words_of(node, nodes))).settings
        for node in nodes
    ]
    assert len({settings.cluster_nodes for settings in read}) == 1
    for node, settings in zip(nodes, read, strict=True):
        assert settings.node_name == node.name
        assert settings.data_dir == str(node.folder)
        assert settings.listen == (Address("", node.port),)
        assert settings.admin_port == node.port + 10_000
        # Other nodes are on this machine, and so is who may talk to it as one.
        assert settings.links.listen == Address("127.0.0.1", node.port + 20_000)
        assert settings.links.advertise == Address("localhost", node.port + 20_000)
        assert node.peer in settings.cluster_nodes


def test_a_root_remembers_its_nodes_before_any_of_them_has_started(tmp_path: Path) -> None:
    root = tmp_path / "data"
    nodes = localcluster.local_nodes(3, 5672, root)
    names = [node.name for node in nodes]
    assert localcluster.held(root, ALONE) == []
    localcluster.prepare(root, nodes)
    assert localcluster.held(root, ALONE) == names
    localcluster.check_held(root, names, ALONE, ["./run"])
    with pytest.raises(StartError, match=r"of 3 nodes \(.*\), not of 5 nodes: run './run --nodes 3'"):
        localcluster.check_held(root, [*names, "d@h", "e@h"], ALONE, ["./run"])
    with pytest.raises(StartError, match="not of one node"):
        localcluster.check_held(root, [ALONE], ALONE, ["./run"])


def test_a_node_of_an_earlier_start_is_not_passed_over(tmp_path: Path) -> None:
    open_folder(tmp_path / ALONE, fresh=False).close()
    localcluster.check_held(tmp_path, [ALONE], ALONE, ["./run"])
    with pytest.raises(
        StartError, match=r"one node \(mirrormq@here\), not of 3 nodes: run './run --nodes 1'"
    ):
        localcluster.check_held(tmp_path, ["a@b", "c@d", "e@f"], ALONE, ["./run"])


@pytest.mark.parametrize("content", ["{", "7", '["../../etc@x"]', "[1]"])
def test_a_list_of_nodes_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "nodes.json").write_text(content)
    with pytest.raises(StartError, match=r"nodes\.json .*remove it"):
        localcluster.held(tmp_path, ALONE)


def test_the_secret_is_made_once_and_given_to_every_node(tmp_path: Path) -> None:
    nodes = localcluster.local_nodes(2, 5672, tmp_path / "data")
    localcluster.prepare(tmp_path / "data", nodes)
    files = [tmp_path / "data/cluster.secret", *(node.folder / "cluster.secret" for node in nodes)]
    made = files[0].read_text()
    assert len(made.strip()) >= limits.peer_secret_chars_min
    files[1].write_text("another one, readable by all\n")
    files[1].chmod(0o644)
    localcluster.prepare(tmp_path / "data", nodes)
    assert {file.read_text() for file in files} == {made}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    folder = open_folder(nodes[0].folder, fresh=False)
    try:
        assert folder.cluster_secret("") == made.strip().encode()
    finally:
        folder.close()


def test_fresh_removes_what_is_ours_and_nothing_else(tmp_path: Path) -> None:
    nodes = localcluster.local_nodes(2, 5672, tmp_path)
    localcluster.prepare(tmp_path, nodes)
    open_folder(nodes[0].folder, fresh=False).close()
    open_folder(tmp_path / ALONE, fresh=False).close()
    (tmp_path / "letters.txt").write_text("dear")
    localcluster.remove_held(tmp_path, ALONE)
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]
    foreign = nodes[0].folder
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("last copy")
    (tmp_path / "nodes.json").write_text(json.dumps([nodes[0].name]))
    with pytest.raises(StartError, match="is no MirrorMQ data folder"):
        localcluster.remove_held(tmp_path, ALONE)
    assert (foreign / "thesis.tex").exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" / "data"
    with pytest.raises(StartError, match="cannot be used: Not a directory; give another folder with --data"):
        localcluster.prepare(root, localcluster.local_nodes(2, 5672, root))


@pytest.mark.parametrize("count", ["0", "10", "x", "-1"])
def test_a_number_of_nodes_that_does_not_fit_is_misuse(
    count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        options("--nodes", count)
    assert caught.value.code == 2
    assert "between 1 and 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--node-name", "a@b"], "option --node-name is for one node: use it with --nodes 1."),
        (["--set", "listeners.tcp=1"], "option --set: listeners.tcp differs from node to node"),
        (["--set", "cluster_nodes=a@b"], "option --set: cluster_nodes differs from node to node"),
        (["--port-base", str(PORT_BASE_MAX)], "the ports of 3 nodes do not fit"),
        (["--set", "heartbeet=1"], "did you mean heartbeat?"),
    ],
)
def test_what_several_nodes_cannot_have_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert up.up([*words, "--data", str(tmp_path / "data")]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_file_that_names_one_listener_or_log_for_all_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.toml"
    file.write_text('log.file.path = "node.log"')
    words = localcluster.words_of(*_one(tmp_path))
    with pytest.raises(ConfigError, match=r"log\.file would be the same for every node"):
        up.node_settings(options("--config", str(file)), ["--config", str(file), *words])


def _one(root: Path) -> tuple[localcluster.LocalNode, list[localcluster.LocalNode]]:
    nodes = localcluster.local_nodes(2, 5672, root)
    return nodes[0], nodes


def test_the_offered_command_keeps_what_was_asked_for_and_finds_free_ports(tmp_path: Path) -> None:
    given = options("--invoked-as", "./run", "--nodes", "5", "--data", "my data", "--set", "heartbeat=5")
    words = shlex.split(up.cure(given))
    assert words[:2] == ["./run", "--port-base"]
    assert words[3:] == ["--nodes", "5", "--data", "my data", "--set", "heartbeat=5"]
    base = int(words[2])
    for port in (base, base + 4, base + 10_000, base + 20_004):
        socket.create_server(("", port)).close()


def test_the_offered_command_takes_other_data_where_this_one_is_in_use(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    node = localcluster.local_nodes(3, 5672, Path(data))[1]
    folder = open_folder(node.folder, fresh=False)
    try:
        words = shlex.split(up.cure(options("--data", data)))
        assert words[words.index("--data") + 1] == f"{data}-{words[words.index('--port-base') + 1]}"
    finally:
        folder.close()


def test_a_dead_node_is_started_again_by_a_command_that_is_its_own(tmp_path: Path) -> None:
    nodes = localcluster.local_nodes(3, 5672, tmp_path)
    given = options("--invoked-as", "./run", "--set", "heartbeat=5")
    words = shlex.split(up.again(given, nodes[1].name, nodes))
    assert words[:2] == ["./run", "serve"]
    settings = main.load_settings(main.parser().parse_args(words[2:])).settings
    assert (settings.node_name, settings.heartbeat_s) == ("mirrormq-2@localhost", 5)


@pytest.mark.parametrize(
    ("invoked_as", "program"),
    [
        ("./run", ["./run"]),
        ("./run --nodes 1", ["./run"]),
        ("mirrormq up", ["mirrormq"]),
        ("mirrormq up --nodes 1", ["mirrormq"]),
        ("mirrormq serve", ["mirrormq"]),
        ("'my clone/run' --nodes 1", ["my clone/run"]),
    ],
)
def test_a_command_is_known_without_what_it_was_told_to_do(invoked_as: str, program: list[str]) -> None:
    assert banner.program(invoked_as) == program


def announced(count: int) -> list[dict[str, object]]:
    return [
        {
            "name": f"mirrormq-{n}@localhost",
            "pid": 1000 + n,
            "amqp": [f"amqp://127.0.0.1:{5671 + n}"],
            "http": None,
        }
        for n in range(1, count + 1)
    ]


def test_the_banner_of_a_cluster_names_every_node_and_what_to_paste() -> None:
    text = banner.cluster_text(Settings(), announced(3), "./data", "./run")
    for port in (5672, 5673, 5674):
        assert f"amqp://guest:guest@127.0.0.1:{port}/%2F" in text
    assert "./run ctl -n mirrormq-1 list_queues name messages" in text
    assert text.rstrip().endswith("kill -9 1003")
    assert "mirrored on all nodes by the policy ha-all" in text
    elsewhere = banner.cluster_text(Settings(), announced(2), "/var/x", "mirrormq up")
    assert "mirrormq ctl --data /var/x -n mirrormq-1 list_queues" in elsewhere
    assert "Two nodes stand the loss of none" in elsewhere
    own = Settings(default_user=DefaultUser(name="me", password="hunter2"))
    assert "hunter2" not in banner.cluster_text(own, announced(3), "./data", "./run")


def test_output_is_cut_into_lines_however_it_comes_and_long_ones_are_bounded() -> None:
    lines = Lines()
    assert lines.add(b"one\ntw") == [b"one"]
    assert lines.add(b"o\n\nthree") == [b"two", b""]
    assert lines.rest() == [b"three"]
    assert lines.rest() == []
    assert lines.add(b"x" * (limits.local_line_bytes_max + 1)) == [b"x" * (limits.local_line_bytes_max + 1)]
    assert lines.rest() == []


def test_the_end_of_a_node_is_told_by_its_code_or_its_signal(tmp_path: Path) -> None:
    child = NodeChild("a@b", ["--no-such-option"], os.environ)
    lines: list[bytes] = []
    while (found := child.read_lines()) is not None:
        lines += found
    assert child.read_ready()
    lines += child.bury()
    assert child.announced is None
    assert child.end() == "exit code 2"
    assert any(b"--no-such-option" in line for line in lines)
    child.code = -9
    assert child.end() == "signal 9, SIGKILL"
