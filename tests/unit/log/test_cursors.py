"""A cursor keeps the record stream readable from its place on, within its bounds, over restarts."""

import pytest

from mirrormq.base import limits
from mirrormq.kernel import records
from mirrormq.log import journal
from mirrormq.log.cursors import CursorRefused
from mirrormq.log.inspect import Inspection
from mirrormq.log.locate import Locator
from mirrormq.log.rangeread import RangeLost, RangeReader, RangeRefused
from mirrormq.sim.cursorworld import rows_of
from mirrormq.sim.disk import MemoryDisk
from mirrormq.wire import methods
from tests.support.kernelkit import PERSISTENT
from tests.support.nodekit import NodeKit


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    for name, value in {
        "journal_file_bytes": 3_000,
        "recycle_slice_bytes": 2_000,
        "segment_bytes_min": 2_000,
        "segment_dead_bytes_max": 1_000,
        "place_bytes_min": 500,
        "index_mark_bytes": 1_000,
        "range_slice_bytes": 700,
    }.items():
        monkeypatch.setattr(limits, name, value)


class Reader:
    """A node with one durable queue, and direct access to its log."""

    def __init__(self, disk=None):
        self.kit = NodeKit(disk if disk is not None else MemoryDisk())
        self.client = self.kit.client()
        self.client.declare("q", durable=True)

    @property
    def log(self):
        return self.kit.node.vhosts["/"].queues["q"].log

    @property
    def cursors(self):
        return self.log.cursors

    def flow(self, count):
        """Messages that are published and gone at once."""
        for number in range(count):
            self.client.publish("q", b"%d" % number * 20, properties=PERSISTENT)
            self.client.send(methods.BasicGet(queue="q", no_ack=True))
        self.kit.advance(1)

    def open(self, name="reader", at=None):
        cursor = self.cursors.open_cursor(name, at, self.kit.now)
        self.kit.run()
        return cursor

    def pieces(self, piece):
        if piece.file not in self.kit.disk.list(piece.file):
            return None, "No such file or directory"
        return self.kit.disk.read(piece.file)[piece.offset : piece.offset + piece.length], None

    def read(self, start, end):
        reader = RangeReader(self.log, start, end)
        rows = {}
        while (piece := reader.ask()) is not None:
            assert piece.length <= max(limits.range_slice_bytes, 3_000)
            for batch in reader.feed(*self.pieces(piece)):
                rows.update((seq, row) for seq, row, _ in rows_of(batch))
        assert list(rows) == list(range(start, end))
        return rows

    def restart(self):
        self.kit.advance(1)
        return Reader(self.kit.disk.restart())


def test_everything_behind_a_cursor_is_read_as_it_was_written_dead_or_alive():
    node = Reader()
    node.flow(5)
    start = node.open().seq
    node.flow(20)
    before = node.read(start, node.log.durable + 1)
    kinds = {row[1] for row in before.values()}
    assert {records.PUBLISH, records.REMOVE} <= kinds
    end = node.log.durable + 1
    node.flow(200)
    assert node.log.segments.all
    assert node.log.low <= start
    assert node.read(start, end) == before
    again = node.restart()
    assert again.read(start, end) == before
    again.flow(100)
    assert again.read(start, end) == before


def test_without_a_cursor_dead_records_go_and_the_low_mark_says_so():
    node = Reader()
    node.flow(300)
    assert node.log.low > 100
    assert sum(segment.size for segment in node.log.segments.all) == 0
    with pytest.raises(RangeRefused, match=f"before {node.log.low} are no longer kept"):
        RangeReader(node.log, 1, 10)
    with pytest.raises(CursorRefused, match="no longer kept"):
        node.open(at=1)
    assert node.open(at=node.log.low).seq == node.log.low


def test_space_comes_back_when_a_cursor_advances_and_when_it_is_dropped():
    node = Reader()
    node.open()
    node.flow(300)
    held = sum(segment.size for segment in node.log.segments.all)
    node.cursors.advance("reader", node.log.end - 100, node.kit.now)
    node.kit.advance(1)
    less = sum(segment.size for segment in node.log.segments.all)
    assert less < held - 10_000
    node.cursors.drop("reader", node.kit.now)
    node.flow(20)
    assert node.cursors.cursors() == []
    assert sum(segment.size for segment in node.log.segments.all) == 0


def test_cursors_survive_a_restart_in_the_journal_and_in_the_checkpoint():
    node = Reader()
    node.flow(2)
    node.open("old")
    node.flow(100)
    node.open("new")
    node.cursors.advance("old", node.cursors.get("old").seq + 3, node.kit.now)
    node.open("gone")
    node.cursors.drop("gone", node.kit.now)
    wanted = [(cursor.name, cursor.seq, cursor.epoch) for cursor in node.cursors.cursors()]
    again = node.restart()
    assert [(cursor.name, cursor.seq, cursor.epoch) for cursor in again.cursors.cursors()] == wanted
    again.flow(200)
    third = again.restart()
    assert [(cursor.name, cursor.seq, cursor.epoch) for cursor in third.cursors.cursors()] == wanted


def test_a_cursor_moves_forward_only_and_not_beyond_the_end():
    node = Reader()
    node.flow(5)
    seq = node.open(at=3).seq
    for wrong in (seq - 1, node.log.end + 2):
        with pytest.raises(CursorRefused, match="it cannot move"):
            node.cursors.advance("reader", wrong, node.kit.now)
    with pytest.raises(CursorRefused, match="no cursor 'other'"):
        node.cursors.advance("other", 4, node.kit.now)
    with pytest.raises(CursorRefused, match="the log ends with"):
        node.open("far", at=1_000)
    assert node.open(at=5).seq == seq, "a cursor that is there stays where it is"


def test_a_cursor_that_holds_too_much_is_lost_by_name_and_holds_nothing():
    node = Reader()
    told = []
    node.cursors.on_lost = told.append
    node.cursors.max_bytes = 5_000
    node.open()
    node.flow(100)
    [cursor] = node.cursors.cursors()
    assert "5000 are allowed" in cursor.lost
    assert [lost.name for lost in told] == ["reader"]
    with pytest.raises(CursorRefused, match="was lost: it held"):
        node.cursors.advance("reader", node.log.end, node.kit.now)
    node.flow(50)
    assert sum(segment.size for segment in node.log.segments.all) == 0
    again = node.restart()
    assert again.cursors.cursors()[0].lost == cursor.lost
    again.cursors.drop("reader", again.kit.now)
    assert again.open().lost == ""


def test_live_messages_do_not_count_against_a_cursor():
    node = Reader()
    node.cursors.max_bytes = 5_000
    cursor = node.open()
    for number in range(200):
        node.client.publish("q", b"%d" % number * 20, properties=PERSISTENT)
    node.kit.advance(1)
    assert node.log.written > 20_000
    assert node.cursors.held_bytes(cursor) < 1_000
    assert not node.cursors.get("reader").lost


def test_with_hold_a_full_cursor_asks_publishers_to_wait_instead():
    node = Reader()
    node.cursors.max_bytes = 5_000
    node.cursors.overflow = "hold"
    node.open()
    node.flow(100)
    assert node.cursors.is_over
    assert not node.cursors.get("reader").lost
    node.cursors.advance("reader", node.log.end, node.kit.now)
    node.kit.advance(1)
    assert not node.cursors.is_over


def test_a_cursor_nobody_moves_is_lost_after_its_age_and_one_that_is_touched_is_not():
    node = Reader()
    node.cursors.max_age_us = 60_000_000
    node.open("dead")
    node.open("quiet")
    for _ in range(9):
        node.kit.advance(10)
        node.cursors.advance("quiet", node.cursors.get("quiet").seq, node.kit.now)
    node.kit.advance(1)
    assert "nobody moved it" in node.cursors.get("dead").lost
    assert not node.cursors.get("quiet").lost
    again = node.restart()
    assert again.cursors.get("quiet").moved_at > node.kit.now.wall - 20_000_000


def test_names_and_numbers_of_cursors_are_bounded(monkeypatch):
    monkeypatch.setattr(limits, "cursors_max", 2)
    node = Reader()
    for wrong in ("", "x" * 256):
        with pytest.raises(CursorRefused, match="1 to 255"):
            node.open(wrong)
    node.open("a")
    node.open("b")
    with pytest.raises(CursorRefused, match="2 cursors already"):
        node.open("c")


def test_nothing_beyond_the_durable_mark_is_read():
    node = Reader()
    node.flow(3)
    node.kit.hold_flushes = True
    node.client.publish("q", b"not yet", properties=PERSISTENT)
    assert node.log.end > node.log.durable
    with pytest.raises(RangeRefused, match="durable up to"):
        RangeReader(node.log, 1, node.log.end + 1)
    node.read(1, node.log.durable + 1)


def test_a_reader_goes_on_when_its_file_is_emptied_under_it():
    node = Reader()
    start = node.open().seq
    node.flow(20)
    end = node.log.durable + 1
    wanted = node.read(start, end)
    reader = RangeReader(node.log, start, end)
    piece = reader.ask()
    assert piece.file.startswith(journal.PREFIX)
    node.flow(200)
    assert piece.file not in node.kit.disk.list(journal.PREFIX)
    rows = {}
    while piece is not None:
        for batch in reader.feed(*node.pieces(piece)):
            rows.update((seq, row) for seq, row, _ in rows_of(batch))
        piece = reader.ask()
    assert rows == wanted


def test_a_reader_without_a_cursor_is_told_when_its_records_go():
    node = Reader()
    node.flow(20)
    reader = RangeReader(node.log, node.log.low, node.log.durable + 1)
    reader.ask()
    node.flow(200)
    assert reader.feed(None, "No such file or directory") == []
    with pytest.raises(RangeLost, match="given up"):
        reader.ask()


def test_a_damaged_record_in_a_range_is_told_and_never_left_out():
    node = Reader()
    start = node.open().seq
    node.flow(20)
    place = node.log.places.at(start + 10)
    node.kit.disk.damage(place.file, place.offset + 70)
    with pytest.raises(RangeLost, match="missing"):
        node.read(start, node.log.durable + 1)


def test_an_inspection_shows_cursors_and_misses_what_they_hold():
    node = Reader()
    node.open()
    node.flow(200)
    names = {node.log.queue_id: "q"}
    disk = node.kit.disk.copy()
    found = Inspection(disk, names).learn()[node.log.queue_id]
    assert found.log.cursors.cursors() == node.cursors.cursors()
    assert (found.log.low, found.log.published) == (node.log.low, node.log.published)
    report = Inspection(disk, names).verify()
    assert (report.faults, report.cursors) == ([], 1)
    dead = node.log.segments.all[1]
    assert not dead.live(node.log.dead)
    disk.remove(node.log.segments.name(dead.number))
    [fault] = Inspection(disk, names).verify().faults
    assert f"record {dead.first}, which a cursor holds" in fault.text


def ask(method, *arguments):
    answers = []
    method(*arguments, lambda found, error: answers.append((found, error)))
    [(found, error)] = answers
    assert error is None
    return found


def test_times_are_found_and_publishes_counted_at_once_and_after_a_restart():
    node = Reader()
    start = node.open().seq
    node.flow(150)
    end = node.log.durable + 1
    rows = node.read(start, end)
    for one in (node, node.restart()):
        assert len(one.log.index) < 2 * one.log.written // limits.place_bytes_min

        def read(file, offset, length, done, one=one):
            done(one.kit.disk.read(file)[offset : offset + length], None)

        where = Locator(one.log, read)
        publishes = [seq for seq, row in rows.items() if row[1] == records.PUBLISH]
        entries = sorted({one.log.index.at(seq) for seq in range(start, end)})
        assert len(entries) > 3
        for entry in entries:
            assert one.log.published - entry.publishes == sum(seq >= entry.seq for seq in publishes)
        assert ask(where.seq_at_time, 0) <= start
        assert ask(where.seq_at_time, one.kit.now.wall + 1) == one.log.durable + 1
    assert node.log.index.epoch_of(end - 1) == 1


def test_an_index_of_dead_records_takes_no_memory():
    node = Reader()
    node.flow(10)
    few = len(node.log.index)
    node.flow(600)
    journal_bytes = limits.journal_file_bytes * (limits.journal_files_max + 2)
    assert len(node.log.index) <= few + journal_bytes // limits.place_bytes_min + limits.journal_files_max
