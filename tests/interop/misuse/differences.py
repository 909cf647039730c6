"""The wanted differences: where MirrorMQ answers a misuse otherwise than RabbitMQ 3.10.8, and why.

Each entry gives the fields of the verdict that differ; everything else of the recording still has to match.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Difference(NamedTuple):
    """Fields of the verdict as MirrorMQ gives them; None removes a field that RabbitMQ's verdict has."""

    verdict: dict[str, Any]
    reason: str


def _refused(code: int, text: str, method: tuple[int, int], **fields: Any) -> dict[str, Any]:
    return {
        "scope": "connection",
        "code": code,
        "text": text,
        "class_id": method[0],
        "method_id": method[1],
        "afterwards": "hung up",
        "replies": [],
        **fields,
    }


def _accepted(*replies: str) -> dict[str, Any]:
    gone = dict.fromkeys(("code", "text", "class_id", "method_id", "afterwards"))
    return {"scope": "none", "replies": list(replies), **gone}


DECLARED = "queue.declare-ok message_count=0 consumer_count=0"
QUEUE_DECLARE, EXCHANGE_DECLARE, PUBLISH = (50, 10), (40, 10), (60, 40)
RESERVED = "the name is reserved for a feature to come: accepting it now would change its meaning later"
NO_STREAMS = "stream queues are not offered; saying so beats a queue that behaves otherwise"
HAS_LIMIT = "MirrorMQ offers a delivery limit on every queue and checks its value, which RabbitMQ does not"


def _reserved_argument(case: str, argument: str, method: tuple[int, int]) -> Difference:
    kind, part = ("queue", "q") if method == QUEUE_DECLARE else ("exchange", "x")
    where = f"{kind} 'misuse.{case}.{part}' in vhost '/'"
    text = f"NOT_IMPLEMENTED - argument '{argument}' for {where} is reserved and not implemented"
    return Difference(_refused(540, text, method), RESERVED)


def _reserved_type(name: str) -> Difference:
    text = f"NOT_IMPLEMENTED - exchange type '{name}' is reserved and not implemented"
    return Difference({"code": 540, "text": text}, RESERVED)


def _stream(case: str) -> Difference:
    text = f"x-queue-type 'stream' for queue 'misuse.{case}.q' in vhost '/' is not implemented"
    return Difference(_refused(540, f"NOT_IMPLEMENTED - {text}", QUEUE_DECLARE), NO_STREAMS)


def _limit(case: str, fault: str) -> Difference:
    text = f"invalid arg 'x-delivery-limit' for queue 'misuse.{case}.q' in vhost '/': {fault}"
    fields = {"scope": "channel", "afterwards": "channel can be opened again"}
    return Difference(_refused(406, f"PRECONDITION_FAILED - {text}", QUEUE_DECLARE, **fields), HAS_LIMIT)


DIFFERENCES: dict[str, Difference] = {
    "queue_argument_delivery_limit_on_classic": Difference(_accepted(DECLARED), HAS_LIMIT),
    **{
        case: _limit(case, fault)
        for case, fault in (
            ("queue_argument_delivery_limit_on_classic_negative", "{value_negative,-3}"),
            ("queue_argument_quorum_delivery_limit_negative", "{value_negative,-1}"),
            ("queue_argument_quorum_delivery_limit_text", '"expected integer, got longstr"'),
        )
    },
    **{
        case: _reserved_argument(case, argument, method)
        for case, argument, method in (
            ("queue_argument_copy_from_is_reserved", "x-copy-from", QUEUE_DECLARE),
            ("queue_argument_copy_mode_is_reserved", "x-copy-mode", QUEUE_DECLARE),
            ("queue_argument_shards_is_reserved", "x-shards", QUEUE_DECLARE),
            ("exchange_with_mirrored_argument_is_reserved", "x-mirrored", EXCHANGE_DECLARE),
            ("exchange_with_shards_argument_is_reserved", "x-shards", EXCHANGE_DECLARE),
        )
    },
    "exchange_of_mirrored_type_is_reserved": _reserved_type("x-mirrored"),
    "exchange_of_delayed_type_without_its_plugin": _reserved_type("x-delayed-message"),
    **{
        case: _stream(case)
        for case in (
            "queue_argument_stream",
            "queue_argument_stream_exclusive",
            "queue_argument_stream_max_age_wrong",
        )
    },
    "publish_announcing_far_more_than_the_maximum": Difference(
        _refused(
            406,
            f"PRECONDITION_FAILED - message size {2**40} is larger than configured max size 65536",
            PUBLISH,
            scope="channel",
            afterwards="channel can be opened again",
            replies=[DECLARED],
        ),
        "refused when the size is announced, before memory is set aside; RabbitMQ collects the body first",
    ),
    **{
        case: Difference(
            _refused(541, "INTERNAL_ERROR", (0, 0), replies=[DECLARED]),
            "the length of such a header is not defined; RabbitMQ stores it unread, MirrorMQ refuses to",
        )
        for case in (
            "publish_with_reserved_property_flag",
            "publish_with_property_flags_continued_and_missing",
        )
    },
    "table_nested_a_hundred_deep": Difference(
        {"scope": "closed", "replies": []},
        "the depth of tables is bounded; the end is the same as for other tables that cannot be read",
    ),
}


def expected(name: str, recorded: dict[str, Any]) -> dict[str, Any]:
    """What MirrorMQ has to answer to a case, given RabbitMQ's answer."""
    if name not in DIFFERENCES:
        return recorded
    merged = {**recorded, **DIFFERENCES[name].verdict}
    return {key: value for key, value in merged.items() if value is not None}
