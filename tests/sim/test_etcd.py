"""Promises of the metadata on a simulated etcd, under lost answers, lost watches, compaction and crashes."""

from __future__ import annotations

import pytest

from mirrormq.cluster.etcd import api
from mirrormq.cluster.etcd.tenure import Tenure
from mirrormq.sim.etcdworld import EtcdWorld
from mirrormq.sim.model import Violation

SEEDS = range(1, 17)
TROUBLE = (0.0, 0.02, 0.1, 0.3)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_proposal_is_told_once_and_nobody_acts_without_its_key(seed: int) -> None:
    EtcdWorld(seed, trouble=TROUBLE[seed % len(TROUBLE)]).run()


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [EtcdWorld(7, trouble=0.1) for _ in range(2)]
    for run in runs:
        run.run()
    assert runs[0].stats == runs[1].stats
    assert runs[0].etcd.keys == runs[1].etcd.keys


class Careless(Tenure):
    """Goes on with a lease that it has told, although the link over which it did has ended."""

    def suspend(self) -> None:
        """Nothing."""


def test_a_node_that_does_not_stop_when_its_link_ends_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrormq.cluster.etcd.agreement.Tenure", Careless)
    world = EtcdWorld(1)
    with pytest.raises(Violation, match="has no key"):
        flap(world)


def flap(world: EtcdWorld) -> None:
    """A link that ends and comes back, again and again."""
    for _ in range(20):
        world.cut("n1", "n2")
        world.settle(50)
        world.connect("n1", "n2")
        world.until(world.is_whole)


class Greedy(Tenure):
    """Counts a lease from when the answer came, and all of it."""

    def _on_renewed(self, now: int, sent: int, answer: api.Answer) -> None:
        super()._on_renewed(now, sent, answer)
        if isinstance(answer, api.Renewed) and answer.seconds:
            self._until = now + answer.seconds * 1_100_000


def test_a_node_that_counts_its_lease_too_generously_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirrormq.cluster.etcd.agreement.Tenure", Greedy)
    world = EtcdWorld(1)
    world.until(lambda: world.now > 5_000_000)
    world.cut_off.add("n2")
    with pytest.raises(Violation, match="has no key"):
        world.settle(3_000)
