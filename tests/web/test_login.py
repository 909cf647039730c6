"""Log-in and log-out: a token instead of a password, which ends when it should."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.web.person import Person

TOKEN = "JSON.parse(sessionStorage.getItem('mirrormq.session')).token"
ASK = """token => fetch('api/whoami', {headers: {Authorization: `Bearer ${token}`}, credentials: 'omit'})
    .then(answer => answer.status)"""


def test_whoever_does_something_stays_logged_in_and_a_page_alone_does_not_say_so(admin: Person) -> None:
    page = admin.page
    signs: list[str] = []
    page.on("request", lambda request: signs.append(request.method) if "/session" in request.url else None)
    page.clock.install()
    page.reload()
    admin.sees("Queued messages")
    page.clock.fast_forward("20:00")
    admin.sees("live")
    assert not signs
    with page.expect_request("**/api/mirrormq/session"):
        page.mouse.move(210, 310)
    page.keyboard.press("Tab")
    assert signs == ["GET"]


def test_a_wrong_password_is_refused_with_a_reason(person: Person) -> None:
    person.expected.append("401")
    person.visit()
    person.page.get_by_label("Username").fill("guest")
    person.page.get_by_label("Password").fill("wrong")
    person.page.get_by_label("Password").press("Enter")
    expect(person.page.get_by_role("alert")).to_have_text("Login failed")
    assert person.page.get_by_role("button", name="Log out").count() == 0


def test_a_user_without_a_management_tag_is_refused(person: Person) -> None:
    person.expected.append("401")
    person.node.ctl("add_user", name="plain", password="plain", tags=[])
    person.visit()
    person.page.get_by_label("Username").fill("plain")
    person.page.get_by_label("Password").fill("plain")
    person.page.get_by_role("button", name="Log in").click()
    expect(person.page.get_by_role("alert")).to_have_text("Not management user")


def test_log_in_survives_a_reload_and_log_out_ends_it_on_the_node(person: Person) -> None:
    person.log_in()
    person.page.reload()
    person.sees("Overview")
    token = person.page.evaluate(TOKEN)
    assert person.page.evaluate(ASK, token) == 200
    person.page.get_by_role("button", name="Log out").click()
    expect(person.page.get_by_label("Username")).to_be_focused()
    assert person.page.evaluate("sessionStorage.getItem('mirrormq.session')") is None
    person.expected.append("401")
    assert person.page.evaluate(ASK, token) == 401


def test_no_password_and_no_cookie_is_kept(person: Person) -> None:
    person.log_in()
    kept = person.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "guest" in kept  # the name
    assert "password" not in kept
    assert person.context.cookies() == []


def test_a_changed_password_ends_the_session(person: Person) -> None:
    person.node.ctl("add_user", name="ann", password="first", tags=["administrator"])
    person.expected.append("401")
    person.log_in("ann", "first")
    # On another node: what ends the session is the metadata, wherever they were changed.
    person.cluster[1].ctl("change_password", name="ann", password="second")
    # Nothing has to be clicked: what is shown live ends by itself.
    person.sees("The session has ended; log in again")
