"""Which patterns a client of the bulk protocol may choose queues by.

Guarantee: a pattern that is let pass is matched against a name of 255 bytes in some ten milliseconds at
worst: it repeats without bound in three places at most, and never something that repeats or chooses itself. A
client that may only read must not be able to hold the node's loop.
"""

from mirrormq.base import limits

REPEATS_MAX = 3


def costly(pattern: str) -> str | None:
    """Why a pattern may take too long; None if it does not."""
    if len(pattern) > limits.short_string_bytes_max:
        return "it is too long"
    repeats = at = 0
    inner: list[bool] = [False]
    """Per open group: is there a repetition or a choice in it?"""
    closed = False
    while at < len(pattern):
        char = pattern[at]
        was_closed, closed = closed, False
        if char == "\\":
            at += 1
        elif char == "[":
            at = _behind_set(pattern, at)
        elif char == "(":
            inner.append(False)
        elif char == ")" and len(inner) > 1:
            closed = inner.pop()
            inner[-1] = inner[-1] or closed
        elif char == "|":
            inner[-1] = True
        elif char in "*+{?":
            if was_closed and char != "?":
                return "it repeats a group that repeats or chooses itself"
            inner[-1] = True
            repeats += char in "*+{"
        at += 1
    return f"it repeats in more than {REPEATS_MAX} places" if repeats > REPEATS_MAX else None


def _behind_set(pattern: str, at: int) -> int:
    """The place of the bracket that ends a set."""
    at += 2 if pattern[at + 1 : at + 2] == "^" else 1
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at
