"""All misuse cases, in the order of the recording, and the surroundings they expect of a broker."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from tests.interop.misuse import (  # noqa: F401  (importing a module registers its cases)
    cases_access,
    cases_basic,
    cases_channels,
    cases_exchanges,
    cases_frames,
    cases_handshake,
    cases_queues,
)
from tests.interop.misuse.table import CASES

__all__ = ["CASES", "CONFIG", "DEFINITIONS", "PLUGINS"]

PLUGINS = ["rabbitmq_consistent_hash_exchange"]
CONFIG = ["max_message_size = 65536"]


def _user(name: str, **limits: int) -> dict[str, Any]:
    """A user whose password is its name."""
    salt = b"salt"
    digest = hashlib.sha256(salt + name.encode()).digest()
    return {
        "name": name,
        "password_hash": base64.b64encode(salt + digest).decode(),
        "tags": [],
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "limits": {key.replace("_", "-"): value for key, value in limits.items()},
    }


def _permission(user: str, pattern: str, vhost: str = "/") -> dict[str, str]:
    return {"user": user, "vhost": vhost, "configure": pattern, "write": pattern, "read": pattern}


DEFINITIONS: dict[str, Any] = {
    "vhosts": [{"name": "/"}, {"name": "full"}, {"name": "crowded"}],
    "users": [
        _user("limited"),
        _user("outsider"),
        _user("topical"),
        {**_user("passwordless"), "password_hash": ""},
        _user("banned", max_connections=0),
        _user("capped", max_channels=0),
    ],
    "permissions": [
        _permission("guest", ".*", "full"),
        _permission("guest", ".*", "crowded"),
        _permission("limited", r"^open\."),
        _permission("topical", ".*"),
        _permission("passwordless", ".*"),
        _permission("banned", ".*"),
        _permission("capped", ".*"),
    ],
    "topic_permissions": [
        {
            "user": "topical",
            "vhost": "/",
            "exchange": "amq.topic",
            "write": r"^public\.",
            "read": r"^public\.",
        },
    ],
    "parameters": [
        {"component": "vhost-limits", "vhost": "full", "name": "limits", "value": {"max-queues": 1}},
        {"component": "vhost-limits", "vhost": "crowded", "name": "limits", "value": {"max-connections": 0}},
    ],
    "global_parameters": [],
    "policies": [],
    "queues": [],
    "exchanges": [
        {
            "vhost": "/",
            "name": "open.x",
            "type": "direct",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        },
    ],
    "bindings": [],
}
