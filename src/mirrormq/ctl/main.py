"""Entry of `mirrormqctl` and `mirrormq ctl`: parse, run one command, exit with rabbitmqctl's code.

Usage errors come in rabbitmqctl's words with the command's usage below them; an unknown command suggests the
nearest one; every other failure is one sentence after "Error:" that names the cause and the cure.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

import mirrormq.ctl.commands  # noqa: F401  (fills the table)
from mirrormq.base.errors import FolderUnusable
from mirrormq.ctl.faults import OK, SOFTWARE, USAGE, Failure, Misuse
from mirrormq.ctl.options import split
from mirrormq.ctl.registry import COMMANDS, HELP, Command, command, session_of
from mirrormq.ctl.session import Offline, Session

# typer carries its own copy of click in newer versions: its usage error is found through the public name.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]

GENERAL = """\
-n, --node NODE          which node, if several run below the data folder
    --data DIR           the node's data folder, or the folder above (./data)
    --url URL            a node of another machine: http://host:15672
    --user NAME          log in as NAME (password: MIRRORMQ_PASSWORD, --password-file FILE or a prompt)
-p, --vhost VHOST        virtual host (/)
-t, --timeout SECONDS    how long to wait for an answer (60)
-q, --quiet              no informational messages
-s, --silent             no informational messages and no table headers
    --formatter FORMAT   table, pretty_table, json, csv or erlang;  --json is short for json
    --no-table-headers   tables without their first line"""


@command(HELP, "[<command>]", name="help")
def show_help(
    ctx: typer.Context, name: Annotated[str | None, typer.Argument(metavar="[COMMAND]")] = None
) -> None:
    """Show all commands, or how to use one."""
    session = session_of(ctx)
    if name is None:
        session.write(overview())
        return
    if name not in COMMANDS:
        raise Misuse(unknown(name))
    session.write(usage_of(name) + "\n\n" + (COMMANDS[name].function.__doc__ or "").strip())
    session.write("\nGeneral options\n\n" + GENERAL)


def main(
    argv: Sequence[str] | None = None,
    *,
    session: Session | None = None,
    offline: Callable[[], Offline] | None = None,
) -> int:
    """Run one command and return its exit code; `offline` gives the tools of commands that need no node."""
    words = list(sys.argv[1:] if argv is None else argv)
    name: str | None = None
    try:
        options, name, rest = split(words, {entry.name: entry.own for entry in COMMANDS.values()})
        session = session or Session(options)
        session.options = options
        session.offline_tools = offline or session.offline_tools
        return _run(session, name, rest)
    except Misuse as failure:
        return _misused(failure, name, words)
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


def _run(session: Session, name: str | None, rest: list[str]) -> int:
    if name is None:
        if rest and rest[0] == "--version":
            name, rest = "version", []
        elif not rest or rest[0] in ("--help", "-?", "-h"):
            name, rest = "help", []
        else:
            raise Misuse(f"Invalid options: {' '.join(rest)}")
    if name not in COMMANDS:
        raise Misuse(unknown(name))
    if rest and rest[0] in ("--help", "-?"):
        name, rest = "help", [name]
    try:
        result: Any = application(COMMANDS[name])(
            [name, *rest], standalone_mode=False, obj=session, prog_name="mirrormqctl"
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
    app.command(entry.name)(entry.function)

    @app.callback()
    def root() -> None:
        """Administer a MirrorMQ node."""

    return app


def usage_of(name: str) -> str:
    """One command's usage in rabbitmqctl's notation."""
    entry = COMMANDS[name]
    return f"Usage\n\nmirrormqctl [--node <node>] [--quiet] {name} {entry.usage}".rstrip()


def overview() -> str:
    """All commands by group."""
    lines = ["Usage", "", "mirrormqctl [general options] <command> [<command options>]", "", "Commands:"]
    groups: dict[str, list[str]] = {}
    for entry in sorted(COMMANDS.values(), key=lambda entry: entry.name):
        if not entry.is_hidden:
            groups.setdefault(entry.group, []).append(f"   {entry.name:<29} {entry.summary}")
    for group, entries in groups.items():
        lines += ["", f"{group}:", "", *entries]
    lines += ["", "General options:", "", GENERAL, "", "Use 'mirrormqctl help <command>' to learn more."]
    return "\n".join(lines)


def unknown(name: str) -> str:
    """The text for a command that does not exist."""
    near = difflib.get_close_matches(name, COMMANDS, n=1)
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
        return f"Invalid options for this command:\n{getattr(error, 'option_name', '')} : "
    return error.format_message() if isinstance(error, typer.BadParameter) else text


def _misused(failure: Misuse, name: str | None, words: list[str]) -> int:
    known = name is not None and name in COMMANDS
    if known:
        given = " ".join(words)
        text = f"Error (argument validation): {failure.text}\nArguments given:\n\t{given}\n\n"
        text += usage_of(str(name))
    else:
        text = f"Error: {failure.text}\n\nUse 'mirrormqctl help' to see all commands."
    sys.stderr.write(text + "\n")
    return USAGE


def _failed(failure: Failure, session: Session | None) -> int:
    if session is not None and session.options.formatter == "json":
        import json

        shown = {"result": "error", "message": failure.text}
        sys.stderr.write(json.dumps(shown, ensure_ascii=False) + "\n")
    else:
        sys.stderr.write(f"Error:\n{failure.text}\n")
    return failure.code or SOFTWARE


if __name__ == "__main__":
    sys.exit(main())
