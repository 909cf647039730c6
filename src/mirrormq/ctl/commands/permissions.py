"""What users may do: configure, write and read by resource name, write and read by routing key."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrormq.ctl.registry import ACCESS, command, session_of


@command(ACCESS, "[--vhost <vhost>] <username> <conf> <write> <read>")
def set_permissions(ctx: typer.Context, username: str, conf: str, write: str, read: str) -> None:
    """Set a user's permissions in a virtual host: three regular expressions over resource names."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f'Setting permissions for user "{username}" in vhost "{vhost}" ...')
    session.call("set_permissions", vhost=vhost, user=username, configure=conf, write=write, read=read)
    session.finish()


@command(ACCESS, "[--vhost <vhost>] <username>")
def clear_permissions(ctx: typer.Context, username: str) -> None:
    """Revoke a user's permissions in a virtual host."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f'Clearing permissions for user "{username}" in vhost "{vhost}" ...')
    session.call("clear_permissions", vhost=vhost, user=username)
    session.finish()


@command(ACCESS, "[--vhost <vhost>] [--no-table-headers]")
def list_permissions(ctx: typer.Context) -> None:
    """List user permissions in a virtual host."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f'Listing permissions for vhost "{vhost}" ...')
    session.table(session.call("list_permissions", vhost=vhost), ("user", "configure", "write", "read"))


@command(ACCESS, "[--no-table-headers] <username>")
def list_user_permissions(ctx: typer.Context, username: str) -> None:
    """List permissions of a user in all virtual hosts."""
    session = session_of(ctx)
    session.say(f'Listing permissions for user "{username}" ...')
    rows = session.call("list_user_permissions", user=username)
    session.table(rows, ("vhost", "configure", "write", "read"))


@command(ACCESS, "[--vhost <vhost>] <username> <exchange> <write> <read>")
def set_topic_permissions(ctx: typer.Context, username: str, exchange: str, write: str, read: str) -> None:
    """Restrict a user's routing keys on a topic exchange: two regular expressions."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f'Setting topic permissions on "{exchange}" for user "{username}" in vhost "{vhost}" ...')
    session.call(
        "set_topic_permissions", vhost=vhost, user=username, exchange=exchange, write=write, read=read
    )
    session.finish()


@command(ACCESS, "[--vhost <vhost>] <username> [<exchange>]")
def clear_topic_permissions(
    ctx: typer.Context, username: str, exchange: Annotated[str | None, typer.Argument()] = None
) -> None:
    """Lift the restriction of routing keys, on one exchange or on all of the virtual host."""
    session = session_of(ctx)
    vhost = session.options.vhost
    where = f'on "{exchange}" ' if exchange is not None else ""
    session.say(f'Clearing topic permissions {where}for user "{username}" in vhost "{vhost}" ...')
    session.call("clear_topic_permissions", vhost=vhost, user=username, exchange=exchange)
    session.finish()


@command(ACCESS, "[--vhost <vhost>] [--no-table-headers]")
def list_topic_permissions(ctx: typer.Context) -> None:
    """List topic permissions in a virtual host."""
    session = session_of(ctx)
    vhost = session.options.vhost
    session.say(f'Listing topic permissions for vhost "{vhost}" ...')
    rows = session.call("list_topic_permissions", vhost=vhost)
    session.table(rows, ("user", "exchange", "write", "read"))


@command(ACCESS, "[--no-table-headers] <username>")
def list_user_topic_permissions(ctx: typer.Context, username: str) -> None:
    """List topic permissions of a user in all virtual hosts."""
    session = session_of(ctx)
    session.say(f'Listing topic permissions for user "{username}" ...')
    rows = session.call("list_user_topic_permissions", user=username)
    session.table(rows, ("vhost", "exchange", "write", "read"))
