"""Every page, as an administrator sees it: in light, dark and on a phone; readable, complete, by keyboard."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.cluster.kit import Cluster
from tests.web.person import PAGES, Person

MODES: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}

CONTRAST = """() => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue(`--${name}`).trim();
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pairs = 'text on panel, text on back, text on raised, text-soft on panel, text-soft on back, '
    + 'text-soft on raised, accent on panel, accent on back, accent on accent-weak, text on accent-weak, '
    + 'on-accent on accent, good on good-weak, bad on bad-weak, bad on panel, warn on panel, '
    + 'text on gold-weak, text on good-weak';
  return pairs.split(', ').map((pair) => {
    const [a, b] = pair.split(' on ').map(light);
    return [pair, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
  }).filter(([, ratio]) => !(ratio >= 4.5));
}"""

UNNAMED = """() => {
  const used = 'button, a[href], input, select, textarea, svg[role=img], progress';
  const isNamed = (found) => found.textContent.trim() || found.getAttribute('aria-label')
    || found.getAttribute('aria-labelledby') || (found.labels && found.labels.length);
  return [...document.querySelectorAll(used)]
    .filter((found) => found.offsetParent !== null || found.ownerSVGElement)
    .filter((found) => !isNamed(found)).map((found) => found.outerHTML.slice(0, 120));
}"""
"""What can be used, or is a picture, and has no name for a screen reader."""


@pytest.mark.parametrize("mode", list(MODES))
def test_every_page_shows_itself(cluster: Cluster, browser: Browser, shots: Path, mode: str) -> None:
    person = Person(browser, cluster, **MODES[mode])
    person.visit()
    person.page.screenshot(path=shots / f"login-{mode}.png")
    person.log_in()
    assert person.page.evaluate(CONTRAST) == []
    for name in PAGES:
        person.open(name)
        expect(person.page.locator("[aria-busy=true]")).to_have_count(0)
        if name in ("queue", "cluster"):
            expect(person.page.locator("[data-node]").first).to_be_visible()
        if name == "overview":
            expect(person.page.locator(".uplot").first).to_be_visible()
        expect(person.page.locator("main > .problem")).to_be_hidden()
        person.page.screenshot(path=shots / f"{name}-{mode}.png", full_page=True)
        wide = person.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name} is {wide} pixels too wide"
        assert person.page.evaluate(UNNAMED) == [], name
    for name in ("connection", "channel"):
        person.open(f"{name}s")
        person.page.locator("tbody a").first.click()
        heading = re.compile(f"^{name.capitalize()} ")
        expect(person.page.get_by_role("heading", level=1, name=heading)).to_be_visible()
        expect(person.page.locator("[aria-busy=true]")).to_have_count(0)
        expect(person.page.locator("main > .problem")).to_be_hidden()
        person.page.screenshot(path=shots / f"{name}-{mode}.png", full_page=True)
        wide = person.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name} is {wide} pixels too wide"
    person.leave()


def test_pages_have_landmarks_and_say_which_is_open(admin: Person) -> None:
    page = admin.page
    admin.open("queues")
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(role).count() >= 1, role  # type: ignore[arg-type]
    expect(page.get_by_role("link", name="Queues")).to_have_attribute("aria-current", "page")
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.locator("#notices").get_attribute("aria-live") == "polite"


def test_the_keyboard_alone_finds_and_opens_a_queue_and_folds_its_sections(person: Person) -> None:
    page = person.page
    person.visit()
    expect(page.get_by_label("Username")).to_be_focused()
    page.keyboard.type("guest")
    page.keyboard.press("Tab")
    page.keyboard.type("guest")
    page.keyboard.press("Enter")
    person.sees("Overview")
    tab_to(person, "Queues")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Queues")).to_be_focused()
    tab_to(person, "")
    page.keyboard.type("audit")
    expect(page.get_by_role("link", name="orders")).to_have_count(0)
    tab_to(person, "audit")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Queue audit")).to_be_focused()
    tab_to(person, "View and ring")
    page.keyboard.press("Space")
    expect(page.locator("#view")).not_to_have_attribute("open", "")


def test_a_page_that_is_drawn_anew_before_it_was_shown_has_the_focus_on_its_heading(person: Person) -> None:
    page = person.page
    held: dict[str, Route] = {}

    def hold(route: Route) -> None:
        if held.setdefault(route.request.url, route) is not route:
            route.continue_()

    page.route("**/api/vhosts?columns=name", hold)
    page.route("**/pages/queues.js", hold)
    person.log_in()
    page.get_by_role("link", name="Queues").press("Enter")
    while len(held) < 2:
        page.evaluate("0")  # a round trip, in which what the browser asks for comes here
    vhosts, script = held.values()
    vhosts.continue_()
    expect(page.get_by_label("Virtual host").locator("option")).not_to_have_count(0)
    script.continue_()
    expect(page.get_by_role("heading", level=1, name="Queues")).to_be_focused()


def test_sorting_by_keyboard_keeps_the_focus_and_tells_the_order(admin: Person) -> None:
    page = admin.page
    admin.open("queues")
    button = page.get_by_role("button", name="Ready")
    button.focus()
    for direction in ("ascending", "descending"):
        page.keyboard.press("Enter")
        head = page.get_by_role("columnheader", name="Ready")
        expect(head).to_have_attribute("aria-sort", direction)
        expect(page.get_by_role("button", name="Ready")).to_be_focused()
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    shown = page.locator('td[data-label="Ready"]').all_text_contents()
    ready = [int(text.replace(",", "")) for text in shown]
    assert ready == sorted(ready, reverse=True)
    assert ready[0] >= 20


def test_focus_is_visible_on_what_can_be_used(admin: Person) -> None:
    page = admin.page
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_the_skip_link_goes_to_the_content(admin: Person) -> None:
    page = admin.page
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    assert page.evaluate("location.hash") in ("", "#/")


def test_the_chosen_colours_stay_after_a_reload(admin: Person) -> None:
    page = admin.page
    admin.page.get_by_role("button", name="Dark colours").click()
    back = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    page.reload()
    admin.sees("Overview")
    assert page.evaluate(back) == dark
    page.get_by_role("button", name="Light colours").click()
    assert page.evaluate(back) != dark


def test_whoever_prefers_less_motion_gets_none(cluster: Cluster, browser: Browser) -> None:
    person = Person(browser, cluster, reduced_motion="reduce")
    person.log_in()
    person.open("queue")
    flow = person.page.locator(".p-flow").first
    expect(flow).to_be_visible()
    expect(flow).to_have_css("animation-name", "none")
    person.leave()


def test_only_files_of_the_ui_are_served_with_a_strict_policy_and_kept_by_browsers(person: Person) -> None:
    person.visit()
    answer = person.context.request.get(person.page.url + "ui/app.js")
    assert answer.ok
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    tag = answer.headers["etag"]
    again = person.context.request.get(person.page.url + "ui/app.js", headers={"If-None-Match": tag})
    assert again.status == 304
    for path in ("ui/../server.py", "ui/%2e%2e/server.py", "ui/vendor/uplot/LICENSE", "ui/nothing.js"):
        assert person.context.request.get(person.page.url + path).status == 404, path


def tab_to(person: Person, text: str) -> None:
    """Press Tab until what has the focus has this text; an empty text stands for a search field."""
    for _ in range(60):
        person.page.keyboard.press("Tab")
        found = person.page.evaluate("(at => [at.textContent.trim(), at.type])(document.activeElement)")
        if found[0] == text and (text or found[1] == "search"):
            return
    raise AssertionError(f"{text} cannot be reached by Tab")
