"""What a shell may offer for the word being typed: commands, options, and names that exist on the node now.

Guarantees: silence and haste. Whatever goes wrong gives no proposals; a node is asked for at most
`ASK_SECONDS`, and only where a name is wanted.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mirrormq.ctl.faults import Failure
from mirrormq.ctl.options import _FLAGS, _VALUES, FORMATTERS, Options, split
from mirrormq.ctl.registry import CTL, PLUGINS, Command, Tool
from mirrormq.ctl.session import Session

ASK_SECONDS = 1.0
NAMES_MAX = 500
"""Most names that are offered: nobody reads more."""
SUBCOMMANDS = (
    *("admin", "completion", "ctl", "demo", "help", "pipeline", "plugins", "restore", "serve", "shims", "up"),
    "version",
)
SHELLS = ("bash", "fish", "zsh")
QUEUE, VHOST, USER, NODE, POLICY, EXCHANGE = "queue", "vhost", "user", "node", "policy", "exchange"
ARGUMENTS = {
    "queue": QUEUE,
    "queue_name": QUEUE,
    "vhost": VHOST,
    "username": USER,
    "user": USER,
    "node": NODE,
}
"""Arguments of commands whose values are names, by what they are called there."""
OPTIONS = {"--node": NODE, "-n": NODE, "--vhost": VHOST, "-p": VHOST, "--user": USER, "--queue": QUEUE}
WORDS: dict[str, tuple[str, ...]] = {
    "--formatter": FORMATTERS,
    "--apply-to": ("all", "exchanges", "queues"),
    "--format": ("json",),
    "--unit": ("bytes", "mb", "gb"),
    "--proxy-protocol": ("auto", "on", "off"),
    "--default-queue-type": ("classic", "quorum"),
}
LISTS: dict[str, tuple[str, str]] = {
    QUEUE: ("list_queues", "name"),
    VHOST: ("list_vhosts", "name"),
    USER: ("list_users", "user"),
    POLICY: ("list_policies", "name"),
    EXCHANGE: ("list_exchanges", "name"),
}
NAMED = {
    "clear_policy": POLICY,
    "delete_user": USER,
    "change_password": USER,
    "clear_password": USER,
    "authenticate_user": USER,
    "set_user_tags": USER,
    "promote_mirror": VHOST,
}
"""Commands whose first argument is called `name` or the like."""


def proposals(line: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """The word at the end of a command line, and what it may become."""
    words = parted(line)
    current = words.pop()
    try:
        found = _of_program(words, current, environment)
    except (Failure, OSError, ValueError, KeyError, TypeError, IndexError):
        found = []
    return current, sorted({word for word in found if word.startswith(current)})[:NAMES_MAX]


def parted(line: str) -> list[str]:
    """A line as words; the last one is being typed and may be empty, or a quotation without its end."""
    for ending in ("", "'", '"', "\\"):
        lexer = shlex.shlex(line + ending, posix=True, punctuation_chars=False)
        lexer.whitespace_split = True
        lexer.commenters = ""
        try:
            words = list(lexer)
        except ValueError:
            continue
        return [*words, ""] if not ending and line[-1:].isspace() else words or [""]
    return [""]


def _of_program(words: list[str], current: str, environment: Mapping[str, str]) -> Sequence[str]:
    program = words[0].rpartition("/")[2] if words else ""
    rest = words[1:]
    if program == "mirrormq":
        if not rest:
            return SUBCOMMANDS
        program, rest = rest[0], rest[1:]
    if program == "completion":
        return SHELLS if not rest else ()
    if program in ("admin", "rabbitmqadmin"):
        from mirrormq.ctl.admin.complete import proposals as of_admin

        return of_admin(rest, current)
    if program in ("plugins", "rabbitmq-plugins"):
        return _of_tool(PLUGINS, rest, current, environment)
    if program == "ctl" or program.startswith(("mirrormqctl", "rabbitmq")):
        return _of_tool(CTL, rest, current, environment)
    return ()


def _of_tool(tool: Tool, words: list[str], current: str, environment: Mapping[str, str]) -> Sequence[str]:
    import mirrormq.ctl.commands  # noqa: F401  (fills the tables)

    last = words[-1] if words else ""
    if last in WORDS:
        return WORDS[last]
    own = {entry.name: entry.own for entry in tool.commands.values()}
    if last in _VALUES:
        words = words[:-1]
    options, name, rest = split(words, own)
    names = Names(options, environment)
    if last in OPTIONS:
        return names.of(OPTIONS[last])
    if last in _VALUES:
        return ()
    entry = tool.commands.get(name or "")
    if current.startswith("-"):
        return [*_VALUES, *_FLAGS, *(_options(entry) if entry is not None else ())]
    if name is None:
        return [known for known, found in tool.commands.items() if not found.is_hidden]
    if name == "help":
        return list(tool.commands)
    return _argument(entry, rest, names) if entry is not None else ()


def _options(entry: Command) -> list[str]:
    return [option for parameter in _parameters(entry, "option") for option in parameter.opts]


def _parameters(entry: Command, kind: str) -> list[Any]:
    from mirrormq.ctl.main import parameters

    return [parameter for parameter in parameters(entry) if parameter.param_type_name == kind]


def _argument(entry: Command, rest: list[str], names: Names) -> Sequence[str]:
    """What an argument may be: a column, or a name of what the command's parameter is called after."""
    given = [word for word in rest if not word.startswith("-")]
    arguments = _parameters(entry, "argument")
    if not arguments:
        return ()
    at = min(len(given), len(arguments) - 1)
    if len(given) >= len(arguments) and arguments[-1].nargs != -1:
        return ()
    called = str(arguments[at].name)
    if called in ("column", "columns"):
        return _columns(entry.name)
    kind = ARGUMENTS.get(called) or (NAMED.get(entry.name) if at == 0 else None)
    return names.of(kind) if kind is not None else ()


def _columns(command: str) -> Sequence[str]:
    from mirrormq.ctl.commands import cursors, listings, vhosts

    known: dict[str, Sequence[str]] = {
        "list_queues": listings.QUEUES,
        "list_unresponsive_queues": listings.QUEUES,
        "list_exchanges": listings.EXCHANGES,
        "list_bindings": listings.BINDINGS,
        "list_connections": listings.CONNECTIONS,
        "list_channels": listings.CHANNELS,
        "list_consumers": listings.CONSUMERS,
        "list_vhosts": vhosts.COLUMNS,
        "list_cursors": cursors.COLUMNS,
    }
    return known.get(command, ())


class Names:
    """Names that exist now, asked of the node the line is about."""

    def __init__(self, options: Options, environment: Mapping[str, str]) -> None:
        self._options = replace(options, timeout=ASK_SECONDS, silent=True)
        self._environment = environment

    def of(self, kind: str) -> list[str]:
        """All names of a kind."""
        if kind == NODE:
            return self._nodes()
        command, column = LISTS[kind]
        given = {"vhost": self._options.vhost} if kind in (QUEUE, POLICY, EXCHANGE) else {}
        return [str(row[column]) for row in self._ask(lambda session: session.call(command, **given))]

    def _nodes(self) -> list[str]:
        """Nodes that run on this machine; if one can be asked, all of its cluster."""
        from mirrormq.ctl import locate

        here = locate.running(self._options.data, self._environment)
        if len(here) > 1:
            return here
        found = self._ask(lambda session: session.call("cluster_status")["disk_nodes"])
        return sorted({*here, *map(str, found)})

    def _ask(self, question: Callable[[Session], Any]) -> Any:
        # Without a terminal nobody is asked for a password.
        session = Session(
            self._options, out=io.StringIO(), stdin=io.StringIO(), environment=self._environment
        )
        try:
            return question(session)
        except Failure:
            return ()
        finally:
            session.close()
