"""The options every command takes, wherever they stand (`-p v list_queues` and `list_queues -p v`).

rabbitmqctl accepts them before and after the command; click would bind each place to another parser. They are
split off here first; what a command declares itself wins after the command's name. `--` ends all options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirrormq.ctl.faults import Misuse

FORMATTERS = ("table", "pretty_table", "json", "json_stream", "csv", "erlang")
_OTHER_NAMES = {"prettytable": "pretty_table", "jsonstream": "json_stream"}

_VALUES: dict[str, str] = {
    "-n": "node",
    "--node": "node",
    "-p": "vhost",
    "--vhost": "vhost",
    "-t": "timeout",
    "--timeout": "timeout",
    "--formatter": "formatter",
    "--data": "data",
    "--url": "url",
    "--user": "user",
    "--password-file": "password_file",
    "--cacert": "cafile",
    # Erlang's: accepted, because scripts pass it, and without meaning here.
    "--erlang-cookie": "cookie",
}
_FLAGS: dict[str, tuple[str, object]] = {
    "-q": ("quiet", True),
    "--quiet": ("quiet", True),
    "-s": ("silent", True),
    "--silent": ("silent", True),
    "--json": ("formatter", "json"),
    "--no-table-headers": ("headers", False),
    "--table-headers": ("headers", True),
    # Erlang's node name forms: accepted, because scripts pass them, and without meaning here.
    "-l": ("ignored", True),
    "--longnames": ("ignored", True),
    "--print-stacktrace": ("ignored", True),
}


@dataclass(frozen=True)
class Options:
    """What was asked for beside the command itself."""

    node: str | None = None
    vhost: str = "/"
    timeout: float | None = None
    formatter: str | None = None
    data: str | None = None
    url: str | None = None
    user: str | None = None
    password_file: str | None = None
    cafile: str | None = None
    cookie: str | None = field(default=None, repr=False)
    quiet: bool = False
    silent: bool = False
    headers: bool = True
    ignored: bool = False
    given: tuple[str, ...] = field(default=(), repr=False)


def split(
    words: Sequence[str], own: Mapping[str, frozenset[str]] | None = None
) -> tuple[Options, str | None, list[str]]:
    """Return the options, the command's name and the words left for it; `own` lists options commands keep."""
    found: dict[str, object] = {}
    command: str | None = None
    rest: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--":
            rest += words[at - 1 :]
            break
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        kept = own is not None and command is not None and name in own.get(command, frozenset())
        if name in _VALUES and not kept:
            if not equals:
                if at == len(words):
                    raise Misuse(f"{name} needs a value.")
                value = words[at]
                at += 1
            found[_VALUES[name]] = _checked(name, value)
        elif word in _FLAGS and not kept:
            key, constant = _FLAGS[word]
            found[key] = constant
        elif command is None and not word.startswith("-"):
            command = word
        else:
            rest.append(word)
    return replace(Options(), given=tuple(words), **found), command, rest  # type: ignore[arg-type]


def _checked(name: str, value: str) -> object:
    if name in ("-t", "--timeout"):
        if value == "infinity":
            return None
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < 1e9:
            raise Misuse(f"Invalid options for this command:\n{name} : {value}")
        return seconds
    value = _OTHER_NAMES.get(value, value) if name == "--formatter" else value
    if name == "--formatter" and value not in FORMATTERS:
        raise Misuse(f"Formatter '{value}' is not known; there are {', '.join(FORMATTERS)}.")
    return value
