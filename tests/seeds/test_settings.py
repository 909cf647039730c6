"""Settings as they are printed: each is read, and does what the feature map says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mirrormq.runtime import config, policies
from mirrormq.runtime.faults import ConfigError
from mirrormq.runtime.jobwords import with_defaults
from mirrormq.runtime.settings import Settings
from mirrormq.runtime.values import Share
from tests.cluster import kit
from tests.cluster.kit import until
from tests.seeds.lines import SETTINGS, text, tried


def read(folder: Path, line: str) -> Settings:
    file = folder / "rabbitmq.conf"
    file.write_text(f"{line}\n", encoding="utf-8")
    return config.load([str(file)], {}, [], "host").settings


def _pattern(settings: Settings) -> str:
    found = policies.implied(settings)
    assert found is not None
    return found.pattern


MEANS: dict[str, tuple[Callable[[Settings], object], object]] = {
    "000-partition-ignore": (lambda s: s.partition_handling, "ignore"),
    "000-partition-pause": (lambda s: s.partition_handling, "pause_minority"),
    "004-partition-autoupgrade": (lambda s: s.partition_handling, "autoheal"),
    "004-partition-autoheal": (lambda s: s.partition_handling, "autoheal"),
    "004-partition-stop": (lambda s: s.partition_handling, "stop_processing"),
    "000-memory": (lambda s: s.memory_limit, Share(0.4)),
    "003-sync-interval": (lambda s: s.sync_interval_ms, 10_000),
    "003-sync-full": (lambda s: s.sync_strategy, "full"),
    "003-sync-incremental": (lambda s: s.sync_strategy, "incremental"),
    "004-event": (lambda s: s.sync_strategy, "event"),
    "004-disc-copies": (lambda s: [peer.name for peer in s.cluster_nodes], ["rabbit@host"]),
    "004-disc-copies-queues": (_pattern, "^(?:queue1|queue2)$"),
    "004-disc-copies-empty": (lambda s: (s.disc_copies, policies.implied(s)), ((), None)),
    "004-rebalance-run": (lambda s: s.rebalance, "run"),
    "004-rebalance-timer": (lambda s: s.rebalance, "timer"),
    "004-rebalance-interval": (lambda s: s.rebalance_interval_ms, 60_000),
    "004-rebalance-appoint": (lambda s: s.rebalance, "appoint"),
    "004-rebalance-on-demand": (lambda s: s.rebalance, "on-demand"),
    "004-least-connections": (lambda s: s.rebalance_strategy, "connections"),
    "004-least-messages": (lambda s: s.rebalance_strategy, "messages"),
    "004-random": (lambda s: s.rebalance_strategy, "random"),
    "004-round-robin": (lambda s: s.rebalance_strategy, "round-robin"),
}


@pytest.mark.parametrize("line", MEANS)
def test_a_setting_is_read_as_it_is_printed(tmp_path: Path, line: str) -> None:
    look, value = MEANS[line]
    assert look(read(tmp_path, text(line))) == value


def test_every_printed_setting_is_tried_here() -> None:
    assert set(MEANS) | {"003-mirroring-policy"} == tried(SETTINGS)


@pytest.mark.parametrize("value", ["0", "0.0", "1.5", "-0.4"])
def test_a_share_of_the_memory_is_more_than_none_and_at_most_all(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match="vm_memory_high_watermark"):
        read(tmp_path, f"vm_memory_high_watermark = {value}")


def test_the_mirror_job_follows_the_interval_and_the_strategy(tmp_path: Path) -> None:
    file = tmp_path / "rabbitmq.conf"
    file.write_text(f"{text('003-sync-interval')}\n{text('003-sync-full')}\n", encoding="utf-8")
    words = with_defaults(["mirror", "--config", str(file)], {})
    assert words == ["mirror", "--strategy", "full", "--sync-interval", "10000ms"]


@pytest.mark.slow
def test_listed_queues_are_mirrored_and_a_changed_list_counts_at_the_next_start(tmp_path: Path) -> None:
    listed = f"cluster_nodes.{text('004-disc-copies-queues').replace(' = ', '=')}"
    policy = "mirroring_policy.jobs.pattern=^jobs$", 'mirroring_policy.jobs.definition={"ha-mode":"all"}'
    with kit.cluster(tmp_path, 2, settings=(listed, *policy)) as two:
        channel = two[0].channel()
        for name in ("queue1", "queue2", "queue3", "jobs"):
            channel.queue_declare(name, durable=True)

        def in_sync() -> dict[str, int]:
            rows = two[1].ctl("list_queues")
            return {row["name"]: len(row.get("in_sync", [0])) for row in rows}

        wanted = {"queue1": 2, "queue2": 2, "queue3": 1, "jobs": 2}
        until(lambda: in_sync() == wanted, lambda: str(in_sync()))
        two[1].stop()
        two[1].settings.append("cluster_nodes.disc_copies=queue3")
        two.start(two[1])
        wanted = {"queue1": 1, "queue2": 1, "queue3": 2, "jobs": 2}
        until(lambda: in_sync() == wanted, lambda: str(in_sync()))
