"""rabbitmq-plugins: what RabbitMQ has as plugins is built in here or does not exist; nothing is switched."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from mirrormq.ctl.faults import USAGE, Failure, Misuse
from mirrormq.ctl.registry import HELP, MONITORING, PLUGIN_MANAGEMENT, PLUGINS, command, session_of

BUILT_IN = {
    "rabbitmq_auth_mechanism_ssl": "log-in by client certificate (EXTERNAL)",
    "rabbitmq_consistent_hash_exchange": "exchange type x-consistent-hash",
    "rabbitmq_event_exchange": "events of the cluster in amq.rabbitmq.event",
    "rabbitmq_management": "management API; management.enabled = false switches it off",
    "rabbitmq_management_agent": "part of the management API",
    "rabbitmq_prometheus": "metrics at /metrics of the management port",
}
"""RabbitMQ's names of what every node has."""

Names = Annotated[list[str] | None, typer.Argument(metavar="[PLUGIN]...")]
Offline = Annotated[bool, typer.Option("--offline", help="accepted: nothing is switched")]
Online = Annotated[bool, typer.Option("--online", help="accepted: nothing is switched")]
Everything = Annotated[bool, typer.Option("--all", help="all that exist")]


@command(
    PLUGIN_MANAGEMENT,
    "[pattern] [--verbose] [--minimal] [--enabled] [--implicitly-enabled]",
    name="list",
    tool=PLUGINS,
)
def list_plugins(
    ctx: typer.Context,
    pattern: Annotated[str, typer.Argument(metavar="[PATTERN]")] = "",
    *,
    is_verbose: Annotated[bool, typer.Option("--verbose", "-v", help="what each is")] = False,
    is_minimal: Annotated[bool, typer.Option("--minimal", "-m", help="only the names")] = False,
    _enabled: Annotated[bool, typer.Option("--enabled", "-e", help="all of them are")] = False,
    _implicitly: Annotated[bool, typer.Option("--implicitly-enabled", "-E", help="all of them are")] = False,
) -> None:
    """List what is built in, under the names RabbitMQ's plugins have."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise Misuse(f"the pattern is no regular expression: {error}.") from None
    from mirrormq import __version__

    session = session_of(ctx)
    names = [name for name in sorted(BUILT_IN) if wanted.search(name)]
    rows = [
        {"name": name, "enabled": "built_in", "version": __version__, "description": BUILT_IN[name]}
        for name in names
    ]
    if session.is_json:
        session.write_json({"format": "verbose" if is_verbose else "normal", "plugins": rows})
    elif is_minimal:
        session.write("\n".join(names))
    else:
        session.say("Built in, and always enabled:")
        session.table(rows, ("name", "version", "description") if is_verbose else ("name", "version"))


@command(PLUGIN_MANAGEMENT, "<plugin> [<plugin>...] | --all [--offline] [--online]", tool=PLUGINS)
def enable(
    ctx: typer.Context,
    plugins: Names = None,
    *,
    is_all: Everything = False,
    _offline: Offline = False,
    _online: Online = False,
) -> None:
    """Accept plugins that are built in; others do not exist."""
    names = _need(plugins, is_all)
    _known(names)
    session_of(ctx).write(f"Built in and always enabled: {', '.join(names)}. Nothing to be done.")


@command(PLUGIN_MANAGEMENT, "<plugin> [<plugin>...] [--offline] [--online]", name="set", tool=PLUGINS)
def set_plugins(
    ctx: typer.Context, plugins: Names = None, *, _offline: Offline = False, _online: Online = False
) -> None:
    """Accept a set of plugins that are built in; the others stay, because they are, too."""
    names = list(plugins or ())
    _known(names)
    session_of(ctx).write(f"Built in and always enabled: {', '.join(sorted(BUILT_IN))}. Nothing to be done.")


@command(PLUGIN_MANAGEMENT, "<plugin> [<plugin>...] | --all [--offline] [--online]", tool=PLUGINS)
def disable(
    ctx: typer.Context,
    plugins: Names = None,
    *,
    is_all: Everything = False,
    _offline: Offline = False,
    _online: Online = False,
) -> None:
    """Refuse to take away what is built in; what does not exist is not there anyway."""
    names = _need(plugins, is_all)
    fixed = [name for name in names if name in BUILT_IN]
    if fixed:
        raise Failure(f"{', '.join(fixed)}: built in, and cannot be taken away", USAGE)
    session_of(ctx).write(f"Not there: {', '.join(names)}. Nothing to be done.")


@command(MONITORING, "<plugin> [<plugin>...] [--offline] [--online]", tool=PLUGINS)
def is_enabled(
    ctx: typer.Context, plugins: Names = None, *, _offline: Offline = False, _online: Online = False
) -> None:
    """Check that all these are built in."""
    names = _need(plugins, False)
    missing = [name for name in names if name not in BUILT_IN]
    if missing:
        raise Failure(f"not enabled: {', '.join(missing)}")
    session_of(ctx).write(f"Enabled: {', '.join(names)}")


@command(MONITORING, "[--offline] [--online]", tool=PLUGINS)
def directories(ctx: typer.Context, *, _offline: Offline = False, _online: Online = False) -> None:
    """Say that there are none."""
    session_of(ctx).write("There are no plugin directories: everything is built in.")


@command(HELP, "[prefix]", name="autocomplete", tool=PLUGINS)
def complete(ctx: typer.Context, prefix: Annotated[str, typer.Argument(metavar="[PREFIX]")] = "") -> None:
    """List the commands that begin with some letters."""
    names = sorted(name for name in PLUGINS.commands if name.startswith(prefix))
    session_of(ctx).write("\n".join(names))


@command(HELP, name="version", tool=PLUGINS)
def show_version(ctx: typer.Context) -> None:
    """Show the version of this tool."""
    from mirrormq import __version__

    session_of(ctx).write(__version__)


def _need(given: list[str] | None, is_all: bool) -> list[str]:
    if bool(given) == is_all:
        raise Misuse("give either names of plugins or --all." if is_all else "not enough arguments.")
    return sorted(BUILT_IN) if is_all else list(given or ())


def _known(names: list[str]) -> None:
    missing = [name for name in names if name not in BUILT_IN]
    if missing:
        raise Failure(
            f"{', '.join(missing)}: no such plugin here; `mirrormq plugins list` shows what is built in",
            USAGE,
        )
