"""Misuse of exchanges: names, types, redeclaration, deletion, exchange-to-exchange bindings."""

from __future__ import annotations

from typing import Any

from tests.interop.misuse.session import Session
from tests.interop.misuse.table import add, case


def declare(s: Session, part: str = "x", kind: str = "direct", **arguments: Any) -> str:
    name = s.name(part)
    s.call("exchange.declare", exchange=name, exchange_type=kind, **arguments)
    return name


def _redeclared(name: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    def script(s: Session) -> None:
        exchange = s.name("x")
        s.call("exchange.declare", exchange=exchange, **{"exchange_type": "direct", **before})
        s.send("exchange.declare", exchange=exchange, **{"exchange_type": "direct", **after})

    add(f"exchange_redeclared_{name}", script)


_redeclared("with_another_type", {}, {"exchange_type": "fanout"})
_redeclared("durable", {}, {"durable": True})
_redeclared("auto_delete", {}, {"auto_delete": True})
_redeclared("internal", {}, {"internal": True})
_redeclared("with_an_alternate", {}, {"arguments": {"alternate-exchange": "amq.fanout"}})
_redeclared(
    "with_another_alternate",
    {"arguments": {"alternate-exchange": "amq.topic"}},
    {"arguments": {"alternate-exchange": "amq.fanout"}},
)
_redeclared("with_an_unknown_argument", {}, {"arguments": {"x-own-note": "a"}})
_redeclared("with_unknown_type", {}, {"exchange_type": "x-nonsense"})


@case()
def exchange_passive_missing(s: Session) -> None:
    s.send("exchange.declare", exchange=s.name("none"), exchange_type="direct", passive=True)


@case()
def exchange_passive_with_another_type(s: Session) -> None:
    s.send("exchange.declare", exchange=declare(s, auto_delete=True), exchange_type="fanout", passive=True)


@case()
def exchange_passive_missing_with_unknown_type(s: Session) -> None:
    s.send("exchange.declare", exchange=s.name("none"), exchange_type="x-nonsense", passive=True)


@case()
def exchange_of_unknown_type(s: Session) -> None:
    s.send("exchange.declare", exchange=s.name("x"), exchange_type="x-nonsense")


@case()
def exchange_without_a_type(s: Session) -> None:
    s.send("exchange.declare", exchange=s.name("x"))


@case()
def exchange_of_delayed_type_without_its_plugin(s: Session) -> None:
    arguments = {"x-delayed-type": "direct"}
    s.send("exchange.declare", exchange=s.name("x"), exchange_type="x-delayed-message", arguments=arguments)


@case()
def exchange_of_mirrored_type_is_reserved(s: Session) -> None:
    s.send("exchange.declare", exchange=s.name("x"), exchange_type="x-mirrored")


@case()
def exchange_with_mirrored_argument_is_reserved(s: Session) -> None:
    arguments = {"x-mirrored": "all"}
    s.send(
        "exchange.declare",
        exchange=s.name("x"),
        exchange_type="fanout",
        arguments=arguments,
        auto_delete=True,
    )


@case()
def exchange_with_shards_argument_is_reserved(s: Session) -> None:
    arguments = {"x-shards": 4}
    s.send(
        "exchange.declare",
        exchange=s.name("x"),
        exchange_type="fanout",
        arguments=arguments,
        auto_delete=True,
    )


@case()
def exchange_with_reserved_prefix(s: Session) -> None:
    s.send("exchange.declare", exchange="amq.misuse", exchange_type="direct")


@case()
def exchange_with_reserved_prefix_passive(s: Session) -> None:
    s.send("exchange.declare", exchange="amq.misuse", exchange_type="direct", passive=True)


@case()
def predeclared_exchange_declared_with_another_type(s: Session) -> None:
    s.send("exchange.declare", exchange="amq.direct", exchange_type="fanout", durable=True)


@case()
def predeclared_exchange_declared_as_it_is(s: Session) -> None:
    s.send("exchange.declare", exchange="amq.direct", exchange_type="direct", durable=True)


@case()
def default_exchange_declared(s: Session) -> None:
    s.send("exchange.declare", exchange="", exchange_type="direct", durable=True)


@case()
def default_exchange_declared_passive(s: Session) -> None:
    s.send("exchange.declare", exchange="", exchange_type="direct", passive=True)


@case()
def default_exchange_deleted(s: Session) -> None:
    s.send("exchange.delete", exchange="")


@case()
def predeclared_exchange_deleted(s: Session) -> None:
    s.send("exchange.delete", exchange="amq.topic")


@case()
def exchange_with_reserved_prefix_deleted(s: Session) -> None:
    s.send("exchange.delete", exchange="amq.misuse")


@case()
def exchange_delete_missing(s: Session) -> None:
    s.send("exchange.delete", exchange=s.name("none"))


@case()
def exchange_delete_if_unused_with_a_queue_bound(s: Session) -> None:
    name = declare(s)
    s.call("queue.declare", queue=s.name("q"), exclusive=True)
    s.call("queue.bind", queue=s.name("q"), exchange=name, routing_key="k")
    s.send("exchange.delete", exchange=name, if_unused=True)


@case()
def exchange_delete_if_unused_that_is_only_a_destination(s: Session) -> None:
    name = declare(s)
    s.call("exchange.bind", destination=name, source="amq.fanout")
    s.send("exchange.delete", exchange=name, if_unused=True)


@case()
def exchange_alternate_of_wrong_type(s: Session) -> None:
    arguments = {"alternate-exchange": 5}
    s.send("exchange.declare", exchange=s.name("x"), exchange_type="direct", arguments=arguments)


@case()
def exchange_alternate_missing(s: Session) -> None:
    arguments = {"alternate-exchange": "misuse.nowhere"}
    s.send("exchange.declare", exchange=s.name("x"), exchange_type="direct", arguments=arguments)


@case()
def exchange_bind_missing_source(s: Session) -> None:
    s.send("exchange.bind", destination=declare(s), source=s.name("none"), routing_key="k")


@case()
def exchange_bind_missing_destination(s: Session) -> None:
    s.send("exchange.bind", destination=s.name("none"), source=declare(s), routing_key="k")


@case()
def exchange_bind_both_missing(s: Session) -> None:
    s.send("exchange.bind", destination=s.name("none"), source=s.name("nowhere"), routing_key="k")


@case()
def exchange_bind_from_the_default_exchange(s: Session) -> None:
    s.send("exchange.bind", destination=declare(s), source="", routing_key="k")


@case()
def exchange_bind_to_the_default_exchange(s: Session) -> None:
    s.send("exchange.bind", destination="", source=declare(s), routing_key="k")


@case()
def exchange_unbind_missing_binding(s: Session) -> None:
    s.send("exchange.unbind", destination=declare(s), source="amq.direct", routing_key="never")


@case()
def exchange_unbind_missing_source(s: Session) -> None:
    s.send("exchange.unbind", destination=declare(s), source=s.name("none"), routing_key="k")


@case()
def exchange_unbind_from_the_default_exchange(s: Session) -> None:
    s.send("exchange.unbind", destination=declare(s), source="", routing_key="k")


@case()
def consistent_hash_bound_with_a_word(s: Session) -> None:
    name = declare(s, kind="x-consistent-hash", auto_delete=True)
    s.call("queue.declare", queue=s.name("q"), exclusive=True)
    s.send("queue.bind", queue=s.name("q"), exchange=name, routing_key="heavy")


@case()
def consistent_hash_bound_with_zero(s: Session) -> None:
    name = declare(s, kind="x-consistent-hash", auto_delete=True)
    s.call("queue.declare", queue=s.name("q"), exclusive=True)
    s.send("queue.bind", queue=s.name("q"), exchange=name, routing_key="0")


@case()
def consistent_hash_bound_with_a_negative_number(s: Session) -> None:
    name = declare(s, kind="x-consistent-hash", auto_delete=True)
    s.call("queue.declare", queue=s.name("q"), exclusive=True)
    s.send("queue.bind", queue=s.name("q"), exchange=name, routing_key="-1")


@case()
def consistent_hash_on_header_and_property(s: Session) -> None:
    arguments = {"hash-header": "h", "hash-property": "message_id"}
    s.send("exchange.declare", exchange=s.name("x"), exchange_type="x-consistent-hash", arguments=arguments)


@case()
def consistent_hash_on_unknown_property(s: Session) -> None:
    arguments = {"hash-property": "colour"}
    s.send("exchange.declare", exchange=s.name("x"), exchange_type="x-consistent-hash", arguments=arguments)


@case()
def publish_to_an_internal_exchange(s: Session) -> None:
    s.publish(declare(s, internal=True), "k")


@case()
def publish_to_a_deleted_exchange(s: Session) -> None:
    name = declare(s)
    s.call("exchange.delete", exchange=name)
    s.publish(name, "k")
