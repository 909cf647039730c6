"""Addresses of clusters as users give them, taken apart; nothing of Spark is needed for that.

Guarantees
- An address with a password is refused: it would show in plans, in process lists and in the records of runs.
- What cannot be read is refused in a sentence that repeats nothing that could be a password.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

URL_VARIABLE = "MIRRORMQ_URL"
DEFAULT_URL = "amqp://guest@127.0.0.1:5672/"
PASSWORD_VARIABLE = "MIRRORMQ_PASSWORD"
PASSWORD_WAYS = f"the option password, the option passwordFile or the variable {PASSWORD_VARIABLE}"
PORTS = {"amqp": 5672, "amqps": 5671}


class UrlRefused(ValueError):
    """An address that cannot be."""


class Url(NamedTuple):
    """What an address says."""

    hosts: tuple[tuple[str, int], ...]
    vhost: str
    user: str
    is_tls: bool


def given_url(url: str | None) -> str | None:
    """The address that was given, or else the variable's; None if it is left to the default."""
    return url or os.environ.get(URL_VARIABLE) or None


def parsed(url: str) -> Url:
    """An address taken apart."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UrlRefused(
            "option 'url' cannot be read; it is amqp[s]://user@host:port,host:port/vhost"
        ) from None
    if parts.scheme not in PORTS:
        raise UrlRefused("option 'url' begins with amqp:// or amqps://")
    login, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    if colon:
        raise UrlRefused(f"a password in the option 'url' would be seen in plans: use {PASSWORD_WAYS}")
    if parts.query or parts.fragment:
        raise UrlRefused("option 'url' ends with the virtual host; everything else is an option of its own")
    return Url(
        hosts=tuple(_host(text, PORTS[parts.scheme]) for text in hosts.split(",")),
        vhost=unquote(parts.path[1:]) or "/",
        user=unquote(user) if at else "guest",
        is_tls=parts.scheme == "amqps",
    )


def in_vhost(url: str, vhost: str) -> str:
    """The same address, but of another virtual host."""
    return urlsplit(url)._replace(path=f"/{quote(vhost, safe='')}").geturl()


def _host(text: str, default_port: int) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:,@/]+))(?::(\d{1,5}))?", text.strip())
    if found is None or not 0 < int(found[3] or default_port) < 65_536:
        # Of `user:secret`, whose host was forgotten, only the user may be repeated.
        name = text if text.startswith("[") else text.partition(":")[0]
        raise UrlRefused(f"'{name}' in the option 'url' is no host:port")
    return found[1] or found[2], int(found[3] or default_port)
