"""What `./run` shows when the node is ready: addresses, credentials, how to stop, and lines to paste."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from urllib.parse import quote

from mirrormq.runtime.settings import Settings


def text(settings: Settings, amqp: list[str], http: str | None, invoked_as: str) -> str:
    """Return the banner."""
    user = settings.default_user
    # The password of the first start is shown only if the whole world knows it anyway.
    secret = user.password if user.password == "guest" else "<default_pass>"
    scheme, _, where = amqp[0].partition("://")
    url = f"{scheme}://{quote(user.name)}:{secret}@{where}/{quote(user.vhost, safe='')}"
    rows = [
        ("AMQP", url),
        *(("", other) for other in amqp[1:]),
        ("Admin API", http or "off"),
        ("Log in", f"user {user.name}, password {secret} (unless changed since the first start)"),
        ("Data", settings.data_dir),
        ("Stop", "Ctrl-C"),
    ]
    lines = [f"MirrorMQ node {settings.node_name} is running.", ""]
    lines += [f"  {name:<10} {value}" for name, value in rows]
    lines += ["", "To paste into another terminal: publish a message, then see it in its queue.", ""]
    lines += [f"  {line}" for line in paste_lines(url, invoked_as, settings)]
    return "\n" + "\n".join(lines) + "\n\n"


def paste_lines(url: str, invoked_as: str, settings: Settings) -> list[str]:
    """Return commands that work as they stand."""
    python = shlex.quote(_near(sys.executable))
    publish = (
        f"import pika; c = pika.BlockingConnection(pika.URLParameters('{url}')); h = c.channel();"
        " h.queue_declare('hello', durable=True); h.basic_publish('', 'hello', b'first message'); c.close()"
    )
    ctl = [*shlex.split(invoked_as.removesuffix(" serve")), "ctl"]
    if Path(settings.data_dir) != Path("data") / settings.node_name:
        ctl += ["--data", settings.data_dir]
    return [
        f'{python} -m pip install -q pika && {python} -c "{publish}"',
        shlex.join([*ctl, "list_queues", "name", "messages"]),
    ]


def _near(path: str) -> str:
    """Write a path below the current folder as such."""
    here = os.getcwd() + os.sep
    return path.removeprefix(here)
