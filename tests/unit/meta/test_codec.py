"""Commands and records survive a trip through bytes, and what is unknown is refused."""

from decimal import Decimal

import msgspec
import pytest
from hypothesis import given

from mirrormq.meta import commands as c
from mirrormq.meta.codec import Unreadable, decode_command, decode_records, encode_command, encode_records
from mirrormq.meta.records import Queue
from mirrormq.wire.table import Timestamp
from tests.support import metakit


@given(metakit.COMMANDS)
def test_every_command_comes_back_as_it_was(command: c.Command) -> None:
    found = decode_command(encode_command(command))
    assert found == command
    assert repr(found) == repr(command)


def test_every_type_of_an_argument_comes_back_as_it_was() -> None:
    arguments = {
        "decimal": Decimal("1.50"),
        "time": Timestamp(2**63),
        "bytes": b"\xff",
        "nested": [{"decimal": Decimal(7), "none": None}, True, 1, 1.0, "1"],
    }
    queue = Queue("/", "q", arguments=arguments)
    (found,) = decode_records(encode_records([queue]))
    assert isinstance(found, Queue)
    assert repr(found.arguments) == repr(arguments)
    assert type(found.arguments["time"]) is Timestamp


@pytest.mark.parametrize(
    "content",
    [
        {"do": "later-command", "name": "v"},
        {"do": "delete-vhost", "name": "v", "later_field": 1},
        {"do": "delete-vhost"},
        {"do": "delete-vhost", "name": 1},
        {"do": "set-global-parameter", "name": "n", "value": msgspec.msgpack.Ext(99, b"")},
        [],
    ],
)
def test_an_unknown_command_field_or_value_is_refused(content: object) -> None:
    with pytest.raises(Unreadable):
        decode_command(msgspec.msgpack.encode(content))


def test_a_value_that_cannot_be_stored_is_refused_when_it_is_written() -> None:
    with pytest.raises(TypeError, match="cannot be stored"):
        encode_command(c.SetGlobalParameter("n", object()))
