"""Limits of virtual hosts (max-connections, max-queues) and of users (max-connections, max-channels)."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from mirrormq.ctl.faults import DATA, Failure
from mirrormq.ctl.registry import USERS, VHOSTS, command, session_of
from mirrormq.ctl.session import Session

Everything = Annotated[bool, typer.Option("--global", help="of all")]


@command(VHOSTS, "[--vhost <vhost>] <definition>")
def set_vhost_limits(ctx: typer.Context, definition: str) -> None:
    """Set limits of a virtual host, as JSON: '{"max-connections": 100, "max-queues": 1000}'."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f'Setting vhost limits to "{definition}" for vhost "{vhost}" ...')
    session.call("set_vhost_limits", vhost=vhost, limits=json_object(definition))
    session.finish()


@command(VHOSTS, "[--vhost <vhost>]")
def clear_vhost_limits(ctx: typer.Context) -> None:
    """Remove all limits of a virtual host."""
    session = session_of(ctx)
    session.say(f'Clearing vhost "{session.options.vhost}" limits ...')
    session.call("clear_vhost_limits", vhost=session.options.vhost)
    session.finish()


@command(VHOSTS, "[--vhost <vhost>] [--global] [--no-table-headers]")
def list_vhost_limits(ctx: typer.Context, everything: Everything = False) -> None:
    """Show the limits of a virtual host, or with --global of all that have some."""
    session = session_of(ctx)
    if everything:
        session.say("Listing limits for all vhosts ...")
        _all(session, session.call("list_vhost_limits"), "vhost")
    else:
        vhost = session.options.vhost
        session.say(f'Listing limits for vhost "{vhost}" ...')
        found = session.call("list_vhost_limits", vhost=vhost)
        _one(session, found[0]["limits"] if found else {})


@command(USERS, "<username> <definition>")
def set_user_limits(ctx: typer.Context, username: str, definition: str) -> None:
    """Set limits of a user, as JSON: '{"max-connections": 10, "max-channels": 100}'."""
    session = session_of(ctx)
    session.say(f'Setting user limits to "{definition}" for user "{username}" ...')
    session.call("set_user_limits", user=username, limits=json_object(definition))
    session.finish()


@command(USERS, "<username> <limit> | all")
def clear_user_limits(ctx: typer.Context, username: str, limit: str) -> None:
    """Remove one limit of a user, or all."""
    session = session_of(ctx)
    what = "all limits" if limit == "all" else f'"{limit}" limit'
    session.say(f'Clearing {what} for user "{username}" ...')
    session.call("clear_user_limits", user=username, limit=limit)
    session.finish()


@command(USERS, "[--user <username>] [--global] [--no-table-headers]", own=("--user",))
def list_user_limits(
    ctx: typer.Context,
    user: Annotated[str, typer.Option("--user", help="whose limits")] = "guest",
    everything: Everything = False,
) -> None:
    """Show the limits of a user, or with --global of all that have some."""
    session = session_of(ctx)
    if everything:
        session.say("Listing limits for all users ...")
        _all(session, session.call("list_user_limits"), "user")
    else:
        session.say(f'Listing limits for user "{user}" ...')
        found = session.call("list_user_limits", user=user)
        _one(session, found[0]["limits"] if found else {}, "{}")


def json_object(text: str) -> dict[str, Any]:
    """A JSON object given on the command line."""
    value: dict[str, Any] = _json(text, dict, 'an object such as {"max-queues": 10}')
    return value


def _json(text: str, kind: type, example: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise Failure(
            f"JSON decoding error. Reason: {error}; it must be {example}, quoted for the shell", DATA
        ) from None
    if not isinstance(value, kind):
        raise Failure(f"JSON decoding error. Reason: it must be {example}", DATA)
    return value


def json_value(text: str) -> Any:
    """Any JSON value given on the command line."""
    return _json(text, object, 'a JSON value such as 1 or {"a": 1}')


def _one(session: Session, limits: dict[str, int], none: str = "") -> None:
    if session.is_json:
        session.write_json(limits)
    else:
        session.write(json.dumps(limits, separators=(",", ":")) if limits else none)


def _all(session: Session, rows: list[dict[str, Any]], label: str) -> None:
    shown = [{label: row[label], "limits": json.dumps(row["limits"], separators=(",", ":"))} for row in rows]
    session.table(shown, (label, "limits"))
