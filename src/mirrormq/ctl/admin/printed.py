"""Forms of the command line that texts about mirrored queues print and `rabbitmqadmin` never had.

Each means what its reader hopes for, with a hint how it is written, or is refused by name with the cure.
"""

from __future__ import annotations

from mirrormq.ctl.admin.faults import Misused

MIRRORS = "mirrormq ctl set_policy ha '^NAME$' '{\"ha-mode\": \"all\"}'"
COPIES = (
    "named copies of a queue are not there yet: declare a queue of another name and bind it as the first one"
    f" is; to mirror a queue on other nodes: {MIRRORS}"
)


def reworded(words: list[str]) -> tuple[list[str], str]:
    """(The words as they are understood here, a hint or nothing)."""
    if words[:2] == ["declare", "overview"]:
        return ["show", *words[1:]], "nothing is declared by it: write 'show overview'"
    if words[:2] == ["bind", "exchange"]:
        return ["declare", "binding", *words[2:]], "write 'declare binding source=... destination=...'"
    if words[:2] == ["declare", "queue"]:
        return _without_mirrored(words)
    return words, ""


def _without_mirrored(words: list[str]) -> tuple[list[str], str]:
    names = {word.partition("=")[0] for word in words[2:]}
    if not names & {"mirrored", "copy_from"}:
        return words, ""
    if "mirrored=false" not in words or "copy_from" in names:
        raise Misused(f"mirrored and copy_from: {COPIES}")
    rest = [word for word in words if word != "mirrored=false"]
    return rest, f"whether a queue is mirrored is said by policies, so mirrored=false is left out: {MIRRORS}"
