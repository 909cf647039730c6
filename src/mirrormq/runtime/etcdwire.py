"""Requests to etcd's JSON gateway and its answers, as bytes.

The gateway writes 64-bit numbers as text and bytes in base64; what is empty or false it leaves out.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec
from msgspec import Struct

from mirrormq.cluster.etcd import api


class LoggedIn(Struct):
    """The answer to a log-in."""

    token: str


class Refusal(Struct):
    """What went wrong."""

    error: str = ""
    code: int = 0
    message: str = ""


class _KeyValue(Struct):
    key: bytes = b""
    value: bytes = b""
    mod_revision: int = 0
    lease: int = 0

    def made(self) -> api.KeyValue:
        return api.KeyValue(self.key, self.value, self.mod_revision, self.lease)


class _Header(Struct):
    revision: int = 0


class _Range(Struct):
    kvs: list[_KeyValue] = []


class _Response(Struct):
    response_range: _Range | None = None


class _Txn(Struct):
    header: _Header
    succeeded: bool = False
    responses: list[_Response] = []


class _Granted(Struct):
    ID: int
    TTL: int = 0


class _Lease(Struct):
    TTL: int = 0


class _Renewed(Struct):
    result: _Lease


class _Event(Struct):
    kv: _KeyValue
    type: str = "PUT"


class _Watch(Struct):
    events: list[_Event] = []
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""


class _WatchLine(Struct):
    result: _Watch | None = None
    error: dict[str, Any] | None = None


_txn = msgspec.json.Decoder(_Txn, strict=False)
_granted = msgspec.json.Decoder(_Granted, strict=False)
_renewed = msgspec.json.Decoder(_Renewed, strict=False)
_watch = msgspec.json.Decoder(_WatchLine, strict=False)


def encode(request: api.Request) -> tuple[str, bytes]:
    """The path and the body of a request."""
    if isinstance(request, api.Txn):
        body: dict[str, Any] = {
            "compare": [
                {"key": _text(guard.key), "target": "MOD", "result": "EQUAL", "mod_revision": str(guard.mod)}
                for guard in request.guards
            ],
            "success": [_operation(one) for one in request.then],
            "failure": [_operation(one) for one in request.otherwise],
        }
        path = "/v3/kv/txn"
    elif isinstance(request, api.Grant):
        path, body = "/v3/lease/grant", {"TTL": str(request.seconds)}
    elif isinstance(request, api.Renew):
        path, body = "/v3/lease/keepalive", {"ID": str(request.lease)}
    elif isinstance(request, api.Revoke):
        path, body = "/v3/lease/revoke", {"ID": str(request.lease)}
    else:
        path = "/v3/watch"
        create = {"key": _text(request.key), "range_end": _text(request.end)}
        body = {"create_request": {**create, "start_revision": str(request.revision)}}
    return path, msgspec.json.encode(body)


def decode(request: api.Request, content: bytes) -> api.Answer:
    """The answer to a request; raises `msgspec.MsgspecError`."""
    if isinstance(request, api.Txn):
        found = _txn.decode(content)
        ranges = (one.response_range for one in found.responses)
        kvs = tuple(tuple(kv.made() for kv in one.kvs) if one is not None else () for one in ranges)
        return api.TxnDone(request.token, found.succeeded, found.header.revision, kvs)
    if isinstance(request, api.Grant):
        granted = _granted.decode(content)
        return api.Granted(request.token, granted.ID, granted.TTL)
    if isinstance(request, api.Renew):
        return api.Renewed(request.token, max(0, _renewed.decode(content).result.TTL))
    return api.Revoked(request.token)


def decode_watch(token: int, line: bytes) -> tuple[api.Seen | None, str]:
    """What a line of a watch tells, and why the watch is lost, if it is."""
    found = _watch.decode(line)
    if found.result is None:
        return None, str((found.error or {}).get("message") or "the watch was refused")
    result = found.result
    changes = tuple(api.Change(event.type != "DELETE", event.kv.made()) for event in result.events)
    seen = api.Seen(token, changes) if changes else None
    if result.compact_revision:
        return seen, f"changes before revision {result.compact_revision} are compacted"
    return seen, (result.cancel_reason or "the watch was cancelled") if result.canceled else ""


def _operation(operation: api.Operation) -> dict[str, Any]:
    if isinstance(operation, api.Put):
        put = {"key": _text(operation.key), "value": _text(operation.value)}
        return {"request_put": {**put, "lease": str(operation.lease)} if operation.lease else put}
    end = {"range_end": _text(operation.end)} if operation.end else {}
    if isinstance(operation, api.Delete):
        return {"request_delete_range": {"key": _text(operation.key), **end}}
    more = {"limit": str(operation.limit), "keys_only": operation.is_bare}
    return {"request_range": {"key": _text(operation.key), **end, **more}}


def _text(data: bytes) -> str:
    return b64encode(data).decode("ascii")
