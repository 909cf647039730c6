"""How long a person waits for the list of queues, in a real Chromium; `bench.viewers` measures it.

The page's own clock is read when the rows are there, so what Playwright takes for itself is not in it.
"""

from __future__ import annotations

import statistics

from tests.cluster.kit import Cluster
from tests.web.person import Person, browser_path, launched

ROUNDS = 5
FILTER = "q-0004"
FOUND = 10
"""Queues whose names begin so."""
KEY_MS = 80
"""Between two keys of a person who types quickly."""

SHOWN = """wanted => new Promise(done => {
    const look = () => {
        const rows = document.querySelectorAll('tbody tr a').length;
        const names = document.querySelectorAll('tbody tr').length;
        if (rows && (!wanted || names === wanted)) done(performance.now() - (window.began ?? 0));
        else requestAnimationFrame(look);
    };
    look();
})"""
"""Milliseconds until there are rows, or as many as wanted: since `began`, or since the page was asked for."""
WAY = "() => { window.began = performance.now(); location.hash = '#/queues'; }"
TYPED = """() => document.querySelector('input[type=search]').addEventListener('input', () => {
    window.began = performance.now();
})"""
"""From the last key on."""


def measure(cluster: Cluster) -> list[str]:
    """Lines that say how long it took; one that says why not, without a browser."""
    if browser_path() is None:
        return ["there is no Chromium: the queues page was not opened"]
    cold, warm, filtered = [], [], []
    with launched() as browser:
        person = Person(browser, cluster)
        page = person.page
        person.log_in()
        for _ in range(ROUNDS):
            person.go("#/queues", "Queues")
            page.reload()
            cold.append(float(page.evaluate(SHOWN, 0)))
            person.go("#/definitions", "Definitions")
            page.evaluate(WAY)
            warm.append(float(page.evaluate(SHOWN, 0)))
            page.evaluate(TYPED)
            page.get_by_label("Filter").press_sequentially(FILTER, delay=KEY_MS)
            filtered.append(float(page.evaluate(SHOWN, FOUND)))
            person.go("#/definitions", "Definitions")
        person.leave()
    return [
        _said("queues page in Chromium, loaded anew, first rows", cold),
        _said("queues page in Chromium, from another page, first rows", warm),
        _said(f"queues page in Chromium, {FILTER} typed, rows after the last key", filtered),
    ]


def _said(what: str, times: list[float]) -> str:
    return f"{what}: {statistics.median(times):.0f} ms (slowest {max(times):.0f} ms)"
