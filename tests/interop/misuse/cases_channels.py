"""Misuse of channels and of an open connection: order of methods, numbers, methods only a server sends."""

from __future__ import annotations

import struct
from typing import Any

from tests.interop.misuse.session import METHOD, Session
from tests.interop.misuse.table import add, case


# --- opening and closing channels
@case()
def channel_opened_twice(s: Session) -> None:
    s.send("channel.open")


@case("connection")
def method_on_a_channel_never_opened(s: Session) -> None:
    s.send("queue.declare", queue=s.name("q"))


@case("connection")
def ack_on_a_channel_never_opened(s: Session) -> None:
    s.send("basic.ack", delivery_tag=1)


@case("connection")
def publish_on_a_channel_never_opened(s: Session) -> None:
    s.send("basic.publish", routing_key="k")


@case("connection")
def channel_close_on_a_channel_never_opened(s: Session) -> None:
    s.send("channel.close", reply_code=200, reply_text="bye")


@case()
def channel_close_ok_without_close(s: Session) -> None:
    s.send("channel.close-ok")


@case("connection")
def method_on_a_channel_already_closed(s: Session) -> None:
    s.open_channel()
    s.call("channel.close", reply_code=200, reply_text="bye")
    s.seen.clear()
    s.send("basic.qos", prefetch_count=1)


@case("connection")
def channel_closed_twice(s: Session) -> None:
    s.open_channel()
    s.call("channel.close", reply_code=200, reply_text="bye")
    s.seen.clear()
    s.send("channel.close", reply_code=200, reply_text="bye")


@case()
def methods_after_a_channel_error_are_ignored(s: Session) -> None:
    s.send("queue.declare", queue=s.name("none"), passive=True)
    while s.read().name != "channel.close":
        pass
    s.send("queue.declare", queue=s.name("made"), exclusive=True)
    s.send("basic.ack", delivery_tag=4)
    s.publish("", "k", mandatory=True)
    s.open_channel(2)


@case()
def client_closes_a_channel_the_server_is_closing(s: Session) -> None:
    s.send("queue.declare", queue=s.name("none"), passive=True)
    s.send("channel.close", reply_code=200, reply_text="bye")
    while s.read().name != "channel.close-ok":
        pass


@case()
def channel_opened_while_the_server_is_closing_it(s: Session) -> None:
    s.send("queue.declare", queue=s.name("none"), passive=True)
    while s.read().name != "channel.close":
        pass
    s.seen.clear()
    s.send("channel.open")


@case("connection")
def channel_number_beyond_the_negotiated_maximum(s: Session) -> None:
    s.open_channel(2048)


@case("connection")
def channel_number_65535(s: Session) -> None:
    s.open_channel(65535)


@case("connection", channel_max=4)
def channel_number_beyond_a_maximum_chosen_by_the_client(s: Session) -> None:
    s.open_channel(5)


@case("connection", channel_max=2)
def more_channels_than_negotiated(s: Session) -> None:
    s.open_channel(2)
    s.open_channel(3)
    s.send("channel.open")


@case("connection")
def channel_open_on_channel_zero(s: Session) -> None:
    s.send("channel.open", 0)


@case("connection")
def queue_declare_on_channel_zero(s: Session) -> None:
    s.send("queue.declare", 0, queue=s.name("q"))


@case("connection")
def publish_on_channel_zero(s: Session) -> None:
    s.send("basic.publish", 0, routing_key="k")


@case()
def flow_off(s: Session) -> None:
    s.send("channel.flow", active=False)


@case()
def flow_on(s: Session) -> None:
    s.send("channel.flow", active=True)


@case()
def flow_ok_without_flow(s: Session) -> None:
    s.send("channel.flow-ok", active=True)


# --- connection methods at the wrong time or place
def _again(method: str, **arguments: Any) -> None:
    part = method.replace(".", "_").replace("-", "_")
    add(f"{part}_on_an_open_connection", lambda s: s.send(method, 0, **arguments), "connection")
    add(f"{part}_on_a_channel", lambda s: s.send(method, 1, **arguments))


_again("connection.start-ok", mechanism="PLAIN", response="\0guest\0guest", locale="en_US")
_again("connection.secure-ok", response="x")
_again("connection.tune-ok", channel_max=10, frame_max=8192)
_again("connection.open", virtual_host="/")
_again("connection.close-ok")
_again("connection.blocked", reason="no")


@case()
def connection_close_on_a_channel(s: Session) -> None:
    s.send("connection.close", 1, reply_code=200, reply_text="bye")


@case("connection")
def update_secret_with_password_authentication(s: Session) -> None:
    s.send("connection.update-secret", 0, new_secret="new", reason="rotation")


# --- methods that only a server sends
def _from_server(method: str, **arguments: Any) -> None:
    part = method.replace(".", "_").replace("-", "_")
    add(f"{part}_sent_by_a_client", lambda s: s.send(method, **arguments))


_from_server("channel.open-ok")
_from_server("exchange.declare-ok")
_from_server("queue.declare-ok", queue="q")
_from_server("queue.bind-ok")
_from_server("basic.qos-ok")
_from_server("basic.consume-ok", consumer_tag="c")
_from_server("basic.cancel-ok", consumer_tag="c")
_from_server("basic.get-empty")
_from_server("basic.recover-ok")
_from_server("confirm.select-ok")
_from_server("tx.commit-ok")
_from_server("basic.deliver", consumer_tag="c", delivery_tag=1)
_from_server("basic.return", reply_code=312, reply_text="NO_ROUTE")


# --- methods that do not exist
def _unknown(name: str, class_id: int, method_id: int, begin: str = "channel") -> None:
    number = 1 if begin == "channel" else 0
    add(name, lambda s: s.frame(METHOD, number, struct.pack(">HH", class_id, method_id)), begin)


_unknown("unknown_class", 999, 10)
_unknown("unknown_method_of_a_known_class", 50, 99)
_unknown("unknown_basic_method", 60, 200)
_unknown("unknown_class_on_channel_zero", 999, 10, "connection")
_unknown("file_class_of_older_protocols", 70, 10)


@case()
def access_request_of_older_protocols(s: Session) -> None:
    s.frame(METHOD, 1, struct.pack(">HH", 30, 10) + b"\x05/data" + b"\x1d")
