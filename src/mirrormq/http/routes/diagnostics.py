"""What only the machine and the process of a node can tell, for rabbitmq-diagnostics' commands.

Guarantees: secrets in the environment and on the command line are hidden; files are read on a thread, and of
a log no more than `limits.log_tail_bytes_max`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import socket
import ssl
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, cast

from mirrormq.base import limits
from mirrormq.http.answers import Row, whole_number
from mirrormq.http.api import Call
from mirrormq.http.routes.nodes import About
from mirrormq.kernel.store import Worklist
from mirrormq.node.steps import Refusal

HIDDEN = "[hidden]"
SET = re.compile(r"((?:pass|secret|token|key|cookie|credential)[\w.-]*=).+", re.IGNORECASE | re.DOTALL)
IN_URL = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]*)@")
PREFIXES = ("MIRRORMQ_", "RABBITMQ_")
SIOCGIFADDR = 0x8915
CONSOLE = "<stderr>"
NO_FILE = "this node writes its log to standard error; set log.file to have one that can be read from here"


class Holder(Protocol):
    """A node, as it holds messages."""

    work: Worklist
    """Queues to visit; it knows what their messages occupy."""


Command = Callable[[Call, Row], Awaitable[Any]]


def commands(about: About) -> dict[str, Command]:
    """The commands by name."""

    async def log_tail(call: Call, given: Row) -> Row:
        files = [name for name in about.status(call.process)["log_files"] if name != CONSOLE]
        if not files:
            raise Refusal("unsupported", NO_FILE)
        offset = None if given.get("offset") is None else _count(given, "offset", 0)
        return await asyncio.to_thread(_tail, Path(files[0]), _count(given, "lines", 50), offset)

    async def certificates(_call: Call, _given: Row) -> list[Row]:
        settings = about.settings()
        wanted = [(option, settings.get(f"ssl_options.{option}")) for option in ("certfile", "cacertfile")]
        return await asyncio.to_thread(_certificates, [(what, path) for what, path in wanted if path])

    return {
        "log_tail": log_tail,
        "certificates": certificates,
        "command_line_arguments": _command_line,
        "os_env": _environment,
        "list_network_interfaces": _interfaces,
        "memory_breakdown": _memory,
        "tls": _tls,
        "resolve_hostname": _resolve,
    }


def _count(given: Row, name: str, default: int) -> int:
    found = whole_number(given.get(name, default))
    if found is None or found < 0:
        raise Refusal("bad_request", f"{name} must be a whole number")
    return found


async def _command_line(_call: Call, _given: Row) -> list[str]:
    return [without_secret(word) for word in sys.orig_argv]


def without_secret(word: str) -> str:
    """A word without the value of a secret setting, and without the password in an address."""
    return IN_URL.sub(rf"\1:{HIDDEN}@", SET.sub(rf"\1{HIDDEN}", word))


async def _environment(_call: Call, _given: Row) -> list[Row]:
    return [
        {"name": name, "value": without_secret(f"{name}={value}").partition("=")[2]}
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIXES)
    ]


async def _tls(_call: Call, _given: Row) -> Row:
    known = [name for name in ("TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3") if getattr(ssl, f"HAS_{name}")]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    default = [entry["name"] for entry in context.get_ciphers()]
    context.set_ciphers("ALL:COMPLEMENTOFALL")
    return {
        "versions": [name.lower().replace("_", ".") for name in reversed(known)],
        "default": default,
        "all": [entry["name"] for entry in context.get_ciphers()],
        "library": ssl.OPENSSL_VERSION,
    }


async def _resolve(_call: Call, given: Row) -> list[str]:
    families = {"ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}
    family = families.get(str(given.get("family") or ""), socket.AF_UNSPEC)
    name = str(given.get("name", ""))
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            name, None, family=family, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as error:
        raise Refusal("not_found", f"{name} has no address: {getattr(error, 'strerror', error)}") from None
    return sorted({str(entry[4][0]) for entry in found})


async def _memory(call: Call, _given: Row) -> Row:
    """Resident bytes of the process by what is known of them; `other` is the rest."""
    total = call.node.memory_used
    mapped = 0
    for line in await asyncio.to_thread(_lines, Path("/proc/self/status")):
        if line.startswith(("RssFile:", "RssShmem:")):
            mapped += int(line.split()[1]) * 1024
    messages = cast(Holder, call.node).work.resident
    return {
        "messages": messages,
        "code_and_mapped_files": mapped,
        "other": max(0, total - messages - mapped),
        "total": total,
        "limit": call.node.settings.memory_limit,
    }


async def _interfaces(_call: Call, _given: Row) -> list[Row]:
    return await asyncio.to_thread(lambda: list(_addresses()))


def _addresses() -> Iterator[Row]:
    """Interfaces with their addresses, as Linux tells them."""
    sixes: dict[str, list[str]] = {}
    for line in _lines(Path("/proc/net/if_inet6")):
        raw, *_, name = line.split()
        sixes.setdefault(name, []).append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            found = []
            try:
                asked = struct.pack("256s", name.encode()[:15])
                found = [socket.inet_ntoa(fcntl.ioctl(probe.fileno(), SIOCGIFADDR, asked)[20:24])]
            except OSError:
                pass  # it has no address of version 4
            yield {"interface": name, "addresses": found + sixes.get(name, [])}


def _certificates(files: list[tuple[str, str]]) -> list[Row]:
    rows: list[Row] = []
    for what, path in files:
        try:
            text = Path(path).read_text(encoding="ascii", errors="replace")
        except OSError as error:
            raise Refusal("not_found", f"{path} cannot be read: {error.strerror}") from None
        mark = "-----BEGIN CERTIFICATE-----"
        for piece in text.split(mark)[1:]:
            pem = mark + piece.partition("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
            rows.append({"setting": f"ssl_options.{what}", "file": path, "pem": pem})
    return rows


def _tail(path: Path, lines: int, offset: int | None) -> Row:
    """The last lines of a file, or what came after an offset; and the offset to go on from."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            # A smaller file than last time is another one: the log was rotated.
            start = offset if offset is not None and offset <= end else 0
            start = max(start, end - limits.log_tail_bytes_max)
            file.seek(start)
            data = file.read(end - start)
    except OSError as error:
        raise Refusal("not_found", f"{path} cannot be read: {error.strerror}") from None
    whole = data[: data.rfind(b"\n") + 1]
    found = whole.decode("utf-8", "backslashreplace").splitlines()
    if offset is None:
        found = found[-lines:] if lines > 0 else []
    return {"file": str(path), "lines": found, "offset": start + len(whole)}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
