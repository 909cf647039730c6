"""What `./run` shows when the node is ready: addresses, credentials, how to stop, and lines to paste."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mirrormq.runtime.localcluster import POLICY
from mirrormq.runtime.settings import Settings


def text(settings: Settings, amqp: list[str], http: str | None, invoked_as: str) -> str:
    """Return the banner."""
    url = _url(settings, amqp[0])
    rows = [
        ("AMQP", url),
        *(("", other) for other in amqp[1:]),
        ("Admin API", http or "off"),
        ("Log in", _credentials(settings)),
        ("Data", settings.data_dir),
        ("Stop", "Ctrl-C"),
    ]
    lines = [f"MirrorMQ node {settings.node_name} is running.", ""]
    lines += [f"  {name:<10} {value}" for name, value in rows]
    lines += ["", "To paste into another terminal: publish a message, then see it in its queue.", ""]
    where = settings.data_dir if Path(settings.data_dir) != Path("data") / settings.node_name else ""
    lines += [f"  {line}" for line in [publish_line(url), ctl_line(invoked_as, where)]]
    return "\n" + "\n".join(lines) + "\n\n"


def cluster_text(
    settings: Settings, announced: Sequence[Mapping[str, Any]], root: str, invoked_as: str
) -> str:
    """Return the banner of several nodes; `announced` is what each of them said when it was ready."""
    nodes = [(node["name"], _url(settings, node["amqp"][0]), node["http"] or "") for node in announced]
    widths = [max(len(node[column]) for node in nodes) for column in range(2)]
    last = announced[-1]
    lines = [f"MirrorMQ is running with {len(nodes)} nodes.", ""]
    lines += [f"  {name:<{widths[0]}}  {url:<{widths[1]}}  {http}".rstrip() for name, url, http in nodes]
    lines += ["", f"  Log in  {_credentials(settings)}", f"  Queues  {_mirrored(settings)}"]
    lines += [f"  Data    {root}", "  Stop    Ctrl-C", ""]
    if len(nodes) == 2:
        lines += ["Two nodes stand the loss of none: use three, or one.", ""]
    lines += [
        f"To paste into another terminal: publish a message, see it in its queue, kill {last['name']}.",
        "",
    ]
    elsewhere = root if Path(root) != Path("data") else ""
    first = nodes[0][0].partition("@")[0]
    lines += [f"  {publish_line(nodes[0][1])}", f"  {ctl_line(invoked_as, elsewhere, first)}"]
    return "\n" + "\n".join([*lines, f"  kill -9 {last['pid']}"]) + "\n\n"


def publish_line(url: str) -> str:
    """Return a command that declares a queue and publishes a message to it."""
    python = shlex.quote(_near(sys.executable))
    program = (
        f"import pika; c = pika.BlockingConnection(pika.URLParameters('{url}')); h = c.channel();"
        " h.queue_declare('hello', durable=True); h.basic_publish('', 'hello', b'first message'); c.close()"
    )
    return f'{python} -m pip install -q pika && {python} -c "{program}"'


def ctl_line(invoked_as: str, data: str, node: str = "") -> str:
    """Return a command that shows the queues; of one of several nodes, or of data elsewhere."""
    words = [
        *program(invoked_as),
        "ctl",
        *(["--data", data] if data else []),
        *(["-n", node] if node else []),
    ]
    return shlex.join([*words, "list_queues", "name", "messages"])


def program(invoked_as: str) -> list[str]:
    """Return the command without what it was told to do."""
    words = list(takewhile(lambda word: not word.startswith("-"), shlex.split(invoked_as)))
    return words[:-1] if words[-1] in {"serve", "up"} else words


def _url(settings: Settings, address: str) -> str:
    user = settings.default_user
    scheme, _, where = address.partition("://")
    return f"{scheme}://{quote(user.name)}:{_shown_password(settings)}@{where}/{quote(user.vhost, safe='')}"


def _credentials(settings: Settings) -> str:
    shown = _shown_password(settings)
    return f"user {settings.default_user.name}, password {shown} (unless changed since the first start)"


def _mirrored(settings: Settings) -> str:
    """Where new queues go, by the policies a new cluster begins with."""
    names = [policy.name for policy in settings.mirroring_policies]
    given = f"by the policies given ({', '.join(names)})" if names else f"on all nodes by the policy {POLICY}"
    return f"mirrored {given} (unless changed since the first start)"


def _shown_password(settings: Settings) -> str:
    """The password of the first start is shown only if the whole world knows it anyway."""
    return "guest" if settings.default_user.password == "guest" else "<default_pass>"


def _near(path: str) -> str:
    """Write a path below the current folder as such."""
    here = os.getcwd() + os.sep
    return path.removeprefix(here)
