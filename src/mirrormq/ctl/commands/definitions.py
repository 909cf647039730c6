"""Definition files: everything but messages, in RabbitMQ's JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from mirrormq.ctl.faults import CANNOT_CREATE, DATA, Failure, Misuse
from mirrormq.ctl.progress import bars
from mirrormq.ctl.registry import DEFINITIONS, command, session_of
from mirrormq.ctl.session import Session

ORDER = (
    "vhosts",
    "users",
    "permissions",
    "topic_permissions",
    "parameters",
    "global_parameters",
    "policies",
    "exchanges",
    "queues",
    "bindings",
)
PIECE = 1_000
"""Objects sent at once."""

Format = Annotated[str, typer.Option("--format", help="json; Erlang's own format is not written or read")]


@command(DEFINITIONS, '<file_path | "-"> [--format <json>]')
def export_definitions(ctx: typer.Context, file_path: str, file_format: Format = "json") -> None:
    """Write all definitions to a file, or with - to stdout."""
    _check_format(file_format)
    session = session_of(ctx)
    if file_path == "-":
        session.write_json(session.call("export_definitions"))
        return
    target = Path(file_path)
    if not target.parent.is_dir():
        raise Failure(f"Directory {target.parent} does not exist", DATA)
    session.say(f'Exporting definitions in JSON to a file at "{file_path}" ...')
    found = session.call("export_definitions")
    try:
        target.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise Failure(f"{file_path} cannot be written: {error.strerror}", CANNOT_CREATE) from error
    session.finish()


@command(DEFINITIONS, '<file_path | "-"> [--format json] [--skip-if-unchanged]')
def import_definitions(
    ctx: typer.Context,
    file_path: Annotated[str | None, typer.Argument()] = None,
    *,
    file_format: Format = "json",
    _skip_if_unchanged: Annotated[
        bool, typer.Option("--skip-if-unchanged", help="accepted: what is there already is not changed")
    ] = False,
) -> None:
    """Read definitions from a file, or from stdin; when the command returns, all of them are in force."""
    _check_format(file_format)
    session = session_of(ctx)
    where = "standard input" if file_path in (None, "-") else f'a file at "{file_path}"'
    text = _read(session, file_path)
    session.say(f"Importing definitions in JSON from {where} ...")
    try:
        definitions: Any = json.loads(text)
    except ValueError as error:
        raise Failure(f"Failed to deserialise input (format: JSON) (error: {error})", DATA) from error
    if not isinstance(definitions, dict):
        raise Failure("Failed to deserialise input (format: JSON) (error: it is not an object)", DATA)
    with bars(session) as show:
        parts = pieces(definitions)
        for number, part in enumerate(parts):
            session.call("import_definitions", definitions=part)
            if len(parts) > 1:
                show("Imported", number + 1, len(parts))
    session.finish("Successfully imported the definitions.")


def pieces(definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """A large file in pieces, in the order in which one thing needs another; a small one as it is.

    The node answers each piece when it is in force, which is what makes a bar move.
    """
    lists = [name for name in ORDER if isinstance(definitions.get(name), list)]
    if sum(len(definitions[name]) for name in lists) <= PIECE:
        return [definitions]
    found = [{name: value for name, value in definitions.items() if name not in lists}]
    for name in lists:
        rows = definitions[name]
        found += [{name: rows[at : at + PIECE]} for at in range(0, len(rows), PIECE)]
    return found


def _check_format(file_format: str) -> None:
    if file_format.lower() != "json":
        raise Misuse(f"--format {file_format} is Erlang's own; only json is written and read.")


def _read(session: Session, file_path: str | None) -> str:
    if file_path is None or file_path == "-":
        if session.stdin.isatty():
            raise Misuse("give a file, or the definitions on stdin.")
        return session.stdin.read()
    try:
        return Path(file_path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Failure(f"File {file_path} does not exist", DATA) from None
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"File {file_path} cannot be read: {error}", DATA) from error
