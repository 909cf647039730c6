"""What an administrator changes while the node runs; a restart goes back to the configuration.

Each command takes what was given on the line of `mirrormqctl`, and answers with what is in force now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mirrormq.node.membership import READY
from mirrormq.node.steps import Refusal
from mirrormq.runtime import values
from mirrormq.runtime.gauges import limit_bytes
from mirrormq.runtime.logs import LEVELS, RANK

if TYPE_CHECKING:
    from mirrormq.runtime.app import App

Command = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def commands(running: Callable[[], App]) -> Mapping[str, Command]:
    """The commands by name; `running` gives the application, or refuses."""

    def limit(setting: str, alarm: str) -> Command:
        async def change(given: dict[str, Any]) -> dict[str, Any]:
            app = running()
            found: dict[str, Any] = {setting: _bytes(app, given)}
            app.node.settings = replace(app.node.settings, **found)
            app.look_at_machine()
            text = f"the {alarm} alarm has another limit"
            app.note("info", text, bytes=found[setting], event="alarm.limit_changed")
            return found

        return change

    async def level(given: dict[str, Any]) -> dict[str, Any]:
        wanted = str(given.get("level", ""))
        if wanted not in LEVELS:
            raise Refusal("bad_request", f"'{wanted}' is no log level; there are {', '.join(LEVELS)}")
        log = running().log
        for target in log.targets:
            target.rank = RANK[wanted]
        log.rank = min((target.rank for target in log.targets), default=RANK["none"])
        return {"level": wanted}

    async def suspend(_given: dict[str, Any]) -> dict[str, Any]:
        app = running()
        app.is_suspended = True
        app.close_doors()
        text = "listeners are suspended: no new clients until resume_listeners"
        app.note("warning", text, event="listeners.suspended")
        return {"suspended": True}

    async def resume(_given: dict[str, Any]) -> dict[str, Any]:
        app = running()
        was_suspended, app.is_suspended = app.is_suspended, False
        if was_suspended and app.node.membership.phase == READY and not app.listeners:
            await app.open_doors()
        app.note("info", "listeners are resumed", event="listeners.resumed")
        return {"suspended": False}

    async def rotate(_given: dict[str, Any]) -> dict[str, Any]:
        running().log.reopen()
        return {}

    return {
        "suspend_listeners": suspend,
        "resume_listeners": resume,
        "rotate_logs": rotate,
        "set_vm_memory_high_watermark": limit("memory_limit", "memory"),
        "set_disk_free_limit": limit("disk_free_limit", "disk"),
        "set_log_level": level,
    }


def _bytes(app: App, given: dict[str, Any]) -> int:
    """`share`: a part of the memory; `size`: a number of bytes, perhaps with a unit."""
    try:
        limit = values.share(given["share"]) if "share" in given else values.size(given.get("size", ""))
    except ValueError as error:
        raise Refusal("bad_request", str(error)) from None
    total = app.settings.memory_total_bytes or app.gauges.memory_total()
    return limit_bytes(limit, total)
