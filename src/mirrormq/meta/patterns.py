"""Regular expressions of permissions, policies and filters, read as RabbitMQ reads them.

Erlang's `re` is PCRE over bytes, searching anywhere in the name. Python's `re` over bytes agrees on almost
all of it; the spellings it does not know (`[[:alpha:]]`, `(?<name>...)`, `\\h`, `\\z`, `\\Q...\\E`) are
translated here, and a pattern that is still not understood is refused when it is set and matches nothing if
it was stored by other means.

Guarantee: no pattern holds the loop, whoever wrote it, and all nodes come to the same answer. Python's `re`
goes back and tries again, which may take for ever; it is asked only about names so short that it cannot need
more than `limits.pattern_quick_steps`. Longer ones are matched by `automaton` in one go. Where there is none,
`re` may take `limits.pattern_steps_max`; what needs more is refused when it is set, and if it was stored
before that, it matches only names that are short enough.
"""

import re
from functools import lru_cache
from re import _parser  # type: ignore[attr-defined]

from mirrormq.base import limits
from mirrormq.meta.automaton import Automaton, Budget, Inexpressible
from mirrormq.meta.patterncost import steps_max

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

_LENGTHS = (8_191, limits.short_string_bytes_max, 63, 15)
"""Names up to the first of these that is bearable are given to `re`."""

_FLAGS = re.compile(r"\(\?[aimsx]+\)")


class Unsupported(re.error):
    """It can be understood, but is not matched here."""


class Pattern:
    """A regular expression that can be looked for in any name without holding the loop."""

    __slots__ = (
        "_automaton", "_copies", "_is_made", "_regex", "_source", "is_safe", "quick_bytes", "slice_names",
    )  # fmt: skip

    def __init__(self, source: bytes, copies: int = limits.automaton_copies_max) -> None:
        """`re.error` if it cannot be understood. `copies`: of places that counted repeats may take."""
        self._source = source
        self._copies = copies
        self._regex = re.compile(source)
        if self._regex.flags & re.LOCALE:
            raise Unsupported("it depends on the node's locale")
        self._automaton: Automaton | None = None
        self._is_made = False
        name = limits.short_string_bytes_max
        tree = _parser.parse(source)
        steps = {length: steps_max(tree, length) for length in _LENGTHS}
        self.quick_bytes = _longest(steps, limits.pattern_quick_steps)
        """Longest name for which Python's `re` is certain to be quick."""
        if self.quick_bytes < name and self._made() is None:
            self.quick_bytes = _longest(steps, limits.pattern_steps_max)
        self.is_safe = self.quick_bytes >= name or self._automaton is not None
        """Is there a way to match every name that a queue or exchange can have?"""
        self.slice_names = limits.automaton_slice_names
        """How many names it may be looked for in before the loop gets its turn."""
        if self._automaton is None:
            affordable = limits.pattern_steps_max // max(1, int(min(steps[name], limits.pattern_steps_max)))
            self.slice_names = min(affordable, limits.pattern_slice_names)

    def matches(self, name: str | bytes) -> bool:
        """Is it found in a name?"""
        octets = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else name
        if len(octets) <= self.quick_bytes:
            return self._regex.search(octets) is not None
        automaton = self._made()
        if automaton is None or len(octets) > limits.pattern_name_bytes_max:
            return False
        return automaton.matches(octets)

    def _made(self) -> Automaton | None:
        """The automaton, if there is one. Most expressions never need it."""
        if not self._is_made:
            self._is_made = True
            try:
                self._automaton = Automaton(_parser.parse(self._source), budget=Budget(self._copies))
            except Inexpressible:
                self._automaton = None
        return self._automaton


def _longest(steps: dict[int, float], most: int) -> int:
    return next((length for length in _LENGTHS if steps[length] <= most), 0)


def compile_pattern(
    text: str, *, is_whole: bool = False, copies: int = limits.automaton_copies_max
) -> Pattern:
    """Compile a pattern; `re.error` if it cannot be understood. A whole one has to match all of the name."""
    if _depth(text) > limits.pattern_depth_max:
        raise Unsupported(f"it has more than {limits.pattern_depth_max} brackets within brackets")
    source = _translate(text)
    if is_whole:
        flags = _FLAGS.match(source)
        start = flags.end() if flags else 0
        source = f"{source[:start]}^(?:{source[start:]})$"
    return Pattern(source.encode("utf-8", "surrogateescape"), copies)


class PatternRefused(Exception):
    """Its text says why."""

    def __init__(self, text: str, *, is_understood: bool) -> None:
        super().__init__(text)
        self.is_understood = is_understood


def filter_pattern(text: str, *, is_whole: bool = False) -> Pattern:
    """Compile what somebody chooses names by now; `PatternRefused` if that cannot be done.

    It is not kept: whoever asks must not push out the patterns of policies.
    """
    if len(text) > limits.filter_bytes_max:
        too_long = f"it is too long, there may be {limits.filter_bytes_max} characters"
        raise PatternRefused(f"'{_shown(text)}' is not accepted: {too_long}", is_understood=True)
    try:
        pattern = compile_pattern(text, is_whole=is_whole, copies=limits.filter_copies_max)
    except _FAULTS as error:
        raise PatternRefused(_not_valid(text, error), is_understood=False) from None
    if not pattern.is_safe:
        raise PatternRefused(_too_costly(text), is_understood=True)
    return pattern


def complaint(text: str, *, is_stored: bool = False) -> str | None:
    """Say what is wrong with a pattern that somebody wants to set, or None.

    One that is stored already, in a file to be imported, is taken if it can be understood: see `doubt`.
    """
    try:
        if len(text.encode("utf-8", "surrogateescape")) > limits.pattern_bytes_max and not is_stored:
            raise Unsupported(f"it is too long, there may be {limits.pattern_bytes_max} bytes")
        pattern = try_pattern(text) or compile_pattern(text)
    except _FAULTS as error:
        return None if is_stored and isinstance(error, Unsupported) else _not_valid(text, error)
    return None if pattern.is_safe or is_stored else _too_costly(text)


def doubt(text: str) -> str | None:
    """What a stored pattern does not do that whoever set it may expect, or None."""
    pattern = try_pattern(text)
    if pattern is None:
        return "it cannot be understood here and matches nothing"
    if pattern.is_safe:
        return None
    return f"to match it could take for ever, so it matches no name of more than {pattern.quick_bytes} bytes"


_FAULTS = (re.error, OverflowError, RecursionError, UnicodeEncodeError)


def _not_valid(text: str, error: Exception) -> str:
    return f"'{_shown(text)}' is not a valid regular expression: {error}"


def _too_costly(text: str) -> str:
    return (
        f"'{_shown(text)}' is not accepted: to match it could take for ever, because it repeats much beside "
        "a back reference, a possessive or atomic part, or very many counted or optional parts; "
        "write it without these, or without a repeat within a repeat"
    )


def _shown(text: str) -> str:
    return text if len(text) <= limits.short_string_bytes_max else text[:40] + "..."


@lru_cache(maxsize=limits.patterns_cached_max)
def try_pattern(text: str) -> Pattern | None:
    """Compile a stored pattern, or None for one that matches nothing because nobody understands it."""
    try:
        return compile_pattern(text)
    except _FAULTS:
        return None


def permission_pattern(text: str) -> Pattern | None:
    """Compile the pattern of a permission. The empty one matches the empty name only."""
    return try_pattern(text or "^$")


def _depth(text: str) -> int:
    """How many brackets are open at once at most; those that stand for themselves may count, too."""
    depth = deepest = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        deepest = max(deepest, depth)
    return deepest


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
