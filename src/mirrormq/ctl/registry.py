"""The table of commands: files of `commands/` add theirs by `@command`, `main` builds the parser from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import typer

from mirrormq.ctl.faults import Misuse
from mirrormq.ctl.session import Session

Function = TypeVar("Function", bound=Callable[..., None])

NODES = "Nodes"
CLUSTER = "Cluster"
USERS = "Users"
ACCESS = "Access control"
MONITORING = "Monitoring, observability and health checks"
PARAMETERS = "Parameters"
POLICIES = "Policies"
VHOSTS = "Virtual hosts"
CONFIGURATION = "Configuration and environment"
DEFINITIONS = "Definitions"
OPERATIONS = "Operations"
QUEUES = "Queues"
STORAGE = "Data folder"
PLUGIN_MANAGEMENT = "Plugin Management"
FEATURES = "Feature flags"
HELP = "Help"


@dataclass(frozen=True)
class Command:
    """One command: its function, where it stands in the help, its usage in rabbitmqctl's notation."""

    name: str
    group: str
    usage: str
    function: Callable[..., None]
    own: frozenset[str]
    is_hidden: bool = False

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (self.function.__doc__ or "").strip().splitlines()[0]


@dataclass(frozen=True)
class Tool:
    """A set of commands under one name."""

    name: str
    """As users call it."""
    commands: dict[str, Command] = field(default_factory=dict)


CTL = Tool("mirrormqctl")
PLUGINS = Tool("mirrormq plugins")
COMMANDS = CTL.commands


def command(
    group: str,
    usage: str = "",
    *,
    name: str | None = None,
    own: Sequence[str] = (),
    is_hidden: bool = False,
    tool: Tool = CTL,
) -> Callable[[Function], Function]:
    """Add a function as a command; `own` lists general options that mean something else after its name."""

    def add(function: Function) -> Function:
        known = name or function.__name__
        assert known not in tool.commands, known
        tool.commands[known] = Command(known, group, usage, function, frozenset(own), is_hidden)
        return function

    return add


def session_of(ctx: typer.Context) -> Session:
    """The session of the running command."""
    found: Any = ctx.find_root().obj
    assert isinstance(found, Session), found
    return found


def columns_of(given: Sequence[str] | None, default: Sequence[str], known: Sequence[str]) -> list[str]:
    """The columns asked for, separated by blanks or commas; unknown ones are refused as rabbitmqctl does."""
    words = [word.strip() for item in given or () for word in item.split(",") if word.strip()]
    unknown = [word for word in words if word not in known]
    if unknown:
        raise Misuse(
            f"Info key(s) {','.join(unknown)} are not supported; there are {', '.join(sorted(known))}"
        )
    return words or list(default)
