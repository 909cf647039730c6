"""One line in the log for every administrative action: who, from where, what, on what, with what result.

Guarantees: no line holds anything of a body but the names in `NAMES`, so that no password gets into a log;
what was refused is told as what was done is; texts are cut.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from mirrormq.base import limits
from mirrormq.http.auth import KEY_SCHEME, Identity, peer_of
from mirrormq.http.ports import Process

NAMES = (
    "vhost",
    "name",
    "user",
    "node",
    "queue",
    "cursor",
    "names",
    "connection",
    "component",
    "tags",
    "target",
)
"""Arguments of commands that say what they are about."""

READ_ONLY = ("list_", "check_", "await_")
QUIET = frozenset(
    ("ping", "status", "cluster_status", "environment", "sync_status", "export_definitions",
     "backup_progress", "queue_view", "browse_queue", "authenticate_user", "aliveness_test")
)  # fmt: skip
"""Commands that change nothing, beside those whose names begin like `READ_ONLY`."""

VERBS = frozenset(("POST", "PUT", "DELETE", "PATCH"))


def is_change(request: web.Request) -> bool:
    """Is this an action an auditor asks for?"""
    if request.method not in VERBS:
        return False
    command = request.match_info.get("command")
    if command is not None:
        return command not in QUIET and not command.startswith(READ_ONLY)
    return True


def tell(
    process: Process, request: web.Request, who: Identity | None, result: tuple[int, str], given: Any = None
) -> None:
    """Write the line; `result` is a status and, if it was refused, the reason."""
    status, reason = result
    match = request.match_info
    resource = match.route.resource
    path = resource.canonical if resource is not None else request.path
    command = match.get("command")
    fields: dict[str, Any] = {
        "who": _who(request, who),
        "from": _from(request),
        "action": f"ctl {command}" if command else f"{request.method} {path}",
        "on": _on(dict(match), given if command else None),
        "status": status,
    }
    if reason:
        fields["reason"] = _cut(reason)
    process.note("info" if status < 400 else "warning", "audit", event="audit", **fields)


def _who(request: web.Request, who: Identity | None) -> str:
    if who is None:
        return "?"
    if who.name is not None:
        return _cut(who.name)
    scheme = request.headers.get("Authorization", "").partition(" ")[0].lower()
    return "(node key)" if scheme == KEY_SCHEME else "?"


def _from(request: web.Request) -> str:
    peer = peer_of(request)
    return _cut(f"{peer.host}:{peer.port}")  # the host may be what a proxy said, or who plays one


def _on(parts: dict[str, str], given: Any) -> str:
    found = {name: value for name, value in parts.items() if name != "command"}
    if isinstance(given, dict):
        found |= {name: given[name] for name in NAMES if name in given and name not in found}
    return _cut(", ".join(f"{name}={value}" for name, value in found.items()))


def _cut(text: str) -> str:
    shown = text if len(text) <= limits.audit_text_max else text[: limits.audit_text_max] + "…"
    return shown.encode("utf-8", "backslashreplace").decode()
