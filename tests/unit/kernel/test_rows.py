"""Rows of a sink are put into the blocks of their queues whole, in order, or refused."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.kernel import forward, records
from mirrormq.kernel.cores import QueueCore, Worklist
from mirrormq.kernel.crc32c import crc32c
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.rows import BadRow, Block, RowSplitter
from mirrormq.wire.properties import Properties, encode_properties
from tests.support.sinkkit import DURABLE, row


def split(data, routes, pieces=(), most=1 << 20):
    """Feed rows in pieces; {key: [(block, rows, op), …]} of what comes out."""
    splitter = RowSplitter(1 << 20, most)
    blocks = {}
    found = {}

    def take(block):
        name = next(name for name, one in blocks.items() if one is block)
        found.setdefault(name, []).append(block.take())

    cuts = [0, *sorted(pieces), len(data)]
    for first, last in pairwise(cuts):
        splitter.feed(data[first:last])
        while True:
            asked = splitter.run()
            full = splitter.take_full()
            for block in full:
                take(block)
            if asked is None:
                if not full:
                    break
                continue
            op, exchange, key, properties, _ = asked
            wanted = [blocks.setdefault(name, Block()) for name in routes[key]]
            if properties == DURABLE:
                splitter.learn(op, exchange, key, wanted)
            else:
                splitter.place(wanted, DURABLE)
    assert splitter.is_whole
    assert splitter.crc == crc32c(data)
    for block in blocks.values():
        if block.rows:
            take(block)
    return found, splitter.count


def messages(block, count):
    """What a queue takes out of a block."""
    core = QueueCore(Worklist(), Graveyard(), object(), 0)
    assert forward.take_publishes(core, block, 0, 1, count, 0, 7, False) == (count, count)
    batch, _ = records.encode_publishes(core, count, 1, 1, 1, 1)
    return [
        (one.exchange, one.routing_key, one.properties, one.body)
        for one, _, _ in records.messages(batch, 0, set(range(1, count + 1)))
    ]


@given(
    st.lists(st.tuples(st.sampled_from([b"a", b"b", b"ab"]), st.binary(max_size=40)), max_size=30),
    st.lists(st.integers(0, 2000), max_size=10),
    st.integers(1, 400),
)
def test_each_queue_gets_its_rows_in_order_however_they_are_cut(rows, cuts, most):
    data = b"".join(row(key, body, b"x") for key, body in rows)
    routes = {b"a": "A", b"b": "B", b"ab": "AB"}
    found, count = split(data, routes, [cut for cut in cuts if cut < len(data)], most)
    assert count == len(rows)
    for name in "AB":
        got = [one for block, rows_in, _ in found.get(name, []) for one in messages(block, rows_in)]
        assert got == [(b"x", key, DURABLE, body) for key, body in rows if name in routes[key]]


def test_rows_of_another_op_begin_another_block():
    data = b"".join(row("a", bytes(8) + bytes(8) * (op == 2), op=op) for op in (1, 1, 2, 1))
    found, _ = split(data, {b"a": "A"})
    assert [(rows, op) for _, rows, op in found["A"]] == [(2, 1), (1, 2), (1, 1)]


def test_a_copy_keeps_the_exchange_and_key_it_was_published_with():
    start = (5).to_bytes(8, "little")
    data = row("a", start + b"\x02ex\x03key" + b"body", op=3) + row("a", start + b"\0\0", op=3)
    found, _ = split(data + row("a", start + b"plain", op=1), {b"a": "A"})
    ((block, count, op),) = found["A"]
    assert op == 1
    assert messages(block, count) == [
        (b"ex", b"key", DURABLE, b"body"),
        (b"", b"", DURABLE, b""),
        (b"", b"a", DURABLE, b"plain"),
    ]


def test_a_removal_names_one_seq_or_a_run_of_them():
    def removal(*seqs):
        return row("a", b"".join(seq.to_bytes(8, "little") for seq in seqs), op=2)

    found, _ = split(removal(5) + removal(6, 9) + removal(10) + removal(20, 30), {b"a": "A"})
    ((block, count, _),) = found["A"]
    assert forward.origins(block, count) == [(5, 10), (20, 30)]


def test_an_origin_travels_beside_the_body():
    data = b"".join(row("a", seq.to_bytes(8, "little") + b"body", op=1) for seq in (5, 6, 9))
    found, _ = split(data, {b"a": "A"})
    ((block, count, _),) = found["A"]
    assert forward.origins(block, count) == [(5, 6), (9, 9)]
    core = QueueCore(Worklist(), Graveyard(), object(), 0)
    assert forward.take_copies(core, block, 1, count, 0, 7, 5) == [(6, 1), (9, 1)]
    assert core.pending == 2


def test_a_row_that_is_not_persistent_is_asked_about_each_time():
    plain = encode_properties(Properties(message_id="m"))
    data = b"".join(row("a", b"%d" % at, properties=plain) for at in range(3))
    found, _ = split(data, {b"a": "A"})
    ((block, count, _),) = found["A"]
    assert [one[2:] for one in messages(block, count)] == [(DURABLE, b"%d" % at) for at in range(3)]


@pytest.mark.parametrize(
    "data",
    [
        b"\x05\0\0\0" + bytes(5),
        b"\xff\xff\xff\x7f",
        row("a", b"1", op=5),
        row("a", b"1", op=4),
        row("a", b"short", op=1),
        row("a", bytes(12), op=2),
        row("a", bytes(8) + b"\x02x", op=3),
        row("a", bytes(8) + b"\x01x\x05key", op=3),
        row("a", b"", properties=b"\xff\xff"),
        row("a", b"", properties=b""),
        b"\x10\0\0\0\0\xff\0\xff\0" + bytes(11),
    ],
)
def test_what_is_no_row_raises(data):
    splitter = RowSplitter(1 << 20, 1 << 20)
    splitter.feed(data)
    with pytest.raises(BadRow):
        splitter.run()


def test_random_bytes_are_refused_or_asked_about_and_nothing_else():
    rng = random.Random(5)
    good = row("a", b"body", b"exchange")
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        splitter = RowSplitter(1 << 16, 1 << 16)
        splitter.feed(bytes(data))
        try:
            asked = splitter.run()
        except BadRow:
            continue
        assert asked is None or len(asked) == 5
