"""Commands and records in bytes: msgpack, with every AMQP type of an argument table kept.

`decode(encode(x)) == x`. What this version does not know (a command, a record, a field) raises `Unreadable`
and is never skipped: a state that misses one command is not the state anybody was promised.
"""

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, TypeVar

import msgspec
from msgspec.msgpack import Decoder, Encoder, Ext
from msgspec.structs import replace

from mirrormq.meta.commands import Bind, Command, DeclareExchange, DeclareQueue, Transaction, Unbind
from mirrormq.meta.records import Binding, Exchange, Queue, Record, Table
from mirrormq.wire.table import Timestamp, decode_value, encode_value

_FIELD_VALUE = 1
"""Extension type of a value msgpack has no word for; its content is an AMQP field value with its type tag."""


_T = TypeVar("_T")
_R = TypeVar("_R", bound=Record)


class Unreadable(Exception):
    """The bytes hold something this version does not know."""


class _Capture(msgspec.Struct, frozen=True):
    last_id: int
    records: list[Record]


def encode_command(command: Command) -> bytes:
    """Write one command."""
    return _encoder.encode(_storable_command(command))


def decode_command(data: bytes | memoryview) -> Command:
    """Read one command."""
    return _read(_command_decoder.decode, data)


def encode_records(records: Iterable[Record]) -> bytes:
    """Write a list of records."""
    return _encoder.encode([_storable_record(record) for record in records])


def decode_records(data: bytes | memoryview) -> list[Record]:
    """Read a list of records."""
    return _read(_records_decoder.decode, data)


def encode_capture(last_id: int, records: Iterable[Record]) -> bytes:
    """Write a whole state."""
    return _encoder.encode(_Capture(last_id, [_storable_record(record) for record in records]))


def decode_capture(data: bytes | memoryview) -> tuple[int, list[Record]]:
    """Read a whole state."""
    capture = _read(_capture_decoder.decode, data)
    return capture.last_id, capture.records


def _read(decode: Callable[[bytes | memoryview], _T], data: bytes | memoryview) -> _T:
    try:
        return decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise Unreadable(str(error)) from error


def _storable_command(command: Command) -> Command:
    if isinstance(command, DeclareQueue):
        return replace(command, queue=_storable_record(command.queue))
    if isinstance(command, DeclareExchange):
        return replace(command, exchange=_storable_record(command.exchange))
    if isinstance(command, Bind | Unbind):
        return replace(command, binding=_storable_record(command.binding))
    if isinstance(command, Transaction):
        return replace(command, commands=tuple(_storable_command(inner) for inner in command.commands))
    return command


def _storable_record(record: _R) -> _R:
    """Replace decimals: msgspec has its own, lossy idea of how to write them, and asks no hook."""
    if isinstance(record, Queue | Exchange | Binding) and _has_decimal(record.arguments):
        return replace(record, arguments=_storable_value(record.arguments))
    return record


def _has_decimal(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_decimal(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_has_decimal(item) for item in value)
    return isinstance(value, Decimal)


def _storable_value(value: Any) -> Any:
    if isinstance(value, dict):
        stored: Table = {name: _storable_value(item) for name, item in value.items()}
        return stored
    if isinstance(value, list | tuple):
        return [_storable_value(item) for item in value]
    return Ext(_FIELD_VALUE, encode_value(value)) if isinstance(value, Decimal) else value


def _on_foreign_value(value: Any) -> Ext:
    if isinstance(value, Timestamp):
        return Ext(_FIELD_VALUE, encode_value(value))
    raise TypeError(f"a {type(value).__name__} cannot be stored")


def _on_extension(code: int, data: memoryview) -> Any:
    if code != _FIELD_VALUE:
        raise Unreadable(f"unknown extension {code}")
    return decode_value(bytes(data))


_encoder = Encoder(enc_hook=_on_foreign_value)
_command_decoder: Decoder[Command] = Decoder(Command, ext_hook=_on_extension)
_records_decoder: Decoder[list[Record]] = Decoder(list[Record], ext_hook=_on_extension)
_capture_decoder: Decoder[_Capture] = Decoder(_Capture, ext_hook=_on_extension)
