"""Queues, exchanges, bindings and messages, made and used in the browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.cluster import kit
from tests.web.person import Person


def test_a_queue_is_added_published_to_read_purged_and_deleted(admin: Person) -> None:
    page = admin.page
    admin.open("queues")
    section = admin.unfold("Add a new queue")
    section.get_by_label("Name").fill("made.here")
    section.get_by_label("Arguments: key").first.fill("x-message-ttl")
    section.get_by_label("Arguments: value").first.fill("3600000")
    section.get_by_role("button", name="Add queue").click()
    admin.notice("Queue made.here is there")
    row = admin.row("made.here")
    for badge in ("D", "TTL"):
        expect(row.locator(".badge").get_by_text(badge, exact=True)).to_be_visible()
    row.get_by_role("link", name="made.here").click()
    expect(page.get_by_role("heading", level=1, name="Queue made.here")).to_be_visible()

    publish = admin.unfold("Publish message")
    publish.get_by_label("Payload", exact=True).fill("Grüße, <b>not markup</b>")
    publish.get_by_label("Headers: key").first.fill("colour")
    publish.get_by_label("Headers: value").first.fill("blue")
    publish.get_by_role("button", name="Publish message").click()
    admin.notice("The message was published and routed")

    get = admin.unfold("Get messages")
    get.get_by_role("button", name="Get message(s)").click()
    expect(get.locator("pre")).to_have_text("Grüße, <b>not markup</b>")
    expect(get.locator(".message")).to_contain_text("colour: blue")
    get.get_by_label("Ack mode").select_option("ack_requeue_false")
    get.get_by_role("button", name="Get message(s)").click()
    expect(get.locator(".message")).to_contain_text("yes")  # redelivered
    get.get_by_role("button", name="Get message(s)").click()
    expect(get.get_by_text("The queue is empty")).to_be_visible()

    danger = admin.unfold("Delete and purge")
    danger.get_by_role("button", name="Purge messages").click()
    admin.confirm("Purge")
    admin.notice("Queue made.here is purged")
    danger.get_by_role("button", name="Delete queue").click()
    admin.confirm("Delete")
    admin.notice("Queue made.here is gone")
    expect(page.get_by_role("heading", level=1, name="Queues")).to_be_visible()
    assert "made.here" not in admin.node.queues()


def test_queues_that_go_with_their_consumer_or_connection_are_marked(admin: Person) -> None:
    channel = admin.node.channel()
    channel.queue_declare("passing", auto_delete=True)
    channel.queue_declare("private", exclusive=True)
    admin.open("queues")
    for name, wanted, other in (("passing", "AD", "Excl"), ("private", "Excl", "AD")):
        badges = admin.row(name).locator(".badge")
        expect(badges.get_by_text(wanted, exact=True)).to_be_visible()
        for absent in (other, "D"):
            expect(badges.get_by_text(absent, exact=True)).to_have_count(0)
    channel.queue_delete("passing")
    channel.queue_delete("private")


def test_an_address_that_is_none_leads_to_no_page(admin: Person) -> None:
    for address in ("#/queues/%zz/orders", "#/nonsense", "#/users/%"):
        admin.go(address, "No such page")
    admin.page.get_by_role("link", name="Go to the overview").click()
    expect(admin.page.get_by_role("heading", level=1, name="Overview")).to_be_visible()


def test_lists_are_filtered_sorted_and_paged_and_their_address_says_so(admin: Person) -> None:
    page, channel = admin.page, admin.node.channel()
    names = [f"page.{number:02}" for number in range(25)]
    for number, name in enumerate(names):
        kit.declare(channel, name)
        for _ in range(number):
            channel.basic_publish("", name, b"x")
    admin.open("queues")
    page.get_by_label("Filter").fill("page.")
    expect(page.locator(".total")).to_contain_text("25 of")
    page.get_by_label("per page").select_option("20")
    expect(page.locator("tbody tr")).to_have_count(20)
    page.get_by_role("button", name="Next page").click()
    expect(page.locator("tbody tr")).to_have_count(5)
    page.get_by_role("button", name="Total").click()
    expect(page.locator("tbody tr").first).to_contain_text("page.00")
    page.get_by_role("button", name="Total").click()
    expect(page.locator("tbody tr").first).to_contain_text("page.24")
    assert "sort=messages" in page.evaluate("location.hash")
    page.reload()
    expect(page.locator("tbody tr").first).to_contain_text("page.24")
    page.get_by_label("Filter").fill("page.(03|04)$")
    page.get_by_label("Regex").check()
    expect(page.locator("tbody tr")).to_have_count(2)
    for name in names:
        channel.queue_delete(name)


def test_a_list_is_kept_up_to_date_while_it_is_looked_at(admin: Person) -> None:
    page, channel = admin.page, admin.cluster[1].channel()
    admin.open("queues")
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    kit.declare(channel, "appears")
    row = admin.row("appears")
    expect(row).to_be_visible()
    link = page.get_by_role("link", name="appears")
    link.focus()
    for _ in range(7):
        channel.basic_publish("", "appears", b"x")
    expect(row).to_contain_text("7")
    # New figures must not take the focus away from whoever uses the keyboard.
    expect(link).to_be_focused()
    channel.queue_delete("appears")
    expect(row).to_have_count(0)


def test_an_exchange_is_added_bound_published_to_unbound_and_deleted(admin: Person) -> None:
    page = admin.page
    admin.open("exchanges")
    section = admin.unfold("Add a new exchange")
    section.get_by_label("Name").fill("made.exchange")
    section.get_by_label("Type", exact=True).select_option("topic")
    section.get_by_role("button", name="Add exchange").click()
    admin.notice("Exchange made.exchange is there")
    page.get_by_role("link", name="made.exchange").click()
    form = page.get_by_role("form", name="Add a binding from this exchange")
    form.get_by_label("Name").fill("payments")
    form.get_by_label("Routing key").fill("pay.#")
    form.get_by_role("button", name="Bind").click()
    admin.notice("The binding is there")
    row = admin.row("pay.#")
    expect(row.get_by_role("link", name="payments")).to_be_visible()
    publish = admin.unfold("Publish message")
    for key, told in (("other", "no queue wanted it"), ("pay.now", "published and routed")):
        publish.get_by_label("Routing key").fill(key)
        publish.get_by_role("button", name="Publish message").click()
        admin.notice(told)
    page.get_by_role("button", name="Unbind").click()
    expect(row).to_have_count(0)
    admin.unfold("Delete this exchange").get_by_role("button", name="Delete").click()
    admin.confirm("Delete")
    admin.notice("Exchange made.exchange is gone")


def test_a_connection_is_seen_with_its_channels_and_closed_with_a_reason(admin: Person) -> None:
    import pika

    page = admin.page
    victim = admin.cluster[1].connect(client_properties={"connection_name": "the victim"})
    victim.channel()
    admin.open("connections")
    row = page.get_by_role("row").filter(has_text="the victim")
    expect(row).to_contain_text("guest")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Connection")
    expect(page.get_by_role("table", name="Channels of this connection").locator("tbody tr")).to_have_count(1)
    section = admin.unfold("Close this connection")
    section.get_by_label("Reason").fill("a test")
    section.get_by_role("button", name="Force close").click()
    expect(page.get_by_role("heading", level=1, name="Connections")).to_be_visible()
    with pytest.raises(pika.exceptions.AMQPError, match="a test"):
        victim.process_data_events(kit.DEADLINE_S)


def test_a_channel_shows_its_consumers_and_their_queues(admin: Person) -> None:
    page = admin.page
    admin.cluster[1].channel().basic_consume("payments", lambda *_: None)
    admin.open("channels")
    page.get_by_role("columnheader", name="Consumers").get_by_role("button").click()
    page.get_by_role("columnheader", name="Consumers").get_by_role("button").click()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    page.locator("tbody tr").first.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Channel")
    expect(page.get_by_role("table", name="Consumers").get_by_role("link", name="payments")).to_be_visible()


def test_names_that_look_like_markup_or_paths_are_shown_and_opened_as_they_are(admin: Person) -> None:
    page, channel = admin.page, admin.node.channel()
    name = 'a/b <img src=x onerror="window.bad=1"> %2F ?#'
    kit.declare(channel, name)
    admin.open("queues")
    page.get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", level=1, name=f"Queue {name}")).to_be_visible()
    expect(page.locator("[data-node]").first).to_be_visible()
    assert page.evaluate("window.bad") is None
    channel.queue_delete(name)
