"""The HTTP admin API in the node's own loop: RabbitMQ 3.10's paths, JSON and status codes, and our own.

`start` is cheap to import; what it imports (aiohttp) is not, so a node binds its AMQP listeners before it
calls it. Reading goes through `node.report`, changing through the node's admin input; lists are built in
slices, so that no request holds the loop. `routes/` has a file per kind of resource.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from mirrormq.http.ports import Facts, Process, WebSettings
    from mirrormq.http.server import Api, Secured


async def start(
    process: Process,
    listening: socket.socket,
    *,
    key: str,
    facts: Facts,
    secured: Secured | None = None,
    settings: WebSettings | None = None,
) -> Api:
    """Serve the API of a process and its node on a bound socket.

    `key` opens it as an administrator from the node's own machine; `facts` tells what the process knows.
    `secured` is another bound socket, with its TLS context.
    """
    from mirrormq.http.ports import WebSettings
    from mirrormq.http.server import Api

    api = Api(process, key, facts, settings or WebSettings())
    await api.serve(listening, secured)
    return api


async def start_exporter(process: Process, listening: socket.socket, *, facts: Facts) -> Api:
    """Serve metrics, and nothing else, on a bound socket."""
    from mirrormq.http.ports import WebSettings
    from mirrormq.http.server import Exporter

    exporter = Exporter(process, "", facts, WebSettings())
    await exporter.serve(listening)
    return exporter
