"""Promises of the partition modes, with real processes behind cut links: message by message on both sides."""

from __future__ import annotations

from pathlib import Path

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
