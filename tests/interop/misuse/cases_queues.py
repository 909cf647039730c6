"""Misuse of queues: names, redeclaration, exclusive access, arguments, deletion, bindings."""

from __future__ import annotations

from typing import Any

from tests.interop.misuse.session import Literal, Session
from tests.interop.misuse.table import add, case


def declare(s: Session, part: str = "q", **arguments: Any) -> str:
    name = s.name(part)
    s.call("queue.declare", queue=name, **arguments)
    return name


# --- redeclaration with other properties
@case()
def queue_redeclared_durable(s: Session) -> None:
    s.send("queue.declare", queue=declare(s, auto_delete=True), durable=True, auto_delete=True)


@case()
def queue_redeclared_auto_delete(s: Session) -> None:
    s.send("queue.declare", queue=declare(s, exclusive=True), exclusive=True, auto_delete=True)


@case()
def queue_redeclared_exclusive(s: Session) -> None:
    s.send("queue.declare", queue=declare(s, auto_delete=True), auto_delete=True, exclusive=True)


@case()
def exclusive_queue_redeclared_shared(s: Session) -> None:
    s.send("queue.declare", queue=declare(s, exclusive=True))


@case()
def queue_redeclared_with_other_length(s: Session) -> None:
    name = declare(s, exclusive=True, arguments={"x-max-length": 10})
    s.send("queue.declare", queue=name, exclusive=True, arguments={"x-max-length": 11})


@case()
def queue_redeclared_without_its_argument(s: Session) -> None:
    name = declare(s, exclusive=True, arguments={"x-message-ttl": 60000})
    s.send("queue.declare", queue=name, exclusive=True)


@case()
def queue_redeclared_with_a_new_argument(s: Session) -> None:
    name = declare(s, exclusive=True)
    s.send("queue.declare", queue=name, exclusive=True, arguments={"x-expires": 60000})


@case()
def queue_redeclared_with_a_new_text_argument(s: Session) -> None:
    name = declare(s, exclusive=True)
    s.send("queue.declare", queue=name, exclusive=True, arguments={"x-dead-letter-exchange": "amq.fanout"})


@case()
def queue_redeclared_with_the_same_number_of_another_type(s: Session) -> None:
    name = declare(s, exclusive=True, arguments={"x-max-length": 10})
    wide = {"x-max-length": Literal(b"l" + bytes(7) + b"\x0a")}
    s.send("queue.declare", queue=name, exclusive=True, arguments=wide)


@case()
def queue_redeclared_with_another_unknown_argument(s: Session) -> None:
    name = declare(s, exclusive=True, arguments={"x-own-note": "a"})
    s.send("queue.declare", queue=name, exclusive=True, arguments={"x-own-note": "b"})


@case()
def queue_redeclared_with_another_type(s: Session) -> None:
    name = declare(s, durable=True)
    s.send("queue.declare", queue=name, durable=True, arguments={"x-queue-type": "quorum"})


@case()
def queue_redeclared_with_its_default_type_spelled_out(s: Session) -> None:
    name = declare(s, exclusive=True)
    s.send("queue.declare", queue=name, exclusive=True, arguments={"x-queue-type": "classic"})


@case()
def queue_redeclared_with_several_differences(s: Session) -> None:
    name = declare(s, exclusive=True, arguments={"x-max-length": 10, "x-message-ttl": 5})
    s.send("queue.declare", queue=name, exclusive=True, durable=True, arguments={"x-max-length": 11})


@case()
def queue_redeclared_inequivalent_without_wait(s: Session) -> None:
    s.send("queue.declare", queue=declare(s, auto_delete=True), nowait=True)


@case()
def exclusive_queue_redeclared_durable(s: Session) -> None:
    s.send("queue.declare", queue=declare(s, exclusive=True), exclusive=True, durable=True)


# --- names
@case()
def queue_passive_missing(s: Session) -> None:
    s.send("queue.declare", queue=s.name("none"), passive=True)


@case()
def queue_passive_without_a_name(s: Session) -> None:
    s.send("queue.declare", passive=True)


@case()
def queue_with_reserved_prefix(s: Session) -> None:
    s.send("queue.declare", queue="amq.misuse", exclusive=True)


@case()
def queue_with_reserved_prefix_passive(s: Session) -> None:
    s.send("queue.declare", queue="amq.misuse", passive=True)


@case()
def queue_named_like_a_reply_queue(s: Session) -> None:
    s.send("queue.declare", queue="amq.rabbitmq.reply-to.nonsense", passive=True)


@case()
def queue_name_not_utf8(s: Session) -> None:
    s.send("queue.declare", queue=b"misuse.\xff\xfe", exclusive=True)


@case()
def queue_name_with_a_line_break(s: Session) -> None:
    s.send("queue.declare", queue="misuse.a\nb", passive=True)


@case()
def queue_name_with_a_quote(s: Session) -> None:
    s.send("queue.declare", queue="misuse.it's \u00e4", passive=True)


def _unnamed(method: str, **arguments: Any) -> None:
    add(f"{method.replace('.', '_')}_before_any_queue_was_declared", lambda s: s.send(method, **arguments))


_unnamed("queue.bind", exchange="amq.direct", routing_key="k")
_unnamed("queue.unbind", exchange="amq.direct", routing_key="k")
_unnamed("queue.purge")
_unnamed("queue.delete")
_unnamed("basic.get")
_unnamed("basic.consume")


# --- exclusive queues of another connection
def _foreign(method: str, **arguments: Any) -> None:
    def script(s: Session) -> None:
        name = declare(s.other(), exclusive=True)
        s.send(method, queue=name, **arguments)

    add(f"exclusive_queue_of_another_connection_{method.replace('.', '_')}", script)


_foreign("queue.declare")
_foreign("queue.bind", exchange="amq.direct", routing_key="k")
_foreign("queue.unbind", exchange="amq.direct", routing_key="k")
_foreign("queue.purge")
_foreign("queue.delete")
_foreign("basic.get")
_foreign("basic.consume")


@case()
def exclusive_queue_of_another_connection_declared_exclusive(s: Session) -> None:
    s.send("queue.declare", queue=declare(s.other(), exclusive=True), exclusive=True)


@case()
def exclusive_queue_of_another_connection_declared_passive(s: Session) -> None:
    s.send("queue.declare", queue=declare(s.other(), exclusive=True), passive=True)


# --- deletion, purging, bindings
@case()
def queue_delete_missing(s: Session) -> None:
    s.send("queue.delete", queue=s.name("none"))


@case()
def queue_purge_missing(s: Session) -> None:
    s.send("queue.purge", queue=s.name("none"))


@case()
def queue_delete_if_unused_with_a_consumer(s: Session) -> None:
    name = declare(s, exclusive=True)
    s.call("basic.consume", queue=name, consumer_tag="c")
    s.send("queue.delete", queue=name, if_unused=True)


@case()
def queue_delete_if_empty_with_a_message(s: Session) -> None:
    name = declare(s, exclusive=True)
    s.publish("", name)
    s.send("queue.delete", queue=name, if_empty=True)


@case()
def queue_bind_to_missing_exchange(s: Session) -> None:
    s.send("queue.bind", queue=declare(s, exclusive=True), exchange=s.name("none"), routing_key="k")


@case()
def queue_bind_missing_queue(s: Session) -> None:
    s.send("queue.bind", queue=s.name("none"), exchange="amq.direct", routing_key="k")


@case()
def queue_bind_both_missing(s: Session) -> None:
    s.send("queue.bind", queue=s.name("none"), exchange=s.name("nowhere"), routing_key="k")


@case()
def queue_bind_to_the_default_exchange(s: Session) -> None:
    s.send("queue.bind", queue=declare(s, exclusive=True), exchange="", routing_key="k")


@case()
def queue_unbind_from_the_default_exchange(s: Session) -> None:
    name = declare(s, exclusive=True)
    s.send("queue.unbind", queue=name, exchange="", routing_key=name)


@case()
def queue_unbind_missing_exchange(s: Session) -> None:
    s.send("queue.unbind", queue=declare(s, exclusive=True), exchange=s.name("none"), routing_key="k")


@case()
def queue_unbind_missing_queue(s: Session) -> None:
    s.send("queue.unbind", queue=s.name("none"), exchange="amq.direct", routing_key="k")


@case()
def queue_unbind_missing_binding(s: Session) -> None:
    s.send("queue.unbind", queue=declare(s, exclusive=True), exchange="amq.direct", routing_key="never")


@case()
def queue_bind_to_headers_with_unknown_match(s: Session) -> None:
    name = declare(s, exclusive=True)
    s.send("queue.bind", queue=name, exchange="amq.headers", arguments={"x-match": "most", "a": 1})


@case()
def queue_bind_to_headers_with_match_of_wrong_type(s: Session) -> None:
    name = declare(s, exclusive=True)
    s.send("queue.bind", queue=name, exchange="amq.headers", arguments={"x-match": 1})


# --- arguments
def _argument(name: str, arguments: dict[str, Any], **properties: bool) -> None:
    properties = properties or {"exclusive": True}

    def script(s: Session) -> None:
        s.send("queue.declare", queue=s.name("q"), arguments=arguments, **properties)

    add(f"queue_argument_{name}", script)


_argument("ttl_negative", {"x-message-ttl": -1})
_argument("ttl_text", {"x-message-ttl": "60000"})
_argument("ttl_fraction", {"x-message-ttl": 1.5})
_argument("ttl_huge", {"x-message-ttl": 2**40})
_argument("ttl_true", {"x-message-ttl": True})
_argument("ttl_zero", {"x-message-ttl": 0})
_argument("expires_zero", {"x-expires": 0})
_argument("expires_negative", {"x-expires": -5})
_argument("expires_text", {"x-expires": "soon"})
_argument("expires_huge", {"x-expires": 2**40})
_argument("max_length_negative", {"x-max-length": -1})
_argument("max_length_text", {"x-max-length": "many"})
_argument("max_length_bytes_negative", {"x-max-length-bytes": -1})
_argument("overflow_unknown", {"x-overflow": "spill"})
_argument("overflow_number", {"x-overflow": 1})
_argument("max_priority_too_high", {"x-max-priority": 256})
_argument("max_priority_negative", {"x-max-priority": -1})
_argument("max_priority_text", {"x-max-priority": "high"})
_argument("max_priority_zero", {"x-max-priority": 0})
_argument("dead_letter_key_without_exchange", {"x-dead-letter-routing-key": "k"})
_argument("dead_letter_key_number", {"x-dead-letter-exchange": "amq.direct", "x-dead-letter-routing-key": 5})
_argument("dead_letter_exchange_number", {"x-dead-letter-exchange": 5})
_argument("dead_letter_exchange_missing", {"x-dead-letter-exchange": "misuse.nowhere"})
_argument("dead_letter_exchange_empty", {"x-dead-letter-exchange": ""})
_argument("dead_letter_strategy_unknown", {"x-dead-letter-strategy": "perhaps"})
_argument("queue_mode_unknown", {"x-queue-mode": "quick"})
_argument("queue_mode_number", {"x-queue-mode": 1})
_argument("queue_version_unknown", {"x-queue-version": 3})
_argument("queue_type_unknown", {"x-queue-type": "heap"})
_argument("queue_type_number", {"x-queue-type": 1})
_argument("single_active_consumer_text", {"x-single-active-consumer": "yes"})
_argument("master_locator_unknown", {"x-queue-master-locator": "anywhere"})
_argument("master_locator_number", {"x-queue-master-locator": 1})
_argument("leader_locator_on_classic", {"x-queue-leader-locator": "client-local"})
_argument("delivery_limit_on_classic", {"x-delivery-limit": 3})
_argument("delivery_limit_on_classic_negative", {"x-delivery-limit": -3})
_argument("group_size_on_classic", {"x-quorum-initial-group-size": 3})
_argument("max_age_on_classic", {"x-max-age": "1h"})
_argument("in_memory_length_on_classic", {"x-max-in-memory-length": 10})
_argument("segment_size_on_classic", {"x-stream-max-segment-size-bytes": 1000})
_argument("cancel_on_ha_failover_is_foreign", {"x-cancel-on-ha-failover": True})
_argument("unknown_is_accepted", {"x-own-note": "kept"})
_argument("copy_from_is_reserved", {"x-copy-from": "other"})
_argument("copy_mode_is_reserved", {"x-copy-mode": "all"})
_argument("shards_is_reserved", {"x-shards": 4})
_argument("two_wrong_ones", {"x-max-length": -1, "x-message-ttl": -1})

_QUORUM = {"x-queue-type": "quorum"}
_STREAM = {"x-queue-type": "stream"}
_argument("quorum_transient", _QUORUM, auto_delete=True)
_argument("quorum_not_durable", _QUORUM, nowait=False)
_argument("quorum_exclusive", _QUORUM, durable=True, exclusive=True)
_argument("quorum_auto_delete", _QUORUM, durable=True, auto_delete=True)
_argument("quorum_with_priority", {**_QUORUM, "x-max-priority": 5}, durable=True)
_argument("quorum_with_lazy_mode", {**_QUORUM, "x-queue-mode": "lazy"}, durable=True)
_argument("quorum_with_master_locator", {**_QUORUM, "x-queue-master-locator": "min-masters"}, durable=True)
_argument("quorum_with_reject_publish_dlx", {**_QUORUM, "x-overflow": "reject-publish-dlx"}, durable=True)
_argument("quorum_group_size_zero", {**_QUORUM, "x-quorum-initial-group-size": 0}, durable=True)
_argument("quorum_group_size_text", {**_QUORUM, "x-quorum-initial-group-size": "three"}, durable=True)
_argument("quorum_delivery_limit_negative", {**_QUORUM, "x-delivery-limit": -1}, durable=True)
_argument("quorum_delivery_limit_text", {**_QUORUM, "x-delivery-limit": "few"}, durable=True)
_argument("quorum_leader_locator_unknown", {**_QUORUM, "x-queue-leader-locator": "anywhere"}, durable=True)
_argument("stream", _STREAM, durable=True)
_argument("stream_exclusive", _STREAM, durable=True, exclusive=True)
_argument("stream_max_age_wrong", {**_STREAM, "x-max-age": "soon"}, durable=True)


@case()
def quorum_queue_consumed_exclusively_twice(s: Session) -> None:
    name = declare(s, durable=True, arguments=_QUORUM)
    s.call("basic.consume", queue=name, consumer_tag="a", exclusive=True)
    s.call("basic.consume", queue=name, consumer_tag="b")


@case()
def quorum_queue_with_global_prefetch(s: Session) -> None:
    name = declare(s, durable=True, arguments=_QUORUM)
    s.call("basic.qos", prefetch_count=10, global_=True)
    s.send("basic.consume", queue=name, consumer_tag="c")


@case(vhost="full")
def queue_limit_of_the_vhost_reached(s: Session) -> None:
    s.call("queue.declare", queue="only", exclusive=True)
    s.send("queue.declare", queue="one-more", exclusive=True)
