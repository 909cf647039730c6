"""Prometheus' text format (version 0.0.4): families of samples, and tables of objects with many of them.

Guarantee: what is given out in one step is short, so that whoever writes it can stop after any of them: one
family without its samples, one sample, or `_CHUNK` objects of one column.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from mirrormq.base.durations import Durations

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
_CHUNK = 25

Labels = tuple[tuple[str, str], ...]
Row = tuple[float, ...]


class Family(NamedTuple):
    """One metric with its samples; a sample may have a suffix to the name."""

    name: str
    kind: str
    help: str
    samples: Iterable[tuple[Labels, float]]


class Column(NamedTuple):
    """A metric that every object of a kind has."""

    group: str
    """RabbitMQ's name for the metrics that `/metrics/detailed?family=` asks for together."""
    name: str
    """Without its prefix."""
    kind: str
    help: str
    is_ours: bool = False


OURS = "mirrormq_"


class Table:
    """Objects of one kind with their columns."""

    def __init__(self, columns: Sequence[Column], chosen: Callable[[Column], bool] | None = None) -> None:
        """`chosen`: the columns that are written."""
        self.columns = columns
        self.shown = [number for number, column in enumerate(columns) if chosen is None or chosen(column)]
        self._labels: list[str] = []
        self._rows: list[Row] = []

    def add(self, labels: Labels, row: Row) -> None:
        """Another object."""
        self._labels.append(shown_labels(labels))
        self._rows.append(row)

    def lines(self, prefix: str) -> Iterator[bytes]:
        """All columns, one after the other; then the rows are let go, since very many of them take as long
        to be freed as a slice.
        """
        for number in self.shown:
            column = self.columns[number]
            name = (OURS if column.is_ours else prefix) + column.name
            yield head(name, column.kind, column.help)
            pairs = zip(self._labels, self._rows, strict=True)
            while some := list(islice(pairs, _CHUNK)):
                yield "".join(f"{name}{labels} {row[number]}\n" for labels, row in some).encode()
        while self._rows:
            del self._rows[-_CHUNK:], self._labels[-_CHUNK:]
            yield b""


def head(name: str, kind: str, text: str) -> bytes:
    """The two lines before the samples of a metric."""
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode()


def lines(families: Iterable[Family]) -> Iterator[bytes]:
    """Families, a line at a time."""
    for family in families:
        yield head(family.name, family.kind, family.help)
        for labels, value in family.samples:
            yield f"{family.name}{shown_labels(labels)} {number_of(value)}\n".encode()


def histogram(name: str, text: str, found: Durations) -> Iterator[bytes]:
    """Durations in seconds."""
    yield head(name, HISTOGRAM, text)
    reached = 0
    for bound, count in zip((*found.bounds, None), found.buckets, strict=True):
        reached += count
        end = "+Inf" if bound is None else str(bound / 1_000_000)
        yield f'{name}_bucket{{le="{end}"}} {reached}\n'.encode()
    yield f"{name}_sum {found.total_us / 1_000_000}\n{name}_count {found.count}\n".encode()


def number_of(value: Any) -> Any:
    """A whole number without a fraction."""
    return int(value) if value == int(value) else value


def shown_labels(labels: Labels) -> str:
    """Labels in braces; nothing if there are none."""
    shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
    return "{" + shown + "}" if shown else ""


def _escaped(text: str) -> str:
    readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return readable.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
