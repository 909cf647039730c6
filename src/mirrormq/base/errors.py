"""AMQP reply codes as exceptions: what a client did wrong, and whether it costs channel or connection.

`reply_text` has exactly RabbitMQ's form ("NOT_FOUND - no queue 'q' in vhost '/'"): clients match on it.
Faults of our own are plain assertions and never travel as an `AmqpError`.
"""

from typing import Literal

from mirrormq.base import limits

Scope = Literal["channel", "connection"]

REPLY_NAMES: dict[int, str] = {
    200: "REPLY_SUCCESS",
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}

CHANNEL_CODES = frozenset({311, 312, 313, 403, 404, 405, 406})
"""Codes that close the channel only; every other code closes the connection."""


class AmqpError(Exception):
    """A client's mistake, answered by channel.close or connection.close.

    `class_id` and `method_id` name the offending method; the dispatcher fills them in where the raiser
    could not know.
    """

    __slots__ = ("class_id", "code", "method_id", "scope", "text")

    def __init__(self, code: int, text: str, scope: Scope | None = None) -> None:
        """Take the scope RabbitMQ gives to `code` unless one is given."""
        assert code in REPLY_NAMES, code
        super().__init__(code, text)
        self.code = code
        self.text = text
        self.scope: Scope = scope or ("channel" if code in CHANNEL_CODES else "connection")
        self.class_id = 0
        self.method_id = 0

    @property
    def name(self) -> str:
        """The code's name, as in `NOT_FOUND`."""
        return REPLY_NAMES[self.code]

    @property
    def reply_text(self) -> str:
        """The text of the close method, cut to a short string's length the way RabbitMQ cuts it."""
        text = f"{REPLY_NAMES[self.code]} - {self.text}"
        raw = text.encode("utf-8", "replace")
        if len(raw) <= limits.short_string_bytes_max:
            return text
        return raw[: limits.short_string_bytes_max - 3].decode("utf-8", "ignore") + "..."

    def __str__(self) -> str:
        """Read like the close method: code and reply text."""
        return f"{self.code} {self.reply_text}"


def connection_forced(text: str, scope: Scope | None = None) -> AmqpError:
    """320."""
    return AmqpError(320, text, scope)


def access_refused(text: str, scope: Scope | None = None) -> AmqpError:
    """403."""
    return AmqpError(403, text, scope)


def not_found(text: str, scope: Scope | None = None) -> AmqpError:
    """404."""
    return AmqpError(404, text, scope)


def resource_locked(text: str, scope: Scope | None = None) -> AmqpError:
    """405."""
    return AmqpError(405, text, scope)


def precondition_failed(text: str, scope: Scope | None = None) -> AmqpError:
    """406."""
    return AmqpError(406, text, scope)


def frame_error(text: str, scope: Scope | None = None) -> AmqpError:
    """501."""
    return AmqpError(501, text, scope)


def syntax_error(text: str, scope: Scope | None = None) -> AmqpError:
    """502."""
    return AmqpError(502, text, scope)


def command_invalid(text: str, scope: Scope | None = None) -> AmqpError:
    """503."""
    return AmqpError(503, text, scope)


def channel_error(text: str, scope: Scope | None = None) -> AmqpError:
    """504."""
    return AmqpError(504, text, scope)


def unexpected_frame(text: str, scope: Scope | None = None) -> AmqpError:
    """505."""
    return AmqpError(505, text, scope)


def not_allowed(text: str, scope: Scope | None = None) -> AmqpError:
    """530."""
    return AmqpError(530, text, scope)


def not_implemented(text: str, scope: Scope | None = None) -> AmqpError:
    """540."""
    return AmqpError(540, text, scope)


def internal_error(text: str, scope: Scope | None = None) -> AmqpError:
    """541."""
    return AmqpError(541, text, scope)


class FolderUnusable(Exception):
    """A data folder or a backup cannot be used without a node: a sentence for people, and an exit code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
