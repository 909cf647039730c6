"""Promises of the partition modes, with real processes behind cut links: message by message on both sides."""

from __future__ import annotations

from pathlib import Path

from mirrormq.runtime import offline
from tests.cluster import kit, sides
from tests.cluster.kit import until
from tests.cluster.sides import Voice


def test_stop_processing_keeps_clients_waiting_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    settings = ["cluster_partition_handling=stop_processing"]
    with kit.cluster(tmp_path, proxied=True, settings=settings) as cluster:
        sides.mirror_all(cluster)
        leader = cluster.leader()
        node, other = cluster.others(leader)
        sides.declare(node, "mirrored")
        near, reader = Voice(node, "mirrored"), Voice(node, "mirrored")
        near.publish(range(20))
        near.wait_confirmed(range(20))
        cluster.net.isolate(node.name)
        told = sides.wait_side(node, "minority", "stopped")
        assert f"1 of 3 voting nodes ({node.name})" in str(told["why"]) or "no leader answers" in str(
            told["why"]
        )
        assert node.said("processing is stopped", "side=minority")
        assert not node.accepts(), "nobody new is let in"
        near.publish(range(20, 30))
        reader.consume()
        far = Voice(other, "mirrored")
        far.publish(range(100, 120))
        far.wait_confirmed(range(100, 120))
        for client in (near, reader):
            client.listen()
            assert client.told == ["blocked"]
        assert near.confirmed == set(range(20))
        assert reader.got == [], "nothing is delivered there"
        # A mode is changed while it matters, and back.
        assert node.ctl("set_partition_handling", mode="stop_processing")["side"] == "minority"
        cluster.net.heal()
        near.wait_confirmed(range(30))
        assert near.told == ["blocked", "unblocked"]
        reader.wait_got([*range(30), *range(100, 120)])
        assert len(reader.got) == 50, "each once"
        assert not near.nacked
        until(lambda: node.status()["partition"]["side"] == "majority", f"{node} is on the right side")
        assert sides.drain(leader, "mirrored") == []


def test_another_mode_is_in_force_without_a_restart(tmp_path: Path) -> None:
    with kit.cluster(tmp_path, proxied=True) as cluster:
        node = cluster.others(cluster.leader())[0]
        assert node.status()["partition"]["handling"] == "pause_minority"
        kept = Voice(node, "nowhere")
        node.ctl("set_partition_handling", mode="stop_processing")
        cluster.net.isolate(node.name)
        sides.wait_side(node, "minority", "stopped")
        kept.listen()
        assert kept.told == ["blocked"]
        node.ctl("set_partition_handling", mode="pause")
        until(lambda: kept.listen() or len(kept.told) == 2, "the client is sent away")
        assert "out of reach" in kept.told[1]
        assert node.status()["partition"]["reaction"] == "closed"
        cluster.net.heal()
        until(node.accepts, f"{node} takes clients again", sides.CUT_S)


def test_ignore_goes_on_where_that_is_safe_and_brings_the_rest_when_it_is_healed(tmp_path: Path) -> None:
    settings = ["cluster_partition_handling=ignore"]
    with kit.cluster(tmp_path, 5, proxied=True, settings=settings) as cluster:
        leader = cluster.leader()
        here, there, *_ = cluster.others(leader)
        far = [node for node in cluster if node not in (here, there)]
        sides.mirror_all(cluster)
        sides.mirror(cluster, "whole", nodes=[here, there])
        for queue in ("whole", "split"):
            sides.declare(here, queue)
            sides.wait_waived(here, queue)
        whole, reader, split = Voice(here, "whole"), Voice(here, "whole"), Voice(here, "split")
        reader.consume()
        whole.publish(range(10))
        whole.wait_confirmed(range(10))
        for one in (here, there):
            for other in far:
                cluster.net.cut(one.name, other.name)
        for node in (here, there):
            told = sides.wait_side(node, "minority", "serving")
            assert "2 of 5 voting nodes" in str(told["why"]) or "no leader answers" in str(told["why"])
        assert here.accepts(), "nothing is closed"
        # On this side: one queue goes on, publishes to the other wait.
        split.publish(range(20))
        whole.publish(range(10, 20))
        whole.wait_confirmed(range(20))
        reader.wait_got(range(20))
        # On the other side: the one that can have a master there has one, publishes to the other wait.
        beyond, distant = Voice(far[0], "split"), Voice(far[0], "whole")
        beyond.publish(range(100, 120))
        distant.publish(range(100, 110))
        beyond.wait_confirmed(range(100, 120))
        for client in (split, distant):
            client.listen()
            assert not client.confirmed | client.nacked, (
                "what cannot be committed is neither confirmed nor lost"
            )
        cluster.net.heal()
        split.wait_confirmed(range(20))
        distant.wait_confirmed(range(100, 110))
        reader.wait_got([*range(20), *range(100, 110)])
        assert len(reader.got) == 30, "each once"
        assert not any(redelivered for _, redelivered in reader.got)
        found = sides.drain(far[1], "split")
        assert sorted(found) == [*range(20), *range(100, 120)], "each once"
        assert [number for number in found if number < 100] == list(range(20)), "in order"
        assert not any(client.told for client in (whole, reader, split))


def test_pause_if_all_down_goes_on_while_a_named_node_is_in_reach_and_pauses_while_none_is(
    tmp_path: Path,
) -> None:
    with kit.cluster(tmp_path, 5, proxied=True) as cluster:
        leader = cluster.leader()
        here, there, *_ = cluster.others(leader)
        far = [node for node in cluster if node not in (here, there)]
        for node in cluster:
            node.ctl("set_partition_handling", mode="pause_if_all_down", nodes=[here.name])
        sides.mirror_all(cluster)
        sides.mirror(cluster, "whole", nodes=[here, there])
        for queue in ("whole", "split"):
            sides.declare(here, queue)
            sides.wait_waived(here, queue)
        whole, split, sent_away = Voice(here, "whole"), Voice(here, "split"), Voice(there, "split")
        for one in (here, there):
            for other in far:
                cluster.net.cut(one.name, other.name)
        for node in (here, there):
            sides.wait_side(node, "minority", "serving")
        split.publish(range(20))
        whole.publish(range(10))
        whole.wait_confirmed(range(10))
        beyond = Voice(far[0], "split")
        beyond.publish(range(100, 120))
        beyond.wait_confirmed(range(100, 120))
        # The one that is named is in its own reach; the other one has nobody left.
        cluster.net.cut(here.name, there.name)
        sides.wait_side(there, "minority", "closed")
        assert not there.accepts()
        until(lambda: sent_away.listen() or sent_away.told, "its client is sent away")
        assert here.accepts()
        whole.publish(range(10, 20))
        cluster.net.heal()
        split.wait_confirmed(range(20))
        whole.wait_confirmed(range(20))
        until(there.accepts, f"{there} takes clients again", sides.CUT_S)
        assert sides.drain(far[1], "whole") == list(range(20)), "each once, in order"
        found = sides.drain(far[1], "split")
        assert sorted(found) == [*range(20), *range(100, 120)], "each once"
        assert not any(client.told or client.nacked for client in (whole, split))


def test_ignore_a_master_cut_from_the_metadata_but_not_from_its_mirror_yields(tmp_path: Path) -> None:
    settings = ["cluster_partition_handling=ignore"]
    with kit.cluster(tmp_path, proxied=True, settings=settings) as cluster:
        leader = cluster.leader()
        node, mirror = cluster.others(leader)
        sides.mirror(cluster, "q", nodes=[node, mirror])
        sides.declare(node, "q")
        sides.wait_waived(node, "q")
        near = Voice(node, "q")
        near.publish(range(10))
        near.wait_confirmed(range(10))
        cluster.net.cut(node.name, leader.name)
        sides.wait_side(node, "minority", "serving")
        near.publish(range(10, 20))
        far = Voice(mirror, "q")
        far.publish(range(100, 110))
        far.wait_confirmed(range(100, 110))
        far.consume()
        far.wait_got([*range(10), *range(100, 110)])
        cluster.net.heal()
        # What it took when its mirror had just left it is refused, the rest waited: nothing is open, or lost.
        near.wait_answered(range(20))
        far.wait_got([*near.confirmed, *range(100, 110)])
        assert len(far.got) == len(near.confirmed) + 10, "each once"
        assert sides.drain(leader, "q") == []


def test_autoheal_both_sides_go_on_and_every_confirmed_message_is_there_once(tmp_path: Path) -> None:
    settings = ["cluster_partition_handling=autoheal"]
    with kit.cluster(tmp_path, proxied=True, settings=settings) as cluster:
        sides.mirror_all(cluster)
        leader = cluster.leader()
        node, other = cluster.others(leader)
        for queue in ("shared", "killed"):
            sides.declare(node, queue)
        near, reader = Voice(node, "shared"), Voice(node, "shared")
        near.publish(range(10))
        near.wait_confirmed(range(10))
        reader.consume()
        reader.wait_got(range(10))
        cluster.net.isolate(node.name)
        sides.wait_side(node, "minority", "serving")
        # Both sides take messages of the same queue, and deliver their own.
        near.publish(range(10, 30))
        near.wait_confirmed(range(10, 30))
        reader.wait_got(range(30))
        far = Voice(other, "shared")
        far.publish(range(100, 120))
        far.wait_confirmed(range(100, 120))
        # What nobody takes there lies in a branch; also if its process is killed.
        kept = Voice(node, "killed")
        kept.publish(range(200, 250))
        kept.wait_confirmed(range(200, 250))
        branches = node.status()["partition"]["branches"]
        assert (branches["open"], branches["messages"]) == (2, 50)
        assert node.said("cannot commit on this side: a branch of it serves")
        node.kill()
        rows = {row["name"]: row for row in offline.inspect(str(node.folder), None, None)}
        assert rows["killed (branch)"]["live"] == 50
        checked = offline.verify(str(node.folder), None)
        assert (checked["faults"], checked["orphans"]) == ([], 0)
        cluster.net.heal()
        node.start()
        node.wait_ready()
        until(lambda: node.status()["partition"]["branches"]["merging"] == 0, "all is merged", sides.CUT_S)
        assert sides.drain(leader, "killed") == list(range(200, 250)), "each once, and in order"
        assert sorted(sides.drain(other, "shared")) == list(range(100, 120)), "what was taken does not return"
        assert not near.nacked | far.nacked | kept.nacked
