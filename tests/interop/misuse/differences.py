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
        "scope": "connection", "code": code, "text": text, "class_id": method[0], "method_id": method[1],
        "afterwards": "hung up", "replies": [], **fields,
    }


def _accepted(*replies: str) -> dict[str, Any]:
    gone = dict.fromkeys(("code", "text", "class_id", "method_id", "afterwards"))
    return {"scope": "none", "replies": list(replies), **gone}


DECLARED = "queue.declare-ok message_count=0 consumer_count=0"
QUEUE_DECLARE, EXCHANGE_DECLARE = (50, 10), (40, 10)
RESERVED = "the name is reserved for a feature to come: accepting it now would change its meaning later"
CRASH = "RabbitMQ's connection process crashes and the client is told nothing useful; MirrorMQ says what was wrong"

DIFFERENCES: dict[str, Difference] = {
    "queue_argument_delivery_limit_on_classic": Difference(
        _accepted(DECLARED), "MirrorMQ offers a delivery limit on every queue",
    ),
}


def expected(name: str, recorded: dict[str, Any]) -> dict[str, Any]:
    """What MirrorMQ has to answer to a case, given RabbitMQ's answer."""
    if name not in DIFFERENCES:
        return recorded
    merged = {**recorded, **DIFFERENCES[name].verdict}
    return {key: value for key, value in merged.items() if value is not None}
