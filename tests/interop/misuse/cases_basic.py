"""Misuse of publishing, consuming, acknowledging, transactions and confirms."""

from __future__ import annotations

import struct
from typing import Any

from tests.interop.misuse.session import BODY, HEADER, Session, content_header, short_string, table
from tests.interop.misuse.table import add, case

HEADERS, DELIVERY_MODE, PRIORITY, REPLY_TO, EXPIRATION, USER_ID = (
    1 << 13,
    1 << 12,
    1 << 11,
    1 << 9,
    1 << 8,
    1 << 4,
)


def properties(flag: int, value: bytes) -> bytes:
    return struct.pack(">H", flag) + value


def queue(s: Session, part: str = "q", **arguments: Any) -> str:
    name = s.name(part)
    s.call("queue.declare", queue=name, **{"exclusive": True, **arguments})
    return name


def delivered(s: Session, no_ack: bool = False) -> str:
    """A queue with a consumer that holds delivery 1."""
    name = queue(s)
    s.publish("", name)
    s.call("basic.consume", queue=name, consumer_tag="c", no_ack=no_ack)
    while s.read().name != "body":
        pass
    return name


# --- publishing
@case()
def publish_to_a_missing_exchange(s: Session) -> None:
    s.publish(s.name("none"), "k")


@case()
def publish_to_a_missing_exchange_with_confirms(s: Session) -> None:
    s.call("confirm.select")
    s.publish("", s.name("none"))
    while s.read().name != "basic.ack":
        pass
    s.publish(s.name("none"), "k")


@case()
def publish_immediate(s: Session) -> None:
    s.publish("", queue(s), immediate=True)


@case()
def publish_mandatory_without_a_route(s: Session) -> None:
    s.publish("", s.name("none"), mandatory=True)


@case()
def publish_mandatory_without_a_route_with_confirms(s: Session) -> None:
    s.call("confirm.select")
    s.publish("amq.direct", "nowhere", mandatory=True)
    while s.read().name != "basic.ack":
        pass


@case()
def publish_mandatory_to_a_missing_exchange(s: Session) -> None:
    s.publish(s.name("none"), "k", mandatory=True)


def _published_with(name: str, flag: int, value: bytes) -> None:
    add(f"publish_with_{name}", lambda s: s.publish("", queue(s), properties=properties(flag, value)))


_published_with("another_user_id", USER_ID, short_string("somebody"))
_published_with("an_empty_user_id", USER_ID, short_string(""))
_published_with("the_own_user_id", USER_ID, short_string("guest"))
_published_with("expiration_word", EXPIRATION, short_string("soon"))
_published_with("expiration_negative", EXPIRATION, short_string("-1"))
_published_with("expiration_empty", EXPIRATION, short_string(""))
_published_with("expiration_fraction", EXPIRATION, short_string("1.5"))
_published_with("expiration_with_spaces", EXPIRATION, short_string(" 60000"))
_published_with("expiration_with_trailing_letters", EXPIRATION, short_string("60000ms"))
_published_with("expiration_with_plus", EXPIRATION, short_string("+60000"))
_published_with("expiration_with_leading_zeros", EXPIRATION, short_string("0060000"))
_published_with("expiration_huge", EXPIRATION, short_string("99999999999"))
_published_with("expiration_not_utf8", EXPIRATION, short_string(b"\xff"))
_published_with("expiration_too_long_by_one", EXPIRATION, short_string(str(2**32)))
_published_with("cc_of_wrong_type", HEADERS, table({"CC": "not-an-array"}))
_published_with("cc_of_numbers", HEADERS, table({"CC": [1, 2]}))
_published_with("bcc_of_wrong_type", HEADERS, table({"BCC": 7}))
_published_with("reply_to_without_its_consumer", REPLY_TO, short_string("amq.rabbitmq.reply-to"))
_published_with("delivery_mode_nine", DELIVERY_MODE, b"\x09")
_published_with("priority_255", PRIORITY, b"\xff")
_published_with("headers_cut_short", HEADERS, struct.pack(">I", 40) + b"\x01aI\0\0\0\1")
_published_with("headers_of_unknown_type", HEADERS, struct.pack(">I", 3) + b"\x01aZ")
_published_with("properties_cut_short", EXPIRATION, b"\x20abc")
_published_with("bytes_after_the_properties", DELIVERY_MODE, b"\x01rest")
_published_with("reserved_property_flag", 1 << 1, b"")
_published_with("property_flags_continued", 1, b"\x00\x00")
_published_with("property_flags_continued_and_missing", 1, b"")


@case()
def publish_with_two_faults_user_id_before_missing_exchange(s: Session) -> None:
    s.publish(s.name("none"), "k", properties=properties(USER_ID, short_string("somebody")))


@case()
def publish_with_two_faults_expiration_before_user_id(s: Session) -> None:
    both = properties(EXPIRATION | USER_ID, short_string("soon") + short_string("somebody"))
    s.publish("", queue(s), properties=both)


@case()
def publish_larger_than_the_configured_maximum(s: Session) -> None:
    s.publish("", queue(s), b"x" * 65537)


@case()
def publish_of_exactly_the_configured_maximum(s: Session) -> None:
    s.publish("", queue(s), b"x" * 65536)


@case()
def publish_announcing_far_more_than_the_maximum(s: Session) -> None:
    s.send("basic.publish", routing_key=queue(s))
    s.frame(HEADER, 1, content_header(2**40))


@case()
def publish_in_two_frames_beyond_the_maximum(s: Session) -> None:
    s.send("basic.publish", routing_key=queue(s))
    s.frame(HEADER, 1, content_header(100_000))
    s.frame(BODY, 1, b"x" * 50_000)
    s.frame(BODY, 1, b"x" * 50_000)


# --- acknowledging
@case()
def ack_unknown_tag(s: Session) -> None:
    s.send("basic.ack", delivery_tag=1)


@case()
def ack_twice(s: Session) -> None:
    delivered(s)
    s.send("basic.ack", delivery_tag=1)
    s.send("basic.ack", delivery_tag=1)


@case()
def ack_twice_the_second_multiple(s: Session) -> None:
    delivered(s)
    s.send("basic.ack", delivery_tag=1)
    s.send("basic.ack", delivery_tag=1, multiple=True)


@case()
def ack_zero(s: Session) -> None:
    delivered(s)
    s.send("basic.ack", delivery_tag=0)


@case()
def ack_zero_multiple_without_deliveries(s: Session) -> None:
    s.send("basic.ack", delivery_tag=0, multiple=True)


@case()
def ack_beyond_the_last_multiple(s: Session) -> None:
    delivered(s)
    s.send("basic.ack", delivery_tag=5, multiple=True)


@case()
def ack_unknown_multiple_without_deliveries(s: Session) -> None:
    s.send("basic.ack", delivery_tag=5, multiple=True)


@case()
def ack_of_a_delivery_that_needs_none(s: Session) -> None:
    delivered(s, no_ack=True)
    s.send("basic.ack", delivery_tag=1)


@case()
def ack_on_another_channel(s: Session) -> None:
    delivered(s)
    s.open_channel(2)
    s.send("basic.ack", 2, delivery_tag=1)
    s.call("basic.qos", 2)


@case()
def ack_of_the_largest_tag(s: Session) -> None:
    s.send("basic.ack", delivery_tag=2**64 - 1)


@case()
def nack_unknown_tag(s: Session) -> None:
    s.send("basic.nack", delivery_tag=7)


@case()
def nack_zero_multiple_without_deliveries(s: Session) -> None:
    s.send("basic.nack", delivery_tag=0, multiple=True, requeue=True)


@case()
def nack_twice(s: Session) -> None:
    delivered(s)
    s.send("basic.nack", delivery_tag=1)
    s.send("basic.nack", delivery_tag=1)


@case()
def reject_unknown_tag(s: Session) -> None:
    s.send("basic.reject", delivery_tag=3, requeue=True)


@case()
def reject_after_ack(s: Session) -> None:
    delivered(s)
    s.send("basic.ack", delivery_tag=1)
    s.send("basic.reject", delivery_tag=1)


@case()
def ack_unknown_tag_in_a_transaction(s: Session) -> None:
    s.call("tx.select")
    s.send("basic.ack", delivery_tag=9)


@case()
def ack_twice_in_a_transaction(s: Session) -> None:
    delivered(s)
    s.call("tx.select")
    s.send("basic.ack", delivery_tag=1)
    s.send("basic.ack", delivery_tag=1)


# --- consuming
@case()
def consume_missing_queue(s: Session) -> None:
    s.send("basic.consume", queue=s.name("none"), consumer_tag="c")


@case()
def consume_missing_queue_without_wait(s: Session) -> None:
    s.send("basic.consume", queue=s.name("none"), consumer_tag="c", nowait=True)


@case()
def consume_with_a_tag_in_use(s: Session) -> None:
    name = queue(s)
    s.call("basic.consume", queue=name, consumer_tag="same")
    s.send("basic.consume", queue=name, consumer_tag="same")


@case()
def consume_with_the_tag_of_another_channel(s: Session) -> None:
    name = queue(s)
    s.call("basic.consume", queue=name, consumer_tag="same")
    s.open_channel(2)
    s.call("basic.consume", 2, queue=name, consumer_tag="same")


@case()
def consume_exclusively_beside_a_consumer(s: Session) -> None:
    name = queue(s)
    s.call("basic.consume", queue=name, consumer_tag="a")
    s.send("basic.consume", queue=name, consumer_tag="b", exclusive=True)


@case()
def consume_beside_an_exclusive_consumer(s: Session) -> None:
    name = queue(s)
    s.call("basic.consume", queue=name, consumer_tag="a", exclusive=True)
    s.send("basic.consume", queue=name, consumer_tag="b")


@case()
def get_beside_an_exclusive_consumer(s: Session) -> None:
    name = queue(s)
    s.call("basic.consume", queue=name, consumer_tag="a", exclusive=True)
    s.send("basic.get", queue=name)


@case()
def consume_exclusively_with_single_active_consumer(s: Session) -> None:
    name = queue(s, arguments={"x-single-active-consumer": True})
    s.send("basic.consume", queue=name, consumer_tag="a", exclusive=True)


@case()
def consume_with_priority_of_wrong_type(s: Session) -> None:
    s.send("basic.consume", queue=queue(s), consumer_tag="c", arguments={"x-priority": "high"})


@case()
def consume_with_a_stream_offset_on_classic(s: Session) -> None:
    s.send("basic.consume", queue=queue(s), consumer_tag="c", arguments={"x-stream-offset": "first"})


@case()
def cancel_unknown_consumer(s: Session) -> None:
    s.send("basic.cancel", consumer_tag="nobody")


@case()
def cancel_twice(s: Session) -> None:
    s.call("basic.consume", queue=queue(s), consumer_tag="c")
    s.call("basic.cancel", consumer_tag="c")
    s.send("basic.cancel", consumer_tag="c")


@case()
def get_from_missing_queue(s: Session) -> None:
    s.send("basic.get", queue=s.name("none"))


@case()
def get_from_the_reply_queue(s: Session) -> None:
    s.send("basic.get", queue="amq.rabbitmq.reply-to")


@case()
def reply_queue_consumed_with_acks(s: Session) -> None:
    s.send("basic.consume", queue="amq.rabbitmq.reply-to", consumer_tag="c")


@case()
def reply_queue_consumed_twice(s: Session) -> None:
    s.call("basic.consume", queue="amq.rabbitmq.reply-to", consumer_tag="a", no_ack=True)
    s.send("basic.consume", queue="amq.rabbitmq.reply-to", consumer_tag="b", no_ack=True)


@case()
def reply_queue_declared(s: Session) -> None:
    s.send("queue.declare", queue="amq.rabbitmq.reply-to")


@case()
def reply_queue_declared_passive_with_consumer(s: Session) -> None:
    s.call("basic.consume", queue="amq.rabbitmq.reply-to", consumer_tag="a", no_ack=True)
    s.send("queue.declare", queue="amq.rabbitmq.reply-to", passive=True)


@case()
def reply_queue_deleted(s: Session) -> None:
    s.send("queue.delete", queue="amq.rabbitmq.reply-to")


@case()
def reply_queue_bound(s: Session) -> None:
    s.send("queue.bind", queue="amq.rabbitmq.reply-to", exchange="amq.direct", routing_key="k")


@case()
def reply_published_to_nobody_mandatory(s: Session) -> None:
    s.publish("", "amq.rabbitmq.reply-to.nonsense", mandatory=True)


@case()
def qos_with_a_size(s: Session) -> None:
    s.send("basic.qos", prefetch_size=1000)


@case()
def recover_without_requeue(s: Session) -> None:
    s.send("basic.recover")


@case()
def recover_async_without_requeue(s: Session) -> None:
    s.send("basic.recover-async")


@case()
def recover_without_deliveries(s: Session) -> None:
    s.send("basic.recover", requeue=True)


# --- transactions and confirms
@case()
def commit_without_select(s: Session) -> None:
    s.send("tx.commit")


@case()
def rollback_without_select(s: Session) -> None:
    s.send("tx.rollback")


@case()
def tx_select_twice(s: Session) -> None:
    s.call("tx.select")
    s.send("tx.select")


@case()
def confirm_select_twice(s: Session) -> None:
    s.call("confirm.select")
    s.send("confirm.select")


@case()
def confirm_on_a_transactional_channel(s: Session) -> None:
    s.call("tx.select")
    s.send("confirm.select")


@case()
def transaction_on_a_confirming_channel(s: Session) -> None:
    s.call("confirm.select")
    s.send("tx.select")


@case()
def publish_to_a_missing_exchange_in_a_transaction(s: Session) -> None:
    s.call("tx.select")
    s.publish(s.name("none"), "k")
