"""What a shell may offer for a line of `mirrormq admin`: verbs, kinds, `name=` arguments and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mirrormq.ctl.admin import objects
from mirrormq.ctl.admin.help import TOPICS
from mirrormq.ctl.admin.options import FORMATS, parser

VERBS = ("list", "show", "declare", "delete", "close", "purge", "publish", "get", "export", "import", "help")
KINDS: dict[str, Mapping[str, objects.Listed | objects.Declared | objects.Deleted]] = {
    "list": objects.LISTS,
    "show": objects.SHOWS,
    "declare": objects.DECLARES,
    "delete": objects.DELETES,
    "close": objects.CLOSES,
    "purge": objects.PURGES,
}


def proposals(words: list[str], current: str) -> Sequence[str]:
    """What may stand at the end of these words."""
    valued = {
        text: action for action in parser()._actions if action.nargs != 0 for text in action.option_strings
    }
    if words and words[-1] in valued:
        return FORMATS if words[-1] in ("-f", "--format") else ()
    rest: list[str] = []
    is_value = False
    for word in words:
        if not is_value and not word.startswith("-"):
            rest.append(word)
        is_value = not is_value and word in valued
    if current.startswith("-"):
        return [text for action in parser()._actions for text in action.option_strings]
    return _after(rest) if rest else VERBS


def _after(rest: list[str]) -> Sequence[str]:
    verb = rest[0]
    if verb == "help":
        return TOPICS
    entry = {"publish": objects.PUBLISH, "get": objects.GET}.get(verb)
    if entry is None:
        kinds = KINDS.get(verb, {})
        if len(rest) == 1:
            return list(kinds)
        found = kinds.get(rest[1])
        if isinstance(found, objects.Listed):
            return found.columns
        if not isinstance(found, objects.Declared | objects.Deleted):
            return ()
        names = [*found.needs, *(found.takes)]
    else:
        names = [*entry.needs, *entry.takes]
    given = {word.partition("=")[0] for word in rest}
    return [f"{name}=" for name in names if name not in given]
