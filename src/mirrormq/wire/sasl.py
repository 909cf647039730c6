"""The log-in mechanisms of connection.start-ok: PLAIN, AMQPLAIN and EXTERNAL, as RabbitMQ reads them.

Error texts say what is missing but never repeat the response: RabbitMQ echoes it, password included, and
what a client is told also ends up in logs.
"""

from typing import NamedTuple

from mirrormq.base.errors import AmqpError, command_invalid, syntax_error
from mirrormq.wire.table import decode_fields, readable

MECHANISMS = ("PLAIN", "AMQPLAIN", "EXTERNAL")


class Credentials(NamedTuple):
    """What a client claims. With EXTERNAL its certificate says who it is; `user` is whom it asked to be."""

    mechanism: str
    user: str
    password: str

    def __repr__(self) -> str:
        """Leave the password out of logs and tracebacks."""
        return f"Credentials({self.mechanism}, {self.user!r})"


def parse_response(mechanism: str, response: bytes) -> Credentials:
    """Read the response of any mechanism; what cannot be read raises `AmqpError`."""
    if mechanism == "PLAIN":
        return parse_plain(response)
    if mechanism == "AMQPLAIN":
        return parse_amqplain(response)
    if mechanism == "EXTERNAL":
        return parse_external(response)
    raise unknown_mechanism(mechanism)


def parse_plain(response: bytes) -> Credentials:
    """Read NUL user NUL password; like RabbitMQ, no authorisation identity before the first NUL."""
    parts = response.split(b"\x00")
    if len(parts) != 3 or parts[0]:
        raise syntax_error("response invalid")
    return Credentials("PLAIN", readable(parts[1]), readable(parts[2]))


def parse_amqplain(response: bytes) -> Credentials:
    """Read a field table without length word that has LOGIN and PASSWORD."""
    table = decode_fields(response)
    return Credentials("AMQPLAIN", _text(table.get("LOGIN")), _text(table.get("PASSWORD")))


def parse_external(response: bytes) -> Credentials:
    """Read the (usually empty) identity the client asks for."""
    return Credentials("EXTERNAL", readable(response), "")


def unknown_mechanism(mechanism: str) -> AmqpError:
    """Build RabbitMQ's answer to a mechanism that is not offered."""
    return command_invalid(f"unknown authentication mechanism '{mechanism}'")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return readable(value)
    raise syntax_error("AMQPLAIN auth info is missing LOGIN or PASSWORD field")
