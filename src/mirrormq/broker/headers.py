"""Headers exchange: when a message's headers satisfy a binding's arguments.

`x-match` is `all` (the default) or `any`. Arguments whose name starts with `x-` take no part, unless
`x-match` is `all-with-x` or `any-with-x`; `x-match` itself never does. An argument without a value (void)
asks only that the header is there. Values are compared without regard to their wire types: 1 equals 1.0 but
not true. A binding without arguments matches every message with `all` and none with `any`.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from mirrormq.base.errors import precondition_failed
from mirrormq.broker.arguments import octets, term, type_tag

_KINDS = ("all", "any", "all-with-x", "any-with-x")


def check_x_match(arguments: Mapping[str, Any]) -> None:
    """Raise 406 unless a binding to a headers exchange may have these arguments."""
    if "x-match" not in arguments:
        return
    value = arguments["x-match"]
    if type_tag(value) != "longstr":
        raise precondition_failed(
            f"Invalid x-match field type {type_tag(value)} (value {term(value)}); expected longstr"
        )
    if value not in _KINDS:
        raise precondition_failed(
            f"Invalid x-match field value {term(value)}; expected all, any, all-with-x, or any-with-x"
        )


class HeadersPattern:
    """The arguments of one binding, ready to be compared."""

    __slots__ = ("_any", "_wanted")

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Take valid arguments; an unknown `x-match` counts as `all`."""
        kind = arguments.get("x-match", "all")
        with_x = kind in ("all-with-x", "any-with-x")
        self._any = kind in ("any", "any-with-x")
        self._wanted = [
            (name, value)
            for name, value in arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        ]

    def matches(self, headers: Mapping[str, Any]) -> bool:
        """Whether a message with these headers goes along the binding."""
        if self._any:
            return any(name in headers and _agree(value, headers[name]) for name, value in self._wanted)
        return all(name in headers and _agree(value, headers[name]) for name, value in self._wanted)


def _agree(wanted: Any, given: Any) -> bool:
    return wanted is None or _equal(wanted, given)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, str | bytes) and isinstance(b, str | bytes):
        return octets(a) == octets(b)
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, Decimal) != isinstance(b, Decimal):
        return False
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(v, b[k]) for k, v in a.items())
    return bool(a == b)
