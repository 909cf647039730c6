"""Who a data folder is: new and rolled-back ones are refused, restarted ones are not."""

from __future__ import annotations

import pytest

from mirrormq.base import limits
from mirrormq.cluster import identity as ids
from mirrormq.sim.machine import SeededRng

RNG = SeededRng("identity")


def started(identity: ids.Identity | None = None) -> ids.Identity:
    return ids.begin_start(identity or ids.new_identity(RNG), RNG)


def is_accepted(known: tuple[bytes, bytes], folder: ids.Identity) -> bool:
    return ids.is_accepted(known, folder.identity, folder.tokens)


def test_a_folder_is_accepted_again_after_each_recorded_start() -> None:
    folder = started()
    for _ in range(3 * limits.identity_tokens_max):
        folder = ids.on_recorded(folder, folder.tokens[-1])
        known = (folder.identity, folder.tokens[-1])
        folder = started(folder)
        assert is_accepted(known, folder)
    assert folder.start == 1 + 3 * limits.identity_tokens_max


def test_a_folder_of_before_a_recorded_start_is_refused_however_often_it_starts() -> None:
    folder = started()
    folder = ids.on_recorded(folder, folder.tokens[-1])
    copy = folder
    folder = started(folder)
    known = (folder.identity, folder.tokens[-1])
    assert is_accepted(known, folder)
    for _ in range(5):
        copy = started(copy)
        assert not is_accepted(known, copy)


def test_an_empty_folder_under_the_same_name_is_refused() -> None:
    folder = started()
    assert not is_accepted((folder.identity, folder.tokens[-1]), started())


def test_a_start_whose_answer_was_lost_is_accepted_the_next_time() -> None:
    folder = started()
    known = (folder.identity, folder.tokens[-1])
    assert is_accepted(known, started(started(folder)))


def test_a_peer_that_is_behind_and_knows_an_older_start_accepts() -> None:
    folder = started()
    behind = (folder.identity, folder.tokens[-1])
    for _ in range(3):
        folder = started(ids.on_recorded(folder, folder.tokens[-1]))
    assert is_accepted(behind, folder)


def test_a_node_that_was_just_added_is_accepted_with_whatever_it_presents() -> None:
    assert is_accepted((b"", b""), started())


def test_the_identity_file_is_read_as_it_was_written() -> None:
    folder = started(ids.on_recorded(started(), b"unknown"))
    assert ids.decode_identity(ids.encode_identity(folder)) == folder


@pytest.mark.parametrize("at", [0, 9, 20, -1])
def test_a_changed_byte_in_the_identity_file_is_noticed(at: int) -> None:
    data = bytearray(ids.encode_identity(started()))
    data[at] ^= 1
    with pytest.raises(ids.IdentityDamaged, match="forget this node"):
        ids.decode_identity(bytes(data))


def test_a_shorter_identity_file_is_refused() -> None:
    with pytest.raises(ids.IdentityDamaged):
        ids.decode_identity(ids.encode_identity(started())[:10])
