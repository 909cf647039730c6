"""Errors the frame reader finds, told in RabbitMQ's words.

RabbitMQ prints Erlang terms into these texts, line breaks of its pretty printer included. Clients and log
parsers match on them, so the few term forms that occur are rendered here the way Erlang renders them.
"""

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError, frame_error, internal_error, precondition_failed, unexpected_frame
from mirrormq.wire.methods import Method
from mirrormq.wire.spec import CLASS_BASIC, FRAME_HEADER, FRAME_METHOD

FATAL = frozenset({"frame_end", "too_large"})
"""Errors after which the reader does not know where the next frame begins."""

NOISE = FATAL | {"unknown_type"}
"""Errors that show, on a connection already closing, that what comes is no AMQP."""

_PUBLISH = 40
_EXPECT_METHOD, _EXPECT_HEADER = 0, 1
_FRAME_HEADS = {FRAME_METHOD: 4, FRAME_HEADER: 12}
"""Octets a frame of this type must have to be taken for one: ids; class, weight and body size."""

_WANTED_METHOD = "expected method frame, got non method frame instead"
_WANTED_BODY = "expected content body, got non content body frame instead"
_WANTED_HEADER = f"expected content header for class {CLASS_BASIC}, got non content header frame instead"

SNIPPET_BYTES_MAX = 16
_LINE = 79
"""Columns Erlang's pretty printer fills before it breaks the octets of a binary."""
_TUPLE_LINE = 78
"""Columns a tuple may reach and still stay on one line."""

_ESCAPES = {
    0x08: "\\b",
    0x09: "\\t",
    0x0A: "\\n",
    0x0B: "\\v",
    0x0C: "\\f",
    0x0D: "\\r",
    0x1B: "\\e",
    0x22: '\\"',
    0x5C: "\\\\",
}


def from_reader(
    number: int, code: str, frame_type: int, detail: int, snippet: bytes, *, frame_max: int
) -> AmqpError:
    """Turn an error event of the frame reader into what RabbitMQ would say about those bytes."""
    if len(snippet) < _FRAME_HEADS.get(frame_type, 0) and code not in FATAL:
        return unknown_frame(frame_type, snippet)
    if code == "frame_end":
        return bad_frame_end(frame_type, detail, snippet)
    if code == "too_large":
        return frame_too_large(frame_type, detail, frame_max)
    if code == "unknown_type":
        return unknown_frame(frame_type, snippet)
    if code == "bad_heartbeat":
        return unknown_frame(frame_type, snippet) if detail else misplaced_frame(frame_type, snippet)
    if code == "not_open":
        if number == 0:
            return misplaced_frame(frame_type, snippet)
        return unexpected_frame(_WANTED_METHOD)
    return _bad_content(code, detail, snippet)


def _bad_content(code: str, detail: int, snippet: bytes) -> AmqpError:
    """Errors between basic.publish and the end of its content."""
    if code == "bad_header":
        return internal_error("")  # RabbitMQ's channel dies of properties it cannot read
    if code == "bad_publish":
        return _about_publish(frame_error(f"cannot decode {octet_list(snippet)}"))
    if code == "class_mismatch":
        return _about_publish(
            unexpected_frame(
                f"expected content header for class {CLASS_BASIC}, got one for class {detail} instead"
            )
        )
    if code == "bad_weight":
        return _about_publish(unexpected_frame(_WANTED_HEADER))
    # unexpected_method, unexpected_header, unexpected_body: `detail` says what the channel waited for.
    if detail == _EXPECT_METHOD:
        return unexpected_frame(_WANTED_METHOD)
    return _about_publish(unexpected_frame(_WANTED_HEADER if detail == _EXPECT_HEADER else _WANTED_BODY))


def unreadable(payload: bytes) -> AmqpError:
    """Refuse a method whose arguments have the wrong shape."""
    error = frame_error(f"cannot decode {octet_list(payload[4:])}")
    error.class_id = int.from_bytes(payload[:2], "big")
    error.method_id = int.from_bytes(payload[2:4], "big")
    return error


def headless(method: Method) -> AmqpError:
    """Refuse what followed a method with content (other than a publish) if it was no content header."""
    error = unexpected_frame(_WANTED_HEADER)
    error.class_id, error.method_id = method.class_id_of, method.method_id_of
    return error


def _about_publish(error: AmqpError) -> AmqpError:
    error.class_id, error.method_id = CLASS_BASIC, _PUBLISH
    return error


def on_channel(error: AmqpError) -> AmqpError:
    """Re-tell a decoding error of a channel: RabbitMQ names the method only if its shape was wrong."""
    if not error.text.startswith("cannot decode"):
        error.class_id = error.method_id = 0
    return error


def on_channel_0(error: AmqpError) -> AmqpError:
    """Re-tell a decoding error of channel 0: RabbitMQ reports unreadable arguments there as its own fault."""
    return internal_error("") if error.text.startswith("cannot decode") else error


def erlang_string(data: bytes) -> str:
    """Render text as Erlang prints a list of characters: a quoted string if printable, else the numbers."""
    if all(_is_printable(octet) for octet in data):
        return '"' + _escaped(data) + '"'
    return "[" + ",".join(str(octet) for octet in data) + "]"


def erlang_binary(data: bytes, column: int = 0) -> str:
    """Render octets as Erlang's `~p` does when the cursor stands at `column`."""
    if not data:
        return "<<>>"
    if all(_is_printable(octet) for octet in data):
        return '<<"' + _escaped(data) + '">>'
    parts = ["<<"]
    at = column + 2
    last = len(data) - 1
    for position, octet in enumerate(data):
        item = str(octet) if position == last else f"{octet},"
        if position and at + len(item) > _LINE:
            parts.append("\n" + " " * (column + 2))
            at = column + 2
        parts.append(item)
        at += len(item)
    parts.append(">>")
    return "".join(parts)


def octet_list(data: bytes) -> str:
    """Render octets as Erlang's `~w` does: numbers only, never broken into lines."""
    return "<<" + ",".join(str(octet) for octet in data) + ">>"


def bad_frame_end(frame_type: int, marker: int, payload: bytes) -> AmqpError:
    """Refuse a frame whose last octet is not 206."""
    text = _octets(frame_type, payload) + ": "
    column = len(text) - text.rfind("\n") - 1
    term = f"{{invalid_frame_end_marker,{marker}}}"
    if column + len(term) > _TUPLE_LINE:
        term = "{invalid_frame_end_marker,\n" + " " * (column + 1) + f"{marker}}}"
    return frame_error(text + term)


def frame_too_large(frame_type: int, size: int, frame_max: int) -> AmqpError:
    """Refuse a frame whose announced payload is over the negotiated frame-max."""
    return frame_error(f"{_octets(frame_type, b'')}: {{frame_too_large,{size},{frame_max - 8}}}")


def unknown_frame(frame_type: int, payload: bytes) -> AmqpError:
    """Refuse a frame type nobody knows, or a known one whose payload cannot be one."""
    return frame_error(_octets(frame_type, payload) + ": unknown_frame")


def misplaced_frame(frame_type: int, payload: bytes) -> AmqpError:
    """Refuse a frame its channel cannot carry (a heartbeat outside channel 0, content on channel 0)."""
    return unexpected_frame(_octets(frame_type, payload))


def message_too_big(size: int, size_max: int) -> AmqpError:
    """Refuse a message over `max_message_size`; RabbitMQ words its built-in ceiling differently."""
    kind = "max size" if size_max >= limits.message_bytes_ceiling else "configured max size"
    return _about_publish(precondition_failed(f"message size {size} is larger than {kind} {size_max}"))


def bad_expiration(value: bytes) -> AmqpError | None:
    """Judge an `expiration` property by RabbitMQ's reading of it; None if it is in order."""
    text = value.decode("latin-1")
    digits = text[1:] if text[:1] in ("+", "-") else text
    length = len(digits) - len(digits.lstrip("0123456789"))
    if not length:
        return _expiration_error(value, "no_integer")
    number = int(text[: len(text) - len(digits) + length])
    rest = digits[length:]
    if rest:
        return _expiration_error(value, f"{{leftover_string,{erlang_string(rest.encode('latin-1'))}}}")
    if number < 0:
        return _expiration_error(value, f"{{value_negative,{number}}}")
    if number > limits.ttl_ms_max:
        return _expiration_error(value, f"{{value_too_large,{number}}}")
    return None


def _expiration_error(value: bytes, reason: str) -> AmqpError:
    return precondition_failed(f"invalid expiration '{value.decode('utf-8', 'surrogateescape')}': {reason}")


def _octets(frame_type: int, payload: bytes) -> str:
    how = "all" if len(payload) <= SNIPPET_BYTES_MAX else f"first {SNIPPET_BYTES_MAX}"
    text = f"type {frame_type}, {how} octets = "
    return text + erlang_binary(payload[:SNIPPET_BYTES_MAX], len(text))


def _is_printable(octet: int) -> bool:
    return 32 <= octet <= 126 or octet >= 160 or octet in _ESCAPES


def _escaped(data: bytes) -> str:
    return "".join(_ESCAPES.get(octet) or chr(octet) for octet in data)
