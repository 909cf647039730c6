"""How many steps Python's `re` may need at most to look for an expression in a name.

Guarantee: `steps_max` is never less than what the backtracking matcher does, counted in octets, conditions
and rounds of repeats it tries; it depends on the expression and the length of the name only, so all nodes
agree on it. It may be far more than is ever needed: then the expression is left to `automaton`.

For each part of an expression there are two bounds, at one place of the name: the ways to match it, each of
which makes the matcher try all that follows, and the steps to try all of these ways.
"""

from math import inf
from re import _constants as sre  # type: ignore[attr-defined]
from typing import Any

Bound = tuple[float, float]
"""Ways, steps."""

_OCTET = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)
_ONE_STEP = (*_OCTET, sre.AT, sre.FAILURE)
_OCTETS_COMPARED = 8
"""A back reference compares so many octets in the time of a step."""
_ENOUGH = 1e9
"""Numbers beyond it are as good as infinite."""


def steps_max(tree: Any, length: int) -> float:
    """What it takes to look for a parsed expression everywhere in a name of so many octets."""
    firm = len(tree)
    while firm > 0 and _cannot_fail(*tree[firm - 1]):
        firm -= 1
    _, steps = _sequence(tree[:firm], length)
    # What comes last and may be missing is gone through once, when all before it is found.
    steps += sum(_bound(kind, value, length)[1] for kind, value in tree[firm:])
    # What is tied to the beginning of the name is tried at every other place, too, and given up at once.
    return steps + length if _is_tied(tree, tree.state.flags) else steps * (length + 1)


def _cannot_fail(kind: Any, value: Any) -> bool:
    if kind not in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        return False
    least, _, items = value
    return bool(least == 0 and len(items) == 1 and items[0][0] in _ONE_STEP)


def _is_tied(items: Any, flags: int) -> bool:
    """Can it begin at the beginning of the name only?"""
    if len(items) == 0:
        return False
    kind, value = items[0]
    if kind is sre.AT:
        is_line = flags & sre.SRE_FLAG_MULTILINE
        return value is sre.AT_BEGINNING_STRING or (value is sre.AT_BEGINNING and not is_line)
    if kind is sre.SUBPATTERN:
        return _is_tied(value[3], (flags | value[1]) & ~value[2])
    return kind is sre.BRANCH and all(_is_tied(branch, flags) for branch in value[1])


def _sequence(items: Any, length: int) -> Bound:
    ways, steps = 1.0, 0.0
    left = length
    """Of the name, at most, since all that stands before has taken its octets."""
    for kind, value in items:
        if left < 0:
            break
        left -= kind in _OCTET
        more, cost = _bound(kind, value, length)
        steps += ways * cost
        ways *= more
        if steps > _ENOUGH or ways > _ENOUGH:
            return inf, inf
    return ways, steps


def _bound(kind: Any, value: Any, length: int) -> Bound:
    if kind in _ONE_STEP:
        return 1, 1
    if kind is sre.BRANCH:
        return _either(value[1], length)
    if kind is sre.SUBPATTERN:
        ways, steps = _sequence(value[3], length)
        return ways, steps + 1
    if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        return _repeat(value, length)
    if kind in (sre.ASSERT, sre.ASSERT_NOT):
        return 1, _sequence(value[1], length)[1] + 1
    if kind is sre.ATOMIC_GROUP:
        return 1, _sequence(value, length)[1] + 1
    if kind is sre.POSSESSIVE_REPEAT:
        least, most, items = value
        return 1, (_rounds(least, most, items, length) + 1) * (_sequence(items, length)[1] + 1)
    if kind is sre.GROUPREF:
        return 1, length / _OCTETS_COMPARED + 1
    if kind is sre.GROUPREF_EXISTS:
        return _either([items for items in value[1:] if items is not None] + [[]], length)
    return inf, inf


def _either(branches: Any, length: int) -> Bound:
    found = [_sequence(items, length) for items in branches]
    return sum(ways for ways, _ in found), sum(steps + 1 for _, steps in found)


def _repeat(value: Any, length: int) -> Bound:
    least, most, items = value
    rounds = _rounds(least, most, items, length)
    ways, steps = _sequence(items, length)
    if ways <= 1:
        return max(rounds - least, 0) + 1, (rounds + 1) * (steps + 1)
    if ways > _ENOUGH:
        return inf, inf
    # Every round may be matched in so many ways, and each of them leads to all ways of the next.
    try:
        branches = (ways ** (rounds + 1) - 1) / (ways - 1)
    except OverflowError:
        return inf, inf
    found = branches * (steps + 1)
    return (inf, inf) if found > _ENOUGH else (branches, found)


def _rounds(least: int, most: Any, items: Any, length: int) -> int:
    """How often at most it is gone through in one attempt."""
    width = items.getwidth()[0]
    within = length // width + 1 if width else max(length + 1, least)
    return min(int(most), within)
