"""Users: who may log in, with which password and tags."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrormq.ctl.faults import DATA, Failure
from mirrormq.ctl.registry import USERS, command, session_of

GRANT = (
    "Done. Don't forget to grant the user permissions to some virtual hosts! "
    "See 'mirrormq ctl help set_permissions' to learn more."
)
Secret = Annotated[str | None, typer.Argument(show_default=False)]


@command(USERS, "<username> [<password>]")
def add_user(ctx: typer.Context, username: str, password: Secret = None) -> None:
    """Create a user, without permissions in any virtual host; a password left out is read from stdin."""
    session = session_of(ctx)
    session.say(f'Adding user "{username}" ...')
    secret = session.read_secret() if password is None else password
    session.call("add_user", name=username, password=secret)
    session.finish(None if session.options.quiet else GRANT)


@command(USERS, "<username>")
def delete_user(ctx: typer.Context, username: str) -> None:
    """Remove a user with all permissions; open connections of the user are closed."""
    session = session_of(ctx)
    session.say(f'Deleting user "{username}" ...')
    session.call("delete_user", name=username)
    session.finish()


@command(USERS, "<username> [<password>]")
def change_password(ctx: typer.Context, username: str, password: Secret = None) -> None:
    """Change a user's password; one left out is read from stdin."""
    session = session_of(ctx)
    session.say(f'Changing password for user "{username}" ...')
    secret = session.read_secret() if password is None else password
    session.call("change_password", name=username, password=secret)
    session.finish()


@command(USERS, "<username>")
def clear_password(ctx: typer.Context, username: str) -> None:
    """Take a user's password away: no password opens the account any more."""
    session = session_of(ctx)
    session.say(f'Clearing password for user "{username}" ...')
    session.call("clear_password", name=username)
    session.finish()


@command(USERS, "<username> [<password>]")
def authenticate_user(ctx: typer.Context, username: str, password: Secret = None) -> None:
    """Try a user name and password; the exit code is not zero if they do not fit."""
    session = session_of(ctx)
    session.say(f'Authenticating user "{username}" ...')
    secret = session.read_secret() if password is None else password
    try:
        session.call("authenticate_user", name=username, password=secret)
    except Failure as failure:
        if failure.kind != "authentication_failed":
            raise
        raise Failure(f'Error: failed to authenticate user "{username}"\n{failure.text}', DATA) from None
    session.finish("Success")


@command(USERS, "<username> <tag> [...]")
def set_user_tags(
    ctx: typer.Context, username: str, tag: Annotated[list[str] | None, typer.Argument()] = None
) -> None:
    """Set the tags of a user (administrator, monitoring, policymaker, management ...); none clears them."""
    session = session_of(ctx)
    tags = tag or []
    session.say(f'Setting tags for user "{username}" to [{", ".join(tags)}] ...')
    session.call("set_user_tags", name=username, tags=tags)
    session.finish()


@command(USERS, "[--no-table-headers]")
def list_users(ctx: typer.Context) -> None:
    """List users and their tags."""
    session = session_of(ctx)
    session.say("Listing users ...")
    session.table(session.call("list_users"), ("user", "tags"))
