"""Log-in responses are read as RabbitMQ reads them, and no error or log line repeats a password."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.base.errors import AmqpError
from mirrormq.wire.sasl import MECHANISMS, Credentials, parse_response
from mirrormq.wire.table import encode_table
from tests.unit.wire import strategies as my

names = my.text.filter(lambda s: "\x00" not in s)


def error_of(mechanism: str, response: bytes) -> AmqpError:
    with pytest.raises(AmqpError) as caught:
        parse_response(mechanism, response)
    return caught.value


@my.thorough
@given(user=names, password=names)
def test_plain_is_user_and_password_behind_nuls(user: str, password: str) -> None:
    response = f"\x00{user}\x00{password}".encode()
    assert parse_response("PLAIN", response) == Credentials("PLAIN", user, password)


@pytest.mark.parametrize(
    "response",
    [b"", b"abc", b"\x00a", b"\x00a\x00b\x00", b"\x00a\x00b\x00c", b"z\x00a\x00b"],
    ids=["empty", "no nul", "no password", "nul at the end", "third part", "authorisation identity"],
)
def test_plain_in_another_shape_is_a_syntax_error(response: bytes) -> None:
    assert error_of("PLAIN", response).code == 502


@my.thorough
@given(user=my.text, password=my.text)
def test_amqplain_is_a_table_without_length(user: str, password: str) -> None:
    response = encode_table({"LOGIN": user, "PASSWORD": password})[4:]
    assert parse_response("AMQPLAIN", response) == Credentials("AMQPLAIN", user, password)


@pytest.mark.parametrize(
    "table",
    [{}, {"LOGIN": "u"}, {"PASSWORD": "p"}, {"LOGIN": 1, "PASSWORD": "p"}, {"login": "u", "password": "p"}],
)
def test_amqplain_without_login_or_password_is_a_syntax_error(table: dict[str, object]) -> None:
    assert error_of("AMQPLAIN", encode_table(table)[4:]).code == 502


def test_external_asks_for_an_identity_or_for_none() -> None:
    assert parse_response("EXTERNAL", b"") == Credentials("EXTERNAL", "", "")
    assert parse_response("EXTERNAL", b"ann").user == "ann"


def test_an_unknown_mechanism_has_rabbitmqs_text() -> None:
    error = error_of("KERBEROS", b"")
    assert error.reply_text == "COMMAND_INVALID - unknown authentication mechanism 'KERBEROS'"
    assert error.scope == "connection"


@my.thorough
@given(mechanism=st.sampled_from(MECHANISMS), response=st.binary(max_size=200))
def test_any_response_is_read_or_refused_and_what_is_read_is_valid_text(
    mechanism: str, response: bytes
) -> None:
    try:
        credentials = parse_response(mechanism, response)
    except AmqpError:
        return
    assert len((credentials.user + credentials.password).encode()) <= 2 * len(response)


def test_neither_error_nor_representation_repeats_the_password() -> None:
    assert "secret" not in str(error_of("PLAIN", b"user\x00secret"))
    assert "secret" not in str(error_of("AMQPLAIN", encode_table({"PASSWORD": "secret"})[4:]))
    assert "secret" not in repr(parse_response("PLAIN", b"\x00user\x00secret"))
