"""Whole definition files: everything, or what belongs to one vhost."""

from __future__ import annotations

import json

from aiohttp import web

from mirrormq.http import answers
from mirrormq.http.answers import bad_request
from mirrormq.http.api import Call
from mirrormq.http.auth import ask
from mirrormq.meta.definitions import export
from mirrormq.node import requests


async def get_definitions(call: Call) -> web.Response:
    """GET definitions, and of one vhost."""
    call.need_administrator()
    vhost = call.request.match_info.get("vhost")
    if vhost is not None and vhost not in call.state.vhosts:
        raise bad_request("vhost_not_found")
    found = answers.response(export(call.state, vhost))
    if "download" in call.request.query:
        name = call.request.query["download"].replace('"', "")
        found.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return found


async def post_definitions(call: Call) -> web.Response:
    """POST definitions, and of one vhost: JSON, or a form with a file."""
    call.need_administrator()
    try:
        body = json.loads(await _text(call))
    except ValueError:
        raise bad_request("failed_to_parse_json") from None
    if not isinstance(body, dict):
        raise bad_request("failed_to_parse_json")
    vhost = call.request.match_info.get("vhost")
    answer = await ask(call.driver, requests.ImportDefinitions(definitions=body, vhost=vhost))
    if answer.problem is not None:
        # Whatever is missing is missing in the file: the resource itself was found.
        raise bad_request(answer.problem.text)
    return answers.no_content()


async def _text(call: Call) -> str:
    if call.request.content_type != "multipart/form-data":
        return await call.request.text()
    form = await call.request.post()
    found = form.get("file", "")
    if isinstance(found, web.FileField):
        return found.file.read().decode()
    return found if isinstance(found, str) else bytes(found).decode()


ROUTES = (
    ("GET", "definitions", get_definitions),
    ("POST", "definitions", post_definitions),
    ("PUT", "definitions", post_definitions),
    ("GET", "definitions/{vhost}", get_definitions),
    ("POST", "definitions/{vhost}", post_definitions),
    ("PUT", "definitions/{vhost}", post_definitions),
)
