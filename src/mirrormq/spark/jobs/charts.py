"""Pages of reports: charts as inline SVG, tables, tiles; for light and dark, without a script or anything
fetched.

Guarantee: every text that comes from elsewhere (names of queues, reasons) is escaped; a page is one file that
looks the same without a network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 240, 64, 12, 12, 28
TICKS = 4
COLOURS = ("--one", "--two", "--three", "--four")
MARKS_MAX = 60
_NUMBER = re.compile(r"≤? ?[\d .]+(?: ?(?:µs|ms|s))?")

Point = tuple[datetime, float | None]


class Mark(NamedTuple):
    """Something that happened, drawn as a line across a chart."""

    at: datetime
    text: str


_STYLE = """
:root { --back: #fff; --card: #f6f7f9; --text: #1b1f24; --faint: #68707a; --line: #d8dde3; --mark: #d1242f;
  --one: #1f6feb; --two: #1a8a4a; --three: #b35900; --four: #8250df }
@media (prefers-color-scheme: dark) { :root { --back: #0f1318; --card: #181e25; --text: #e6eaee;
  --faint: #93a0ad; --line: #2b343d; --mark: #ff7b72;
  --one: #6cb1ff; --two: #56d08a; --three: #ffab5c; --four: #c297ff } }
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif }
main { max-width: 1040px; margin: 0 auto; padding: 24px 20px 60px }
h1 { margin: 0; font-size: 26px }
h2 { margin: 0; font-size: 18px }
p { margin: 2px 0 12px; color: var(--faint) }
section { margin-top: 28px }
svg { display: block; width: 100%; height: auto }
text { fill: var(--faint); font: 11px system-ui, sans-serif }
.tiles { display: grid; gap: 12px; margin-top: 20px;
  grid-template-columns: repeat(auto-fit, minmax(120px, 1fr)) }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px }
.tile b { display: block; font-size: 21px; font-weight: 600 }
.tile span { color: var(--faint); font-size: 13px }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px }
table { border-collapse: collapse; width: 100%; font-size: 13.5px }
th, td { text-align: left; padding: 6px 12px; white-space: nowrap }
th { color: var(--faint); font-weight: 600; background: var(--card) }
td { border-top: 1px solid var(--line) }
td.n { text-align: right; font-variant-numeric: tabular-nums }
.key { display: flex; gap: 16px; font-size: 13px; margin-bottom: 6px }
.key i { display: inline-block; width: 14px; height: 3px; margin-right: 6px; vertical-align: middle }
""".strip()


def page(title: str, about: str, parts: Iterable[str]) -> str:
    """A whole page."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<style>{_STYLE}</style></head>\n<body><main><h1>{escape(title)}</h1><p>{escape(about)}</p>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def section(title: str, about: str, content: str) -> str:
    """A part of a page."""
    text = f"<p>{escape(about)}</p>" if about else ""
    return f"<section><h2>{escape(title)}</h2>{text}{content}</section>"


def tiles(values: Mapping[str, str]) -> str:
    """Some numbers, large."""
    found = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in values.items()
    )
    return f'<div class="tiles">{found}</div>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = "There is nothing.") -> str:
    """Rows of texts; what looks like a number is at the right."""
    if not rows:
        return f"<p>{escape(empty)}</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    is_number = _NUMBER.fullmatch(text) is not None
    return f'<td class="n">{escape(text)}</td>' if is_number else f"<td>{escape(text)}</td>"


# --- lines -------------------------------------------------------------------------------------------------


def lines(series: Mapping[str, Sequence[Point]], marks: Sequence[Mark] = ()) -> str:
    """Lines over time; a gap in a series is a gap in its line."""
    times = [at for points in series.values() for at, value in points if value is not None]
    values = [value for points in series.values() for _, value in points if value is not None]
    if not times:
        return "<p>Nothing was measured.</p>"
    first, last, most = min(times), max(times), nice(max(values))
    scale = _Scale(first.timestamp(), max(last.timestamp(), first.timestamp() + 1), most)
    drawn = [_grid(scale), _dates(scale, first, last)]
    drawn += [_mark(scale, mark) for mark in list(marks)[:MARKS_MAX] if first <= mark.at <= last]
    for colour, points in zip(COLOURS, series.values(), strict=False):
        drawn += [_path(scale, colour, run) for run in _runs(points)]
    key = "".join(
        f'<span><i style="background:var({colour})"></i>{escape(name)}</span>'
        for colour, name in zip(COLOURS, series, strict=False)
    )
    return (
        f'<div class="key">{key}</div><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(drawn)}</svg>'
    )


class _Scale(NamedTuple):
    first: float
    last: float
    most: float

    def x(self, at: datetime) -> float:
        """The place of a moment."""
        return LEFT + (at.timestamp() - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """The place of a value."""
        return HEIGHT - BOTTOM - value / self.most * (HEIGHT - TOP - BOTTOM)


def nice(most: float) -> float:
    """A round number that is not less: the top of an axis."""
    if most <= 0:
        return 1.0
    power = 10.0 ** (len(str(int(most))) - 1) if most >= 1 else 0.001
    while power * 10 <= most:
        power *= 10
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= most)


def _grid(scale: _Scale) -> str:
    found = []
    for tick in range(TICKS + 1):
        value = scale.most * tick / TICKS
        y = scale.y(value)
        found.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>'
        )
    return "".join(found)


def _dates(scale: _Scale, first: datetime, last: datetime) -> str:
    shape = "%H:%M:%S" if (last - first).total_seconds() < 2 * 86_400 else "%m-%d %H:%M"
    found = []
    for tick in range(5):
        at = first + (last - first) * tick / 4
        anchor = ("start", "middle", "middle", "middle", "end")[tick]
        found.append(
            f'<text x="{scale.x(at):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{at:{shape}}</text>'
        )
    return "".join(found)


def _mark(scale: _Scale, mark: Mark) -> str:
    x = scale.x(mark.at)
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="var(--mark)" '
        f'stroke-dasharray="3 3"><title>{escape(mark.text)}</title></line>'
    )


def _runs(points: Sequence[Point]) -> list[list[tuple[datetime, float]]]:
    runs: list[list[tuple[datetime, float]]] = [[]]
    for at, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    return [run for run in runs if run]


def _path(scale: _Scale, colour: str, run: Sequence[tuple[datetime, float]]) -> str:
    if len(run) == 1:
        at, value = run[0]
        return f'<circle cx="{scale.x(at):.1f}" cy="{scale.y(value):.1f}" r="2.5" fill="var({colour})"/>'
    way = "L".join(f"{scale.x(at):.1f} {scale.y(value):.1f}" for at, value in run)
    return f'<path d="M{way}" fill="none" stroke="var({colour})" stroke-width="1.8" stroke-linejoin="round"/>'


# --- texts -------------------------------------------------------------------------------------------------


def short(value: float) -> str:
    """A number on an axis."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"


def number(value: float | None) -> str:
    """A number in a table: thousands apart; nothing if there is none."""
    return "" if value is None else f"{value:,.0f}".replace(",", " ")


def micros(value: float | None) -> str:
    """A duration in microseconds, as people read it."""
    if value is None:
        return ""
    if value < 1000:
        return f"{value:.0f} µs"
    return f"{value / 1000:.3g} ms" if value < 1_000_000 else f"{value / 1_000_000:.3g} s"
