"""A checkpoint in the making: the parts of the queues are added one after the other, over many passes.

Guarantee: a checkpoint whose parts are of different moments serves recovery as well as one of one moment.
- Each part is made in one go, and says what its queue's log was then: a state after a prefix of its records.
  Nothing is written before the journal is flushed that was written until the last part was made, so no part
  says what a crash could take back.
- Whatever a queue wrote after its part, while those of others were made, is in a journal file that the
  checkpoint still needs. Recovery reads it on top of the part, and comes to the same state from every prefix.
  So a removal that only one part knows, of a letter that only the journal has, is no race.
- The journal files a log needs are told with its part (`kept`), and files are `gone` only if none of the
  parts names them: those nobody needed before the first part, and those a log gave up as its part was made.
- Queues declared after the first part have none: all they wrote is in the journal. Queues deleted meanwhile
  may have one, which nobody asks for.
- Numbers of letters are forgotten only if their sender is gone when the part is made. A queue that was
  declared a moment ago may have sent one already: forgetting it would let the letter in twice after a crash.
"""

from collections.abc import Callable, Container

from mirrormq.log import checkpoint
from mirrormq.log.durable import DurableLog
from mirrormq.log.fold import Fold
from mirrormq.log.segments import identify
from mirrormq.log.sinkstate import Saved


class Draft:
    """What the next checkpoint says so far."""

    def __init__(
        self,
        first_serial: int,
        gone: list[str],
        told: list[Callable[[], None]],
        sources: "Senders",
    ) -> None:
        """`told` hear when it is durable; `sources`: who may send numbered letters again."""
        self._first_serial = first_serial
        self.gone = gone
        """Files that go when it is durable."""
        self.told = told
        self.sources = sources
        self.kept: dict[int, int] = {}
        """Where journal files end that only damaged or uncertain queues need, by serial."""
        self._parts: list[bytes] = []

    def add(self, part: checkpoint.Part) -> int:
        """Say this too; returns how many bytes it takes."""
        data = checkpoint.encode_part(part)
        self._parts.append(data)
        return len(data)

    def encode(self) -> bytes:
        """The content of the file."""
        return checkpoint.assemble(self._first_serial, len(self._parts), self._parts, self.kept)

    def gone_by_queue(self) -> dict[int, list[str]]:
        """The files that go: segments by the id of their queue, all others under 0."""
        found: dict[int, list[str]] = {}
        for name in self.gone:
            segment = identify(name)
            found.setdefault(segment[0] if segment is not None else 0, []).append(name)
        return found


class Senders(Container[int]):
    """Who may send numbered letters again. To find them all takes long with very many queues: that is done
    when somebody is not among those found before, once in a pass. One that has gone since is still counted.
    """

    def __init__(self, look: Callable[[], Container[int]], number: Callable[[], int]) -> None:
        """`look` finds them; `number` is another one in every pass."""
        self._look = look
        self._number = number
        self._found: Container[int] = ()
        self._found_in = -1

    def __contains__(self, source: object) -> bool:
        if source not in self._found and self._found_in != self._number():
            self._found, self._found_in = self._look(), self._number()
        return source in self._found


def part_of(log: DurableLog) -> checkpoint.QueuePart:
    """What a checkpoint written now says of a queue: of a mirrored one, what is committed."""
    state, copy = log.committed, log.copy
    if copy is not None and copy.copying is not None and not copy.copying.is_flushed:
        return checkpoint.QueuePart(log.queue_id, 1, 0, 0, 0, 0, [], [], low=1, begins=log.begins)
    if copy is not None and copy.is_void:
        return checkpoint.QueuePart(
            log.queue_id, 1, 0, 0, 0, 0, [], [], low=1, begins=log.begins, base=copy.hollow
        )
    state.forget_counts()
    if copy is not None:
        state.forget_buried()
    return checkpoint.QueuePart(
        queue_id=log.queue_id,
        epoch=state.epoch,
        end=state.end,
        horizon=state.horizon,
        last_wall=state.last_wall,
        dead=state.dead.spans_list(),
        segments_end=log.segments.end,
        segments=[(*segment,) for segment in log.segments.all],
        last_number=state.last_number,
        letters=list(state.letters.items()),
        dying=list(state.dying.values()),
        low=min(log.low, state.end + 1),
        published=state.published,
        written=state.written,
        epochs=[(epoch, first) for epoch, first in log.index.epochs if first <= state.end],
        cursors=state.cursors.cursors(),
        counts=list(state.counts.items()),
        refused=[(row, numbers.spans_list()) for row, numbers in state.refused.items() if numbers],
        marks=[
            (mark.number, mark.offset, *mark.entry)
            for segment in log.segments.all
            for mark in log.segments.marks.get(segment.number, ())
        ],
        since=log.since,
        cuts=log.cuts,
        begins=log.begins,
        base=copy.hollow if copy is not None else 0,
        sink=_saved(state),
        origins=state.origins.save(state.dead) if state.origins is not None else None,
    )


def _saved(state: Fold) -> Saved | None:
    if state.sink is None:
        return None
    state.sink.forget(state.dead)
    return state.sink.save()
