"""Configurations: one step at a time, and never without a voter."""

from __future__ import annotations

import pytest

from mirrormq.cluster.raft import membership as mb
from mirrormq.cluster.raft.membership import NON_VOTER, VOTER, WITNESS, Change, Configuration, Member


def group(**roles: str) -> Configuration:
    return Configuration(tuple(Member(name, name.encode(), role) for name, role in sorted(roles.items())), 3)


def test_a_configuration_is_read_as_it_was_written() -> None:
    config = group(a=VOTER, b=WITNESS, c=NON_VOTER)
    assert mb.decode_configuration(mb.encode_configuration(config), 3) == config


@pytest.mark.parametrize("data", [b"", b"\x02\x90", b"\x01junk", b"\x01\x91\x93\xa1a\xc4\x00\xa1z"])
def test_what_is_no_configuration_of_this_version_is_refused(data: bytes) -> None:
    with pytest.raises(mb.BadConfiguration):
        mb.decode_configuration(data, 1)


def test_a_node_joins_as_a_non_voter_and_is_promoted_later() -> None:
    config = mb.changed(group(a=VOTER), Change("b", NON_VOTER, b"b"))
    assert config.voters == ("a",)
    assert mb.changed(config, Change("b", VOTER)).voters == ("a", "b")
    with pytest.raises(mb.ChangeRefused, match="joins as"):
        mb.changed(group(a=VOTER), Change("b", VOTER, b"b"))


def test_a_witness_votes() -> None:
    assert group(a=VOTER, b=WITNESS, c=NON_VOTER).voters == ("a", "b")


@pytest.mark.parametrize("change", [Change("a", None), Change("a", NON_VOTER), Change("a", WITNESS)])
def test_the_last_voter_that_may_lead_stays(change: Change) -> None:
    with pytest.raises(mb.ChangeRefused, match="only voter"):
        mb.changed(group(a=VOTER, b=WITNESS, c=NON_VOTER), change)


@pytest.mark.parametrize("change", [Change("z", None), Change("b", "king"), Change("b", VOTER, b"other")])
def test_changes_that_make_no_sense_are_refused(change: Change) -> None:
    with pytest.raises(mb.ChangeRefused):
        mb.changed(group(a=VOTER, b=NON_VOTER), change)


def test_two_majorities_of_neighbouring_configurations_share_a_voter() -> None:
    for count in range(1, 9):
        assert mb.quorum(count) + mb.quorum(count + 1) > count + 1


def test_the_value_of_a_majority_is_the_highest_that_enough_have_reached() -> None:
    assert mb.majority_value([5]) == 5
    assert mb.majority_value([5, 9]) == 5
    assert mb.majority_value([1, 9, 5]) == 5
    assert mb.majority_value([1, 9, 5, 7]) == 5
