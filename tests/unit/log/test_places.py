"""Places of records that lie twice: in a segment, and again in a journal file that has to stay."""

from mirrormq.base import limits
from mirrormq.base.types import Seq
from mirrormq.log.places import Place, Places
from mirrormq.log.relearn import CopyReplay
from tests.support.copykit import CopyNode


def test_what_a_file_holds_again_of_a_segment_does_not_hide_what_follows():
    places = Places()
    places.note(26, "journal/5", 100)
    places.note(30, "journal/5", 100 + limits.place_bytes_min)
    places.insert([Place(28, "segments/4", 28)])
    places.pass_over(28, {"segments/4"}, last=31)
    assert list(places) == [
        Place(28, "segments/4", 28),
        Place(29, "journal/5", 100),
        Place(30, "journal/5", 100 + limits.place_bytes_min),
    ]
    assert places.at(29) == places.after("segments/4") == Place(29, "journal/5", 100)


def test_a_file_that_holds_nothing_behind_the_segments_is_no_place_for_what_comes_next():
    places = Places()
    places.note(26, "journal/5", 100)
    places.insert([Place(21, "segments/4", 28)])
    places.pass_over(30, {"segments/4"}, last=30)
    assert list(places) == [Place(21, "segments/4", 28)]
    assert places.note(31, "journal/5", 200)
    assert places.at(31) == Place(31, "journal/5", 200)


def test_a_batch_whose_live_part_was_moved_is_found_behind_the_segment_after_a_restart():
    node = CopyNode()
    log = node.log
    log.end, log.segments.end = Seq(47), 35
    log.places.insert([Place(35, "segments/3", 28)])
    replay = CopyReplay(node.copy, None, 0)
    replay.batch((24, 1711), "journal/24", (1179, 1, 34, 43, 10, 0, ([], [])))
    assert list(log.places) == [Place(35, "segments/3", 28), Place(36, "journal/24", 1711)]
    assert replay.missing is None
