"""What a lossy promotion leaves behind in the metadata: who was passed over, and what the new master had."""

from hypothesis import given
from hypothesis import strategies as st

from mirrormq.base import limits
from mirrormq.meta import commands as c
from mirrormq.meta import partings
from mirrormq.meta.records import Learner, Member, Parting, View
from mirrormq.meta.tables import Tables

SPANS = st.lists(st.tuples(st.integers(1, 10_000), st.integers(0, 5)), max_size=300)


def view(members: str, *found: Parting) -> View:
    entries = tuple(Member(name, 1) for name in members)
    return View("/", "q", 1, 3, 5, members[0], entries, (Learner("z", 1),), partings=found)


@given(SPANS)
def test_joined_spans_hold_all_of_them_are_few_and_in_order(drawn: list[tuple[int, int]]) -> None:
    spans = [(first, first + more) for first, more in drawn]
    found = partings.joined(spans)
    assert len(found) <= limits.parting_spans_max
    assert list(found) == sorted(found)
    for first, last in spans:
        assert any(one <= first and last <= other for one, other in found)


def test_everybody_in_sync_but_the_heir_is_passed_over_under_a_number_no_log_has() -> None:
    tables = Tables()
    (found,) = partings.after_loss(tables, view("ab"), 6, "z")
    assert (found.nodes, found.epoch, found.latest, found.is_known) == (("a", "b"), 6, 6, False)
    assert found.id % 2 == 0
    (other,) = partings.after_loss(tables, view("a"), 6, "z")
    assert other.id != found.id


def test_a_loss_that_was_told_stays_as_it_was_told_when_there_is_another_one() -> None:
    tables = Tables()
    told = Parting(2, 4, ("x",), 4, is_known=True, end=9, epochs=((1, 1),), missing=((1, 3),))
    first, second = partings.after_loss(tables, view("a", told), 6, "z")
    assert first == told
    assert (second.nodes, second.is_known) == (("a",), False)
    after = partings.known((first, second), c.NoteLoss("/", "q", 1, 6, 20, ((1, 1), (4, 10)), ((2, 2),)))
    assert after[0] == told
    assert (after[1].is_known, after[1].end, after[1].missing) == (True, 20, ((2, 2),))


def test_a_loss_that_was_never_told_is_measured_by_the_next_one_and_says_so() -> None:
    first, second = partings.after_loss(Tables(), view("a", Parting(2, 4, ("x",), 4)), 6, "z")
    assert (first.latest, first.untold) == (6, (4,))
    assert (second.latest, second.untold) == (6, ())


def test_whose_copy_becomes_the_history_has_nothing_to_be_salvaged() -> None:
    assert partings.after_loss(Tables(), view("z", Parting(2, 4, ("z",), 4)), 6, "z") == ()


def test_a_parting_ends_with_its_last_node() -> None:
    one = Parting(2, 4, ("x", "y"), 4)
    (left,) = partings.without((one,), "x")
    assert left.nodes == ("y",)
    assert partings.without((left,), "y") == ()
