"""The list of nodes that form a cluster, however it is written, and what a node is told about partitions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mirrormq.base import limits
from mirrormq.runtime import config
from mirrormq.runtime.facts import shown_settings
from mirrormq.runtime.faults import ConfigError
from mirrormq.runtime.settings import Settings
from mirrormq.runtime.values import Address, PeerName

THREE = (
    PeerName("rabbit@a", "a", 25672),
    PeerName("rabbit@b", "b", 25673),
    PeerName("rabbit@::1", "::1", 25674),
)


def load(text: str, suffix: str, folder: Path) -> config.Loaded:
    file = folder / f"config{suffix}"
    file.write_text(text, encoding="utf-8")
    return config.load([str(file)], {}, [], "a")


def given(**pairs: str) -> Settings:
    source = [config.Given(key.replace("__", "."), value, "here") for key, value in pairs.items()]
    return config.load([], {}, source, "here").settings


def test_a_node_without_a_list_is_a_cluster_of_its_own() -> None:
    settings = given()
    assert settings.cluster_nodes == ()
    assert settings.partition_handling == "pause_minority"
    assert settings.death_certificate is True
    assert settings.links.advertise is None


ONE_BY_ONE = """
cluster_nodes.1 = rabbit@a
cluster_nodes.2 = rabbit@b:25673
cluster_nodes.3 = rabbit@[::1]:25674
"""
AS_RABBITMQ = """
cluster_formation.peer_discovery_backend = classic_config
cluster_formation.classic_config.nodes.1 = rabbit@a
cluster_formation.classic_config.nodes.2 = rabbit@b:25673
cluster_formation.classic_config.nodes.3 = rabbit@[::1]:25674
"""


@pytest.mark.parametrize(
    ("text", "suffix"),
    [
        ("cluster_nodes = rabbit@a, rabbit@b:25673, rabbit@[::1]:25674", ".conf"),
        (ONE_BY_ONE, ".conf"),
        (AS_RABBITMQ, ".conf"),
        ('cluster_nodes = ["rabbit@a", "rabbit@b:25673", "rabbit@[::1]:25674"]', ".toml"),
    ],
)
def test_the_nodes_are_listed_in_toml_in_conf_or_in_rabbitmqs_words(
    text: str, suffix: str, tmp_path: Path
) -> None:
    lines = 'nodename = "rabbit@a"\n' if suffix == ".toml" else "nodename = rabbit@a\n"
    loaded = load(lines + text, suffix, tmp_path)
    assert loaded.settings.cluster_nodes == THREE
    assert loaded.warnings == ()


def test_the_environment_replaces_the_list_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "c.conf"
    file.write_text("node_name = m@x\ncluster_nodes = m@a, m@b", encoding="utf-8")
    loaded = config.load([str(file)], {"MIRRORMQ_CLUSTER_NODES": "m@x,m@y:7"}, [], "here")
    assert [peer.name for peer in loaded.settings.cluster_nodes] == ["m@x", "m@y"]


def test_a_listed_node_is_reached_where_the_list_says_unless_it_advertises_itself() -> None:
    nodes = "m@a:4000, m@b:4001"
    assert given(node_name="m@b", cluster_nodes=nodes).links.advertise == Address("b", 4001)
    told = given(node_name="m@b", cluster_nodes=nodes, cluster_advertise="proxy:9")
    assert told.links.advertise == Address("proxy", 9)


def test_a_node_that_is_not_listed_is_told_so(tmp_path: Path) -> None:
    loaded = load("node_name = typo@a\ncluster_nodes = m@a, m@b", ".conf", tmp_path)
    assert loaded.warnings == ("cluster_nodes does not list this node, typo@a",)


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ({"cluster_nodes": "m@a, m@a:1"}, "cluster_nodes lists m@a twice."),
        ({"cluster_nodes": "m@a, n@a"}, "cluster_nodes lists m@a and n@a at the same address."),
        ({"cluster_nodes": "somewhere"}, "expected name@host or name@host:port, not 'somewhere'."),
        ({"cluster_nodes": "m@::1"}, "cluster_nodes: an IPv6 host stands in brackets"),
        (
            {"cluster_formation__peer_discovery_backend": "rabbit_peer_discovery_k8s"},
            "nodes are not looked up by 'rabbit_peer_discovery_k8s': list them in cluster_nodes",
        ),
        ({"cluster_partition_handling": "pause_if_all_down"}, "needs the names of nodes"),
        ({"cluster_partition_handling__pause_if_all_down__recover": "autoheal"}, "write ignore, or leave"),
        ({"cluster_partition_handling": "maybe"}, "autoheal, and not 'maybe'"),
    ],
)  # fmt: skip
def test_what_cannot_form_a_cluster_is_refused_in_one_sentence(pairs: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)) as caught:
        given(**pairs)
    assert "\n" not in str(caught.value)


def test_a_list_longer_than_a_cluster_can_be_is_refused() -> None:
    nodes = ",".join(f"m@h{number}" for number in range(limits.raft_members_max + 1))
    with pytest.raises(ConfigError, match=f"lists {limits.raft_members_max + 1} nodes"):
        given(cluster_nodes=nodes)


def test_the_old_name_of_a_mode_is_taken_with_a_warning(tmp_path: Path) -> None:
    loaded = load("cluster_partition_handling = autoupgrade", ".conf", tmp_path)
    assert loaded.settings.partition_handling == "autoheal"
    (warning,) = loaded.warnings
    assert warning.endswith("cluster_partition_handling = autoupgrade is deprecated: write autoheal")
    assert not load("cluster_partition_handling = autoheal", ".conf", tmp_path).warnings


def test_pausing_has_a_short_name_and_death_certificates_can_be_switched_off() -> None:
    assert given(cluster_partition_handling="pause").partition_handling == "pause_minority"
    assert given(cluster_partition_handling="pause_minority").partition_handling == "pause_minority"
    assert given(death_certificate="off").death_certificate is False


def test_nodes_to_be_in_reach_are_listed_as_in_rabbitmqs_file() -> None:
    found = given(
        cluster_partition_handling="pause_if_all_down",
        cluster_partition_handling__pause_if_all_down__nodes__1="m@a",
        cluster_partition_handling__pause_if_all_down__nodes__2="m@b",
        cluster_partition_handling__pause_if_all_down__recover="ignore",
    )
    assert found.partition_handling == "pause_if_all_down"
    assert found.partition_nodes == ("m@a", "m@b")


def test_the_rhythms_of_rabbitmqs_cluster_are_passed_over_with_a_reason() -> None:
    keys = ("net_ticktime", "cluster_keepalive_interval", "cluster_formation.etcd.host")
    source = [config.Given(key, "1", "here") for key in keys]
    warnings = config.load([], {}, source, "here").warnings
    assert [warning.partition(": ")[2].split(" is ignored")[0] for warning in warnings] == list(keys)
    assert not any("one node" in warning for warning in warnings)


def test_the_list_is_shown_as_it_is_written() -> None:
    shown = shown_settings(given(node_name="m@a", cluster_nodes="m@a, m@[::1]:7"))
    assert shown["cluster_nodes"] == ["m@a:25672", "m@[::1]:7"]
    assert shown["cluster_partition_handling"] == "pause_minority"
