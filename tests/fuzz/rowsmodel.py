"""Fuzz target: rows of a sink, whole and damaged, against what was put in."""

from __future__ import annotations

import contextlib
import random
import struct

from mirrormq.kernel import forward, records
from mirrormq.kernel.cores import QueueCore, Worklist
from mirrormq.kernel.index import Graveyard
from mirrormq.kernel.rows import BadRow, Block, RowSplitter
from tests.fuzz.grammar import exactly

PROPERTIES = (b"\x10\0\x02", b"\x10\0\x02", b"\0\0", b"\x18\0\x02\x05", b"\x20\0\0\0\0\x07\x01aI\0\0\0\x01")
DURABLE = b"\x10\0\x02"
_ROW = struct.Struct("<IBHHI")


def encode(op: int, key: bytes, properties: bytes, body: bytes) -> bytes:
    rest = b"e" + key + properties + body
    return _ROW.pack(_ROW.size - 4 + len(rest), op, 1, len(key), len(properties)) + rest


def rows_case(rng: random.Random) -> None:
    """What is fed comes out in the blocks of its key, in order; what is damaged is refused or other rows."""
    op = rng.randrange(2)
    sent = []
    for at in range(rng.randrange(1, 30)):
        body = rng.randbytes(rng.choice((0, 1, 5, 300)))
        sent.append((b"k" * rng.randrange(3), rng.choice(PROPERTIES), struct.pack("<Q", at + 1), body))
    data = b"".join(
        encode(op, key, properties, (seq if op else b"") + body) for key, properties, seq, body in sent
    )
    found = split(rng, data)
    for key in {key for key, *_ in sent}:
        wanted = [body for name, _, _, body in sent if name == key]
        assert [body for block, rows in found[key] for body in taken(block, rows)] == wanted
        if op:
            spans = [span for block, rows in found[key] for span in forward.origins(exactly(block), rows)]
            seqs = [seq for first, last in spans for seq in range(first, last + 1)]
            assert seqs == [struct.unpack("<Q", seq)[0] for name, _, seq, _ in sent if name == key]
    broken = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        broken[rng.randrange(len(broken))] = rng.randrange(256)
    with contextlib.suppress(BadRow):
        split(rng, bytes(broken))


def split(rng: random.Random, data: bytes) -> dict[bytes, list[tuple[bytes, int]]]:
    splitter = RowSplitter(4096, rng.choice((1, 200, 1 << 20)))
    blocks: dict[bytes, Block] = {}
    found: dict[bytes, list[tuple[bytes, int]]] = {}
    names: dict[Block, bytes] = {}
    at = 0
    while at < len(data):
        size = rng.choice((1, 7, 100, len(data)))
        splitter.feed(exactly(data[at : at + size]))
        at += size
        while True:
            asked = splitter.run()
            full = splitter.take_full()
            for block in full:
                found[names[block]].append(block.take()[:2])
            if asked is None and not full:
                break
            if asked is not None:
                op, exchange, key, properties, _ = asked
                if key not in blocks:
                    blocks[key] = Block()
                    names[blocks[key]] = key
                    found[key] = []
                if properties == DURABLE and rng.random() < 0.5:
                    splitter.learn(op, exchange, key, [blocks[key]])
                else:
                    splitter.place([blocks[key]], DURABLE)
    for key, block in blocks.items():
        if block.rows:
            found[key].append(block.take()[:2])
    return found


def taken(block: bytes, rows: int) -> list[bytes]:
    """The bodies a queue takes out of a block, through its log."""
    grave = Graveyard()
    core = QueueCore(Worklist(), grave, None, 0)
    runs = forward.take_copies(core, exactly(block), 1, rows, 0, 7, 0)
    if not runs:
        forward.take_publishes(core, exactly(block), 0, 1, rows, 0, 7, False)
    batch, _ = records.encode_publishes(core, rows, 1, 1, 1, 1, b"note" if runs else None)
    assert records.is_whole(exactly(batch), 0)
    staged = records.encode_staged(1, 1, 9, 1, exactly(block))
    assert records.is_whole(exactly(staged), 0)
    assert records.staged_blocks(exactly(staged), 0, {9}) == [(9, block)]
    bodies = [message.body for message, _, _ in records.messages(batch, 0, set(range(1, rows + 1)))]
    core.destroy()
    while grave.free(100):
        pass
    return bodies
