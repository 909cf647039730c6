"""Whole definition files: everything, or what belongs to one vhost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from mirrormq.base import limits
from mirrormq.http import answers, jsonbody
from mirrormq.http.answers import bad_request
from mirrormq.http.api import Call
from mirrormq.http.auth import ask
from mirrormq.http.describe import described
from mirrormq.http.routes.access import NO_VHOST
from mirrormq.meta.definitions import sections
from mirrormq.meta.state import MetaState
from mirrormq.node import requests

NO_FILE = "failed_to_parse_json"
_UNSAFE = frozenset('"\\')


@described(answer=dict[str, Any], query=("download",), needs="administrator")
async def get_definitions(call: Call) -> web.StreamResponse:
    """GET definitions, and of one vhost."""
    call.need_administrator()
    vhost = call.request.match_info.get("vhost")
    if vhost is not None and vhost not in call.state.vhosts:
        raise bad_request("vhost_not_found")
    headers = {}
    if "download" in call.request.query:
        wanted = call.request.query["download"]
        name = "".join(char for char in wanted if " " <= char <= "~" and char not in _UNSAFE)
        headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return await answers.pieces_response(call.request, exported(call.state, vhost), headers)


def exported(state: MetaState, vhost: str | None) -> Iterator[bytes]:
    """A definition file in pieces: one of 10,000 queues must not hold the loop."""
    yield b"{"
    for number, (name, found) in enumerate(sections(state, vhost)):
        yield (b"," if number else b"") + answers.encoded(name) + b":"
        if isinstance(found, str):
            yield answers.encoded(found)
        else:
            yield from answers.array(map(answers.encoded, found))
    yield b"}"


@described(statuses=(204,), query=("auth", "redirect"), needs="administrator")
async def post_definitions(call: Call) -> web.Response:
    """POST definitions, and of one vhost: JSON, or a form with a file."""
    call.need_administrator()
    vhost = call.request.match_info.get("vhost")
    if vhost is not None and vhost not in call.state.vhosts:
        raise NO_VHOST
    body = await _decoded(await _file(call))
    answer = await ask(call.driver, requests.ImportDefinitions(definitions=body, vhost=vhost))
    if answer.problem is not None:
        # Whatever is missing is missing in the file: the resource itself was found.
        raise bad_request(answer.problem.text)
    return answers.no_content()


async def _decoded(data: bytes | bytearray) -> dict[str, Any]:
    found = await jsonbody.decoded(data, NO_FILE)
    if not isinstance(found, dict):
        raise bad_request(NO_FILE)
    return found


async def _file(call: Call) -> bytes | bytearray:
    if call.request.content_type != "multipart/form-data":
        return await jsonbody.received(call.request, limits.http_body_bytes_max)
    form = await call.request.post()
    found = form.get("file", "")
    if isinstance(found, web.FileField):
        return found.file.read()
    return found.encode() if isinstance(found, str) else bytes(found)


ROUTES = (
    ("GET", "all-configuration", get_definitions),
    ("POST", "all-configuration", post_definitions),
    ("GET", "definitions", get_definitions),
    ("POST", "definitions", post_definitions),
    ("PUT", "definitions", post_definitions),
    ("GET", "definitions/{vhost}", get_definitions),
    ("POST", "definitions/{vhost}", post_definitions),
    ("PUT", "definitions/{vhost}", post_definitions),
)
