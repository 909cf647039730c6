"""The files of the web UI, served from memory.

Guarantees: only files of `static` are served, whatever the path says; they need no log-in, hold no secret and
make no request to anywhere else (the Content-Security-Policy sees to that: no inline script, no foreign
source, no frame). A browser keeps them and asks with their ETag whether they are still the same.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from aiohttp import web

TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
"""What is served; other files (licences) only lie beside it."""

INDEX = "index.html"

POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_PACKED_FROM = 1_000


@dataclass(frozen=True)
class File:
    """One file."""

    kind: str
    body: bytes
    packed: bytes
    tag: str


class Files:
    """The files, read when the first browser comes."""

    def __init__(self) -> None:
        self._found: dict[str, File] | None = None

    async def get(self, request: web.Request) -> web.StreamResponse:
        """GET a file; / is the UI itself."""
        if self._found is None:
            # In a thread: reading and packing some hundred kilobytes would hold the loop.
            self._found = await asyncio.to_thread(_read_all)
        name = request.match_info.get("path", "") or INDEX
        file = self._found.get(name)
        if file is None:
            raise web.HTTPNotFound
        headers = {**HEADERS, "ETag": file.tag}
        if request.headers.get("If-None-Match") == file.tag:
            return web.Response(status=304, headers=headers)
        body = file.body
        if file.packed and "gzip" in request.headers.get("Accept-Encoding", ""):
            body = file.packed
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers, content_type=file.kind, charset="utf-8")


def _read_all() -> dict[str, File]:
    found: dict[str, File] = {}
    _read(resources.files("mirrormq.http") / "static", "", found)
    return found


def _read(folder: Traversable, prefix: str, found: dict[str, File]) -> None:
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            _read(entry, f"{name}/", found)
            continue
        kind = TYPES.get("." + entry.name.rpartition(".")[2])
        if kind is not None:
            body = entry.read_bytes()
            packed = gzip.compress(body, 9, mtime=0) if len(body) >= _PACKED_FROM else b""
            found[name] = File(kind, body, packed, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
