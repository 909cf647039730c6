"""What only the process knows of a node, for its administrators: files, listeners, descriptors, settings."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mirrormq.meta.records import Policy
from mirrormq.runtime.certificates import certificates
from mirrormq.runtime.logs import HIDDEN
from mirrormq.runtime.names import NAMES
from mirrormq.runtime.settings import Settings
from mirrormq.runtime.values import Address, PeerName, Share


def facts(settings: Settings, listeners: Sequence[tuple[str, Address]], files_max: int) -> Mapping[str, Any]:
    """Return everything the admin API shows of this process."""
    log = settings.log
    return {
        "pid": os.getpid(),
        "data_dir": os.path.abspath(settings.data_dir),
        "config_files": [os.path.abspath(file) for file in settings.config_files],
        "log_files": [os.path.join(log.folder, log.file)] if log.file else ["<stderr>"],
        "fd_used": _open_files.count(),
        "fd_limit": files_max,
        "settings": lambda: shown_settings(settings),
        "certificates": lambda: list(certificates(settings, listeners)),
        "listeners": [
            {"protocol": protocol, "interface": _interface(address.host), "port": address.port}
            for protocol, address in listeners
        ],
    }


def shown_settings(settings: Settings) -> dict[str, Any]:
    """Return every setting by its key. Secrets are hidden."""
    shown: dict[str, Any] = {}
    fields: set[str] = set()
    for name in NAMES:
        if name.field and name.field not in fields:
            fields.add(name.field)
            value: Any = settings
            for part in name.field.split("."):
                value = getattr(value, part)
            shown[name.key] = HIDDEN if name.secret and value else _plain(value)
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, Share):
        return value.of_memory
    if isinstance(value, tuple) and not isinstance(value, Address | PeerName):
        return [_plain(item) for item in value]
    if isinstance(value, Policy):
        return msgspec.to_builtins(value)
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _interface(host: str) -> str:
    """Write a host as rabbitmq-diagnostics does."""
    return f"[{host or '::'}]" if ":" in host or not host else host


class _OpenFiles:
    """How many files are open; with thousands of connections counting them takes a millisecond."""

    def __init__(self) -> None:
        self._count = 0
        self._at = -OPEN_FILES_S

    def count(self) -> int:
        now = time.monotonic()
        if now - self._at >= OPEN_FILES_S:
            self._at = now
            try:
                self._count = len(os.listdir("/proc/self/fd"))
            except OSError:
                self._count = 0
        return self._count


OPEN_FILES_S = 2.0
_open_files = _OpenFiles()
