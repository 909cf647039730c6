"""`consume_event_stream`: what happens in the cluster, one JSON object per line, as it happens.

It listens to the exchange `amq.rabbitmq.event` with a queue of its own: nobody misses anything by it.
"""

from __future__ import annotations

import json
import re
import ssl
from time import monotonic
from typing import Annotated
from urllib.parse import urlsplit

import typer

from mirrormq.client.amqp import AmqpClient, Delivered, Gone
from mirrormq.ctl.commands.diagnostics import need_listener
from mirrormq.ctl.faults import Failure, Misuse
from mirrormq.ctl.registry import MONITORING, command, session_of
from mirrormq.ctl.session import Session

EXCHANGE = "amq.rabbitmq.event"
LOOK_SECONDS = 0.5
ANY_HOST = {"::": "127.0.0.1", "0.0.0.0": "127.0.0.1"}


@command(MONITORING, "[--duration|-d <seconds>] [--pattern <pattern>]")
def consume_event_stream(
    ctx: typer.Context,
    *,
    duration: Annotated[
        float | None, typer.Option("--duration", "-d", help="stop after so many seconds", min=0)
    ] = None,
    pattern: Annotated[str, typer.Option("--pattern", help="only events whose name matches")] = "",
) -> None:
    """Show the events of the cluster as they happen, until Ctrl-C. It needs a user: guest, or --user."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise Misuse(f"--pattern: {error}.") from None
    session = session_of(ctx)
    with _client(session) as client:
        client.subscribe(EXCHANGE, "#")
        until = None if duration is None else monotonic() + duration
        try:
            while until is None or monotonic() < until:
                if client.has_more(LOOK_SECONDS if until is None else min(LOOK_SECONDS, duration or 0)):
                    event = client.next_event()
                    if isinstance(event, Delivered) and wanted.search(event.routing_key):
                        _show(session, event)
        except (Gone, TimeoutError) as error:
            raise Failure(f"the stream ended: {error}") from None


def _show(session: Session, event: Delivered) -> None:
    shown = {"event": event.routing_key, **event.headers}
    session.write(json.dumps(shown, ensure_ascii=False, default=str, separators=(",", ":")))
    session.out.flush()


def _client(session: Session) -> AmqpClient:
    entry = need_listener(session, "amqp", "amqp/ssl")
    host = entry["interface"].strip("[]")
    if session.url is not None:
        host = urlsplit(session.url if "//" in session.url else f"http://{session.url}").hostname or host
    context = None
    if entry["protocol"] == "amqp/ssl":
        context = ssl.create_default_context(cafile=session.options.cafile)
    user, password = session.amqp_login()
    try:
        return AmqpClient(
            ANY_HOST.get(host, host),
            entry["port"],
            user=user,
            password=password,
            tls=context,
            timeout=session.timeout,
        )
    except (OSError, Gone) as error:
        raise Failure(
            f"user {user} cannot listen to node {session.node_name} by AMQP: {error}; give one with --user"
        ) from None
