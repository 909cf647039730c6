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
        assert page.locator("[data-link][data-up=false]").count() == 2
        person.open("timeline")
        expect(page.locator(".t-mark.bad").first).to_be_visible()
        person.sees("queue.master_changed")
    finally:
        victim.start()
        victim.wait_ready()
        cluster.wait_whole()
    person.open("queue")
    expect(page.locator("[data-role=mirror]")).to_have_count(2)


def test_synchronising_shows_its_progress_and_can_be_cancelled(admin: Person) -> None:
    page, node = admin.page, admin.node
    policy = {"vhost": "/", "name": "slow", "pattern": "^slow", "apply_to": "queues", "priority": 9}
    one = {"ha-mode": "nodes", "ha-params": [node.name]}
    node.ctl("set_policy", definition=one, **policy)
    channel = node.channel()
    kit.declare(channel, "slow")
    admin.at_the_end(lambda: node.ctl("clear_policy", vhost="/", name="slow"))
    admin.at_the_end(lambda: channel.queue_delete("slow"))
    for _ in range(60):
        channel.basic_publish("", "slow", bytes(100_000))
    wanted = {"ha-mode": "all", "ha-sync-mode": "manual", "ha-sync-max-throughput": 300_000}
    node.ctl("set_policy", definition=wanted, **policy)
    admin.open("queues")
    behind = page.get_by_role("row").filter(has_text="slow").locator(".badge.behind")
    expect(behind).to_have_text("+2")
    expect(behind).to_have_css("color", page.evaluate(BAD))
    admin.go("#/queues/%2F/slow", "Queue slow")
    expect(page.locator("[data-role=behind]")).to_have_count(2)
    page.get_by_role("button", name="Synchronise").click()
    bar = page.get_by_role("progressbar", name="Synchronised")
    kit.until(lambda: 0 < float(bar.get_attribute("value") or 0) < 100, "the bar moves")
    page.get_by_role("button", name="Cancel sync").click()
    expect(page.get_by_role("button", name="Synchronise")).to_be_visible()
    node.ctl("set_policy", definition={**wanted, "ha-sync-max-throughput": 100_000_000}, **policy)
    page.get_by_role("button", name="Synchronise").click()
    expect(page.locator("[data-role=mirror]")).to_have_count(2)
    expect(bar).to_have_count(0)


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
