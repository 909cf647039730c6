"""Somebody who uses the web UI: opens pages, reads, fills in, clicks, types; and notices what goes wrong."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, expect, sync_playwright

from tests.cluster.kit import ADMIN, Cluster, Node

WAIT_MS = 15_000
expect.set_options(timeout=WAIT_MS)

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

PAGES = {
    "overview": ("#/", "Overview"),
    "node": ("#/nodes/{node}", "Node {node}"),
    "connections": ("#/connections", "Connections"),
    "channels": ("#/channels", "Channels"),
    "exchanges": ("#/exchanges", "Exchanges"),
    "exchange": ("#/exchanges/%2F/shop", "Exchange shop"),
    "queues": ("#/queues", "Queues"),
    "queue": ("#/queues/%2F/orders", "Queue orders"),
    "cluster": ("#/cluster", "Cluster"),
    "timeline": ("#/timeline", "Timeline"),
    "cursors": ("#/cursors", "Spark: cursors and pipelines"),
    "users": ("#/users", "Users"),
    "user": ("#/users/guest", "User guest"),
    "vhosts": ("#/vhosts", "Virtual Hosts"),
    "policies": ("#/policies", "Policies"),
    "definitions": ("#/definitions", "Definitions"),
}
"""Every page: its address and its heading."""


def browser_path() -> str | None:
    """The Chromium of this machine."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def launched() -> Iterator[Browser]:
    """A real Chromium."""
    with sync_playwright() as made:
        found = made.chromium.launch(executable_path=browser_path(), args=list(FLAGS))
        yield found
        found.close()


class Person:
    """One browser window and what was noticed in it."""

    def __init__(self, browser: Browser, cluster: Cluster, **options: Any) -> None:
        options.setdefault("viewport", {"width": 1280, "height": 900})
        self.cluster = cluster
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(WAIT_MS)
        self.page: Page = self.context.new_page()
        self.node = cluster[0]
        self.problems: list[str] = []
        self.expected: list[str] = []
        """Parts of messages of the console that the test brings about."""
        self.foreign: list[str] = []
        self._tidying: list[Callable[[], object]] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        self.page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(part in message.text for part in self.expected):
            self.problems.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        found = urlsplit(request.url)
        hosts = {f"{node.host}:{ADMIN}" for node in self.cluster}
        if found.scheme not in ("data", "blob") and found.netloc not in hosts:
            self.foreign.append(request.url)

    def leave(self) -> None:
        """Close the window; everything must have been in order."""
        self.context.close()
        while self._tidying:
            self._tidying.pop()()
        assert not self.foreign, f"requests to elsewhere: {self.foreign}"
        assert not self.problems, "\n".join(self.problems)

    def at_the_end(self, step: Callable[[], object]) -> None:
        """Whatever happens, do this in the end; the last one first."""
        self._tidying.append(step)

    # --- going about ---

    def visit(self, address: str = "", node: Node | None = None) -> None:
        """Open the UI of a node."""
        self.node = node or self.node
        self.page.goto(f"http://{self.node.host}:{ADMIN}/{address}")

    def log_in(self, name: str = "guest", password: str | None = None, node: Node | None = None) -> None:
        """Log in at a node and see the overview."""
        self.visit(node=node)
        self.page.get_by_label("Username").fill(name)
        self.page.get_by_label("Password").fill(name if password is None else password)
        self.page.get_by_role("button", name="Log in").click()
        expect(self.page.get_by_role("button", name="Log out")).to_be_visible()

    def open(self, name: str) -> None:
        """Go to a page by its address and see its heading."""
        address, heading = (text.format(node=self.node.name) for text in PAGES[name])
        self.go(address, heading)

    def go(self, address: str, heading: str) -> None:
        """Go to an address and see a heading."""
        self.page.evaluate("address => { location.hash = address }", address)
        expect(self.page.get_by_role("heading", level=1, name=heading, exact=True)).to_be_visible()

    def unfold(self, title: str) -> Locator:
        """Open a section of the page; returns it."""
        found = self.page.locator("details.section").filter(
            has=self.page.get_by_role("heading", name=title, exact=True)
        )
        found = found.last
        if found.get_attribute("open") is None:
            found.locator("summary").first.click()
        return found

    # --- seeing ---

    def sees(self, text: str) -> None:
        """A text is, or comes, to be seen."""
        expect(self.page.get_by_text(text).first).to_be_visible()

    def notice(self, text: str) -> None:
        """A notice says so."""
        expect(self.page.locator("#notices").get_by_text(text)).to_be_visible()

    def row(self, text: str) -> Locator:
        """The row of a table with a cell of this text."""
        cell = self.page.get_by_role("cell", name=text, exact=True)
        return self.page.get_by_role("row").filter(has=cell)

    def confirm(self, verb: str) -> None:
        """Answer the question whether that is meant."""
        self.page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
