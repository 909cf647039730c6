"""Reply codes carry RabbitMQ's names, scopes and text limits."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.base import errors
from mirrormq.base.errors import CHANNEL_CODES, REPLY_NAMES, AmqpError

CONSTRUCTORS = [
    (errors.connection_forced, 320, "connection"),
    (errors.access_refused, 403, "channel"),
    (errors.not_found, 404, "channel"),
    (errors.resource_locked, 405, "channel"),
    (errors.precondition_failed, 406, "channel"),
    (errors.frame_error, 501, "connection"),
    (errors.syntax_error, 502, "connection"),
    (errors.command_invalid, 503, "connection"),
    (errors.channel_error, 504, "connection"),
    (errors.unexpected_frame, 505, "connection"),
    (errors.not_allowed, 530, "connection"),
    (errors.not_implemented, 540, "connection"),
    (errors.internal_error, 541, "connection"),
]


@pytest.mark.parametrize(("make", "code", "scope"), CONSTRUCTORS, ids=[c[0].__name__ for c in CONSTRUCTORS])
def test_each_constructor_has_its_code_scope_and_name(make: Any, code: int, scope: str) -> None:
    error = make("why")
    assert (error.code, error.scope, error.text) == (code, scope, "why")
    assert error.reply_text == f"{make.__name__.upper()} - why"


def test_every_code_has_a_name() -> None:
    assert set(REPLY_NAMES) >= {code for _, code, _ in CONSTRUCTORS} | CHANNEL_CODES


def test_a_scope_can_be_given() -> None:
    assert errors.access_refused("login", "connection").scope == "connection"


def test_an_error_reads_like_the_close_method() -> None:
    assert str(errors.not_found("no queue 'q' in vhost '/'")) == "404 NOT_FOUND - no queue 'q' in vhost '/'"


def test_an_error_starts_without_a_method() -> None:
    error = AmqpError(404, "x")
    assert (error.class_id, error.method_id) == (0, 0)


@settings(deadline=None)
@given(st.text(max_size=400))
def test_a_reply_text_always_fits_a_short_string(text: str) -> None:
    shown = errors.not_found(text).reply_text
    assert len(shown.encode("utf-8", "replace")) <= 255
    assert shown.startswith("NOT_FOUND - ")


def test_a_long_reply_text_ends_with_dots_as_in_rabbitmq() -> None:
    assert errors.not_found("x" * 300).reply_text == "NOT_FOUND - " + "x" * 240 + "..."
