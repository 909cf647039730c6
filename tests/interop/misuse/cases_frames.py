"""Broken frames: types, sizes, ends, content out of order, arguments that do not parse."""

from __future__ import annotations

import struct

from tests.interop.misuse.session import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    Literal,
    Session,
    content_header,
    pack,
)
from tests.interop.misuse.table import add, case

PUBLISH = pack("basic.publish", {"routing_key": "misuse.nowhere"})


# --- the frame itself
@case()
def frame_end_wrong(s: Session) -> None:
    s.frame(METHOD, 1, pack("basic.qos", {}), end=0x00)


@case()
def frame_end_wrong_on_a_body(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, content_header(4))
    s.frame(BODY, 1, b"abcd", end=0xCD)


@case()
def frame_end_wrong_on_a_long_body(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, content_header(40))
    s.frame(BODY, 1, bytes(range(40)), end=0xCD)


@case()
def frame_end_wrong_on_a_long_text(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, content_header(40))
    s.frame(BODY, 1, b'a "quoted" text\n\ttabs \\ and the rest of it', end=0xCD)


@case()
def frame_of_unknown_type(s: Session) -> None:
    s.frame(9, 1, b"abcd")


@case()
def frame_of_type_zero(s: Session) -> None:
    s.frame(0, 1, b"")


@case()
def frame_of_type_four(s: Session) -> None:
    s.frame(4, 0, b"abcdefgh")


@case()
def frame_larger_than_offered(s: Session) -> None:
    s.frame(BODY, 1, b"x" * 131_073)


def _body_of(name: str, size: int) -> None:
    def script(s: Session) -> None:
        s.frame(METHOD, 1, PUBLISH)
        s.frame(HEADER, 1, content_header(size))
        s.frame(BODY, 1, b"x" * size)

    add(f"frame_{name}", script, frame_max=4096)


_body_of("of_exactly_the_negotiated_size", 4088)
_body_of("with_a_payload_of_the_negotiated_size", 4096)
_body_of("larger_than_negotiated", 4097)


@case()
def frame_announcing_four_gigabytes(s: Session) -> None:
    s.raw(struct.pack(">BHI", BODY, 1, 0xFFFFFFFF))


@case()
def garbage_instead_of_a_frame(s: Session) -> None:
    s.raw(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n")


@case()
def protocol_header_on_an_open_connection(s: Session) -> None:
    s.raw(b"AMQP\x00\x00\x09\x01")


@case()
def heartbeat_on_a_channel(s: Session) -> None:
    s.frame(HEARTBEAT, 1, b"")


@case()
def heartbeat_with_a_payload(s: Session) -> None:
    s.frame(HEARTBEAT, 0, b"ping")


@case()
def heartbeat_where_none_was_negotiated(s: Session) -> None:
    s.frame(HEARTBEAT, 0, b"")


# --- content out of order
@case()
def header_without_a_method(s: Session) -> None:
    s.frame(HEADER, 1, content_header(4))


@case()
def body_without_a_method(s: Session) -> None:
    s.frame(BODY, 1, b"abcd")


@case()
def body_where_a_header_is_expected(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(BODY, 1, b"abcd")


@case()
def method_where_a_header_is_expected(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.send("basic.qos")


@case()
def publish_where_a_header_is_expected(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(METHOD, 1, PUBLISH)


@case()
def channel_close_where_a_header_is_expected(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.send("channel.close", reply_code=200, reply_text="bye")


@case()
def method_where_a_body_is_expected(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, content_header(4))
    s.send("basic.qos")


@case()
def header_where_a_body_is_expected(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, content_header(4))
    s.frame(HEADER, 1, content_header(4))


@case()
def body_longer_than_announced(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, content_header(4))
    s.frame(BODY, 1, b"abcdefgh")


@case()
def body_after_a_message_of_zero_bytes(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, content_header(0))
    s.frame(BODY, 1, b"")


@case()
def empty_body_frame_before_the_body(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, content_header(4))
    s.frame(BODY, 1, b"")
    s.frame(BODY, 1, b"abcd")


@case()
def header_of_another_class(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, content_header(4, class_id=50))


@case()
def header_of_unknown_class(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, content_header(4, class_id=999))


@case()
def header_with_a_weight(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, content_header(4, weight=1))
    s.frame(BODY, 1, b"abcd")


@case()
def header_cut_short(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, b"\x00\x3c\x00\x00\x00")


@case()
def header_empty(s: Session) -> None:
    s.frame(METHOD, 1, PUBLISH)
    s.frame(HEADER, 1, b"")


@case("connection")
def header_on_channel_zero(s: Session) -> None:
    s.frame(HEADER, 0, content_header(4))


@case("connection")
def body_on_channel_zero(s: Session) -> None:
    s.frame(BODY, 0, b"abcd")


@case("connection")
def body_on_a_channel_never_opened(s: Session) -> None:
    s.frame(BODY, 1, b"abcd")


@case("connection")
def header_on_a_channel_never_opened(s: Session) -> None:
    s.frame(HEADER, 1, content_header(4))


# --- arguments that do not parse
def _payload(name: str, payload: bytes, begin: str = "channel") -> None:
    number = 1 if begin == "channel" else 0
    add(name, lambda s: s.frame(METHOD, number, payload), begin)


QOS = pack("basic.qos", {"prefetch_count": 1})
_payload("method_frame_empty", b"")
_payload("method_frame_of_three_bytes", b"\x00\x3c\x00")
_payload("method_arguments_missing", QOS[:4])
_payload("method_arguments_cut_short", QOS[:-1])
_payload("method_arguments_too_long", QOS + b"more")
_payload("ack_cut_short", pack("basic.ack", {"delivery_tag": 1})[:-3])
_payload("ack_too_long", pack("basic.ack", {"delivery_tag": 1}) + b"\x00")
_payload("publish_cut_short", PUBLISH[:-4])
_payload("publish_too_long", PUBLISH + b"\x00")
_payload("short_string_beyond_the_frame", pack("basic.cancel", {})[:4] + b"\x20abc")
_payload("method_arguments_cut_short_on_channel_zero", pack("connection.close", {})[:7], "connection")
_payload("reserved_bits_set", QOS[:-1] + b"\xff")


def _table(name: str, raw: bytes) -> None:
    add(
        f"table_{name}",
        lambda s: s.send("queue.declare", queue=s.name("q"), exclusive=True, arguments=Literal(raw)),
    )


def _sized(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


_table("longer_than_the_frame", struct.pack(">I", 500) + b"\x01aI\0\0\0\1")
_table("of_four_gigabytes", struct.pack(">I", 0xFFFFFFFF))
_table("with_unknown_value_type", _sized(b"\x01aZ\0"))
_table("with_value_missing", _sized(b"\x01a"))
_table("with_value_cut_short", _sized(b"\x01aI\0\0"))
_table("with_key_cut_short", _sized(b"\x09ab"))
_table("with_inner_table_too_long", _sized(b"\x01aF" + struct.pack(">I", 100)))
_table("with_inner_array_too_long", _sized(b"\x01aA" + struct.pack(">I", 100) + b"t\x01"))
_table("with_text_too_long", _sized(b"\x01aS" + struct.pack(">I", 100) + b"abc"))
_table("with_boolean_of_two", _sized(b"\x01at\x02"))
_table("with_empty_key", _sized(b"\x00t\x01"))
_table("with_the_same_key_twice", _sized(b"\x08x-own-naI\0\0\0\1\x08x-own-naI\0\0\0\2"))
_table("with_text_not_utf8", _sized(b"\x0ax-own-noteS\0\0\0\2\xff\xfe"))
_table("with_key_not_utf8", _sized(b"\x03x-\xfft\x01"))
_table(
    "nested_a_hundred_deep",
    _sized(b"".join(b"\x01aF" + struct.pack(">I", 7 * depth) for depth in range(99, -1, -1))),
)
