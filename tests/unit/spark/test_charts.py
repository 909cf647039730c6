"""Reports are one file that fetches nothing, and names from clients cannot break out of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from mirrormq.spark.jobs import charts

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def _points(*values: float | None) -> list[charts.Point]:
    return [(NOON + timedelta(seconds=number), value) for number, value in enumerate(values)]


def test_a_page_fetches_nothing_and_follows_light_and_dark() -> None:
    chart = charts.lines({"one": _points(1, 2, 3)}, [charts.Mark(NOON + timedelta(seconds=1), "a mark")])
    text = charts.page("title", "about", [charts.section("s", "", chart), charts.tiles({"a": "1"})])
    assert not re.search(r"(?:src|href)=|url\(|@import|<script|https?://", text)
    assert "prefers-color-scheme: dark" in text
    assert "a mark" in text


def test_names_are_escaped_wherever_they_stand() -> None:
    bad = '<img src=x onerror="alert(1)">&'
    page = charts.page(bad, bad, [charts.table((bad,), [[bad]]), charts.lines({bad: _points(1, 2)})])
    assert "<img" not in page
    assert page.count("&lt;img") == 6


def test_a_gap_in_a_series_is_a_gap_in_its_line() -> None:
    drawn = charts.lines({"one": _points(1, 2, None, 4, 5, None, 7)})
    svg = ElementTree.fromstring(drawn[drawn.index("<svg") :])
    assert [len(path.attrib["d"].split("L")) for path in svg.iter("path")] == [2, 2]
    assert len(list(svg.iter("circle"))) == 1


def test_nothing_measured_is_said() -> None:
    assert "Nothing was measured" in charts.lines({"one": _points(None, None)})
    assert "Nothing was measured" in charts.lines({})


@pytest.mark.parametrize(
    ("most", "top"),
    [(0, 1), (1, 1), (1.2, 2), (3, 5), (17, 20), (24, 25), (99, 100), (0.003, 0.005), (1001, 2000)],
)
def test_axes_end_at_round_numbers(most: float, top: float) -> None:
    assert charts.nice(most) == pytest.approx(top)


def test_durations_and_numbers_read_well() -> None:
    assert [charts.micros(value) for value in (None, 12, 1500, 2_500_000)] == ["", "12 µs", "1.5 ms", "2.5 s"]
    assert [charts.number(value) for value in (None, 5, 1_234_567)] == ["", "5", "1 234 567"]


@pytest.mark.parametrize(
    ("text", "is_right"),
    [("1 234", True), ("1234 ms", True), ("≤ 12 ms", True), ("2026-11-16", False), ("q1", False)],
)
def test_numbers_stand_at_the_right(text: str, is_right: bool) -> None:
    assert ('class="n"' in charts.table(("head",), [[text]])) == is_right
