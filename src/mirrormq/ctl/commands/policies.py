"""Policies, operator policies, and the runtime parameters beside them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from mirrormq.ctl.commands.limits import json_object, json_value
from mirrormq.ctl.registry import PARAMETERS, POLICIES, command, session_of
from mirrormq.ctl.session import Session

COLUMNS = ("vhost", "name", "pattern", "apply-to", "definition", "priority")
Priority = Annotated[int, typer.Option("--priority", help="of two that match, the higher one counts")]
ApplyTo = Annotated[str, typer.Option("--apply-to", help="queues, exchanges or all")]
SET_USAGE = "[--vhost <vhost>] [--priority <priority>] [--apply-to <apply-to>] <name> <pattern> <definition>"


@command(POLICIES, SET_USAGE)
def set_policy(
    ctx: typer.Context,
    name: str,
    pattern: str,
    definition: str,
    *,
    priority: Priority = 0,
    apply_to: ApplyTo = "all",
) -> None:
    """Set a policy for all queues or exchanges whose name matches; the definition is JSON."""
    session = session_of(ctx)
    session.say(
        f'Setting policy "{name}" for pattern "{pattern}" to "{definition}" '
        f'with priority "{priority}" for vhost "{session.options.vhost}" ...'
    )
    _set(session, name, pattern, definition, priority=priority, apply_to=apply_to, operator=False)


@command(POLICIES, SET_USAGE)
def set_operator_policy(
    ctx: typer.Context,
    name: str,
    pattern: str,
    definition: str,
    *,
    priority: Priority = 0,
    apply_to: ApplyTo = "all",
) -> None:
    """Set an operator policy: bounds that ordinary policies and arguments cannot exceed."""
    session = session_of(ctx)
    session.say(
        f'Setting operator policy override "{name}" for pattern "{pattern}" to "{definition}" '
        f'with priority "{priority}" for vhost "{session.options.vhost}" ...'
    )
    _set(session, name, pattern, definition, priority=priority, apply_to=apply_to, operator=True)


@command(POLICIES, "[--vhost <vhost>] <name>")
def clear_policy(ctx: typer.Context, name: str) -> None:
    """Remove a policy."""
    session = session_of(ctx)
    session.say(f'Clearing policy "{name}" on vhost "{session.options.vhost}" ...')
    session.call("clear_policy", vhost=session.options.vhost, name=name)
    session.finish()


@command(POLICIES, "[--vhost <vhost>] <name>")
def clear_operator_policy(ctx: typer.Context, name: str) -> None:
    """Remove an operator policy."""
    session = session_of(ctx)
    session.say(f'Clearing operator policy "{name}" on vhost "{session.options.vhost}" ...')
    session.call("clear_policy", vhost=session.options.vhost, name=name, operator=True)
    session.finish()


@command(POLICIES, "[--vhost <vhost>] [--no-table-headers]")
def list_policies(ctx: typer.Context) -> None:
    """List policies of a virtual host."""
    session = session_of(ctx)
    session.say(f'Listing policies for vhost "{session.options.vhost}" ...')
    _list(session, operator=False)


@command(POLICIES, "[--vhost <vhost>] [--no-table-headers]")
def list_operator_policies(ctx: typer.Context) -> None:
    """List operator policies of a virtual host."""
    session = session_of(ctx)
    session.say(f'Listing operator policy overrides for vhost "{session.options.vhost}" ...')
    _list(session, operator=True)


@command(PARAMETERS, "[--vhost <vhost>] <component_name> <name> <value>")
def set_parameter(ctx: typer.Context, component_name: str, name: str, value: str) -> None:
    """Set a runtime parameter of a component in a virtual host; the value is JSON."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(
        f'Setting runtime parameter "{name}" for component "{component_name}" to "{value}" '
        f'in vhost "{vhost}" ...'
    )
    session.call("set_parameter", vhost=vhost, component=component_name, name=name, value=json_value(value))
    session.finish()


@command(PARAMETERS, "[--vhost <vhost>] <component_name> <name>")
def clear_parameter(ctx: typer.Context, component_name: str, name: str) -> None:
    """Remove a runtime parameter of a component in a virtual host."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(
        f'Clearing runtime parameter "{name}" for component "{component_name}" on vhost "{vhost}" ...'
    )
    session.call("clear_parameter", vhost=vhost, component=component_name, name=name)
    session.finish()


@command(PARAMETERS, "[--vhost <vhost>] [--no-table-headers]")
def list_parameters(ctx: typer.Context) -> None:
    """List runtime parameters of a virtual host."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f'Listing runtime parameters for vhost "{vhost}" ...')
    rows = session.call("list_parameters", vhost=vhost)
    session.table([_with_text(row, "value") for row in rows], ("component", "name", "value"))


@command(PARAMETERS, "<name> <value>")
def set_global_parameter(ctx: typer.Context, name: str, value: str) -> None:
    """Set a runtime parameter of the whole cluster; the value is JSON."""
    session = session_of(ctx)
    session.say(f'Setting global runtime parameter "{name}" to "{value}" ...')
    session.call("set_global_parameter", name=name, value=json_value(value))
    session.finish()


@command(PARAMETERS, "<name>")
def clear_global_parameter(ctx: typer.Context, name: str) -> None:
    """Remove a runtime parameter of the whole cluster."""
    session = session_of(ctx)
    session.say(f'Clearing global runtime parameter "{name}" ...')
    session.call("clear_global_parameter", name=name)
    session.finish()


@command(PARAMETERS, "[--no-table-headers]")
def list_global_parameters(ctx: typer.Context) -> None:
    """List runtime parameters of the whole cluster."""
    session = session_of(ctx)
    session.say("Listing global runtime parameters ...")
    rows = session.call("list_global_parameters")
    session.table([_with_text(row, "value") for row in rows], ("name", "value"))


def _set(session: Session, name: str, pattern: str, definition: str, **facts: Any) -> None:
    session.call(
        "set_policy",
        vhost=session.options.vhost,
        name=name,
        pattern=pattern,
        definition=json_object(definition),
        **facts,
    )
    session.finish()


def _list(session: Session, *, operator: bool) -> None:
    rows = session.call("list_policies", vhost=session.options.vhost, operator=operator)
    session.table([_with_text(row, "definition") for row in rows], COLUMNS)


def _with_text(row: dict[str, Any], name: str) -> dict[str, Any]:
    """JSON values stand as JSON text in every format: rabbitmqctl prints them so, scripts rely on it."""
    return {**row, name: json.dumps(row[name], separators=(",", ":"), ensure_ascii=False)}
