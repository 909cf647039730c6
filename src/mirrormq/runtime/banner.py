"""What `./run` shows when the node is ready: addresses, credentials, how to stop, and lines to paste."""

from __future__ import annotations

import shlex

from mirrormq.runtime.settings import Settings


def text(settings: Settings, amqp: list[str], http: str | None, invoked_as: str) -> str:
    """Return the banner."""
    user = settings.default_user
    first = amqp[0]
    scheme, _, where = first.partition("://")
    is_known = (user.name, user.password) == ("guest", "guest")
    secret = "guest" if is_known else "<default_pass>"
    rows = [
        ("AMQP", ", ".join(amqp)),
        ("Admin API", http or "off"),
        (
            "Log in",
            f"user {user.name}, password {secret}, vhost {user.vhost}  (as first made in this data folder)",
        ),
        ("Data", settings.data_dir),
        ("Stop", "Ctrl-C"),
    ]
    lines = ["", f"MirrorMQ node {settings.node_name} is running.", ""]
    lines += [f"  {name:<10} {value}" for name, value in rows]
    lines += ["", "Try it in another terminal:", ""]
    url = f"{scheme}://{user.name}:{secret}@{where}/{'%2F' if user.vhost == '/' else user.vhost}"
    lines += [f"  {line}" for line in paste_lines(url, http, invoked_as, settings)]
    return "\n".join(lines) + "\n\n"


def paste_lines(url: str, http: str | None, invoked_as: str, settings: Settings) -> list[str]:
    """Return commands that work as they stand."""
    ctl = f"{invoked_as} ctl" if invoked_as != "mirrormq serve" else "mirrormq ctl"
    data = f" --data {shlex.quote(settings.data_dir)}"
    return [f"{ctl}{data} list_queues", f"# {url} {http}"]
