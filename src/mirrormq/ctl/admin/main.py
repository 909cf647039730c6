"""Entry of `mirrormq admin`: one subcommand over the HTTP API, and rabbitmqadmin's exit codes.

0 done, 1 refused or not understood, 2 unknown options. Results go to stdout, reasons to stderr.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO
from urllib.parse import quote, urlencode

from mirrormq.client.admin import AdminClient, Refused, Unreachable
from mirrormq.ctl.admin import formats, objects
from mirrormq.ctl.admin import help as texts
from mirrormq.ctl.admin.faults import BAD_OPTION, FAILED, Misused, Refusal
from mirrormq.ctl.admin.objects import BOOLEAN, DESTINATION, JSON, NUMBER, VALUE, Declared, Deleted, Listed
from mirrormq.ctl.admin.options import Options, read
from mirrormq.ctl.admin.printed import reworded

Row = dict[str, Any]
PAYLOAD = ("payload", "payload_encoding")
HINT = "mirrormq admin --help for help"


def main(
    argv: Sequence[str] | None = None,
    *,
    out: TextIO | None = None,
    stdin: TextIO | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run one subcommand and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    environment = os.environ if environment is None else environment
    try:
        options, asked, rest = read(words, environment)
        admin = Admin(options, out or sys.stdout, stdin or sys.stdin)
        with admin:
            admin.run(asked, rest)
    except argparse.ArgumentError as error:
        sys.stderr.write(f"mirrormq admin: error: {error}\n{HINT}\n")
        return BAD_OPTION
    except Misused as error:
        sys.stderr.write(f"ERROR: {error}\n\n{HINT}\n")
        return FAILED
    except Refusal as error:
        sys.stderr.write(f"*** {error}\n")
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return 0


class Admin:
    """One run."""

    def __init__(self, options: Options, out: TextIO, stdin: TextIO) -> None:
        self.options = options
        self._out = out
        self._stdin = stdin
        self._opened: AdminClient | None = None
        self._verbs: dict[str, Callable[[list[str]], None]] = {
            "list": self._list,
            "show": self._show,
            "declare": self._declare,
            "delete": lambda words: self._remove("deleted", objects.DELETES, words),
            "close": lambda words: self._remove("closed", objects.CLOSES, words),
            "purge": lambda words: self._remove("purged", objects.PURGES, words),
            "publish": self._publish,
            "get": self._get,
            "export": self._export,
            "import": self._import,
            "help": self._help,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._opened is not None:
            self._opened.close()

    def run(self, asked: Mapping[str, Any], words: list[str]) -> None:
        """Do what the line says."""
        words, hint = reworded(words)
        if hint:
            sys.stderr.write(f"hint: {hint}\n")
        if asked.get("version"):
            from mirrormq import __version__

            self._write(f"mirrormq admin {__version__}")
        elif asked.get("bash_completion"):
            from mirrormq.ctl.completion import script

            self._write(script("bash"))
        elif asked.get("help") or not words:
            self._out.write(texts.general())
            if not asked.get("help"):
                raise Misused("a subcommand is missing")
        elif words[0] not in self._verbs:
            raise Misused(f"Action {words[0]} not understood" + _nearest(words[0], self._verbs))
        else:
            self._verbs[words[0]](words[1:])

    # --- looking ---

    def _list(self, words: list[str]) -> None:
        entry = _chosen("list", objects.LISTS, words)
        rows = self._rows(entry, words[1:])
        self._shown(rows, entry, words[1:])

    def _show(self, words: list[str]) -> None:
        entry = _chosen("show", objects.SHOWS, words)
        self._shown([self._ask("GET", entry.path)], entry, words[1:])

    def _rows(self, entry: Listed, columns: list[str]) -> list[Row]:
        options = self.options
        path: tuple[str, ...] = (entry.path,)
        is_chosen_here = bool(options.vhost and entry.vhost and not entry.scope)
        if options.vhost and entry.scope:
            path = (entry.path, options.vhost)
        query: dict[str, str] = {}
        wanted = columns or list(entry.columns)
        if wanted and not is_chosen_here:
            query["columns"] = ",".join(wanted)
        if options.sort:
            query["sort"] = options.sort
        if options.sort_reverse:
            query["sort_reverse"] = "true"
        rows: list[Row] = self._ask("GET", *path, query=query)
        if is_chosen_here:
            rows = [row for row in rows if row.get(entry.vhost) == options.vhost]
        return rows

    def _shown(self, rows: list[Row], entry: Listed, columns: list[str]) -> None:
        form = self.options.format
        if form in ("raw_json", "pretty_json"):
            self._write(formats.as_json(rows, form))
            return
        wanted = columns or list(entry.columns)
        found: Sequence[formats.Row]
        if wanted:
            found = formats.picked(rows, wanted)
        else:
            wanted, found = formats.columns_of(rows, depth=self.options.depth, whole=entry.whole)
        if not rows:
            self._say("No items")
        else:
            self._write(formats.LISTED[form](found, wanted))

    # --- changing ---

    def _declare(self, words: list[str]) -> None:
        entry = _chosen("declare", objects.DECLARES, words, "Type {} not recognised")
        given = self._arguments(entry, words[1:])
        body = {
            name: _typed(name, text, entry.kinds.get(name, ""))
            for name, text in given.items()
            if text is not None and f"{{{name}}}" not in entry.path and name != "vhost"
        }
        kind = body.pop("queue_type", None)
        if kind is not None:
            body["arguments"] = {**body.get("arguments", {}), "x-queue-type": kind}
        self._ask(entry.verb, *self._path(entry.path, given), body=body)
        self._say(f"{words[0]} declared")
        if words[0] == "binding" and set(given["routing_key"]) & {"*", "#"}:
            self._hint_at_wildcards(given)

    def _hint_at_wildcards(self, given: Mapping[str, Any]) -> None:
        """Only a topic exchange knows them."""
        source = self._ask("GET", "exchanges", given["vhost"], given["source"] or "amq.default")
        if source and source.get("type") == "direct":
            name, key = given["source"], given["routing_key"]
            sys.stderr.write(f"hint: {name} is a direct exchange: only the very key '{key}' matches there\n")

    def _remove(self, done: str, table: Mapping[str, Deleted], words: list[str]) -> None:
        entry = _chosen(done.removesuffix("d"), table, words, "Type {} not recognised")
        given = self._arguments(entry, words[1:])
        self._ask("DELETE", *self._path(entry.path, given))
        self._say(f"{words[0]} {done}")

    def _arguments(self, entry: Declared | Deleted, words: list[str]) -> dict[str, Any]:
        """`name=value` words, checked against what there is."""
        given: dict[str, Any] = dict(entry.takes)
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                raise Misused(f'Could not parse "{word}": it is not of the form name=value')
            if name not in (*entry.needs, *entry.takes, "vhost"):
                near = _nearest(name, (*entry.needs, *entry.takes))
                raise Misused(f'Argument "{name}" is not recognised{near}')
            given[name] = value
        for name in entry.needs:
            if name not in given:
                raise Misused(f'mandatory argument "{name}" is required')
        either = entry.either if isinstance(entry, Declared) else ()
        if either and all(given.get(name) is None for name in either):
            raise Misused(f'one of mandatory arguments "{list(either)}" is required')
        given.setdefault("vhost", self.options.declare_vhost or self.options.vhost or "/")
        return given

    def _path(self, parts: Sequence[str], given: Mapping[str, Any]) -> list[str]:
        found = []
        for part in parts:
            value = str(given[part[1:-1]]) if part.startswith("{") else part
            if part == "{destination_type}":
                if value not in DESTINATION:
                    raise Misused(f"destination_type is queue or exchange, not '{value}'")
                value = DESTINATION[value]
            elif part in ("{source}", "{exchange}") and not value:
                value = "amq.default"
            found.append(value)
        return found

    # --- messages ---

    def _publish(self, words: list[str]) -> None:
        entry = objects.PUBLISH
        given = self._arguments(entry, words)
        payload = given["payload"] if given["payload"] is not None else self._stdin.read()
        body = {
            "routing_key": given["routing_key"],
            "payload": payload,
            "payload_encoding": given["payload_encoding"],
            "properties": _typed("properties", given["properties"], JSON),
        }
        answer = self._ask("POST", *self._path(entry.path, given), body=body)
        routed = bool(answer and answer.get("routed"))
        self._say("Message published" if routed else "Message published but NOT routed")

    def _get(self, words: list[str]) -> None:
        entry = objects.GET
        given = self._arguments(entry, words)
        file = given.pop("payload_file")
        if file is not None and any(word.startswith("count=") for word in words):
            raise Misused("with payload_file one message is taken: count must not be set")
        body = {
            "count": _typed("count", given["count"], NUMBER),
            "ackmode": given["ackmode"],
            "encoding": given["encoding"],
        }
        rows: list[Row] = self._ask("POST", *self._path(entry.path, given), body=body)
        if file is not None and rows:
            self._save(file, rows[0])
            rows = [{name: value for name, value in rows[0].items() if name not in PAYLOAD}]
        self._shown(rows, Listed(""), [])

    def _save(self, file: str, row: Row) -> None:
        import base64

        payload = str(row.get("payload", ""))
        is_coded = row.get("payload_encoding") == "base64"
        _write_file(file, base64.b64decode(payload) if is_coded else payload.encode())

    # --- definitions ---

    def _export(self, words: list[str]) -> None:
        file = _one_file("export", words)
        found = self._ask("GET", "definitions", *self._scope())
        _write_file(file, json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode())
        self._say(f'Exported definitions for {self.options.host} to "{file}"')

    def _import(self, words: list[str]) -> None:
        file = _one_file("import", words)
        try:
            definitions = json.loads(Path(file).read_bytes())
        except OSError as error:
            raise Refusal(f"{file} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise Refusal(f"{file} is not JSON: {error}") from None
        self._ask("POST", "definitions", *self._scope(), body=definitions)
        self._say(f'Imported definitions from "{file}" to {self.options.host}; all of them are in force')

    def _scope(self) -> tuple[str, ...]:
        return (self.options.vhost,) if self.options.vhost else ()

    def _help(self, words: list[str]) -> None:
        topics = {"subcommands": texts.subcommands(), "config": texts.CONFIG_TEXT}
        if len(words) != 1 or words[0] not in topics:
            raise Misused("help topic must be one of: " + ", ".join(texts.TOPICS))
        self._out.write(topics[words[0]])

    # --- asking and answering ---

    def _ask(self, verb: str, *path: str, body: Any = None, query: Mapping[str, str] | None = None) -> Any:
        shown = "/api/" + "/".join(quote(part, safe="") for part in path)
        if query:
            shown += "?" + urlencode(query, safe=",")
        try:
            return self._client().request(verb, *path, body=body, query=query)
        except Unreachable as error:
            raise Refusal(f"Could not connect: {error}") from None
        except Refused as error:
            if error.status == 401:
                raise Refusal(f"Access refused: {shown} ({error.reason})") from None
            if error.status == 404:
                raise Refusal(f"Not found: {shown}") from None
            raise Refusal(error.reason) from None

    def _client(self) -> AdminClient:
        if self._opened is None:
            options = self.options
            try:
                self._opened = AdminClient(
                    options.url,
                    user=options.username,
                    password=options.password,
                    timeout=options.request_timeout,
                    context=options.context(),
                )
            except ValueError as error:
                raise Misused(str(error)) from None
        return self._opened

    def _say(self, text: str) -> None:
        """What happened, unless only results are wanted."""
        if not self.options.quiet:
            self._write(text)

    def _write(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()


def _chosen(verb: str, table: Mapping[str, Any], words: list[str], text: str = "") -> Any:
    if not words:
        raise Misused(f"{verb} what? There are: {', '.join(table)}")
    if words[0] not in table:
        said = text.format(words[0]) if text else f"Don't know how to {verb} {words[0]}"
        raise Misused(said + _nearest(words[0], table))
    return table[words[0]]


def _nearest(word: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _typed(name: str, value: Any, kind: str) -> Any:
    if not isinstance(value, str):
        return value
    if kind == BOOLEAN:
        if value.lower() not in ("true", "false"):
            raise Misused(f"{name} is true or false, not '{value}'")
        return value.lower() == "true"
    if kind == NUMBER:
        try:
            return int(value)
        except ValueError:
            raise Misused(f"{name} is a number, not '{value}'") from None
    if kind in (JSON, VALUE):
        try:
            return json.loads(value)
        except ValueError:
            if kind == VALUE:
                return value
            raise Misused(f"Could not parse JSON of {name}:\n  {value}") from None
    return value


def _one_file(verb: str, words: list[str]) -> str:
    if len(words) != 1:
        raise Misused(f"{verb} needs the name of one file")
    return words[0]


def _write_file(file: str, data: bytes) -> None:
    try:
        Path(file).write_bytes(data)
    except OSError as error:
        raise Refusal(f"{file} cannot be written: {error.strerror}") from None
