"""The handshake opens a link between nodes that know the secret, and for nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.base import limits
from mirrormq.peer.card import FRESH, Card, decode_card, encode_card
from mirrormq.peer.faults import SENTENCES, Code, PeerFault
from mirrormq.peer.handshake import Handshake, SharedSecret
from mirrormq.peer.link import Loss
from mirrormq.peer.table import LinkTable
from tests.support.peerkit import CLUSTER, SECRET, START, End, SeededRng, Wire, card, later, welcome_all

OTHER = b"D" * 16


def pair(
    dialler: Card | None = None, acceptor: Card | None = None, secret: SharedSecret = SECRET, seed: int = 0
) -> Wire:
    """A dialler a@h and an acceptor b@h; `secret` is the dialler's."""
    return Wire(
        End(dialler or card("a@h"), is_dialler=True, secret=secret, seed=seed),
        End(acceptor or card("b@h"), is_dialler=False, seed=seed),
    )


def test_two_nodes_with_the_same_secret_agree_on_who_they_are() -> None:
    mine, theirs = card("a@h", counter=3, cluster=CLUSTER), card("b@h", counter=9, cluster=CLUSTER)
    wire = pair(mine, theirs)
    wire.settle()
    assert wire.dialler.opened is not None
    assert wire.acceptor.opened is not None
    assert wire.dialler.opened.peer[:] == (theirs, 1, 1, True)
    assert wire.acceptor.opened.peer[:] == (mine, 1, 1, False)


def test_different_secrets_are_refused_on_both_ends_with_one_sentence() -> None:
    wire = pair(secret=SharedSecret(b"another secret of a cluster"))
    wire.settle()
    assert wire.acceptor.refused == (Code.SECRET, "the secrets differ")
    assert wire.dialler.refused == (Code.SECRET, "refused by the other node: the secrets differ")


def test_who_does_not_know_the_secret_learns_nothing_about_the_acceptor() -> None:
    """All it gets is the greeting with a random number, and the code of the refusal."""
    acceptor = card("b@h", cluster=CLUSTER)
    wire = pair(acceptor=acceptor, secret=SharedSecret(b"guessed"))
    said = b""
    while wire.dialler.waiting or wire.acceptor.waiting:
        wire.move(wire.dialler)
        said += bytes(wire.acceptor.waiting)
        wire.move(wire.acceptor)
    assert acceptor.name.encode() not in said
    assert acceptor.identity not in said
    assert acceptor.cluster not in said
    assert said[40:] == bytes((4, 1, 0, Code.SECRET))


def test_an_acceptor_that_does_not_know_the_secret_is_refused_by_the_dialler() -> None:
    dialler = End(card("a@h"), is_dialler=True)
    dialler.collect()
    forged = Handshake(
        1,
        card("b@h"),
        is_dialler=False,
        secret=SharedSecret(b"guessed"),
        judge=LinkTable(card("b@h"), welcome_all),
        rng=SeededRng(),
    )
    forged.receive(memoryview(bytes(dialler.waiting)))
    dialler.hear(forged.output)
    # Whatever the dialler's proof was, the impostor answers with a welcome of its own making.
    body = b"\0" + bytes(60)
    dialler.hear(bytes((2, len(body), 0)) + body)
    assert dialler.refused is not None
    assert dialler.refused.code is Code.SECRET


def test_the_secret_is_not_shown_by_any_object() -> None:
    secret = SharedSecret(b"do not show this secret")
    assert "do not" not in repr(secret)
    end = End(card("a@h"), is_dialler=True, secret=secret)
    assert "do not" not in repr(vars(end.link._handshake))


@pytest.mark.parametrize(
    ("mine", "theirs", "common"),
    [((1, 1), (1, 1), 1), ((1, 3), (2, 5), 3), ((2, 2), (1, 9), 2), ((1, 1), (2, 3), 0), ((4, 5), (1, 3), 0)],
)
def test_the_highest_version_both_speak_is_taken(
    mine: tuple[int, int], theirs: tuple[int, int], common: int
) -> None:
    def end(name: str, versions: tuple[int, int], *, is_dialler: bool) -> Handshake:
        me = card(name)
        table = LinkTable(me, welcome_all)
        rng = SeededRng(is_dialler)
        return Handshake(1, me, is_dialler=is_dialler, secret=SECRET, judge=table, rng=rng, versions=versions)

    dialler, acceptor = end("a@h", mine, is_dialler=True), end("b@h", theirs, is_dialler=False)

    def talk() -> None:
        for _ in range(3):
            for source, target in ((dialler, acceptor), (acceptor, dialler)):
                data, source.output = bytes(source.output), bytearray()
                target.receive(memoryview(data))

    if common:
        talk()
        assert dialler.is_done
        assert acceptor.is_done
        assert (dialler.version, acceptor.version) == (common, common)
    else:
        with pytest.raises(PeerFault, match=f"{theirs[0]} to {theirs[1]} here, {mine[0]} to {mine[1]} at"):
            talk()


@pytest.mark.parametrize(
    ("theirs", "code", "sentence"),
    [
        (card("a@h"), Code.SELF, "a node dialled itself"),
        (card("a@h", identity=b"x" * 16), Code.NAME, "another node is named a@h, too"),
        (card("b@h", identity=card("a@h").identity), Code.COPIED, "one data folder is a copy"),
        (card("b@h", cluster=OTHER), Code.CLUSTER, "node b@h belongs to another cluster"),
    ],
)
def test_a_node_that_cannot_be_a_peer_is_refused_by_name(theirs: Card, code: Code, sentence: str) -> None:
    wire = pair(theirs, card("a@h", cluster=CLUSTER))
    wire.settle()
    assert wire.acceptor.refused is not None
    assert wire.acceptor.refused.code is code
    assert sentence in wire.acceptor.refused.text
    assert wire.dialler.refused is not None
    assert wire.dialler.refused.code is code


@pytest.mark.parametrize("cluster", [FRESH, CLUSTER])
def test_a_node_without_a_cluster_may_be_linked(cluster: bytes) -> None:
    wire = pair(card("a@h", cluster=FRESH), card("b@h", cluster=cluster))
    wire.settle()
    assert wire.dialler.opened


@pytest.mark.parametrize("refuser", ["dialler", "acceptor"])
def test_the_layer_above_can_refuse_a_peer_in_its_own_words(refuser: str) -> None:
    def verdict(peer: Card, other: Card | None) -> str | None:
        return f"forget {peer.name} first"

    wire = Wire(
        End(card("a@h"), is_dialler=True, verdict=verdict if refuser == "dialler" else welcome_all),
        End(card("b@h"), is_dialler=False, verdict=verdict if refuser == "acceptor" else welcome_all),
    )
    wire.settle()
    mine, other = (wire.dialler, wire.acceptor) if refuser == "dialler" else (wire.acceptor, wire.dialler)
    assert mine.refused is not None
    assert mine.refused.text == f"forget {other.link._handshake.me.name} first"
    assert other.refused is not None
    assert other.refused.text == f"refused by the other node: {mine.refused.text}"
    assert not wire.acceptor.opened
    assert not wire.dialler.opened


def test_words_of_a_refusal_cannot_forge_a_log_line() -> None:
    dialler = End(card("a@h"), is_dialler=True)
    acceptor = End(card("b@h"), is_dialler=False, verdict=lambda *_: "no\nroot logged in" + "x" * 500)
    wire = Wire(dialler, acceptor)
    wire.settle()
    assert dialler.refused is not None
    assert "no?root" in dialler.refused.text
    assert len(dialler.refused.text) < 2 * limits.peer_reason_bytes_max


def test_a_handshake_that_stops_half_way_is_given_up() -> None:
    wire = pair()
    wire.move(wire.dialler)
    wire.acceptor.tick(later(START, limits.peer_handshake_us - 1))
    assert not wire.acceptor.refused
    wire.acceptor.tick(later(START, limits.peer_handshake_us))
    assert wire.acceptor.refused is not None
    assert wire.acceptor.refused.code is Code.TIME


def test_a_connection_lost_in_the_handshake_is_a_refusal_and_no_death() -> None:
    wire = pair()
    wire.dialler.link.lost(Loss.EOF)
    wire.dialler.collect()
    assert wire.dialler.refused is not None
    assert wire.dialler.refused.code is Code.LOST
    assert not wire.dialler.down


def test_a_recorded_dialler_cannot_be_replayed() -> None:
    first = pair()
    recorded = bytearray()
    while first.dialler.waiting or first.acceptor.waiting:
        recorded += first.dialler.waiting
        first.move(first.dialler)
        first.move(first.acceptor)
    assert first.acceptor.opened
    again = End(card("b@h"), is_dialler=False, seed=7)
    again.hear(recorded)
    assert again.refused is not None
    assert again.refused.code is Code.SECRET


def test_what_a_node_says_cannot_be_reflected_to_it() -> None:
    """A dialler whose own bytes come back as the acceptor's, and one end of a node used against the other."""
    dialler = End(card("a@h"), is_dialler=True)
    dialler.collect()
    for _ in range(4):
        echoed, dialler.waiting = bytes(dialler.waiting), bytearray()
        dialler.hear(echoed)
    assert dialler.refused is not None
    assert not dialler.opened
    # The same node accepts a connection at the same time; whoever relays knows no secret.
    relayed = Wire(End(card("a@h"), is_dialler=True), End(card("a@h"), is_dialler=False, seed=1))
    relayed.settle()
    assert relayed.acceptor.refused is not None
    assert relayed.acceptor.refused.code is Code.SELF


class Conversation:
    """The bytes of an undisturbed handshake, to know how long it is."""

    def __init__(self) -> None:
        wire = pair()
        self.sizes: list[int] = []
        for _ in range(5):
            source = wire.dialler if wire.dialler.waiting else wire.acceptor
            self.sizes.append(len(source.waiting))
            wire.move(source)


READY_BYTES = 3 + 32
LENGTHS = Conversation().sizes
# The dialler's last turn holds READY and its first frames.
HANDSHAKE_BYTES = sum(LENGTHS[:-1]) + READY_BYTES


@given(st.integers(0, HANDSHAKE_BYTES - 1), st.integers(1, 255))
def test_who_changes_any_byte_of_the_handshake_gets_no_link(place: int, bits: int) -> None:
    wire = pair()
    passed = 0
    for _ in range(8):
        source = wire.dialler if wire.dialler.waiting else wire.acceptor
        if passed <= place < passed + len(source.waiting):
            source.waiting[place - passed] ^= bits
        passed += wire.move(source)
    end = later(START, limits.peer_handshake_us)
    wire.dialler.tick(end)
    wire.acceptor.tick(end)
    # The end that got the changed byte has no link. The other one may have been done with its part.
    assert not wire.acceptor.opened
    assert wire.acceptor.refused
    wire.settle()
    if place < HANDSHAKE_BYTES - READY_BYTES:
        assert not wire.dialler.opened
        wire.dialler.link.lost(Loss.EOF)
        wire.dialler.collect()
        assert wire.dialler.refused


@given(st.booleans(), st.lists(st.binary(max_size=200), max_size=20), st.booleans())
def test_arbitrary_bytes_never_open_a_link_nor_raise(
    is_dialler: bool, parts: list[bytes], greet: bool
) -> None:
    end = End(card("b@h"), is_dialler=is_dialler)
    if greet:
        end.hear(b"MMQP\x01\x01\x20\0" + bytes(32))
    for part in parts:
        end.hear(part)
        assert len(end.link._handshake._in) <= limits.peer_handshake_bytes_max + 8
    assert not end.opened


@given(
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**64 - 1),
    st.from_regex(r"[A-Za-z0-9_.-]{1,50}@[A-Za-z0-9_.:-]{1,200}", fullmatch=True),
    st.text(st.characters(categories=["L", "N", "P"]), max_size=60),
)
def test_a_card_survives_its_encoding(identity: bytes, counter: int, name: str, advertise: str) -> None:
    presented = Card(name, identity, counter, CLUSTER, advertise)  # type: ignore[arg-type]
    assert decode_card(encode_card(presented)) == presented
    # A later version may say more than this one knows.
    assert decode_card(encode_card(presented) + b"more") == presented


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_card_or_a_fault(data: bytes) -> None:
    try:
        decode_card(data)
    except PeerFault as fault:
        assert fault.code is Code.MALFORMED  # noqa: PT017


def test_every_reason_has_a_sentence() -> None:
    assert set(SENTENCES) == set(Code)
