"""Users, permissions, topic permissions and limits."""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import web

from mirrormq.http import answers, bodies, shapes
from mirrormq.http.answers import Fault, Row, bad_request, not_found
from mirrormq.http.api import Call, missing_keys, object_of, text_of
from mirrormq.http.describe import described
from mirrormq.http.routes.vhosts import tags_of
from mirrormq.meta import records
from mirrormq.node import report, requests

RIGHTS = ("configure", "write", "read")
NO_VHOST = Fault(404, "not_found", "vhost_not_found")


@described(answer=shapes.WhoAmI)
async def whoami(call: Call) -> web.Response:
    """GET whoami."""
    return answers.response({"name": call.who.name, "tags": list(call.who.tags)})


# --- users ---


@described(answer=shapes.User, is_list=True, needs="administrator")
async def list_users(call: Call) -> web.StreamResponse:
    """GET users."""
    call.need_administrator()
    found = sorted(call.state.users.values(), key=lambda record: record.name)
    return await call.listing(found, report.user, name=lambda record: record.name)


@described(answer=list[shapes.User], needs="administrator")
async def users_without_permissions(call: Call) -> web.StreamResponse:
    """GET users/without-permissions."""
    call.need_administrator()
    found = [record for record in call.state.users.values() if not call.state.permissions_of(record.name)]
    return await call.rows(map(report.user, found))


@described(answer=shapes.User, needs="administrator")
async def get_user(call: Call) -> web.Response:
    """GET users/name."""
    call.need_administrator()
    return answers.response(report.user(_user(call)))


@described(body=bodies.User, statuses=(201, 204), needs="administrator")
async def put_user(call: Call) -> web.Response:
    """PUT users/name."""
    call.need_administrator()
    body = await call.body()
    value = await call.ask(
        requests.AddUser(
            name=call.part("user"),
            password=text_of(body, "password"),
            password_hash=text_of(body, "password_hash"),
            hashing_algorithm=text_of(body, "hashing_algorithm"),
            tags=await _tags(call),
            replace=True,
            limits=object_of(body.get("limits") or {}, "limits"),
            permissions=tuple(_rights(call, object_of(body.get("permissions") or {}, "permissions"))),
        )
    )
    return answers.created(value["created"])


@described(statuses=(204,), needs="administrator")
async def delete_user(call: Call) -> web.Response:
    """DELETE users/name."""
    call.need_administrator()
    await call.ask(requests.DeleteUser(name=_user(call).name))
    return answers.no_content()


@described(body=bodies.Users, statuses=(204,), needs="administrator")
async def delete_users(call: Call) -> web.Response:
    """POST users/bulk-delete."""
    call.need_administrator()
    (names,) = await call.need_keys("users")
    if not isinstance(names, list):
        raise bad_request("users must be a list of names")
    await call.ask(requests.DeleteUsers(names=tuple(str(name) for name in names)))
    return answers.no_content()


@described(answer=list[shapes.Permission], needs="administrator")
async def user_permissions(call: Call) -> web.StreamResponse:
    """GET users/name/permissions."""
    call.need_administrator()
    return await call.rows(report.permissions(call.state.permissions_of(_user(call).name)))


@described(answer=list[shapes.TopicPermission], needs="administrator")
async def user_topic_permissions(call: Call) -> web.StreamResponse:
    """GET users/name/topic-permissions."""
    call.need_administrator()
    found = call.state.topic_permissions_of(_user(call).name)
    return await call.rows(report.topic_permissions(found))


# --- permissions ---


@described(answer=list[shapes.Permission], needs="administrator")
async def list_permissions(call: Call) -> web.StreamResponse:
    """GET permissions."""
    call.need_administrator()
    return await call.rows(report.permissions(call.state.permissions.values()))


@described(answer=shapes.Permission, needs="administrator")
async def get_permission(call: Call) -> web.Response:
    """GET permissions/vhost/user."""
    call.need_administrator()
    found = call.state.permissions.get((call.part("user"), call.part("vhost")))
    if found is None:
        raise not_found()
    return answers.response(next(report.permissions([found])))


@described(body=bodies.Permission, statuses=(201, 204), needs="administrator")
async def put_permission(call: Call) -> web.Response:
    """PUT permissions/vhost/user."""
    call.need_administrator()
    _need_both(call)
    configure, write, read = await call.need_texts("configure", "write", "read")
    value = await call.ask(
        requests.SetPermissions(
            vhost=call.part("vhost"),
            user=call.part("user"),
            configure=configure,
            write=write,
            read=read,
        )
    )
    return answers.created(value["created"])


@described(statuses=(204,), needs="administrator")
async def delete_permission(call: Call) -> web.Response:
    """DELETE permissions/vhost/user."""
    call.need_administrator()
    if (call.part("user"), call.part("vhost")) not in call.state.permissions:
        raise not_found()
    await call.ask(requests.ClearPermissions(vhost=call.part("vhost"), user=call.part("user")))
    return answers.no_content()


@described(answer=list[shapes.TopicPermission], needs="administrator")
async def list_topic_permissions(call: Call) -> web.StreamResponse:
    """GET topic-permissions."""
    call.need_administrator()
    return await call.rows(report.topic_permissions(call.state.topic_permissions.values()))


@described(answer=list[shapes.TopicPermission], needs="administrator")
async def get_topic_permission(call: Call) -> web.StreamResponse:
    """GET topic-permissions/vhost/user."""
    call.need_administrator()
    found = _topic_permissions(call)
    if not found:
        raise not_found()
    return await call.rows(report.topic_permissions(found))


@described(body=bodies.TopicPermission, statuses=(201, 204), needs="administrator")
async def put_topic_permission(call: Call) -> web.Response:
    """PUT topic-permissions/vhost/user."""
    call.need_administrator()
    _need_both(call)
    exchange, write, read = await call.need_texts("exchange", "write", "read")
    value = await call.ask(
        requests.SetTopicPermissions(
            vhost=call.part("vhost"),
            user=call.part("user"),
            exchange=exchange,
            write=write,
            read=read,
        )
    )
    return answers.created(value["created"])


@described(statuses=(204,), needs="administrator")
async def delete_topic_permission(call: Call) -> web.Response:
    """DELETE topic-permissions/vhost/user, and /exchange of that."""
    call.need_administrator()
    exchange = call.request.match_info.get("exchange")
    if not any(exchange in (None, found.exchange) for found in _topic_permissions(call)):
        raise not_found()
    await call.ask(
        requests.ClearTopicPermissions(vhost=call.part("vhost"), user=call.part("user"), exchange=exchange)
    )
    return answers.no_content()


# --- limits ---


@described(answer=list[shapes.Limits])
async def list_vhost_limits(call: Call) -> web.Response:
    """GET vhost-limits, and of one vhost."""
    wanted = call.request.match_info.get("vhost")
    if wanted is not None and not call.who.is_monitor:
        call.need_vhost()
    if wanted is not None and wanted not in call.state.vhosts:
        raise not_found()
    visible = sorted(call.state.vhosts) if call.who.is_monitor else call.visible_vhosts()
    names = visible if wanted is None else [wanted]
    found = [call.state.vhost_limits[name] for name in names if name in call.state.vhost_limits]
    return answers.response([{"vhost": record.vhost, "value": record.limits} for record in found])


@described(body=bodies.Limit, statuses=(204,), needs="administrator")
async def put_vhost_limit(call: Call) -> web.Response:
    """PUT vhost-limits/vhost/name."""
    call.need_administrator()
    if call.part("vhost") not in call.state.vhosts:
        raise NO_VHOST
    (value,) = await call.need_keys("value")
    limits = {call.part("name"): value}
    await call.ask(requests.SetVHostLimits(vhost=call.part("vhost"), limits=limits))
    return answers.no_content()


@described(statuses=(204,), needs="administrator")
async def delete_vhost_limit(call: Call) -> web.Response:
    """DELETE vhost-limits/vhost/name."""
    call.need_administrator()
    await call.ask(requests.ClearVHostLimits(vhost=call.part("vhost"), limit=call.part("name")))
    return answers.no_content()


@described(answer=list[shapes.Limits])
async def list_user_limits(call: Call) -> web.Response:
    """GET user-limits, and of one user."""
    wanted = call.request.match_info.get("user")
    if wanted is not None and wanted not in call.state.users:
        raise not_found()
    found = [
        {"user": record.name, "value": record.limits}
        for record in call.state.users.values()
        if record.limits and wanted in (None, record.name)
    ]
    return answers.response(found)


@described(body=bodies.Limit, statuses=(204,), needs="administrator")
async def put_user_limit(call: Call) -> web.Response:
    """PUT user-limits/user/name."""
    call.need_administrator()
    (value,) = await call.need_keys("value")
    if call.part("user") not in call.state.users:
        raise bad_request(["no_such_user", call.part("user")])
    limits = {call.part("name"): value}
    await call.ask(requests.SetUserLimits(user=call.part("user"), limits=limits))
    return answers.no_content()


@described(statuses=(204,), needs="administrator")
async def delete_user_limit(call: Call) -> web.Response:
    """DELETE user-limits/user/name."""
    call.need_administrator()
    await call.ask(requests.ClearUserLimits(user=_user(call).name, limit=call.part("name")))
    return answers.no_content()


# --- shared ---


def _user(call: Call) -> records.User:
    found = call.state.users.get(call.part("user"))
    if found is None:
        raise not_found()
    return found


def _need_both(call: Call) -> None:
    if call.part("user") not in call.state.users or call.part("vhost") not in call.state.vhosts:
        raise bad_request("vhost_or_user_not_found")


def _topic_permissions(call: Call) -> list[records.TopicPermission]:
    vhost = call.part("vhost")
    return [found for found in call.state.topic_permissions_of(call.part("user")) if found.vhost == vhost]


async def _tags(call: Call) -> tuple[str, ...]:
    """Tags of a user to be made. Clients of old versions say `administrator` instead."""
    body = await call.body()
    if "tags" in body:
        return tags_of(body["tags"])
    if "administrator" not in body:
        raise bad_request("tags_not_present")
    return ("administrator",) if await call.boolean("administrator") else ()


def _rights(call: Call, given: Row) -> Iterator[tuple[str, str, str, str]]:
    """Permissions that stand in the body of a user."""
    for vhost, row in given.items():
        patterns = object_of(row, f"permissions of '{vhost}'")
        found = [text_of(patterns, name) for name in RIGHTS]
        if missing := [name for name, value in zip(RIGHTS, found, strict=True) if value is None]:
            raise missing_keys(missing)
        if vhost not in call.state.vhosts:
            raise bad_request(["no_such_vhost", vhost])
        configure, write, read = map(str, found)
        yield vhost, configure, write, read


ROUTES = (
    ("GET", "whoami", whoami),
    ("GET", "users", list_users),
    ("GET", "users/without-permissions", users_without_permissions),
    ("POST", "users/bulk-delete", delete_users),
    ("GET", "users/{user}", get_user),
    ("PUT", "users/{user}", put_user),
    ("DELETE", "users/{user}", delete_user),
    ("GET", "users/{user}/permissions", user_permissions),
    ("GET", "users/{user}/topic-permissions", user_topic_permissions),
    ("GET", "permissions", list_permissions),
    ("GET", "permissions/{vhost}/{user}", get_permission),
    ("PUT", "permissions/{vhost}/{user}", put_permission),
    ("DELETE", "permissions/{vhost}/{user}", delete_permission),
    ("GET", "topic-permissions", list_topic_permissions),
    ("GET", "topic-permissions/{vhost}/{user}", get_topic_permission),
    ("PUT", "topic-permissions/{vhost}/{user}", put_topic_permission),
    ("DELETE", "topic-permissions/{vhost}/{user}", delete_topic_permission),
    ("DELETE", "topic-permissions/{vhost}/{user}/{exchange}", delete_topic_permission),
    ("GET", "vhost-limits", list_vhost_limits),
    ("GET", "vhost-limits/{vhost}", list_vhost_limits),
    ("PUT", "vhost-limits/{vhost}/{name}", put_vhost_limit),
    ("DELETE", "vhost-limits/{vhost}/{name}", delete_vhost_limit),
    ("GET", "user-limits", list_user_limits),
    ("GET", "user-limits/{user}", list_user_limits),
    ("PUT", "user-limits/{user}/{name}", put_user_limit),
    ("DELETE", "user-limits/{user}/{name}", delete_user_limit),
)
