"""What the counters of one object were in the past, in few bytes.

Guarantees
- A row is kept of a look at which something had changed, and of no other: an idle object costs nothing but
  the rows it has. `at` gives for any time the values that were true then, zeros before the first row.
- Each level keeps the last rows it has room for: the first one every change, the others one row per stretch
  of periods, with the values at its end.
- Room grows by doubling, up to what the level allows, and above `rates_rows_min` only while it is granted.

Times are numbers of periods (`limits.rates_period_us`).
"""

from array import array
from collections.abc import Iterator, Sequence

from mirrormq.base import limits

Levels = tuple[tuple[int, int], ...]
_FIRST_ROOM = 4


class Ring:
    """Rows of one level, oldest first from `_first` on."""

    __slots__ = ("_data", "_first", "_most", "_room", "_width", "step")

    def __init__(self, width: int, step: int, most: int) -> None:
        self.step = step
        self._width = width + 1
        self._most = most
        self._room = _FIRST_ROOM
        self._first = 0
        self._data: array[int] = array("q")

    @property
    def size(self) -> int:
        """Bytes it may fill before it asks for more room."""
        return self._room * self._width * self._data.itemsize

    @property
    def span(self) -> int:
        """Periods that its rows cover when there is one in each stretch."""
        return (self._most - 1) * self.step

    def put(self, time: int, values: Sequence[int], may_grow: bool) -> None:
        """These values are true from this time on."""
        key = -(-time // self.step) * self.step
        data, width = self._data, self._width
        row = array("q", (key, *values))
        newest = (self._first - 1) * width if self._first else len(data) - width
        if data and data[newest] == key:
            data[newest : newest + width] = row
        elif len(data) < self._room * width:
            data.extend(row)
        elif self._room < self._most and (may_grow or self._room < limits.rates_rows_min):
            self._grow(may_grow)
            self._data.extend(row)
        else:
            at = self._first * width
            data[at : at + width] = row
            self._first = (self._first + 1) % self._room

    def _grow(self, may_grow: bool) -> None:
        most = self._most if may_grow else limits.rates_rows_min
        cut = self._first * self._width
        self._data = self._data[cut:] + self._data[:cut]
        self._first = 0
        self._room = min(self._room * 2, most)

    def newest_first(self) -> Iterator[tuple[int, int]]:
        """(time, place) of every row."""
        data, width = self._data, self._width
        rows = len(data) // width
        for number in range(rows - 1, -1, -1):
            place = (self._first + number) % rows * width
            yield data[place], place

    def values(self, place: int) -> tuple[int, ...]:
        """The row at a place."""
        return tuple(self._data[place + 1 : place + self._width])


class History:
    """The counters of one object."""

    __slots__ = ("_rings", "last")

    def __init__(self, levels: Levels, width: int) -> None:
        self._rings = tuple(Ring(width, step, most) for step, most in levels)
        self.last: tuple[int, ...] = (0,) * width

    @property
    def size(self) -> int:
        """Bytes of rows."""
        return sum(ring.size for ring in self._rings)

    def put(self, time: int, values: tuple[int, ...], may_grow: bool) -> int:
        """Keep what a look has found; returns how many bytes it grew by."""
        before = self.size
        for ring in self._rings:
            ring.put(time, values, may_grow)
        self.last = values
        return self.size - before

    def at(self, time: int) -> tuple[int, ...]:
        """The values at a time of the last minutes."""
        return self._of(self._rings[0], [time])[0]

    def series(self, times: Sequence[int]) -> list[tuple[int, ...]]:
        """The values at these times, newest first, from the finest level that reaches back so far."""
        reach = times[0] - times[-1]
        fitting = next((ring for ring in self._rings if ring.span >= reach), self._rings[-1])
        return self._of(fitting, times)

    def _of(self, ring: Ring, times: Sequence[int]) -> list[tuple[int, ...]]:
        nothing = (0,) * len(self.last)
        found: list[tuple[int, ...]] = []
        rows = ring.newest_first()
        row = next(rows, None)
        for time in times:
            # The stretch that is not over yet has its row already.
            key = -(-time // ring.step) * ring.step
            while row is not None and row[0] > key:
                row = next(rows, None)
            found.append(nothing if row is None else ring.values(row[1]))
        return found
