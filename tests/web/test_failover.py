"""What happens to the cluster is seen while it happens."""

from __future__ import annotations

import time

from playwright.sync_api import expect

from tests.cluster import kit
from tests.web.person import Person

MASTER = "[data-role=master]"


def test_the_ring_shows_a_killed_master_and_the_next_one_at_once(person: Person) -> None:
    cluster, page = person.cluster, person.page
    channel = cluster[1].channel()
    victim = cluster[2]
    cluster[0].ctl("move_master", vhost="/", name="orders", node=victim.name)
    person.log_in(node=cluster[0])
    person.open("queue")
    expect(page.locator(MASTER)).to_have_attribute("data-node", victim.name)
    epoch = int(page.locator(".p-centre .big").text_content() or 0)
    channel.basic_publish("shop", "order.kill", b"confirmed before the kill")
    victim.kill()
    began = time.monotonic()
    try:
        # A mirror has the master's place, and the dead one has left the view.
        expect(page.locator(f'[data-node="{victim.name}"][data-role=gone]')).to_be_visible()
        took = time.monotonic() - began
        shown = page.locator(MASTER).get_attribute("data-node")
        assert shown in {cluster[0].name, cluster[1].name}
        assert int(page.locator(".p-centre .big").text_content() or 0) > epoch
        expect(page.locator("[role=status]").filter(has_text=f"{shown} is the master")).to_have_count(1)
        assert took < 10, took
        person.open("cluster")
        expect(page.locator(f'.p-node.down[data-node="{victim.name}"]')).to_be_visible()
        expect(page.locator("[data-link][data-up=false]")).to_have_count(2)
        person.open("timeline")
        expect(page.locator(".t-mark.bad").first).to_be_visible()
        expect(page.get_by_role("cell", name="queue.master_changed").first).to_be_visible()
    finally:
        victim.start()
        victim.wait_ready()
        cluster.wait_whole()
    person.open("queue")
    expect(page.locator("[data-role=mirror]")).to_have_count(2)


def unsynchronised(person: Person, name: str, throughput: int) -> None:
    """A queue with two mirrors that have nothing of it and wait to be synchronised, so fast at most."""
    node = person.node
    policy = {"vhost": "/", "name": name, "pattern": f"^{name}$", "apply_to": "queues", "priority": 9}
    node.ctl("set_policy", definition={"ha-mode": "nodes", "ha-params": [node.name]}, **policy)
    channel = node.channel()
    kit.declare(channel, name)
    person.at_the_end(lambda: node.ctl("clear_policy", vhost="/", name=name))
    person.at_the_end(lambda: channel.queue_delete(name))
    for _ in range(60):
        channel.basic_publish("", name, bytes(100_000))
    wanted = {"ha-mode": "all", "ha-sync-mode": "manual", "ha-sync-max-throughput": throughput}
    node.ctl("set_policy", definition=wanted, **policy)


def test_unsynchronised_mirrors_are_red_and_synchronising_shows_its_progress(admin: Person) -> None:
    page = admin.page
    unsynchronised(admin, "slow", 2_000_000)
    admin.open("queues")
    behind = admin.row("slow").locator(".badge.behind")
    expect(behind).to_have_text("+2")
    expect(behind).to_have_css("color", page.evaluate(BAD))
    admin.go("#/queues/%2F/slow", "Queue slow")
    expect(page.locator("[data-role=behind]")).to_have_count(2)
    page.get_by_role("button", name="Synchronise").click()
    bar = page.get_by_role("progressbar", name="Synchronised")
    kit.until(lambda: 0 < float(bar.get_attribute("value") or 0) < 100, "the bar moves")
    expect(page.locator("[data-role=mirror]")).to_have_count(2)
    expect(bar).to_have_count(0)
    admin.open("queues")
    expect(admin.row("slow").locator(".badge.mirrors")).to_have_text("+2")


def test_cancelling_a_synchronisation_is_asked_of_the_master(admin: Person) -> None:
    page = admin.page
    unsynchronised(admin, "slower", 200_000)
    admin.go("#/queues/%2F/slower", "Queue slower")
    page.get_by_role("button", name="Synchronise").click()
    page.get_by_role("button", name="Cancel sync").click()
    admin.notice("Synchronising is cancelled")


def test_the_master_is_moved_and_the_picture_follows(admin: Person) -> None:
    page = admin.page
    admin.open("queue")
    expect(page.locator(MASTER)).to_be_visible()
    before = page.locator(MASTER).get_attribute("data-node")
    section = admin.unfold("Master")
    target = next(node.name for node in admin.cluster if node.name != before)
    section.get_by_label("Move master to").select_option(target)
    section.get_by_role("button", name="Move master").click()
    admin.notice(f"{target} is the master")
    expect(page.locator(MASTER)).to_have_attribute("data-node", target)


def test_a_stream_comes_back_after_its_node_was_restarted(person: Person) -> None:
    person.expected += ["ERR_", "Failed to load"]
    node = person.cluster[1]
    person.log_in(node=node)
    person.open("queues")
    node.stop()
    expect(person.page.locator(".live.connecting")).to_be_visible()
    node.start()
    node.wait_ready()
    person.cluster.wait_whole()
    # Sessions live in the node's memory: the next request asks for a new log-in instead of failing silently.
    expect(person.page.get_by_label("Username")).to_be_visible()
    person.sees("The session has ended; log in again")


BAD = """(() => {
  const probe = document.body.appendChild(document.createElement('i'));
  probe.className = 'badge behind';
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
})()"""
