"""Policies, users, virtual hosts and definitions in the browser; and who may not change them."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import expect

from tests.web.person import PAGES, Person

CHANGES = ("Add", "Bind", "Unbind", "Delete", "Purge", "Publish", "Get message", "Move", "Set", "Force")
"""How the labels of buttons begin that change something."""


def test_a_policy_is_added_edited_and_deleted_and_queues_show_it(admin: Person) -> None:
    page = admin.page
    admin.open("policies")
    form = page.get_by_role("form", name="Add or update policy")
    form.get_by_label("Name").fill("mirror-two")
    form.get_by_label("Pattern").fill("^payments$")
    form.get_by_label("Apply to").select_option("queues")
    form.get_by_label("Priority").fill("5")
    form.get_by_role("button", name="Mirror on all nodes").click()
    form.get_by_role("button", name="Add / update policy").click()
    admin.notice("mirror-two is set")
    row = admin.row("mirror-two")
    expect(row).to_contain_text("ha-mode: all")
    row.get_by_role("button", name="Edit").click()
    expect(form.get_by_label("Pattern")).to_be_focused()
    form.get_by_label("Definition: key").nth(2).fill("max-length")
    form.get_by_label("Definition: value").nth(2).fill("77")
    form.get_by_role("button", name="Add / update policy").click()
    expect(row).to_contain_text("max-length: 77")
    admin.open("queues")
    queue = admin.row("payments")
    expect(queue.locator(".badge").get_by_text("mirror-two")).to_be_visible()
    expect(queue.locator(".badge").get_by_text("Lim", exact=True)).to_be_visible()
    expect(queue.locator(".badge.mirrors")).to_have_text("+2")
    admin.open("policies")
    row.get_by_role("button", name="Delete").click()
    admin.confirm("Delete")
    admin.notice("mirror-two is gone")
    expect(row).to_have_count(0)


def test_a_definition_that_is_refused_says_why_beside_the_form(admin: Person) -> None:
    admin.expected.append("400")
    form = admin.page.get_by_role("form", name="Add or update policy")
    admin.open("policies")
    form.get_by_label("Name").fill("wrong")
    form.get_by_label("Pattern").fill(".*")
    form.get_by_role("button", name="Add / update policy").click()
    expect(form.get_by_role("alert")).to_contain_text("Definition: a value is needed")
    form.get_by_label("Definition: key").first.fill("ha-mode")
    form.get_by_label("Definition: value").first.fill("sometimes")
    form.get_by_role("button", name="Add / update policy").click()
    expect(form.get_by_role("alert")).to_contain_text("sometimes")


def test_an_operator_policy_is_added_and_deleted(admin: Person) -> None:
    admin.open("policies")
    section = admin.unfold("Add / update operator policy")
    form = section.get_by_role("form")
    form.get_by_label("Name").fill("bound")
    form.get_by_label("Pattern").fill("^nothing$")
    form.get_by_label("Definition: key").first.fill("max-length")
    form.get_by_label("Definition: value").first.fill("10")
    form.get_by_role("button", name="Add / update operator policy").click()
    admin.notice("bound is set")
    admin.row("bound").get_by_role("button", name="Delete").click()
    admin.confirm("Delete")
    admin.notice("bound is gone")


def test_a_user_is_added_permitted_and_deleted(admin: Person) -> None:
    page = admin.page
    admin.open("users")
    form = admin.unfold("Add a user").get_by_role("form")
    form.get_by_label("Username").fill("bob")
    form.get_by_label("Password", exact=True).fill("one")
    form.get_by_label("Password again").fill("other")
    form.get_by_role("button", name="Add user").click()
    expect(form.get_by_role("alert")).to_contain_text("not the same")
    form.get_by_label("Password again").fill("one")
    form.get_by_label("Tags").fill("management")
    form.get_by_role("button", name="Add user").click()
    expect(admin.row("bob")).to_contain_text("No access")
    page.get_by_role("link", name="bob").click()
    permissions = page.get_by_role("form", name="Set permission", exact=True)
    permissions.get_by_label("Write regexp").fill("^mine")
    permissions.get_by_role("button", name="Set permission").click()
    expect(page.get_by_role("table", name="permissions", exact=True)).to_contain_text("^mine")
    admin.unfold("Delete this user").get_by_role("button", name="Delete").click()
    admin.confirm("Delete")
    admin.notice("User bob is gone")


def test_a_virtual_host_is_added_chosen_and_deleted(admin: Person) -> None:
    page = admin.page
    chosen = page.get_by_role("banner").get_by_role("combobox", name="Virtual host")
    admin.open("vhosts")
    form = admin.unfold("Add a new virtual host").get_by_role("form")
    form.get_by_label("Name").fill("shop/eu")
    form.get_by_role("button", name="Add virtual host").click()
    admin.notice("Virtual host shop/eu is there")
    chosen.select_option("shop/eu")
    admin.open("queues")
    expect(page.get_by_text("no queues")).to_be_visible()
    admin.open("connections")
    expect(page.get_by_text("no connections")).to_be_visible()
    chosen.select_option("")
    admin.open("vhosts")
    page.get_by_role("button", name="Delete virtual host shop/eu").click()
    admin.confirm("Delete")
    admin.notice("Virtual host shop/eu is gone")


def test_definitions_go_down_and_up_again(admin: Person, tmp_path: Path) -> None:
    page = admin.page
    admin.open("definitions")
    with page.expect_download() as started:
        page.get_by_role("button", name="Download definitions").click()
    file = tmp_path / "definitions.json"
    started.value.save_as(file)
    found = json.loads(file.read_text())
    assert {"orders", "audit", "payments"} <= {queue["name"] for queue in found["queues"]}
    found["queues"].append(
        {"name": "uploaded", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    )
    file.write_text(json.dumps(found))
    page.get_by_label("Definition file").set_input_files(file)
    page.get_by_role("button", name="Upload definitions").click()
    admin.confirm("Upload")
    admin.notice("The definitions are imported")
    assert "uploaded" in admin.node.queues()
    admin.node.channel().queue_delete("uploaded")
    wrong = tmp_path / "wrong.json"
    wrong.write_text("no JSON")
    page.get_by_label("Definition file").set_input_files(wrong)
    page.get_by_role("button", name="Upload definitions").click()
    admin.notice("This file is no JSON")


def test_definitions_pass_through_the_browser_unchanged(admin: Person, tmp_path: Path) -> None:
    page, large = admin.page, 2**53 + 1
    definitions = {"queues": [{"name": "large", "vhost": "/", "durable": True, "arguments": {"x-n": large}}]}
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(definitions))
    admin.open("definitions")
    page.get_by_label("Definition file").set_input_files(file)
    page.get_by_role("button", name="Upload definitions").click()
    admin.confirm("Upload")
    admin.notice("The definitions are imported")
    (row,) = [row for row in admin.node.ctl("list_queues") if row["name"] == "large"]
    assert row["arguments"] == {"x-n": large}
    with page.expect_download() as started:
        page.get_by_role("button", name="Download definitions").click()
    started.value.save_as(file)
    found = {queue["name"]: queue for queue in json.loads(file.read_text())["queues"]}
    assert found["large"]["arguments"] == {"x-n": large}
    admin.node.channel().queue_delete("large")


def test_who_only_watches_sees_everything_and_can_change_nothing(person: Person) -> None:
    page = person.page
    person.log_in("watcher")
    for name in PAGES:
        if name in ("users", "user", "definitions"):
            continue
        person.open(name)
        for verb in CHANGES:
            found = page.locator("main button", has_text=verb)
            assert found.count() == 0, (name, verb)
    person.open("queue")
    for title in ("Publish message", "Get messages", "Master", "Delete and purge"):
        expect(person.unfold(title).locator(".read-only")).to_contain_text("needs the tag")
    person.go("#/users", "Users")
    person.sees("This page is shown to the tag administrator only.")


def test_a_management_user_is_told_what_is_not_shown_and_why(person: Person) -> None:
    person.node.ctl("add_user", name="managed", password="managed", tags=["management"])
    person.node.ctl("set_permissions", vhost="/", user="managed", configure=".*", write=".*", read=".*")
    person.log_in("managed")
    person.sees("need the tag monitoring or administrator")
    tile = person.page.locator(".tile")
    expect(tile.filter(has_text="Queues")).not_to_have_text("Queues0")
    expect(tile.filter(has_text="Connections")).to_have_text("Connections0")
    expect(tile.filter(has_text="Consumers")).to_have_count(0)
    expect(person.page.locator("canvas").first).to_be_visible()
    assert person.page.get_by_role("table", name="Nodes of the cluster").count() == 0
    person.open("queues")
    expect(person.page.get_by_role("link", name="orders")).to_be_visible()
    person.go("#/cluster", "Cluster")
    person.sees("are shown to the tags monitoring and administrator")
