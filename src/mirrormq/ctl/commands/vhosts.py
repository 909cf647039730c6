"""Virtual hosts."""

from __future__ import annotations

from typing import Annotated

import typer

from mirrormq.ctl.registry import ACCESS, VHOSTS, columns_of, command, session_of

COLUMNS = ("name", "description", "tags", "default_queue_type", "tracing", "mirror_of", "cluster_state")


@command(
    VHOSTS,
    '<vhost> [--description <description>] [--tags "<tag1>,<tag2>"] [--default-queue-type <type>] '
    "[--mirror-of <cluster>]",
)
def add_vhost(
    ctx: typer.Context,
    vhost: str,
    *,
    description: Annotated[str | None, typer.Option("--description")] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="separated by commas")] = None,
    default_queue_type: Annotated[str | None, typer.Option("--default-queue-type")] = None,
    mirror_of: Annotated[str | None, typer.Option("--mirror-of", help="read-only until promoted")] = None,
) -> None:
    """Create a virtual host; one that exists is left as it is."""
    session = session_of(ctx)
    session.say(f'Adding vhost "{vhost}" ...')
    facts: dict[str, object] = {}
    if description is not None:
        facts["description"] = description
    if tags is not None:
        facts["tags"] = [tag.strip() for tag in tags.split(",") if tag.strip()]
    if default_queue_type is not None:
        facts["default_queue_type"] = default_queue_type
    if mirror_of is not None:
        facts["mirror_of"] = mirror_of
    session.call("add_vhost", name=vhost, **facts)
    session.finish()


@command(VHOSTS, "<vhost>")
def promote_mirror(ctx: typer.Context, vhost: str) -> None:
    """Make an ordinary virtual host of one that mirrors another cluster, and refuse its mirror job."""
    session = session_of(ctx)
    session.say(f'Promoting mirror "{vhost}" ...')
    session.call("promote_mirror", name=vhost)
    session.finish()


@command(VHOSTS, "<vhost>")
def delete_vhost(ctx: typer.Context, vhost: str) -> None:
    """Delete a virtual host with everything in it."""
    session = session_of(ctx)
    session.say(f'Deleting vhost "{vhost}" ...')
    session.call("delete_vhost", name=vhost)
    session.finish()


@command(ACCESS, "[--no-table-headers] [<column> ...]")
def list_vhosts(
    ctx: typer.Context, column: Annotated[list[str] | None, typer.Argument(show_default=False)] = None
) -> None:
    """List virtual hosts."""
    columns = columns_of(column, ("name",), COLUMNS)
    session = session_of(ctx)
    session.say("Listing vhosts ...")
    session.table(session.call("list_vhosts"), columns)
