"""Virtual hosts."""

from __future__ import annotations

from aiohttp import web

from mirrormq.http import answers, bodies, rates, shapes
from mirrormq.http.answers import bad_request, not_found
from mirrormq.http.api import Call, text_of
from mirrormq.http.describe import described
from mirrormq.meta import records
from mirrormq.node import report, report_rates, requests

NO_TRACING = "message tracing does not exist yet"


@described(answer=shapes.VHost, is_list=True)
async def list_vhosts(call: Call) -> web.StreamResponse:
    """GET vhosts: those the user may see; the names of all for those who watch the node."""
    names = sorted(call.state.vhosts) if call.who.is_monitor else call.visible_vhosts()
    found = [call.state.vhosts[name] for name in names]
    known = rates.Everywhere(call, "vhosts", report_rates.of_vhost)
    return await call.listing(
        found,
        lambda record: known.add_to(report.vhost(call.node, record), record.name),
        name=_name,
        prepare=known.fetch,
    )


@described(answer=shapes.VHost, needs="administrator")
async def get_vhost(call: Call) -> web.Response:
    """GET vhosts/name."""
    call.need_administrator()
    record = _find(call)
    known = rates.Everywhere(call, "vhosts", report_rates.of_vhost)
    await known.fetch()
    return answers.response(known.add_to(report.vhost(call.node, record), record.name))


@described(body=bodies.VHost, statuses=(201, 204), needs="administrator")
async def put_vhost(call: Call) -> web.Response:
    """PUT vhosts/name."""
    call.need_administrator()
    body = await call.body()
    if await call.boolean("tracing"):
        raise bad_request(NO_TRACING)
    value = await call.ask(
        requests.AddVHost(
            actor=call.who.name,
            name=call.part("vhost"),
            description=None if "description" not in body else text_of(body, "description") or "",
            tags=None if "tags" not in body else tags_of(body["tags"] or ()),
            default_queue_type=text_of(body, "default_queue_type"),
            mirror_of=text_of(body, "mirror_of"),
        )
    )
    return answers.created(value["created"])


@described(body=bodies.Named, statuses=(204,), needs="administrator")
async def promote(call: Call) -> web.Response:
    """POST vhosts/name/promote: make an ordinary vhost of a mirror."""
    call.need_administrator()
    await call.ask(requests.PromoteMirror(name=call.part("vhost")))
    return answers.no_content()


@described(statuses=(204,), needs="administrator")
async def delete_vhost(call: Call) -> web.Response:
    """DELETE vhosts/name."""
    call.need_administrator()
    await call.ask(requests.DeleteVHost(name=call.part("vhost")))
    return answers.no_content()


@described(answer=list[shapes.Permission], needs="administrator")
async def permissions(call: Call) -> web.StreamResponse:
    """GET vhosts/name/permissions."""
    call.need_administrator()
    return await call.rows(report.permissions(call.state.permissions_in(_find(call).name)))


@described(answer=list[shapes.TopicPermission], needs="administrator")
async def topic_permissions(call: Call) -> web.StreamResponse:
    """GET vhosts/name/topic-permissions."""
    call.need_administrator()
    found = call.state.topic_permissions_in(_find(call).name)
    return await call.rows(report.topic_permissions(found))


def tags_of(value: object) -> tuple[str, ...]:
    """Tags as a list, or as a text with commas."""
    if isinstance(value, str):
        return tuple(tag.strip() for tag in value.split(",") if tag.strip())
    if isinstance(value, list | tuple) and all(isinstance(tag, str) for tag in value):
        return tuple(tag.strip() for tag in value if tag.strip())
    raise bad_request("tags must be a list of texts or one text with commas")


def _find(call: Call) -> records.VHost:
    found = call.state.vhosts.get(call.part("vhost"))
    if found is None:
        raise not_found()
    return found


def _name(record: records.VHost) -> str:
    return record.name


ROUTES = (
    ("GET", "vhosts", list_vhosts),
    ("GET", "vhosts/{vhost}", get_vhost),
    ("PUT", "vhosts/{vhost}", put_vhost),
    ("POST", "vhosts/{vhost}/promote", promote),
    ("DELETE", "vhosts/{vhost}", delete_vhost),
    ("GET", "vhosts/{vhost}/permissions", permissions),
    ("GET", "vhosts/{vhost}/topic-permissions", topic_permissions),
)
