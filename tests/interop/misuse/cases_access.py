"""Refused permissions. User `limited` may configure, write and read only what is named open.*."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.interop.misuse.session import Session, short_string, table
from tests.interop.misuse.table import add, case

limited = partial(case, user="limited", password="limited")


def _refused(name: str, method: str, **arguments: Any) -> None:
    add(f"refused_{name}", lambda s: s.send(method, **arguments), user="limited", password="limited")


_refused("queue_declare", "queue.declare", queue="shut")
_refused("queue_declare_server_named", "queue.declare", exclusive=True)
_refused("queue_declare_passive_missing", "queue.declare", queue="shut", passive=True)
_refused("queue_delete", "queue.delete", queue="shut")
_refused("queue_purge", "queue.purge", queue="shut")
_refused("queue_get", "basic.get", queue="shut")
_refused("queue_consume", "basic.consume", queue="shut", consumer_tag="c")
_refused("exchange_declare", "exchange.declare", exchange="shut", exchange_type="direct")
_refused("exchange_declare_passive_missing", "exchange.declare", exchange="shut", passive=True)
_refused("exchange_delete", "exchange.delete", exchange="shut")
_refused("exchange_declare_default", "exchange.declare", exchange="", exchange_type="direct")
_refused("bind_of_a_queue", "queue.bind", queue="shut", exchange="open.x", routing_key="k")
_refused("bind_to_an_exchange", "queue.bind", queue="open.q", exchange="amq.direct", routing_key="k")
_refused("bind_to_the_default_exchange", "queue.bind", queue="open.q", exchange="", routing_key="k")
_refused("unbind", "queue.unbind", queue="open.q", exchange="amq.direct", routing_key="k")
_refused("exchange_bind_destination", "exchange.bind", destination="shut", source="open.x", routing_key="k")
_refused("exchange_bind_source", "exchange.bind", destination="open.x", source="amq.direct", routing_key="k")


@limited()
def refused_publish(s: Session) -> None:
    s.publish("amq.direct", "k")


@limited()
def refused_publish_to_the_default_exchange(s: Session) -> None:
    s.publish("", "open.q")


@limited()
def refused_publish_to_a_missing_exchange(s: Session) -> None:
    s.publish("shut", "k")


@limited()
def refused_publish_with_another_user_id(s: Session) -> None:
    s.publish("amq.direct", "k", properties=b"\x00\x10" + short_string("guest"))


@limited()
def refused_dead_letter_exchange(s: Session) -> None:
    arguments = {"x-dead-letter-exchange": "amq.direct"}
    s.send("queue.declare", queue="open.with-dlx", exclusive=True, arguments=arguments)


@limited()
def refused_alternate_exchange(s: Session) -> None:
    arguments = {"alternate-exchange": "amq.direct"}
    s.send("exchange.declare", exchange="open.with-ae", exchange_type="direct", arguments=arguments)


@limited()
def allowed_queue_declare(s: Session) -> None:
    s.send("queue.declare", queue="open.mine", exclusive=True)


@limited()
def refused_cc_key_is_not_checked(s: Session) -> None:
    s.call("exchange.declare", exchange="open.fan", exchange_type="fanout", auto_delete=True)
    s.publish("open.fan", "k", properties=b"\x20\x00" + table({"CC": ["shut"]}))


@case(user="topical", password="topical")
def refused_topic_publish(s: Session) -> None:
    s.publish("amq.topic", "secret.key")


@case(user="topical", password="topical")
def allowed_topic_publish(s: Session) -> None:
    s.publish("amq.topic", "public.key")


@case(user="topical", password="topical")
def refused_topic_bind(s: Session) -> None:
    s.call("queue.declare", queue=s.name("q"), exclusive=True)
    s.send("queue.bind", queue=s.name("q"), exchange="amq.topic", routing_key="secret.#")


@case(user="topical", password="topical")
def refused_topic_unbind(s: Session) -> None:
    s.call("queue.declare", queue=s.name("q"), exclusive=True)
    s.send("queue.unbind", queue=s.name("q"), exchange="amq.topic", routing_key="secret.#")
