"""Addresses that people and programs know from RabbitMQ beside the API: its help, the command line.

Guarantee: the pages are made of the routes, so every resource is on them; they hold no script, need no log-in
and tell nothing of the node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from html import escape
from typing import Any

from aiohttp import web

from mirrormq.http.web import HEADERS

RESOURCES, TOOLS = "/api/index.html", "/cli/index.html"
MOVED = {
    "/api": RESOURCES,
    "/api/": RESOURCES,
    "/stats": RESOURCES,
    "/doc/stats.html": RESOURCES,
    "/cli": TOOLS,
    "/cli/": TOOLS,
    "/mgmt": "/",
    "/mgmt/": "/",
}

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" type="image/svg+xml" href="../ui/icon.svg">
<link rel="stylesheet" href="../ui/style.css">
<link rel="stylesheet" href="../ui/parts.css">
</head>
<body><main><h1>{title}</h1>
{content}
</main></body>
</html>
"""

ABOUT = """<p>RabbitMQ's paths with RabbitMQ's fields, and below <code>/api/mirrormq/</code> what it has no
path for. Log in with a name and password (<code>Authorization: Basic</code>). Parts of a path are quoted: the
virtual host / is <code>%2F</code>. Lists take <code>page</code>, <code>page_size</code>, <code>name</code>,
<code>use_regex</code>, <code>sort</code>, <code>sort_reverse</code> and <code>columns</code>. Fields and
bodies are in <a href="openapi.json">openapi.json</a>.</p>"""

COMMANDS = """<p><code>mirrormq admin</code> has rabbitmqadmin's subcommands, options and formats:
<code>mirrormq admin --help</code>. It needs a user with one of the tags of the management API and works on
any machine with MirrorMQ installed. RabbitMQ's own rabbitmqadmin works with this node, too.</p>
<p><code>mirrormq ctl</code> has the commands of rabbitmqctl, rabbitmq-diagnostics and rabbitmq-queues.</p>
<p><code>mirrormq shims DIR</code> writes RabbitMQ's names for all of them into a directory. The one for
<a href="rabbitmqadmin">rabbitmqadmin</a> can be had from here.</p>"""

SCRIPT = """#!/bin/sh
# rabbitmqadmin's commands by MirrorMQ's own tool, which has to be installed on this machine.
exec mirrormq admin "$@"
"""

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(document: Callable[[], Awaitable[dict[str, Any]]]) -> list[tuple[str, Answer]]:
    """The addresses. `document` is the OpenAPI document of the API."""

    async def resources(_request: web.Request) -> web.Response:
        return _page("MirrorMQ HTTP API", ABOUT + _table(await document()))

    async def tools(_request: web.Request) -> web.Response:
        return _page("MirrorMQ on the command line", COMMANDS)

    async def script(_request: web.Request) -> web.Response:
        return web.Response(body=SCRIPT.encode(), headers=HEADERS, content_type="application/octet-stream")

    async def moved(request: web.Request) -> web.Response:
        return web.Response(status=301, headers={"Location": MOVED[request.path]})

    pages = [(RESOURCES, resources), (TOOLS, tools), ("/cli/rabbitmqadmin", script)]
    return [*pages, *((path, moved) for path in MOVED)]


def _page(title: str, content: str) -> web.Response:
    text = PAGE.format(title=title, content=content)
    return web.Response(text=text, headers=HEADERS, content_type="text/html")


def _table(document: dict[str, Any]) -> str:
    heads = "".join(f"<th>{name}</th>" for name in ("Verb", "Path", "Needs the tag", ""))
    rows = [
        f"<tr><td>{verb.upper()}</td><td><code>{escape(path)}</code></td>"
        f"<td>{_needed(facts)}</td><td>{escape(_said(facts['summary'], verb))}</td></tr>"
        for path, verbs in document["paths"].items()
        for verb, facts in verbs.items()
    ]
    return f"<table><thead><tr>{heads}</tr></thead><tbody>\n{chr(10).join(rows)}\n</tbody></table>"


def _said(summary: str, verb: str) -> str:
    """What a sentence tells beside the verb and the path it may begin with."""
    return summary.partition(": ")[2] if summary.startswith(verb.upper()) else summary


def _needed(facts: dict[str, Any]) -> str:
    """An empty list of ways to log in: none is needed."""
    return "none" if facts.get("security") == [] else escape(str(facts["x-needs-tag"]))
