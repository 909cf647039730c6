"""Misuse before a connection is open: protocol headers, log-in, tuning, choosing a vhost."""

from __future__ import annotations

import struct

from tests.interop.misuse.session import BODY, HEARTBEAT, METHOD, Literal, Session, pack, short_string
from tests.interop.misuse.table import add, case


# --- protocol header
def _greeting(name: str, data: bytes) -> None:
    add(f"greeting_{name}", lambda s: s.raw(data), "socket")


_greeting("of_amqp_0_8", b"AMQP\x01\x01\x08\x00")
_greeting("of_amqp_0_9", b"AMQP\x01\x01\x00\x09")
_greeting("of_amqp_0_9_0", b"AMQP\x00\x00\x09\x00")
_greeting("of_amqp_0_10", b"AMQP\x01\x01\x00\x0a")
_greeting("of_amqp_1_0", b"AMQP\x00\x01\x00\x00")
_greeting("of_amqp_1_0_with_sasl", b"AMQP\x03\x01\x00\x00")
_greeting("of_a_future_version", b"AMQP\x00\x00\x0a\x00")
_greeting("of_http", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
_greeting("of_tls", b"\x16\x03\x01\x02\x00\x01\x00\x01")
_greeting("of_a_frame", b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x0b\xce")
_greeting("in_lower_case", b"amqp\x00\x00\x09\x01")


# --- log-in
@case("socket", password="wrong")
def login_with_a_wrong_password(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.start_ok()


@case("socket", password="wrong")
def login_with_a_wrong_password_and_no_capability(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.start_ok(client_properties={})


@case("socket", user="nobody-of-this-name")
def login_of_an_unknown_user(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.start_ok()


@case("socket", user="outsider", password="")
def login_with_an_empty_password(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.start_ok()


@case("socket", user="passwordless", password="")
def login_of_a_user_without_a_password(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.start_ok()


@case("socket", user="banned", password="banned")
def login_of_a_user_at_the_connection_limit(s: Session) -> None:
    s.log_in()
    s.tune_ok()
    s.seen.clear()
    s.send("connection.open", 0, virtual_host="/")


def _start(name: str, mechanism: str, response: bytes) -> None:
    def script(s: Session) -> None:
        s.greet()
        s.seen.clear()
        s.start_ok(mechanism=mechanism, response=response)

    add(f"login_{name}", script, "socket")


def _amqplain(user: str, password: str) -> bytes:
    def text(value: str) -> bytes:
        return b"S" + struct.pack(">I", len(value)) + value.encode()

    return short_string("LOGIN") + text(user) + short_string("PASSWORD") + text(password)


_start("with_an_unknown_mechanism", "KERBEROS", b"x")
_start("without_a_mechanism", "", b"\0guest\0guest")
_start("with_anonymous", "ANONYMOUS", b"")
_start("with_external_that_is_not_offered", "EXTERNAL", b"")
_start("with_a_plain_response_that_does_not_parse", "PLAIN", b"guest")
_start("with_an_empty_plain_response", "PLAIN", b"")
_start("with_plain_and_an_authorization_id", "PLAIN", b"guest\0guest\0guest")
_start("with_amqplain", "AMQPLAIN", _amqplain("guest", "guest"))
_start("with_amqplain_and_a_wrong_password", "AMQPLAIN", _amqplain("guest", "wrong"))
_start("with_amqplain_without_a_password", "AMQPLAIN", _amqplain("guest", "guest")[:16])
_start("with_amqplain_that_does_not_parse", "AMQPLAIN", b"\x05LOGINS\0\0\0\x50guest")
_start("with_mechanism_in_lower_case", "plain", b"\0guest\0guest")


@case("socket")
def login_with_an_unknown_locale(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.start_ok(locale="tlh")


@case("socket")
def login_with_client_properties_that_do_not_parse(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.start_ok(client_properties=Literal(struct.pack(">I", 4) + b"\x09abc"))


@case("socket")
def login_with_capabilities_of_wrong_type(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.start_ok(client_properties={"capabilities": "all"})


@case("socket")
def login_with_client_properties_of_five_kilobytes(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.start_ok(client_properties={"note": "x" * 5000})


@case("socket")
def login_in_a_frame_beyond_the_first_limit(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.start_ok(client_properties={"note": "x" * 140_000})


# --- order of the opening
@case("socket")
def open_before_start_ok(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.send("connection.open", 0, virtual_host="/")


@case("socket")
def tune_ok_before_start_ok(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.tune_ok()


@case("socket")
def open_before_tune_ok(s: Session) -> None:
    s.log_in()
    s.seen.clear()
    s.send("connection.open", 0, virtual_host="/")


@case("socket")
def start_ok_twice(s: Session) -> None:
    s.log_in()
    s.seen.clear()
    s.start_ok()


@case("socket")
def channel_open_before_connection_open(s: Session) -> None:
    s.log_in()
    s.tune_ok()
    s.seen.clear()
    s.send("channel.open", 1)


@case("socket")
def method_on_a_channel_before_start_ok(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.send("queue.declare", 1, queue="q")


@case("socket")
def body_before_start_ok(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.frame(BODY, 0, b"abcd")


@case("socket")
def heartbeat_before_start_ok(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.frame(HEARTBEAT, 0, b"")
    s.start_ok()


@case("socket")
def close_before_start_ok(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.send("connection.close", 0, reply_code=200, reply_text="bye")


@case("socket")
def close_before_open(s: Session) -> None:
    s.log_in()
    s.tune_ok()
    s.seen.clear()
    s.send("connection.close", 0, reply_code=200, reply_text="bye")


@case("socket")
def frame_end_wrong_before_start_ok(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.frame(METHOD, 0, pack("connection.tune-ok", {}), end=0)


@case("socket")
def unknown_method_before_start_ok(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.frame(METHOD, 0, struct.pack(">HH", 10, 99))


@case("socket")
def frame_of_unknown_type_before_start_ok(s: Session) -> None:
    s.greet()
    s.seen.clear()
    s.frame(7, 0, b"abcd")


# --- tuning
def _tuned(name: str, frame_max: int, channel_max: int) -> None:
    def script(s: Session) -> None:
        s.log_in()
        s.seen.clear()
        s.send("connection.tune-ok", 0, channel_max=channel_max, frame_max=frame_max, heartbeat=0)
        s.send("connection.open", 0, virtual_host="/")

    add(f"tune_{name}", script, "socket")


_tuned("frame_max_larger_than_offered", 262_144, 2047)
_tuned("frame_max_without_limit", 0, 2047)
_tuned("frame_max_below_the_minimum", 4095, 2047)
_tuned("frame_max_of_the_minimum", 4096, 2047)
_tuned("channel_max_larger_than_offered", 131_072, 4000)
_tuned("channel_max_without_limit", 131_072, 0)
_tuned("both_larger_than_offered", 262_144, 4000)


# --- choosing a vhost
@case("socket")
def vhost_missing(s: Session) -> None:
    s.log_in()
    s.tune_ok()
    s.seen.clear()
    s.send("connection.open", 0, virtual_host="no-such-vhost")


@case("socket")
def vhost_with_an_empty_name(s: Session) -> None:
    s.log_in()
    s.tune_ok()
    s.seen.clear()
    s.send("connection.open", 0, virtual_host="")


@case("socket", user="outsider", password="outsider")
def vhost_without_permission(s: Session) -> None:
    s.log_in()
    s.tune_ok()
    s.seen.clear()
    s.send("connection.open", 0, virtual_host="/")


@case("socket", user="outsider", password="outsider")
def vhost_missing_for_a_user_without_permission(s: Session) -> None:
    s.log_in()
    s.tune_ok()
    s.seen.clear()
    s.send("connection.open", 0, virtual_host="no-such-vhost")


@case("socket")
def vhost_at_its_connection_limit(s: Session) -> None:
    s.log_in()
    s.tune_ok()
    s.seen.clear()
    s.send("connection.open", 0, virtual_host="crowded")


@case("connection", user="capped", password="capped")
def channel_limit_of_the_user_reached(s: Session) -> None:
    s.send("channel.open")
