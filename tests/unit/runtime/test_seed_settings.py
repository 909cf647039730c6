"""Settings about rebalancing, copies and the mirror job, in both syntaxes and in the words people know."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirrormq.runtime import config, policies
from mirrormq.runtime.faults import ConfigError
from mirrormq.runtime.jobwords import with_defaults
from mirrormq.runtime.settings import Settings


def load(folder: Path, text: str, suffix: str = ".conf") -> Settings:
    file = folder / f"config{suffix}"
    file.write_text(text, encoding="utf-8")
    return config.load([str(file)], {}, [], "host").settings


def pattern(settings: Settings) -> str:
    found = policies.implied(settings)
    return "" if found is None else found.pattern


TOML = """
"cluster_nodes.disc_copies" = ["rabbit@a", "rabbit@b:7", "orders", "jobs.*"]
[cluster_rebalance]
trigger = "timer"
interval = "90s"
strategy = "least-messages"
"""
CONF = """
cluster_nodes.disc_copies = rabbit@a, rabbit@b:7, orders, jobs.*
cluster_rebalance = timer
cluster_rebalance.interval = 90s
cluster_rebalance.strategy = least-messages
"""


@pytest.mark.parametrize(("text", "suffix"), [(TOML, ".toml"), (CONF, ".conf")])
def test_both_syntaxes_say_the_same(tmp_path: Path, text: str, suffix: str) -> None:
    settings = load(tmp_path, text, suffix)
    assert [str(peer) for peer in settings.cluster_nodes] == ["rabbit@a:25672", "rabbit@b:7"]
    assert pattern(settings) == r"^(?:orders|jobs.*)$"
    found = (settings.rebalance, settings.rebalance_interval_ms, settings.rebalance_strategy)
    assert found == ("timer", 90_000, "messages")


def test_nodes_of_disc_copies_are_added_to_those_listed_elsewhere(tmp_path: Path) -> None:
    settings = load(tmp_path, "cluster_nodes = rabbit@a, rabbit@b\ncluster_nodes.disc_copies.1 = rabbit@b\n")
    assert [peer.name for peer in settings.cluster_nodes] == ["rabbit@a", "rabbit@b"]


@pytest.mark.parametrize(
    ("written", "is_matched", "is_not"),
    [
        ("orders", ["orders"], ["orders2", "my.orders"]),
        ("a.b", ["a.b"], ["axb"]),
        ("orders.*", ["orders", "orders.eu"], ["my.orders"]),
        ("^jobs-[0-9]+$", ["jobs-1"], ["jobs-x", "xjobs-1"]),
        ("a, b|c", ["a", "b", "c"], ["ab"]),
    ],
)
def test_queues_are_given_by_name_or_by_pattern(
    tmp_path: Path, written: str, is_matched: list[str], is_not: list[str]
) -> None:
    import re

    found = re.compile(pattern(load(tmp_path, f"disc_copies = {written}")))
    assert all(found.search(name) for name in is_matched)
    assert not any(found.search(name) for name in is_not)


def test_an_empty_list_is_not_the_same_as_none(tmp_path: Path) -> None:
    assert load(tmp_path, "disc_copies =").disc_copies == ()
    assert load(tmp_path, "heartbeat = 1").disc_copies is None
    with pytest.raises(ConfigError, match="expected 'key = value'"):
        load(tmp_path, "cluster_name =")


def test_a_bad_pattern_stops_the_node(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cluster_nodes\.disc_copies: .*regular expression"):
        load(tmp_path, "disc_copies = a(")


@pytest.mark.parametrize("word", ["off", "timer", "appoint", "on-demand", "run"])
def test_every_trigger_is_known(tmp_path: Path, word: str) -> None:
    assert load(tmp_path, f"cluster_rebalance = {word}").rebalance == word


def test_an_unknown_trigger_or_strategy_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected off or timer or appoint or on-demand or run"):
        load(tmp_path, "cluster_rebalance = always")
    with pytest.raises(ConfigError, match="expected masters or connections"):
        load(tmp_path, "cluster_rebalance.strategy = best")


def test_the_mirror_job_takes_what_it_is_not_told_from_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "rabbitmq.conf"
    file.write_text("sync_strategy = full\nsync_interval = 30s\n", encoding="utf-8")
    given = ["mirror", "--source", "amqp://a", "--config", str(file)]
    rest = ["mirror", "--source", "amqp://a"]
    assert with_defaults(given, {}) == [*rest, "--strategy", "full", "--sync-interval", "30000ms"]
    told = with_defaults([*given, "--strategy=event", "--sync-interval", "1s"], {})
    assert told == [*rest, "--strategy=event", "--sync-interval", "1s"]
    assert with_defaults(rest, {"MIRRORMQ_CONFIG": str(file)})[-1] == "30000ms"
    assert with_defaults(rest, {"MIRRORMQ_SYNC_STRATEGY": "event"})[-2:] == ["--strategy", "event"]
    assert with_defaults(rest, {}) == rest
    assert with_defaults(["audit", "--config", "x"], {}) == ["audit", "--config", "x"]
