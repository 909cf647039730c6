"""What a resource takes and gives, written at its handler: the OpenAPI document is made of it.

Guarantee: a body with a field that its struct does not name is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from mirrormq.http.answers import Fault, bad_request

Function = TypeVar("Function", bound=Callable[..., Any])

_ATTRIBUTE = "__described__"

PAGED = ("page", "page_size", "name", "use_regex", "sort", "sort_reverse", "columns", "pagination")
"""Query parameters of lists."""


class Described(NamedTuple):
    """What is known of a resource."""

    body: type[msgspec.Struct] | None = None
    answer: Any = None
    """The type of what 200 brings."""
    query: Sequence[str] = ()
    is_list: bool = False
    """Does it take the parameters of lists, and give a page if asked for one?"""
    statuses: Sequence[int] = (200,)
    """Of answers that are no errors."""
    needs: str = "management"
    """The tag a user needs."""
    is_audited: bool = True
    """If it changes something: is that an administrative action?"""
    is_use: bool = True
    """Does it keep the session it is asked with from idling?"""
    is_form: bool = False
    """Is the body sent as a form does, not as JSON?"""
    is_open: bool = False
    """Is it for everybody, without a log-in?"""


UNKNOWN = Described()


def described(**facts: Any) -> Callable[[Function], Function]:
    """Say what a handler takes and gives: the fields of `Described`."""
    found = Described(**facts)

    def mark(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, found)
        return function

    return mark


def description_of(handler: Callable[..., Any]) -> Described:
    """What was said of a handler."""
    found: Described = getattr(handler, _ATTRIBUTE, UNKNOWN)
    return found


def check_fields(kind: type[msgspec.Struct], body: dict[str, Any]) -> None:
    """Refuse a body with a field that nobody reads: most likely another one was meant."""
    known = {info.encode_name for info in msgspec.structs.fields(kind)}
    unknown = sorted(name for name in body if name not in known)
    if unknown:
        raise unknown_field(unknown[0], sorted(known))


def unknown_field(name: str, known: Sequence[str]) -> Fault:
    """400 for a field that stands in no struct."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, 1)
    meant = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
    return bad_request(f"unknown field {name[:80]!r}{meant}")
