"""Texts of frame errors, compared with what Erlang printed for the same terms."""

import pytest

from mirrormq.broker import faults


@pytest.mark.parametrize(
    ("payload", "marker", "text"),
    [
        (
            bytes((0, 60, 0, 10, 0, 0, 0, 0, 0, 0, 0)),
            0,
            "type 1, all octets = <<0,60,0,10,0,0,0,0,0,0,0>>: {invalid_frame_end_marker,0}",
        ),
        (
            bytes(range(17)),
            0,
            "type 1, first 16 octets = <<0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15>>: "
            "{invalid_frame_end_marker,\n" + " " * 70 + "0}",
        ),
        (
            bytes((139, 246, 8, 106, 42, 237, 168, 93, 127, 124, 197, 119, 58, 100, 82, 7, 0)),
            1,
            "type 1, first 16 octets = <<139,246,8,106,42,237,168,93,127,124,197,119,58,100,\n"
            + " " * 28
            + "82,7>>: {invalid_frame_end_marker,1}",
        ),
        (b"abcd", 205, 'type 1, all octets = <<"abcd">>: {invalid_frame_end_marker,205}'),
        (
            b'a \x1b"b\\',
            9,
            'type 1, all octets = <<"a \\e\\"b\\\\">>: {invalid_frame_end_marker,9}',
        ),
    ],
)
def test_octets_are_shown_as_erlang_prints_them(payload, marker, text):
    assert faults.bad_frame_end(1, marker, payload).text == text


def test_a_frame_over_the_limit_names_both_sizes():
    error = faults.frame_too_large(3, 131_073, 131_072)
    assert (error.code, error.text) == (501, "type 3, all octets = <<>>: {frame_too_large,131073,131064}")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"soon", "no_integer"),
        (b"", "no_integer"),
        (b" 60000", "no_integer"),
        (b"-", "no_integer"),
        (b"-1", "{value_negative,-1}"),
        (b"1.5", '{leftover_string,".5"}'),
        (b"60000ms", '{leftover_string,"ms"}'),
        (b"5\x01", "{leftover_string,[1]}"),
        (b"315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_an_expiration_is_refused_with_the_reason_rabbitmq_gives(value, reason):
    error = faults.bad_expiration(value)
    assert error is not None
    assert error.text == f"invalid expiration '{value.decode()}': {reason}"


@pytest.mark.parametrize("value", [b"0", b"+5", b"0005", b"315360000000"])
def test_an_expiration_rabbitmq_can_read_is_in_order(value):
    assert faults.bad_expiration(value) is None


def test_an_expiration_that_is_not_utf8_is_repeated_byte_for_byte():
    error = faults.bad_expiration(b"\xff")
    assert error is not None
    assert error.text.encode("utf-8", "surrogateescape") == b"invalid expiration '\xff': no_integer"


@pytest.mark.parametrize(
    ("code", "frame_type", "detail", "snippet", "text", "method"),
    [
        ("unknown_type", 9, 4, b"abcd", 'type 9, all octets = <<"abcd">>: unknown_frame', (0, 0)),
        ("bad_heartbeat", 8, 0, b"", "type 8, all octets = <<>>", (0, 0)),
        ("bad_heartbeat", 8, 4, b"ping", 'type 8, all octets = <<"ping">>: unknown_frame', (0, 0)),
        ("not_open", 3, 1, b"x", "expected method frame, got non method frame instead", (0, 0)),
        ("unexpected_body", 3, 0, b"x", "expected method frame, got non method frame instead", (0, 0)),
        (
            "unexpected_method",
            1,
            1,
            b"\0\x3c\0\x28",
            "expected content header for class 60, got non content header frame instead",
            (60, 40),
        ),
        (
            "unexpected_method",
            1,
            2,
            b"\0\x3c\0\x28",
            "expected content body, got non content body frame instead",
            (60, 40),
        ),
        (
            "class_mismatch",
            2,
            50,
            bytes(14),
            "expected content header for class 60, got one for class 50 instead",
            (60, 40),
        ),
        (
            "bad_weight",
            2,
            1,
            bytes(14),
            "expected content header for class 60, got non content header frame instead",
            (60, 40),
        ),
        ("bad_header", 2, 5, bytes(5), "type 2, all octets = <<0,0,0,0,0>>: unknown_frame", (0, 0)),
        ("unexpected_method", 1, 1, b"\0\x3c", "type 1, all octets = <<0,60>>: unknown_frame", (0, 0)),
        ("bad_header", 2, 15, bytes(15), "", (0, 0)),
    ],
)
def test_reader_errors_are_told_in_rabbitmqs_words(code, frame_type, detail, snippet, text, method):
    error = faults.from_reader(1, code, frame_type, detail, snippet, frame_max=131_072)
    assert error.text == text
    assert (error.class_id, error.method_id) == method
    assert error.scope == "connection"


def test_content_on_channel_0_is_shown_with_its_octets():
    error = faults.from_reader(0, "not_open", 3, 4, b"abcd", frame_max=131_072)
    assert (error.code, error.text) == (505, 'type 3, all octets = <<"abcd">>')


def test_the_built_in_size_limit_is_worded_differently_from_a_configured_one():
    assert faults.message_too_big(9, 8).text == "message size 9 is larger than configured max size 8"
    ceiling = 512 * 1024 * 1024
    assert faults.message_too_big(ceiling + 1, ceiling).text.endswith(f"larger than max size {ceiling}")
