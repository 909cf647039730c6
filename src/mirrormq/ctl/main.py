"""Entry of `mirrormqctl` and `mirrormq ctl`: parse, run one command, exit with rabbitmqctl's code.

Usage errors come in rabbitmqctl's words with the command's usage below them; an unknown command suggests the
nearest one; every other failure is one sentence after "Error:" that names the cause and the cure.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer

import mirrormq.ctl.commands  # noqa: F401  (fills the table)
from mirrormq.base.errors import FolderUnusable
from mirrormq.ctl.faults import OK, SOFTWARE, USAGE, Failure, Misuse
from mirrormq.ctl.options import split
from mirrormq.ctl.registry import CTL, HELP, PLUGINS, Command, Tool, command, session_of
from mirrormq.ctl.session import Offline, Session

# typer carries its own copy of click in newer versions: its usage error is found through the public name.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

GENERAL = """\
-n, --node NODE          which node, if several run below the data folder
    --data DIR           the node's data folder, or the folder above (./data)
    --url URL            a node of another machine: http://host:15672
    --user NAME          log in as NAME (password: MIRRORMQ_PASSWORD, --password-file FILE or a prompt)
    --cacert FILE        certificates of authorities for an https URL
-p, --vhost VHOST        virtual host (/)
-t, --timeout SECONDS    how long to wait for an answer (60)
-q, --quiet              no informational messages
-s, --silent             no informational messages and no table headers
    --formatter FORMAT   table, pretty_table, json, json_stream, csv or erlang;  --json is short for json
    --no-table-headers   tables without their first line
-l, --longnames          accepted, as are --erlang-cookie and --print-stacktrace: scripts pass them"""


def _add_help(tool: Tool) -> None:
    @command(HELP, "(<command> | [--list-commands])", name="help", tool=tool)
    def show_help(
        ctx: typer.Context,
        name: Annotated[str | None, typer.Argument(metavar="[COMMAND]")] = None,
        *,
        is_short: Annotated[bool, typer.Option("--list-commands", help="only the names")] = False,
    ) -> None:
        """Show all commands, or how to use one."""
        session = session_of(ctx)
        names = sorted(tool.commands)
        if name is not None:
            _describe(session, tool, name)
        elif session.is_json:
            session.write_json({known: tool.commands[known].summary for known in names})
        elif is_short:
            session.write("\n".join(names))
        else:
            session.write(overview(tool))


_add_help(CTL)
_add_help(PLUGINS)


def _describe(session: Session, tool: Tool, name: str) -> None:
    entry = tool.commands.get(name)
    if entry is None:
        raise Misuse(unknown(tool, name))
    about = (entry.function.__doc__ or "").strip()
    if session.is_json:
        session.write_json({"command": name, "usage": usage_of(tool, name), "description": about})
        return
    session.write(f"Usage\n\n{usage_of(tool, name)}\n\n{about}")
    options = option_lines(entry)
    if options:
        session.write("\nArguments and options\n\n" + "\n".join(options))
    session.write("\nGeneral options\n\n" + GENERAL)


def option_lines(entry: Command) -> list[str]:
    """A command's own options, one per line."""
    return [
        f"{', '.join(option.opts):<24} {option.help or ''}".rstrip()
        for option in parameters(entry)
        if option.param_type_name == "option" and "--help" not in option.opts
    ]


def parameters(entry: Command) -> list[Any]:
    """What a command takes, as its parser knows it."""
    group: Any = typer.main.get_command(application(entry))
    return list(group.commands[entry.name].params)


def main(
    argv: Sequence[str] | None = None,
    *,
    session: Session | None = None,
    offline: Callable[[], Offline] | None = None,
    tool: Tool = CTL,
) -> int:
    """Run one command and return its exit code; `offline` gives the tools of commands that need no node."""
    words = list(sys.argv[1:] if argv is None else argv)
    name: str | None = None
    try:
        options, name, rest = split(words, {entry.name: entry.own for entry in tool.commands.values()})
        session = session or Session(options)
        session.options = options
        session.offline_tools = offline or session.offline_tools
        return _run(session, tool, name, rest)
    except Misuse as failure:
        return _misused(failure, tool, name, words)
    except Failure as failure:
        return _failed(failure, session)
    except FolderUnusable as refusal:
        return _failed(Failure(refusal.text, refusal.code), session)
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return 130
    finally:
        if session is not None:
            session.close()


def _run(session: Session, tool: Tool, name: str | None, rest: list[str]) -> int:
    if name is None:
        if rest and rest[0] == "--version":
            name, rest = "version", []
        elif not rest or rest[0] in ("--help", "-?", "-h"):
            name, rest = "help", []
        else:
            raise Misuse(f"Invalid options: {' '.join(rest)}")
    if name not in tool.commands:
        raise Misuse(unknown(tool, name))
    if {"--help", "-?"}.intersection(rest[: rest.index("--")] if "--" in rest else rest):
        name, rest = "help", [name]
    try:
        result: Any = application(tool.commands[name])(
            [name, *rest], standalone_mode=False, obj=session, prog_name=tool.name
        )
    except UsageError as error:
        raise Misuse(_worded(error)) from error
    except typer.Abort:
        return 130
    session.out.flush()
    return result if isinstance(result, int) else OK


def application(entry: Command) -> typer.Typer:
    """The parser of one command; building those of all others would take longer than most commands."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=False)
    lenient = {"ignore_unknown_options": True} if entry.is_hidden else {}
    app.command(entry.name, context_settings=lenient)(entry.function)

    @app.callback()
    def root() -> None:
        """Administer a MirrorMQ node."""

    return app


def usage_of(tool: Tool, name: str) -> str:
    """One command's usage in rabbitmqctl's notation."""
    return f"{tool.name} [--node <node>] [--quiet] {name} {tool.commands[name].usage}".rstrip()


def overview(tool: Tool) -> str:
    """All commands by group."""
    lines = ["Usage", "", f"{tool.name} [general options] <command> [<command options>]", "", "Commands:"]
    groups: dict[str, list[str]] = {}
    for entry in sorted(tool.commands.values(), key=lambda entry: entry.name):
        if not entry.is_hidden:
            groups.setdefault(entry.group, []).append(f"   {entry.name:<29} {entry.summary}")
    for group, entries in groups.items():
        lines += ["", f"{group}:", "", *entries]
    answered = sorted(entry.name for entry in tool.commands.values() if entry.is_hidden)
    if answered:
        text = "Known from RabbitMQ and answered with one sentence: " + ", ".join(answered)
        lines += ["", textwrap.fill(text, 100, subsequent_indent="   ")]
    lines += ["", "General options:", "", GENERAL, "", f"Use '{tool.name} help <command>' to learn more."]
    return "\n".join(lines)


def unknown(tool: Tool, name: str) -> str:
    """The text for a command that does not exist."""
    near = difflib.get_close_matches(name, tool.commands, n=1)
    return f"Command '{name}' not found." + (f"\nDid you mean '{near[0]}'?" if near else "")


def _worded(error: Exception) -> str:
    """click's complaint in rabbitmqctl's words, where it has some."""
    kind = type(error).__name__
    text = str(getattr(error, "message", "") or error)
    if kind == "MissingParameter":
        return "not enough arguments."
    if text.startswith("Got unexpected extra argument"):
        return "too many arguments."
    if kind == "NoSuchOption":
        near = [str(option) for option in getattr(error, "possibilities", None) or ()]
        hint = f"\nDid you mean {' or '.join(near)}?" if near else ""
        return f"Invalid options for this command:\n{getattr(error, 'option_name', '')} : {hint}"
    return error.format_message() if isinstance(error, typer.BadParameter) else text


def _misused(failure: Misuse, tool: Tool, name: str | None, words: list[str]) -> int:
    if "--json" in words or "--formatter=json" in words or ("--formatter", "json") in pairwise(words):
        # The line may be too wrong to be split: what it asks for is looked up in its words.
        shown = {"result": "error", "message": failure.text.strip()}
        text = json.dumps(shown, ensure_ascii=False)
    elif name is not None and name in tool.commands:
        given = " ".join(words)
        text = f"Error (argument validation): {failure.text}\nArguments given:\n\t{given}\n\n"
        text += f"Usage\n\n{usage_of(tool, name)}"
    else:
        text = f"Error: {failure.text}\n\nUse '{tool.name} help' to see all commands."
    sys.stderr.write(text + "\n")
    return USAGE


def _failed(failure: Failure, session: Session | None) -> int:
    if session is not None and session.is_json:
        shown = {"result": "error", "message": failure.text}
        sys.stderr.write(json.dumps(shown, ensure_ascii=False) + "\n")
    else:
        sys.stderr.write(f"Error:\n{failure.text}\n")
    return failure.code or SOFTWARE


if __name__ == "__main__":
    sys.exit(main())
