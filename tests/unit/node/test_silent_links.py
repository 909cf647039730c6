"""Links that are open and carry nothing: who is fed by another neighbour, who leaves the view, how soon."""

import pytest

from mirrormq.base import limits
from mirrormq.node.node import Node
from tests.support.scenariokit import Publisher, Site

SUSPECT_S = limits.peer_suspect_us / 1_000_000
SOON_S = SUSPECT_S + 0.5
"""Until publishes are confirmed again: the suspicion, and a hello."""


@pytest.fixture
def site() -> Site:
    """Three nodes with copies, of five: who leads and who votes is nobody's business here."""
    made = Site("a", "b", "c", "d", "e")
    made.policy(ha_mode="nodes", ha_params=["a", "b", "c"])
    made.declare(at="a")
    made.wait_copies("a", "b", "c")
    made.fill(3)
    return made


def ring(site: Site) -> list[str]:
    view = site.view()
    assert view is not None
    return [entry.node for entry in view.members]


def source(site: Site, name: str) -> str:
    """Who pushes to a mirror."""
    copies = site[name].node.copies
    assert copies is not None
    [copy] = [copy for copy in copies.mirrors.copies.values() if copy.view.name == "q"]
    assert copy.member is not None
    return copy.member.source


def seconds_to_confirm(site: Site, publisher: Publisher) -> float:
    began, wanted = site.now.mono, publisher.sent
    publisher.wait_confirmed(wanted)
    return (site.now.mono - began) / 1_000_000


@pytest.mark.parametrize("fewest", [1, 3])
def test_a_mirror_whose_neighbour_falls_silent_is_fed_by_the_master_and_stays_in_sync(
    site: Site, fewest: int
) -> None:
    """With as many members as there have to be nobody could be demoted either."""
    site.policy(ha_mode="nodes", ha_params=["a", "b", "c"], ha_min_in_sync=fewest)
    site.advance(1)
    master, left, right = ring(site)
    epoch = site.view().epoch  # type: ignore[union-attr]
    assert source(site, right) == left
    site.cuts |= {frozenset((left, right))}
    publisher = site.publisher(master)
    publisher.publish(5, 3)
    assert seconds_to_confirm(site, publisher) <= SOON_S
    assert source(site, right) == master
    publisher.publish(5, 8)
    assert seconds_to_confirm(site, publisher) <= 0.2
    site.heal()
    site.wait(lambda: source(site, right) == left, "it goes back to its neighbour", 1)
    publisher.publish(5, 13)
    assert seconds_to_confirm(site, publisher) <= 0.2
    assert site.view().epoch == epoch  # type: ignore[union-attr]
    assert [number for number, _ in site.drain()] == list(range(18))


def test_a_mirror_that_its_master_does_not_hear_is_removed_and_comes_back(site: Site) -> None:
    master, left, right = ring(site)
    site.cuts |= {frozenset((master, right)), frozenset((left, right))}
    publisher = site.publisher(master)
    publisher.publish(5, 3)
    assert SUSPECT_S - 0.2 <= seconds_to_confirm(site, publisher) <= SOON_S
    assert site.in_sync() == {master, left}
    site.heal()
    site.wait_copies("a", "b", "c")


def test_a_mirror_that_was_silent_only_for_a_moment_loses_nothing_of_its_part(site: Site) -> None:
    master, left, right = ring(site)
    site.cuts |= {frozenset((left, right))}
    publisher = site.publisher(master)
    publisher.publish(5, 3)
    site.advance(SUSPECT_S - 0.5)
    site.heal()
    assert seconds_to_confirm(site, publisher) <= 0.2
    assert source(site, right) == left


def test_without_word_of_silent_links_the_ring_waits_for_the_timeout_of_mirrors(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tests above would show if nobody told the node."""
    monkeypatch.setattr(Node, "link_suspected", lambda *_: None)
    master, left, right = ring(site)
    site.cuts |= {frozenset((left, right))}
    publisher = site.publisher(master)
    publisher.publish(5, 3)
    assert seconds_to_confirm(site, publisher) > limits.mirror_timeout_us / 1_000_000
