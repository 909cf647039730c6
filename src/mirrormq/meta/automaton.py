"""Regular expressions matched in time that grows with the name only, never with the ways there are to match.

Guarantee: whether an expression is found anywhere in a name is decided in one go through it, octet by octet
(one more per look-around), each at a cost bounded by `limits.automaton_rules_max`; the answer is the one
Python's `re` gives. What cannot be matched so (back references, possessive and atomic parts, very large
repeats) raises `Inexpressible` when the automaton is made, not when it is used.

The expression's positions, the places in it that take an octet, are bits of a number; a state is the set of
those that took the last octet. Conditions that take none (`^`, `$`, `\\b`, look-around) hold at a place of
the name or do not, whatever came before. For every combination of them that occurs there is a `_Machine`:
what follows what while exactly these hold.
"""

from collections.abc import Callable, Iterator
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from mirrormq.base import limits

CHARS, SEQ, ALT, LADDER, LOOP, CONDITION = range(6)
Node = tuple[int, Any]
"""CHARS: a position. SEQ, ALT: nodes. LADDER: nodes, of which the first few are there. LOOP: a node, once or
more often. CONDITION: its number."""
EMPTY: Node = (SEQ, [])
NEVER: Node = (ALT, [])

_ALL = (1 << 256) - 1
_NEWLINE = 1 << 10
_IGNORE, _MULTILINE, _DOTALL = sre.SRE_FLAG_IGNORECASE, sre.SRE_FLAG_MULTILINE, sre.SRE_FLAG_DOTALL


class Inexpressible(Exception):
    """No automaton of a bearable size does what the expression does."""


def _set_of(chars: bytes) -> int:
    return sum(1 << char for char in set(chars))


_DIGITS = _set_of(b"0123456789")
_SPACES = _set_of(b" \t\n\r\f\v")
_WORD = _DIGITS | _set_of(b"_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_CATEGORIES = {
    sre.CATEGORY_DIGIT: _DIGITS,
    sre.CATEGORY_NOT_DIGIT: _ALL ^ _DIGITS,
    sre.CATEGORY_SPACE: _SPACES,
    sre.CATEGORY_NOT_SPACE: _ALL ^ _SPACES,
    sre.CATEGORY_WORD: _WORD,
    sre.CATEGORY_NOT_WORD: _ALL ^ _WORD,
}


class Automaton:
    """An expression, ready to be looked for."""

    def __init__(self, tree: Any, *, is_backward: bool = False, budget: "Budget | None" = None) -> None:
        """Of what Python's parser made of it; backward, it is matched from the end of the name."""
        self._budget = Budget() if budget is None else budget
        self._is_backward = is_backward
        self._sets: dict[int, int] = {}
        """Per set of octets the positions that take one of them."""
        self._size = self._copying = 0
        self._conditions: list[_Condition] = []
        self._numbers: dict[tuple[str, int], int] = {}
        self._takes: dict[int, int] = {}
        self._machines: dict[int, _Machine] = {}
        self._root = self._sequence(tree, tree.state.flags)
        # What the rules come to is known only now: most there are where all conditions hold.
        self._budget.rules -= len(_Machine(self._root, (1 << len(self._conditions)) - 1).rules)
        if self._budget.rules < 0:
            raise Inexpressible

    def matches(self, name: bytes) -> bool:
        """Is it found anywhere in the name?"""
        return next(self._found(name), None) is not None

    def _found(self, name: bytes) -> Iterator[int]:
        """The places where a match ends; backward, where one begins."""
        marks = self._marks(name)
        order = range(len(name), -1, -1) if self._is_backward else range(len(name) + 1)
        step = -1 if self._is_backward else 0
        last_place = order[-1]
        state = 0
        for place in order:
            machine = self._machine(marks[place])
            if machine.is_nullable or state & machine.last:
                yield place
            if place != last_place:
                octet = name[place + step]
                found = machine.known.get(state << 8 | octet)
                state = self._next(machine, state, octet) if found is None else found

    def _next(self, machine: "_Machine", state: int, octet: int) -> int:
        takes = self._takes.get(octet)
        if takes is None:
            takes = self._takes[octet] = sum(bits for chars, bits in self._sets.items() if chars >> octet & 1)
        found = machine.after(state) & takes
        _MEMORY.keep(machine, state << 8 | octet, found)
        return found

    def _machine(self, mark: int) -> "_Machine":
        machine = self._machines.get(mark)
        if machine is None:
            if len(self._machines) >= limits.automaton_machines_cached_max:
                self._machines.clear()
            machine = self._machines[mark] = _Machine(self._root, mark)
        return machine

    def _marks(self, name: bytes) -> list[int]:
        """Which conditions hold, for every place."""
        marks = [0] * (len(name) + 1)
        for number, condition in enumerate(self._conditions):
            for place in condition.places(name):
                marks[place] |= 1 << number
        return marks

    # --- from Python's parse tree to nodes ---

    def _sequence(self, items: Any, flags: int) -> Node:
        order = list(items)[::-1] if self._is_backward else items
        nodes = [self._node(kind, value, flags) for kind, value in order]
        return nodes[0] if len(nodes) == 1 else (SEQ, nodes)

    def _node(self, kind: Any, value: Any, flags: int) -> Node:
        if kind in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            return self._position(_chars(kind, value, flags))
        if kind is sre.BRANCH:
            return (ALT, [self._sequence(items, flags) for items in value[1]])
        if kind is sre.SUBPATTERN:
            _, added, taken, items = value
            return self._sequence(items, (flags | added) & ~taken)
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            return self._repeat(value, flags)
        if kind is sre.AT:
            return self._at(value, flags)
        if kind in (sre.ASSERT, sre.ASSERT_NOT):
            return self._look_around(value, flags, is_wanted=kind is sre.ASSERT)
        if kind is sre.FAILURE:
            return NEVER
        raise Inexpressible

    def _position(self, chars: int) -> Node:
        self._budget.copies -= self._copying > 0
        if self._budget.copies < 0:
            raise Inexpressible
        bit = 1 << self._size
        self._size += 1
        self._sets[chars] = self._sets.get(chars, 0) | bit
        return (CHARS, bit)

    def _repeat(self, value: Any, flags: int) -> Node:
        least, most, items = value
        if most == 0:
            return EMPTY
        before = self._size
        nodes = [self._sequence(items, flags)]
        if self._size == before:
            # What takes no octet comes to the same however often it is there.
            return nodes[0] if least else (LADDER, nodes)
        if _Machine(nodes[0], 0).is_nullable:
            least = 0  # what may be empty anyhow need not be there
        is_open = most is sre.MAXREPEAT
        count = max(least, 1) if is_open else int(most)
        self._copying += 1
        while len(nodes) < count:
            nodes.append(self._sequence(items, flags))
        self._copying -= 1
        if is_open:
            nodes[-1] = (LOOP, nodes[-1])
        return (SEQ, [*nodes[:least], (LADDER, nodes[least:])])

    def _at(self, where: Any, flags: int) -> Node:
        if where is sre.AT_BEGINNING:
            return self._condition("line begins" if flags & _MULTILINE else "begins")
        if where is sre.AT_END:
            return self._condition("line ends" if flags & _MULTILINE else "all but ends")
        known = {
            sre.AT_BEGINNING_STRING: "begins",
            sre.AT_END_STRING: "ends",
            sre.AT_BOUNDARY: "boundary",
            sre.AT_NON_BOUNDARY: "no boundary",
        }
        if where not in known:
            raise Inexpressible
        return self._condition(known[where])

    def _look_around(self, value: Any, flags: int, *, is_wanted: bool) -> Node:
        direction, items = value
        self._budget.look_arounds -= 1
        if self._budget.look_arounds < 0:
            raise Inexpressible
        inner = _parser.SubPattern(_Flags(flags), list(items))
        # Where it begins is found from the end of the name, where it ends from the beginning.
        automaton = Automaton(inner, is_backward=direction > 0, budget=self._budget)
        self._conditions.append(_Condition("look-around", automaton, is_wanted))
        return (CONDITION, len(self._conditions) - 1)

    def _condition(self, kind: str) -> Node:
        number = self._numbers.get((kind, 0))
        if number is None:
            number = self._numbers[kind, 0] = len(self._conditions)
            self._conditions.append(_Condition(kind))
        return (CONDITION, number)

    def places(self, name: bytes) -> set[int]:
        """All places where a match ends; backward, where one begins."""
        return set(self._found(name))


class _Flags:
    """Stands for the state of Python's parser, of which the flags are wanted."""

    def __init__(self, flags: int) -> None:
        self.flags = flags


class Budget:
    """What is left of the size that an expression may have, its look-arounds included."""

    def __init__(self, copies: int = limits.automaton_copies_max) -> None:
        self.copies = copies
        self.rules = limits.automaton_rules_max
        self.look_arounds = limits.automaton_look_arounds_max


class _Memory:
    """Steps found before, of all automata together: what is kept must not grow with the expressions."""

    def __init__(self) -> None:
        self._count = 0
        self._machines: list[_Machine] = []

    def keep(self, machine: "_Machine", key: int, found: int) -> None:
        """For the next time this machine is asked."""
        if self._count >= limits.automaton_steps_cached_max:
            for one in self._machines:
                one.known.clear()
            self._machines.clear()
            self._count = 0
        if not machine.known:
            self._machines.append(machine)
        self._count += 1
        machine.known[key] = found


_MEMORY = _Memory()


class _Condition(NamedTuple):
    kind: str
    automaton: Automaton | None = None
    is_wanted: bool = True

    def places(self, name: bytes) -> Any:
        """Where in the name it holds."""
        if self.automaton is None:
            return _PLACES[self.kind](name)
        found = self.automaton.places(name)
        return found if self.is_wanted else set(range(len(name) + 1)) - found


def _line_begins(name: bytes) -> list[int]:
    return [0] + [place + 1 for place, octet in enumerate(name) if octet == 10]


def _line_ends(name: bytes) -> list[int]:
    return [place for place, octet in enumerate(name) if octet == 10] + [len(name)]


def _all_but_ends(name: bytes) -> list[int]:
    return [len(name) - 1, len(name)] if name.endswith(b"\n") else [len(name)]


def _boundaries(name: bytes) -> list[int]:
    words = [False, *(bool(_WORD >> octet & 1) for octet in name), False]
    return [place for place in range(len(name) + 1) if words[place] != words[place + 1]]


def _no_boundaries(name: bytes) -> set[int]:
    # To Python's `re` an empty name has neither boundaries nor places without one.
    return set(range(len(name) + 1)) - set(_boundaries(name)) if name else set()


_PLACES: dict[str, Callable[[bytes], Any]] = {
    "begins": lambda _: [0],
    "line begins": _line_begins,
    "ends": lambda name: [len(name)],
    "all but ends": _all_but_ends,
    "line ends": _line_ends,
    "boundary": _boundaries,
    "no boundary": _no_boundaries,
}


class _Machine:
    """What follows what at a place where certain conditions hold: `first` may begin, `last` may end a match.

    A rule (some, others): others may come after any of some. The commonest, each position after the one
    before it, are together in `chain`.
    """

    __slots__ = ("chain", "first", "is_nullable", "known", "last", "mark", "rules")

    def __init__(self, root: Node, mark: int) -> None:
        self.mark = mark
        self.chain = 0
        self.known: dict[int, int] = {}
        self.rules: list[tuple[int, int]] = []
        self.is_nullable, self.first, self.last = self._visit(root)
        behind: dict[int, int] = {}
        for some, others in self.rules:
            behind[some] = behind.get(some, 0) | others
        before: dict[int, int] = {}
        for some, others in behind.items():
            before[others] = before.get(others, 0) | some
        self.rules = [(some, others) for others, some in before.items()]

    def after(self, state: int) -> int:
        """The positions that may take the next octet."""
        found = self.first | (state & self.chain) << 1
        for some, others in self.rules:
            if state & some:
                found |= others
        return found

    def _visit(self, node: Node) -> tuple[bool, int, int]:
        kind, value = node
        if kind == CHARS:
            return False, value, value
        if kind == CONDITION:
            return bool(self.mark >> value & 1), 0, 0
        if kind == LOOP:
            is_nullable, first, last = self._visit(value)
            self._join(last, first)
            return is_nullable, first, last
        if kind == ALT:
            found = [self._visit(item) for item in value]
            return any(item[0] for item in found), _union(found, 1), _union(found, 2)
        return self._row([self._visit(item) for item in value], is_ladder=kind == LADDER)

    def _row(self, parts: list[tuple[bool, int, int]], *, is_ladder: bool) -> tuple[bool, int, int]:
        """One after the other, from the end; of a ladder the rest may be missing everywhere."""
        is_nullable, first, last = True, 0, 0
        for is_empty, begin, end in reversed(parts):
            self._join(end, first)
            last |= end if is_nullable else 0
            # On a ladder all are alike: without this one it is only a shorter one.
            first = begin | (first if is_empty and not is_ladder else 0)
            is_nullable = is_ladder or (is_nullable and is_empty)
        return is_nullable, first, last

    def _join(self, last: int, first: int) -> None:
        if last and first:
            if first == last << 1 and last & (last - 1) == 0:
                self.chain |= last
            else:
                self.rules.append((last, first))
                if len(self.rules) > 2 * limits.automaton_rules_max:
                    raise Inexpressible


def _union(found: list[tuple[bool, int, int]], part: int) -> int:
    bits = 0
    for item in found:
        bits |= item[part]
    return bits


def _chars(kind: Any, value: Any, flags: int) -> int:
    """The octets that one place of an expression takes, as bits."""
    if kind is sre.ANY:
        return _ALL if flags & _DOTALL else _ALL ^ _NEWLINE
    if kind is sre.IN:
        is_not = value[0][0] is sre.NEGATE
        chars = 0
        for what, item in value[is_not:]:
            if what is sre.LITERAL:
                chars |= 1 << item
            elif what is sre.RANGE:
                chars |= (1 << item[1] + 1) - (1 << item[0])
            else:
                chars |= _CATEGORIES[item]
    else:
        is_not, chars = kind is sre.NOT_LITERAL, 1 << value
    if flags & _IGNORE:
        for upper in range(65, 91):
            both = 1 << upper | 1 << upper + 32
            if chars & both:
                chars |= both
    return _ALL ^ chars if is_not else chars
