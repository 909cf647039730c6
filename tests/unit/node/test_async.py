"""Asynchronous replication: the master's own flush confirms; what a fail-over loses is told and salvaged."""

from typing import Any

from mirrormq.meta.records import View
from mirrormq.node import report_mirrors
from tests.support.scenariokit import Consumer, Publisher, Site

BEFORE, LATE = 10, 6


def parted(**policy: Any) -> tuple[Site, Publisher]:
    """a is the master, b its mirror, and nothing reaches b any more; somebody publishes at a."""
    site = Site("a", "b", "c", "d", "e")
    rules: dict[str, Any] = {"ha_mode": "nodes", "ha_params": ["a", "b"], "ha_replication": "async"}
    site.policy(**(rules | policy))
    site.declare(at="a")
    site.wait_copies("a", "b")
    (leader,) = site.leaders
    if leader in ("a", "b"):
        site[leader].node.membership.raft.transfer(site.now.mono, "c")
        site[leader].node.membership.is_due = True
        site.wait(lambda: site.leaders == {"c"}, "c leads")
        site.advance(1)
    site.fill(BEFORE)
    site.cuts.add(frozenset(("a", "b")))
    publisher = site.publisher("a")
    publisher.publish(LATE, first=BEFORE)
    site.advance(0.4)
    publisher.hear()
    return site, publisher


def window(site: Site) -> dict[str, Any]:
    queue = site["a"].node.vhosts["/"].queues["q"]
    return report_mirrors.measured(site["a"].node, queue)


def view(site: Site, at: str = "c") -> View:
    return site[at].node.meta.views["/", "q"]


def numbers(site: Site, queue: str, count: int) -> list[int]:
    return [number for number, _ in Consumer(site, site["c"].client(), queue).wait_taken(count)]


def test_the_masters_own_flush_confirms_and_what_may_be_lost_is_told() -> None:
    site, publisher = parted()
    assert len(publisher.confirmed) == LATE
    told = window(site)
    assert told["loss_window_records"] >= LATE
    assert told["loss_window_bytes"] > 0
    assert 0 < told["loss_window_seconds"] < 1
    site.heal()
    site.wait(lambda: window(site)["loss_window_records"] == 0, "the mirror has followed")
    assert window(site)["loss_window_seconds"] == 0


def test_without_it_publishes_wait_for_the_mirror_and_no_window_is_told() -> None:
    site, publisher = parted(ha_replication="sync")
    assert not publisher.confirmed
    assert "loss_window_records" not in window(site)


def test_a_fail_over_counts_as_a_loss_within_the_window_and_the_rest_is_salvaged() -> None:
    site, _ = parted()
    told = window(site)["loss_window_records"]
    site.kill("a")
    site.heal()
    site.wait(lambda: site.master() == "b", "b has taken over")
    site.wait(lambda: site.depth() == BEFORE, "it has what had reached it")
    assert view(site).losses == 1
    assert told >= LATE
    site.restart("a")
    site.wait(lambda: not view(site).partings, "a is salvaged")
    site.wait_copies("a", "b")
    assert numbers(site, "q.salvage", LATE) == list(range(BEFORE, BEFORE + LATE))
    assert numbers(site, "q", BEFORE) == list(range(BEFORE))
    assert view(site).salvaged == LATE


def test_when_synced_in_the_same_policy_waits_for_the_master_instead() -> None:
    site, _ = parted(ha_promote_on_failure="when-synced")
    site.kill("a")
    site.heal()
    site.advance(12)
    assert site.master() == ""
    assert view(site).losses == 0
    site.restart("a")
    site.wait(lambda: site.master() == "a", "a is back")
    site.wait(lambda: site.depth() == BEFORE + LATE, "nothing is lost")


def test_a_master_that_is_started_again_before_it_is_called_dead_stays_the_master() -> None:
    site, _ = parted()
    site.heal()
    site.wait(lambda: window(site)["loss_window_records"] == 0, "the mirror has followed")
    site.kill("a")
    site.start("a", *site.names)
    site.settle("a", seconds=40)
    site.wait(lambda: site.master() in ("a", "b"), "it has a master")
    site.wait(lambda: site.depth() == BEFORE + LATE, "nothing is lost")


def test_a_planned_move_loses_nothing() -> None:
    site, publisher = parted()
    site.heal()
    site.advance(1)
    record = site["a"].node.meta.queues["/", "q"]
    site["a"].node.copies.transfer(record.id, "b", lambda _: None)
    site.wait(lambda: site.master() == "b", "b is the master")
    assert view(site).losses == 0
    site.wait(lambda: site.depth() == BEFORE + LATE, "nothing is lost")
    publisher.client.close_socket()
