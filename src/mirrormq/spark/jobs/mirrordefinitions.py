"""What a mirror's definitions should be, by those of its source: pure functions of two definition files.

Guarantees
- A queue of the mirror names the queue of the source that it follows (`x-mirror-source`); if the source's
  queue is another one now, the mirror's is declared anew.
- Nothing is removed that the source still has, and nothing that was not asked for (`Choice`).
- Users, permissions, parameters, limits and operator policies belong to a cluster and are not mirrored; nor
  are policies that name nodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mirrormq.spark.offsets import Facts

SOURCE = "x-mirror-source"
SECTIONS = ("exchanges", "policies", "queues", "bindings")
"""In an order in which each finds what it needs."""

ROWS_MAX = 500
"""Definitions in one call, which has 1 MiB at most."""

Row = dict[str, Any]
Definitions = dict[str, list[Row]]


@dataclass(frozen=True)
class Choice:
    """Which queues are mirrored, by patterns for whole names."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    def takes(self, name: str) -> bool:
        """Is a queue of this name mirrored?"""
        if self.include and not any(re.fullmatch(pattern, name) for pattern in self.include):
            return False
        return not any(re.fullmatch(pattern, name) for pattern in self.exclude)


@dataclass
class Plan:
    """What is to be changed at the mirror."""

    remove: Definitions = field(default_factory=dict)
    add: Definitions = field(default_factory=dict)
    anew: list[str] = field(default_factory=list)
    """Queues that are declared anew, because those they follow were."""
    left_out: list[str] = field(default_factory=list)
    """Queues of the source that cannot be mirrored: they keep no log."""


def plan(
    source: Mapping[str, Any],
    target: Mapping[str, Any],
    known: Mapping[str, Facts],
    choice: Choice,
    *,
    removes: bool,
    diverged: Iterable[str] = (),
) -> Plan:
    """Bring the mirror's definitions to the source's. `known`: the source's queues that can be read;
    `diverged`: those whose history is another one although the queue is the same.
    """
    made = Plan()
    chosen = [row for row in source.get("queues", []) if choice.takes(row["name"])]
    made.left_out = sorted(row["name"] for row in chosen if row["name"] not in known)
    queues = {row["name"]: _following(row, known[row["name"]].id) for row in chosen if row["name"] in known}
    there = {row["name"]: row for row in target.get("queues", [])}
    broken = set(diverged)
    made.anew = sorted(
        name
        for name in queues
        if name in there and (name in broken or not _is_same(queues[name], there[name]))
    )
    wanted: Definitions = {
        "exchanges": list(source.get("exchanges", [])),
        "policies": [row for row in source.get("policies", []) if _is_portable(row)],
        "bindings": [row for row in source.get("bindings", []) if _leads_to(row, queues)],
    }
    for section, rows in wanted.items():
        _compare(made, section, rows, target.get(section, []), removes=removes)
    gone = {row["name"] for row in source.get("queues", [])}
    lost = [name for name in there if removes and name not in gone and choice.takes(name)]
    made.remove["queues"] = [there[name] for name in (*lost, *made.anew)]
    made.add["queues"] = [row for name, row in queues.items() if name not in there or name in made.anew]
    if made.anew:
        # Their bindings went with them.
        again = [row for row in wanted["bindings"] if row["destination"] in made.anew]
        made.add["bindings"] += [row for row in again if row not in made.add["bindings"]]
    return made


def _following(row: Row, queue_id: str) -> Row:
    return {**row, "arguments": {**row.get("arguments", {}), SOURCE: queue_id}}


def _is_same(wanted: Row, there: Row) -> bool:
    return str(there.get("arguments", {}).get(SOURCE)) == str(wanted["arguments"][SOURCE])


def _is_portable(policy: Row) -> bool:
    return bool(policy.get("definition", {}).get("ha-mode") != "nodes")


def _leads_to(binding: Row, queues: Mapping[str, Row]) -> bool:
    return binding["destination_type"] == "exchange" or binding["destination"] in queues


def _compare(made: Plan, section: str, wanted: Sequence[Row], there: Sequence[Row], *, removes: bool) -> None:
    keys = {_key(row): row for row in wanted}
    current = {_key(row) for row in there}
    made.add[section] = [row for key, row in keys.items() if key not in current]
    names = {_name(section, row) for row in wanted}
    # One that is different now makes room for the new one; a policy is simply overwritten.
    made.remove[section] = [
        row
        for row in there
        if _key(row) not in keys
        and (removes or _name(section, row) in names)
        and not (section == "policies" and _name(section, row) in names)
    ]


def _key(row: Row) -> str:
    return json.dumps({name: value for name, value in row.items() if name != "vhost"}, sort_keys=True)


def _name(section: str, row: Row) -> str:
    return _key(row) if section == "bindings" else str(row["name"])


def pieces(definitions: Definitions, *, is_reversed: bool = False) -> Iterator[Definitions]:
    """The same in calls of bounded size, in an order in which each finds what it needs."""
    for section in reversed(SECTIONS) if is_reversed else SECTIONS:
        rows = definitions.get(section, [])
        for at in range(0, len(rows), ROWS_MAX):
            yield {section: rows[at : at + ROWS_MAX]}
