"""Makes AMQP bytes for the fuzz targets: mostly well formed, wrong in small ways, sometimes noise."""

from __future__ import annotations

import ctypes
import random
import struct
from pathlib import Path
from typing import Any

TYPES_FIXED = {
    b"t": 1,
    b"b": 1,
    b"B": 1,
    b"s": 2,
    b"u": 2,
    b"I": 4,
    b"i": 4,
    b"l": 8,
    b"L": 8,
    b"f": 4,
    b"d": 8,
    b"T": 8,
    b"D": 5,
    b"V": 0,
}
STRING_BITS = (15, 14, 10, 9, 7, 5, 4, 3, 2)
"""content type, encoding, correlation id, reply-to, message id, type, user id, app id, cluster id"""
NAMES = (b"", b"q", b"amq.direct", b"a.b.c", b"x" * 255, b"CC", b"BCC")
EDGES = (0, 1, 2, 7, 8, 9, 63, 64, 65, 255, 256, 257, 4087, 4088, 4089)


def read_corpus() -> dict[str, bytes]:
    lines = Path(__file__).with_name("corpus.txt").read_text().splitlines()
    rows = (line.split("\t") for line in lines if not line.startswith("#"))
    return {name: bytes.fromhex(text) for name, text in rows}


CORPUS = read_corpus()


def exactly(data: bytes) -> Any:
    """A buffer that ends with its last byte: `bytes` keeps a NUL behind, where an over-read of one hides."""
    return (ctypes.c_char * len(data)).from_buffer_copy(data) if data else b""


def short(rng: random.Random) -> bytes:
    text = rng.choice((*NAMES, rng.randbytes(rng.randrange(20)), b"amq.rabbitmq.reply-to", b"123", b"9" * 13))
    return bytes([len(text)]) + text


def value(rng: random.Random, depth: int = 0) -> bytes:
    kind = rng.choice((*TYPES_FIXED, b"S", b"x", b"A", b"F"))
    if kind in TYPES_FIXED:
        return kind + rng.randbytes(TYPES_FIXED[kind])
    if kind in {b"S", b"x"} or depth > rng.choice((1, 3, 70)):
        text = rng.randbytes(rng.choice((0, 1, 5, 40)))
        return b"S" + struct.pack(">I", len(text)) + text
    inner = (
        b"".join(value(rng, depth + 1) for _ in range(rng.randrange(3)))
        if kind == b"A"
        else entries(rng, depth + 1)
    )
    return kind + struct.pack(">I", len(inner)) + inner


def entries(rng: random.Random, depth: int = 0) -> bytes:
    return b"".join(short(rng) + value(rng, depth) for _ in range(rng.randrange(4)))


def deep(rng: random.Random) -> bytes:
    """A table nested to about the allowed depth."""
    inner = b""
    for _ in range(rng.choice((10, 62, 63, 64, 65, 66, 200))):
        inner = b"\x01aF" + struct.pack(">I", len(inner)) + inner
    return inner


def properties(rng: random.Random) -> bytes:
    """Raw properties: flags and the list they announce."""
    if rng.random() < 0.2:
        return b"\x00\x00"
    flags, out = 0, b""
    for bit in range(15, 1, -1):
        if rng.random() < 0.65:
            continue
        flags |= 1 << bit
        if bit == 13:
            table = deep(rng) if rng.random() < 0.05 else entries(rng)
            out += struct.pack(">I", len(table)) + table
        elif bit == 12:
            out += bytes([rng.choice((1, 2, 0, 255))])
        elif bit == 11:
            out += bytes([rng.choice((0, 1, 5, 9, 255))])
        elif bit == 8:
            text = rng.choice((b"", b"0", b"1000", b"12345678901234567890", b"-1", b"x", b"315360000000"))
            out += bytes([len(text)]) + text
        elif bit == 6:
            out += rng.randbytes(8)
        else:
            out += short(rng)
    return struct.pack(">H", flags) + out


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def content(rng: random.Random, channel: int, most: int) -> bytes:
    """A publish with its header and body; the body may lack its end, be too long or come in odd pieces."""
    method = (
        struct.pack(">HHH", 60, 40, 0) + short(rng) + short(rng) + bytes([rng.choice((0, 0, 0, 1, 2, 3))])
    )
    size = rng.choice((*EDGES, rng.randrange(3000)))
    body = rng.randbytes(size)
    announced = size if rng.random() < 0.9 else rng.choice((0, size + 1, 2**32, 2**63, 2**64 - 1))
    out = frame(1, channel, method)
    out += frame(2, channel, struct.pack(">HHQ", 60, 0, announced) + properties(rng))
    while body:
        part = rng.choice((1, 7, 100, most, most))
        out += frame(3, channel, body[:part])
        body = body[part:]
        if rng.random() < 0.02:
            break
    return out


def settle(rng: random.Random, channel: int) -> bytes:
    method = rng.choice((80, 90, 120))
    tag = rng.choice((0, 1, 2, 3, 5, 64, 65, 2**64 - 1))
    return frame(1, channel, struct.pack(">HHQB", 60, method, tag, rng.randrange(4)))


def stream(rng: random.Random, most: int) -> bytes:
    """What a client might send after the handshake."""
    if rng.random() < 0.1:
        return mutate(rng, b"".join(rng.choices(list(CORPUS.values()), k=rng.randrange(1, 4))))
    out = b""
    for _ in range(rng.randrange(1, 12)):
        channel = rng.choice((1, 1, 1, 2, 3, 0, 65535))
        kind = rng.random()
        if kind < 0.5:
            out += content(rng, channel, most)
        elif kind < 0.75:
            out += settle(rng, channel)
        elif kind < 0.85:
            out += frame(
                1,
                channel,
                struct.pack(">HH", rng.choice((10, 20, 50, 60, 90)), rng.randrange(130)) + short(rng),
            )
        elif kind < 0.9:
            out += frame(8, 0, b"")
        elif kind < 0.97:
            out += frame(
                rng.choice((1, 2, 3, 8, 4, 255)),
                channel,
                rng.randbytes(rng.choice((0, 1, 3, 4, 12, 13, 14, 60))),
            )
        else:
            out += rng.randbytes(rng.randrange(1, 30))
    return mutate(rng, out) if rng.random() < 0.4 else out


def mutate(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        if not out:
            break
        at = rng.randrange(len(out))
        act = rng.randrange(4)
        if act == 0:
            out[at] = rng.choice((0, 1, 2, 3, 8, 0x7F, 0x80, 0xCE, 0xFF, rng.randrange(256)))
        elif act == 1:
            del out[at : at + rng.choice((1, 1, 4, 20))]
        elif act == 2:
            out[at:at] = rng.randbytes(rng.choice((1, 1, 4)))
        else:
            del out[at:]
    return bytes(out)


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """The same bytes as a network might cut them."""
    if rng.random() < 0.1:
        return [data[at : at + 1] for at in range(len(data))]
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
