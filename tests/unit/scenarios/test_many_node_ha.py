"""Scenarios of the suite `many_node_ha`."""

from tests.support.scenariokit import Consumer, Site

SIX = ("a", "b", "c", "d", "e", "f", "g", "h", "i")


def test_kill_intermediate_four_copies_die_within_a_moment_and_a_consumer_gets_everything() -> None:
    # Nine nodes, so that after four deaths a majority still agrees; six have a copy.
    site = Site(*SIX)
    site.policy(ha_mode="nodes", ha_params=list("abcdef"))
    site.declare(at="a")
    publisher = site.publisher("h")
    consumer = Consumer(site, site["i"].client(), no_ack=True)
    publisher.publish(200)
    site.advance(0.1)
    for name in ("a", "b", "c", "d"):
        site.kill(name)
        site.advance(0.02)
    publisher.publish(200, 200)
    publisher.wait_confirmed(400)
    taken: set[int] = set()

    def all_taken() -> bool:
        taken.update(number for number, _ in consumer.take())
        return taken == set(range(400))

    site.wait(all_taken, f"everything is delivered: {len(taken)}")
