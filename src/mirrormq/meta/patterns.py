"""Regular expressions of permissions and policies, read as RabbitMQ reads them.

Erlang's `re` is PCRE over bytes, searching anywhere in the name. Python's `re` over bytes agrees on almost
all of it; the spellings it does not know (`[[:alpha:]]`, `(?<name>...)`, `\\h`, `\\z`, `\\Q...\\E`) are
translated here, and a pattern that is still not understood is refused when it is set and matches nothing if
it was stored by other means.
"""

import re
from functools import lru_cache

from mirrormq.base import limits

_POSIX_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "ascii": r"\x00-\x7f",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": r"\x21-\x7e",
    "lower": "a-z",
    "print": r"\x20-\x7e",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\s",
    "upper": "A-Z",
    "word": r"\w",
    "xdigit": "0-9a-fA-F",
}
_ESCAPES = {"z": r"\Z", "Z": r"(?=\n?\Z)", "h": r"[ \t]", "H": r"[^ \t]", "R": r"(?:\r\n|\n|\r)"}
_SET_ESCAPES = {"h": r" \t"}

Pattern = re.Pattern[bytes]


def compile_pattern(text: str) -> Pattern:
    """Compile a pattern; `re.error` if it cannot be understood."""
    return re.compile(_translate(text).encode("utf-8", "surrogateescape"))


def complaint(text: str) -> str | None:
    """Say what is wrong with a pattern, or None."""
    try:
        compile_pattern(text)
    except (re.error, OverflowError, RecursionError) as error:
        return f"'{text}' is not a valid regular expression: {error}"
    return None


@lru_cache(maxsize=limits.patterns_cached_max)
def try_pattern(text: str) -> Pattern | None:
    """Compile a stored pattern, or None for one that matches nothing because nobody understands it."""
    return None if complaint(text) else compile_pattern(text)


def permission_pattern(text: str) -> Pattern | None:
    """Compile the pattern of a permission. The empty one matches the empty name only."""
    return try_pattern(text or "^$")


def _translate(text: str) -> str:
    out: list[str] = []
    at = 0
    in_set = False
    while at < len(text):
        piece, at, in_set = _next_piece(text, at, in_set)
        out.append(piece)
    return "".join(out)


def _next_piece(text: str, at: int, in_set: bool) -> tuple[str, int, bool]:
    """Translate what stands at `at`: an escape, a POSIX class, a named group, or one character as it is."""
    char = text[at]
    if char == "\\" and at + 1 < len(text):
        return *_escape(text, at, in_set), in_set
    if in_set:
        if text.startswith("[:", at) and ":]" in text[at:]:
            end = text.index(":]", at)
            known = _POSIX_CLASSES.get(text[at + 2 : end])
            if known is not None:
                return known, end + 2, True
        # Python warns of a set within a set, which PCRE does not have: there it is a plain bracket.
        return ("\\[" if char == "[" else char), at + 1, char != "]"
    if char == "[":
        # A bracket right after the opening (or its ^) is a member of the set, not its end.
        end = at + 1 + text.startswith("^", at + 1)
        closing = text.startswith("]", end)
        return text[at:end] + ("\\]" if closing else ""), end + closing, True
    if text.startswith("(?<", at) and at + 3 < len(text) and text[at + 3] not in "=!":
        return "(?P<", at + 3, False
    return char, at + 1, False


def _escape(text: str, at: int, in_set: bool) -> tuple[str, int]:
    char = text[at + 1]
    if char == "Q":
        end = text.find("\\E", at + 2)
        stop = len(text) if end < 0 else end
        return re.escape(text[at + 2 : stop]), stop + (2 if end >= 0 else 0)
    if char == "E":
        return "", at + 2
    known = (_SET_ESCAPES if in_set else _ESCAPES).get(char)
    return (known or text[at : at + 2]), at + 2
