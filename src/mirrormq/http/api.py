"""The frame every resource stands in: one request with who asks, and the checks that lead to 401, 404 and
400.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from aiohttp import web

from mirrormq.base import limits
from mirrormq.http import answers, jsonbody
from mirrormq.http.answers import Fault, Row, bad_request, not_authorised, not_found
from mirrormq.http.auth import Identity, ask
from mirrormq.http.describe import UNKNOWN, Described, check_fields
from mirrormq.http.ports import Driver, Node, Process
from mirrormq.meta.patterns import PatternRefused, filter_pattern
from mirrormq.meta.state import MetaState
from mirrormq.node.requests import Request

DEFAULT_EXCHANGE = "amq.default"
"""The exchange without a name, in a path."""

MISSING = "X-MirrorMQ-Missing"
"""Header of an answer that lacks what some nodes have: JSON, [{"node", "reason"}]."""

NOT_JSON = "not_json"

_NAMES_AT_ONCE = 4
"""Names compared before the time is looked at."""

Record = TypeVar("Record")


class Call:
    """One authenticated request."""

    def __init__(
        self, request: web.Request, process: Process, who: Identity, facts: Described = UNKNOWN
    ) -> None:
        self.request = request
        self.process = process
        self.who = who
        self._facts = facts
        self._body: Row | None = None
        self.missing: dict[str, str] = {}
        """Nodes whose rows the answer lacks, and why."""

    @property
    def headers(self) -> dict[str, str]:
        """What the head of the answer says beside the usual."""
        if not self.missing:
            return {}
        shown = [{"node": node, "reason": self.missing[node]} for node in sorted(self.missing)]
        return {MISSING: answers.encoded(shown).decode("ascii", "replace")}

    @property
    def driver(self) -> Driver:
        """Runs the node. Without a running application there is none: 503."""
        return self.process.driver

    @property
    def node(self) -> Node:
        """The node."""
        return self.driver.node

    @property
    def state(self) -> MetaState:
        """The metadata."""
        return self.node.state

    def part(self, name: str) -> str:
        """A part of the path, unquoted."""
        return self.request.match_info[name]

    def exchange_part(self, name: str) -> str:
        """A part of the path that names an exchange."""
        found = self.part(name)
        return "" if found == DEFAULT_EXCHANGE else found

    def flag(self, name: str) -> bool:
        """A query parameter that is `true` or not."""
        return self.request.query.get(name) == "true"

    def number(self, name: str, default: int, most: int) -> int:
        """A query parameter that is a number from 1 to `most`, or 400."""
        found = answers.whole_number(self.request.query.get(name, default))
        if found is None or not 1 <= found <= most:
            raise bad_request(f"{name} must be a whole number from 1 to {most}")
        return found

    def optional_number(self, name: str) -> int | None:
        """A query parameter that is a number if it is there."""
        text = self.request.query.get(name)
        if text is None:
            return None
        found = answers.whole_number(text)
        if found is None or found < 0:
            raise bad_request(f"{name} must be a whole number")
        return found

    # --- who may ---

    def need_administrator(self) -> None:
        """401 unless an administrator asks."""
        if not self.who.is_administrator:
            raise not_authorised("Not administrator user")

    def need_monitor(self) -> None:
        """401 unless somebody who watches the node asks."""
        if not self.who.is_monitor:
            raise not_authorised("Not monitor user")

    def need_policymaker(self) -> None:
        """401 unless somebody who sets policies, in the vhost of the path if there is one, asks."""
        vhost = self.request.match_info.get("vhost")
        if not self.who.is_policymaker or (vhost in self.state.vhosts and not self.may_see_vhost(str(vhost))):
            raise not_authorised("User not authorised to access object")

    def need_vhost(self, missing: Fault | None = None) -> str:
        """The vhost of the path: 404 if it does not exist, 401 if it is none of the user's business."""
        name = self.part("vhost")
        if name not in self.state.vhosts:
            raise missing or not_found()
        if not self.may_see_vhost(name):
            raise not_authorised("User not authorised to access virtual host")
        return name

    def may_see_vhost(self, name: str) -> bool:
        """Whether the user administers the node or has any permission in a vhost."""
        return self.who.is_administrator or (self.who.name, name) in self.state.permissions

    def visible_vhosts(self) -> list[str]:
        """The vhosts lists are about, sorted."""
        return [name for name in sorted(self.state.vhosts) if self.may_see_vhost(name)]

    # --- the body ---

    async def body(self, most: int = limits.http_json_bytes_max) -> Row:
        """The JSON object sent; an empty body is an empty object. Longer ones are refused with 413."""
        if self._body is None:
            self._body = await self._taken(jsonbody.decoded, most)
        return self._body

    async def message_body(self) -> Row:
        """The same, with a payload that may be a `LongText`."""
        if self._body is None:
            self._body = await self._taken(jsonbody.decoded_message, limits.http_body_bytes_max)
        return self._body

    async def _taken(self, decode: Callable[[bytearray, str], Awaitable[Any]], most: int) -> Row:
        data = await jsonbody.received(self.request, most)
        found = {} if not data or data.isspace() else await decode(data, NOT_JSON)
        if not isinstance(found, dict):
            raise bad_request(NOT_JSON)
        if self._facts.body is not None:
            check_fields(self._facts.body, found)
        return found

    @property
    def known_body(self) -> Row | None:
        """The same, if it was read."""
        return self._body

    async def need_keys(self, *names: str) -> list[Any]:
        """The values of keys that must be there."""
        body = await self.body()
        missing = [name for name in names if name not in body]
        if missing:
            raise missing_keys(missing)
        return [body[name] for name in names]

    async def need_texts(self, *names: str) -> list[str]:
        """The values of keys that must be there and be texts."""
        found = await self.need_keys(*names)
        for name, value in zip(names, found, strict=True):
            if not isinstance(value, str):
                raise bad_request(f"{name} must be a text")
        return found

    async def boolean(self, name: str) -> bool:
        """A key that is true, false or absent."""
        value = (await self.body()).get(name, False)
        if value in ("true", "false"):
            return bool(value == "true")
        if not isinstance(value, bool):
            raise bad_request(["not_boolean", value])
        return value

    async def arguments(self) -> Row:
        """The declare arguments."""
        return object_of((await self.body()).get("arguments", {}), "arguments")

    # --- acting and answering ---

    async def ask(self, request: Request) -> Any:
        """Put a request to the node; what it refuses becomes an error status."""
        answer = await ask(self.driver, request)
        if answer.problem is not None:
            raise answers.of_problem(answer.problem)
        return answer.value

    async def listing(
        self,
        records: Iterable[Record],
        row: Callable[[Record], Row],
        *,
        name: Callable[[Record], str],
        order: Callable[[Record], Any] | None = None,
        prepare: Callable[[list[Record]], Awaitable[None]] | None = None,
        value_of: Callable[[str], Awaitable[Callable[[Record], Any] | None]] | None = None,
    ) -> web.StreamResponse:
        """A list with RabbitMQ's query parameters: name, sort, columns, page.

        Only the rows that are shown are built, unless their order depends on a value within them that
        `value_of` does not find without. `prepare` is told of which before `row` is called for them.
        """
        query = self.request.query
        pick = self._columns()
        found = await answers.collected(records)
        total = len(found)
        if "page" in query and query.get("name"):
            is_wanted, every = self._matcher(name)
            found = await answers.kept(found, is_wanted, every)
        page = self._page(len(found), total) if "page" in query else None
        most = None if page is None else page["page"] * page["page_size"]
        is_prepared = prepare is None
        column = query.get("sort")
        if column:
            quick = await value_of(column) if value_of is not None else None
            if quick is None and prepare is not None:
                await prepare(found)
                is_prepared = True
            # Only the value to sort by is kept of each row: rows are large, and 10,000 of them die slowly.
            keys = map(_ordered, map(quick or _value_at(column, row), found))
            pairs = await answers.sorted_slices(
                zip(keys, found, strict=True),
                lambda pair: pair[0],
                reverse=query.get("sort_reverse") == "true",
                most=most,
            )
            found = [record for _, record in pairs]
        elif order is not None:
            found = await answers.sorted_slices(found, order, reverse=False, most=most)
        if page is not None and most is not None:
            found = found[most - page["page_size"] : most]
        if prepare is not None and not is_prepared:
            await prepare(found)
        if page is None:
            return await self.rows(map(row, found), pick)
        page["items"] = await answers.collected(pick(row(record)) for record in found)
        return answers.response(dict(sorted(page.items())))

    async def rows(self, rows: Iterable[Row], shape: Callable[[Row], Any] = dict) -> web.StreamResponse:
        """A plain list."""
        return await answers.rows_response(self.request, rows, shape, self.headers)

    def _matcher(self, name: Callable[[Record], str]) -> tuple[Callable[[Record], object], int]:
        """Does a record's name have the text in it, or match the expression? And how many to try at once."""
        wanted = self.request.query["name"]
        if self.request.query.get("use_regex") == "true":
            try:
                pattern = filter_pattern(wanted)
            except PatternRefused as refusal:
                if refusal.is_understood:
                    raise bad_request(str(refusal)) from None
                return lambda _: False, _NAMES_AT_ONCE
            return lambda item: pattern.matches(name(item)), min(pattern.slice_names, _NAMES_AT_ONCE)
        lowered = wanted.lower()
        return lambda item: lowered in name(item).lower(), _NAMES_AT_ONCE

    def _page(self, count: int, total: int) -> Row:
        """The page that is asked for, without its items."""
        page = self._number("page", 1, 1 << 31)
        size = self._number("page_size", limits.http_page_size, limits.http_page_size_max)
        pages = max(1, -(-count // size))
        if page > pages:
            raise Fault(
                400, "page_out_of_range", f"Page out of range, page: {page} page size: {size}, len: {count}"
            )
        return {
            "filtered_count": count,
            "item_count": min(size, count - (page - 1) * size),
            "page": page,
            "page_count": pages,
            "page_size": size,
            "total_count": total,
        }

    def _number(self, name: str, default: int, most: int) -> int:
        found = answers.whole_number(self.request.query.get(name, default))
        if found is None or not 1 <= found <= most:
            raise bad_request("Pagination parameters are invalid")
        return found

    def _columns(self) -> Callable[[Row], Row]:
        wanted = self.request.query.get("columns")
        if not wanted:
            return dict
        paths = [path.split(".") for path in wanted.split(",")]

        def pick(row: Row) -> Row:
            found: Row = {}
            for path in paths:
                _copy(row, found, path)
            return found

        return pick


Handler = Callable[[Call], Awaitable[web.StreamResponse]]


def object_of(value: object, name: str) -> Row:
    """A value that must be an object; 400 says what it is if it is none."""
    if value == []:  # an empty table, as Erlang and some clients write it
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{name} must be an object")
    return value


def text_of(body: Row, name: str) -> str | None:
    """A key that is a text if it is there."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise bad_request(f"{name} must be a text")
    return value


def missing_keys(names: Iterable[str]) -> Fault:
    """400 for keys that must be there, in RabbitMQ's words."""
    return bad_request("[" + ",".join(f"{{key_missing,{name}}}" for name in names) + "]")


def _copy(source: Row, target: Row, path: list[str]) -> None:
    """Copy the value at a path, if there is one."""
    name = path[0]
    if name not in source:
        return
    if len(path) == 1:
        target[name] = source[name]
    elif isinstance(source[name], dict):
        _copy(source[name], target.setdefault(name, {}), path[1:])


def _value_at(column: str, row: Callable[[Record], Row]) -> Callable[[Record], Any]:
    """The value of a column in the row of a record."""
    path = column.split(".")

    def find(record: Record) -> Any:
        value: Any = row(record)
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    return find


def _ordered(value: Any) -> tuple[bool, str, Any]:
    """What to sort by: values of different kinds are kept apart, missing ones come first."""
    if isinstance(value, bool | int | float):
        return (True, "", value)
    return (value is not None, "text", "" if value is None else str(value))
