"""Policies, operator policies, and runtime parameters."""

from __future__ import annotations

from aiohttp import web

from mirrormq.http import answers, bodies, shapes
from mirrormq.http.answers import Fault, Row, bad_request, not_found
from mirrormq.http.api import Call, Handler
from mirrormq.http.describe import described
from mirrormq.meta import records
from mirrormq.node import report, requests

NO_VHOST = Fault(404, "not_found", "vhost_not_found")


async def list_policies(call: Call, *, operator: bool) -> web.StreamResponse:
    """GET policies, and of one vhost."""
    vhosts = [call.need_vhost()] if "vhost" in call.request.match_info else call.visible_vhosts()
    found = [record for name in vhosts for record in call.state.policies_in(name)]
    return await call.rows(report.policies(found, operator=operator))


async def get_policy(call: Call, *, operator: bool) -> web.Response:
    """GET policies/vhost/name."""
    _need_right(call, operator=operator)
    found = _policy(call, operator=operator)
    return answers.response(next(report.policies([found], operator=operator)))


async def put_policy(call: Call, *, operator: bool) -> web.Response:
    """PUT policies/vhost/name."""
    _need_right(call, operator=operator)
    vhost = call.need_vhost(NO_VHOST)
    pattern, definition = await call.need_keys("pattern", "definition")
    if not isinstance(pattern, str):
        raise bad_request("pattern must be a text")
    body = await call.body()
    value = await call.ask(
        requests.SetPolicy(
            vhost=vhost,
            name=call.part("name"),
            pattern=pattern,
            definition=definition,
            priority=body.get("priority", 0),
            apply_to=body.get("apply-to", "all"),
            operator=operator,
        )
    )
    return answers.created(value["created"])


async def delete_policy(call: Call, *, operator: bool) -> web.Response:
    """DELETE policies/vhost/name."""
    _need_right(call, operator=operator)
    found = _policy(call, operator=operator)
    await call.ask(requests.ClearPolicy(vhost=found.vhost, name=found.name, operator=operator))
    return answers.no_content()


def _need_right(call: Call, *, operator: bool) -> None:
    if operator:
        call.need_administrator()
    else:
        call.need_policymaker()


def _policy(call: Call, *, operator: bool) -> records.Policy:
    found = call.state.policies.get((call.need_vhost(), call.part("name"), operator))
    if found is None:
        raise not_found()
    return found


# --- parameters ---


@described(answer=list[shapes.Parameter], needs="policymaker")
async def list_parameters(call: Call) -> web.StreamResponse:
    """GET parameters, of one component, of one component in one vhost."""
    call.need_policymaker()
    wanted = call.request.match_info
    vhosts = {call.need_vhost()} if "vhost" in wanted else set(call.visible_vhosts())
    component = wanted.get("component")
    source = report.policy_parameters if component == "policy" else report.parameters
    rows = [
        row for row in source(call.node) if row["vhost"] in vhosts and component in (None, row["component"])
    ]
    return await call.rows(rows)


@described(answer=shapes.Parameter, needs="policymaker")
async def get_parameter(call: Call) -> web.Response:
    """GET parameters/component/vhost/name."""
    call.need_policymaker()
    return answers.response(_parameter(call))


def _parameter(call: Call) -> Row:
    wanted = (call.part("component"), call.need_vhost(), call.part("name"))
    source = report.policy_parameters if wanted[0] == "policy" else report.parameters
    for row in source(call.node):
        if (row["component"], row["vhost"], row["name"]) == wanted:
            return row
    raise not_found()


@described(body=bodies.Parameter, statuses=(201, 204), needs="policymaker")
async def put_parameter(call: Call) -> web.Response:
    """PUT parameters/component/vhost/name."""
    call.need_policymaker()
    vhost = call.need_vhost(NO_VHOST)
    (value,) = await call.need_keys("value")
    answer = await call.ask(
        requests.SetParameter(
            vhost=vhost, component=call.part("component"), name=call.part("name"), value=value
        )
    )
    return answers.created(answer["created"])


@described(statuses=(204,), needs="policymaker")
async def delete_parameter(call: Call) -> web.Response:
    """DELETE parameters/component/vhost/name."""
    call.need_policymaker()
    found = _parameter(call)
    await call.ask(
        requests.ClearParameter(vhost=found["vhost"], component=found["component"], name=found["name"])
    )
    return answers.no_content()


@described(answer=list[shapes.Parameter], needs="policymaker")
async def list_global_parameters(call: Call) -> web.StreamResponse:
    """GET global-parameters."""
    call.need_policymaker()
    return await call.rows(report.global_parameters(call.node))


@described(answer=shapes.Parameter, needs="policymaker")
async def get_global_parameter(call: Call) -> web.Response:
    """GET global-parameters/name."""
    call.need_policymaker()
    for row in report.global_parameters(call.node):
        if row["name"] == call.part("name"):
            return answers.response(row)
    raise not_found()


@described(body=bodies.Parameter, statuses=(201, 204), needs="policymaker")
async def put_global_parameter(call: Call) -> web.Response:
    """PUT global-parameters/name."""
    call.need_policymaker()
    (value,) = await call.need_keys("value")
    answer = await call.ask(requests.SetGlobalParameter(name=call.part("name"), value=value))
    return answers.created(answer["created"])


@described(statuses=(204,), needs="policymaker")
async def delete_global_parameter(call: Call) -> web.Response:
    """DELETE global-parameters/name."""
    call.need_policymaker()
    if call.part("name") not in call.state.global_parameters:
        raise not_found()
    await call.ask(requests.ClearGlobalParameter(name=call.part("name")))
    return answers.no_content()


def _policy_routes(path: str, *, operator: bool) -> list[tuple[str, str, Handler]]:
    tag = "administrator" if operator else "policymaker"

    @described(answer=list[shapes.Policy])
    async def many(call: Call) -> web.StreamResponse:
        """List policies."""
        return await list_policies(call, operator=operator)

    @described(answer=shapes.Policy, needs=tag)
    async def one(call: Call) -> web.Response:
        """One policy."""
        return await get_policy(call, operator=operator)

    @described(body=bodies.Policy, statuses=(201, 204), needs=tag)
    async def put(call: Call) -> web.Response:
        """Set a policy."""
        return await put_policy(call, operator=operator)

    @described(statuses=(204,), needs=tag)
    async def delete(call: Call) -> web.Response:
        """Remove a policy."""
        return await delete_policy(call, operator=operator)

    return [
        ("GET", path, many),
        ("GET", f"{path}/{{vhost}}", many),
        ("GET", f"{path}/{{vhost}}/{{name}}", one),
        ("PUT", f"{path}/{{vhost}}/{{name}}", put),
        ("DELETE", f"{path}/{{vhost}}/{{name}}", delete),
    ]


ROUTES: tuple[tuple[str, str, Handler], ...] = (
    *_policy_routes("policies", operator=False),
    *_policy_routes("operator-policies", operator=True),
    ("GET", "parameters", list_parameters),
    ("GET", "parameters/{component}", list_parameters),
    ("GET", "parameters/{component}/{vhost}", list_parameters),
    ("GET", "parameters/{component}/{vhost}/{name}", get_parameter),
    ("PUT", "parameters/{component}/{vhost}/{name}", put_parameter),
    ("DELETE", "parameters/{component}/{vhost}/{name}", delete_parameter),
    ("GET", "global-parameters", list_global_parameters),
    ("GET", "global-parameters/{name}", get_global_parameter),
    ("PUT", "global-parameters/{name}", put_global_parameter),
    ("DELETE", "global-parameters/{name}", delete_global_parameter),
)
