"""Every resource of the management API with what each kind of user gets for it: what RabbitMQ 3.10.8 answers,
which unit tests ask of us and `tests/interop` of RabbitMQ itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

TAGS = ("management", "policymaker", "monitoring", "administrator")
PEOPLE = (None, "untagged", *TAGS)
"""Nobody, and users with all rights in the vhost /. The password is the name."""

Asked = tuple[str, str] | tuple[str, str, Any]


class Row(NamedTuple):
    """One resource."""

    verb: str
    route: str
    """As it stands in the table of routes, below /api/."""
    path: str
    """What is asked for. `{connection}` and `{channel}` are those of guest, `{node}` is who is asked."""
    statuses: tuple[int, int, int, int, int, int]
    """For each of `PEOPLE`."""
    body: Any = None
    before: tuple[Asked, ...] = ()
    """What an administrator asks before each of them, so that all find the same."""
    wrong: tuple[str | None, Any, int] | None = None
    """Another path or body, and what an administrator gets for it."""
    is_ours: bool = False
    """RabbitMQ has nothing like it, or answers 500."""


Statuses = tuple[int, int, int, int, int, int]
Who = Callable[[int], Statuses]


def all_of(status: int) -> Statuses:
    return (401, 401, status, status, status, status)


def monitors(status: int) -> Statuses:
    return (401, 401, 401, 401, status, status)


def policymakers(status: int) -> Statuses:
    return (401, 401, 401, status, 401, status)


def administrators(status: int) -> Statuses:
    return (401, 401, 401, 401, 401, status)


OPEN = (200,) * 6


def get(route: str, path: str, who: Who, wrong: str = "", status: int = 404, **more: Any) -> Row:
    """A resource that is read; `wrong` is a path for which an administrator gets `status`."""
    return Row("GET", route, path, who(200), wrong=(wrong, None, status) if wrong else None, **more)


USER = ("PUT", "users/u", {"tags": "", "password": "u"})
RIGHTS = {"configure": "", "write": "", "read": ""}
ON_TOPIC = {"exchange": "amq.topic", "write": "", "read": ""}
TOPIC = ("PUT", "topic-permissions/%2F/u", ON_TOPIC)
POLICY = {"pattern": "^x", "definition": {"max-length": 1}}
MESSAGE = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {}}
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
BIND = ("POST", "bindings/%2F/e/amq.topic/q/q", {"routing_key": "k"})
AGE = "lengths_age=x&lengths_incr=5"
LIMITS = "parameters/vhost-limits"
PARAMETER = f"{LIMITS}/%2F/limits"

ACCESS = (
    get("whoami", "whoami", all_of),
    get("users", "users", administrators, "users?page=0", 400),
    get("users/without-permissions", "users/without-permissions", administrators),
    Row(
        "POST",
        "users/bulk-delete",
        "users/bulk-delete",
        administrators(204),
        {"users": ["u"]},
        before=(USER,),
        wrong=(None, {}, 400),
    ),
    get("users/{user}", "users/u", administrators, "users/none", before=(USER,)),
    Row(
        "PUT",
        "users/{user}",
        "users/u",
        administrators(201),
        USER[2],
        before=(("DELETE", "users/u"),),
        wrong=(None, {}, 400),
    ),
    Row(
        "DELETE",
        "users/{user}",
        "users/u",
        administrators(204),
        before=(USER,),
        wrong=("users/none", None, 404),
    ),
    get("users/{user}/permissions", "users/guest/permissions", administrators, "users/none/permissions"),
    get(
        "users/{user}/topic-permissions",
        "users/guest/topic-permissions",
        administrators,
        "users/none/topic-permissions",
    ),
    get("permissions", "permissions", administrators),
    get("permissions/{vhost}/{user}", "permissions/%2F/guest", administrators, "permissions/none/guest"),
    Row(
        "PUT",
        "permissions/{vhost}/{user}",
        "permissions/%2F/u",
        administrators(201),
        RIGHTS,
        before=(("DELETE", "users/u"), USER),
        wrong=(None, {"configure": ""}, 400),
    ),
    Row(
        "DELETE",
        "permissions/{vhost}/{user}",
        "permissions/%2F/u",
        administrators(204),
        before=(USER, ("PUT", "permissions/%2F/u", RIGHTS)),
        wrong=("permissions/none/u", None, 404),
    ),
    get("topic-permissions", "topic-permissions", administrators),
    get(
        "topic-permissions/{vhost}/{user}",
        "topic-permissions/%2F/u",
        administrators,
        "topic-permissions/%2F/guest",
        before=(USER, TOPIC),
    ),
    Row(
        "PUT",
        "topic-permissions/{vhost}/{user}",
        "topic-permissions/%2F/u",
        administrators(201),
        ON_TOPIC,
        before=(("DELETE", "users/u"), USER),
        wrong=(None, {"exchange": "amq.topic"}, 400),
    ),
    Row(
        "DELETE",
        "topic-permissions/{vhost}/{user}",
        "topic-permissions/%2F/u",
        administrators(204),
        before=(USER, TOPIC),
        wrong=("topic-permissions/%2F/guest", None, 404),
    ),
    Row(
        "DELETE",
        "topic-permissions/{vhost}/{user}/{exchange}",
        "topic-permissions/%2F/u/amq.topic",
        administrators(204),
        before=(USER, TOPIC),
        wrong=("topic-permissions/%2F/none/amq.topic", None, 404),
    ),
    get("vhost-limits", "vhost-limits", all_of),
    get("vhost-limits/{vhost}", "vhost-limits/%2F", all_of, "vhost-limits/none"),
    Row(
        "PUT",
        "vhost-limits/{vhost}/{name}",
        "vhost-limits/%2F/max-queues",
        administrators(204),
        {"value": 99},
        wrong=("vhost-limits/%2F/none", {"value": 1}, 400),
    ),
    Row(
        "DELETE",
        "vhost-limits/{vhost}/{name}",
        "vhost-limits/%2F/max-queues",
        administrators(204),
        before=(("PUT", "vhost-limits/%2F/max-queues", {"value": 99}),),
        wrong=("vhost-limits/none/max-queues", None, 404),
    ),
    get("user-limits", "user-limits", all_of),
    get("user-limits/{user}", "user-limits/guest", all_of, "user-limits/none"),
    Row(
        "PUT",
        "user-limits/{user}/{name}",
        "user-limits/u/max-channels",
        administrators(204),
        {"value": 9},
        before=(USER,),
        wrong=("user-limits/u/none", {"value": 1}, 400),
    ),
    Row(
        "DELETE",
        "user-limits/{user}/{name}",
        "user-limits/u/max-channels",
        administrators(204),
        before=(USER, ("PUT", "user-limits/u/max-channels", {"value": 9})),
        wrong=("user-limits/none/max-channels", None, 404),
    ),
)

VHOST = ("PUT", "vhosts/v", {})
DEFINITIONS = tuple(
    row
    for name in ("all-configuration", "definitions")
    for row in (
        get(name, name, administrators),
        Row("POST", name, name, administrators(204), {}, wrong=(None, "zzz", 400)),
    )
)
VHOSTS = (
    *DEFINITIONS,
    Row("PUT", "definitions", "definitions", administrators(204), {}, wrong=(None, "zzz", 400), is_ours=True),
    get("definitions/{vhost}", "definitions/%2F", administrators, "definitions/none", 400),
    Row(
        "POST",
        "definitions/{vhost}",
        "definitions/%2F",
        administrators(204),
        {},
        wrong=("definitions/none", {}, 404),
    ),
    Row(
        "PUT",
        "definitions/{vhost}",
        "definitions/%2F",
        administrators(204),
        {},
        wrong=("definitions/none", {}, 404),
        is_ours=True,
    ),
    get("vhosts", "vhosts", all_of, "vhosts?page=0", 400),
    get("vhosts/{vhost}", "vhosts/%2F", administrators, "vhosts/none"),
    Row(
        "PUT",
        "vhosts/{vhost}",
        "vhosts/v",
        administrators(201),
        {},
        before=(("DELETE", "vhosts/v"),),
        wrong=(None, "[]", 400),
    ),
    Row("DELETE", "vhosts/{vhost}", "vhosts/v", administrators(204), before=(VHOST,)),
    Row(
        "POST",
        "vhosts/{vhost}/promote",
        "vhosts/m/promote",
        administrators(204),
        before=(("DELETE", "vhosts/m"), ("PUT", "vhosts/m", {"mirror_of": "west"})),
        is_ours=True,
        wrong=("vhosts/none/promote", None, 404),
    ),
    Row(
        "POST",
        "vhosts/{vhost}/start/{node}",
        "vhosts/%2F/start/{node}",
        administrators(204),
        {},
        wrong=("vhosts/%2F/start/none@nowhere", {}, 400),
    ),
    get("vhosts/{vhost}/permissions", "vhosts/%2F/permissions", administrators, "vhosts/none/permissions"),
    get(
        "vhosts/{vhost}/topic-permissions",
        "vhosts/%2F/topic-permissions",
        administrators,
        "vhosts/none/topic-permissions",
    ),
)

LIVE = (
    get("connections", "connections", all_of, f"connections?{AGE}", 400),
    get("connections/username/{user}", "connections/username/guest", all_of, is_ours=True),
    Row(
        "DELETE",
        "connections/username/{user}",
        "connections/username/guest",
        administrators(204),
        is_ours=True,
    ),
    get("connections/{connection}", "connections/{connection}", monitors, "connections/none"),
    Row(
        "DELETE",
        "connections/{connection}",
        "connections/{connection}",
        administrators(204),
        wrong=("connections/none", None, 404),
    ),
    get(
        "connections/{connection}/channels",
        "connections/{connection}/channels",
        monitors,
        "connections/none/channels",
    ),
    get("vhosts/{vhost}/connections", "vhosts/%2F/connections", all_of, "vhosts/none/connections"),
    get("channels", "channels", all_of, f"channels?{AGE}", 400),
    get("channels/{channel}", "channels/{channel}", monitors, "channels/none"),
    get("vhosts/{vhost}/channels", "vhosts/%2F/channels", all_of, "vhosts/none/channels"),
    get("consumers", "consumers", all_of, "consumers?page=0", 400),
    get("consumers/{vhost}", "consumers/%2F", all_of, "consumers/none"),
)

QUEUE = "queues/{vhost}/{queue}"
EXCHANGE = "exchanges/{vhost}/{exchange}"
ENDS = "bindings/{vhost}/e/{source}/{kind}/{destination}"
MADE = ("PUT", "queues/%2F/made", {"durable": True})
OBJECTS = (
    get("queues", "queues", all_of, f"queues?{AGE}", 400),
    get("queues/{vhost}", "queues/%2F", all_of, "queues/none"),
    get(QUEUE, "queues/%2F/q", all_of, "queues/%2F/none"),
    Row(
        "PUT",
        QUEUE,
        "queues/%2F/made",
        all_of(201),
        MADE[2],
        before=(("DELETE", "queues/%2F/made"),),
        wrong=(None, {"auto_delete": "maybe"}, 400),
    ),
    Row(
        "DELETE",
        QUEUE,
        "queues/%2F/made",
        all_of(204),
        before=(MADE,),
        wrong=("queues/%2F/none", None, 404),
    ),
    Row(
        "DELETE",
        f"{QUEUE}/contents",
        "queues/%2F/q/contents",
        all_of(204),
        wrong=("queues/%2F/none/contents", None, 404),
    ),
    Row(
        "POST",
        f"{QUEUE}/actions",
        "queues/%2F/q/actions",
        administrators(204),
        {"action": "sync"},
        wrong=(None, {"action": "none"}, 400),
    ),
    Row("POST", f"{QUEUE}/get", "queues/%2F/q/get", all_of(200), GET, wrong=(None, {}, 400)),
    get(f"{QUEUE}/bindings", "queues/%2F/q/bindings", all_of, "queues/%2F/none/bindings"),
    get("exchanges", "exchanges", all_of, f"exchanges?{AGE}", 400),
    get("exchanges/{vhost}", "exchanges/%2F", all_of, "exchanges/none"),
    get(EXCHANGE, "exchanges/%2F/amq.topic", all_of, "exchanges/%2F/none"),
    Row(
        "PUT",
        EXCHANGE,
        "exchanges/%2F/made",
        all_of(201),
        {"type": "topic"},
        before=(("DELETE", "exchanges/%2F/made"),),
        wrong=(None, {"type": "none"}, 400),
    ),
    Row(
        "DELETE",
        EXCHANGE,
        "exchanges/%2F/made",
        all_of(204),
        before=(("PUT", "exchanges/%2F/made", {"type": "topic"}),),
        wrong=("exchanges/%2F/none", None, 404),
    ),
    Row(
        "POST",
        f"{EXCHANGE}/publish",
        "exchanges/%2F/amq.default/publish",
        all_of(200),
        MESSAGE,
        wrong=(None, {}, 400),
    ),
    get(
        EXCHANGE + "/bindings/{end}",
        "exchanges/%2F/amq.topic/bindings/source",
        all_of,
        "exchanges/%2F/none/bindings/destination",
    ),
    get("bindings", "bindings", all_of, "bindings?page=0", 400),
    get("bindings/{vhost}", "bindings/%2F", all_of, "bindings/none"),
    get(ENDS, BIND[1], all_of, "bindings/none/e/amq.topic/q/q"),
    Row("POST", ENDS, BIND[1], all_of(201), BIND[2], wrong=("bindings/%2F/e/amq.topic/q/none", {}, 404)),
    get(ENDS + "/{key}", f"{BIND[1]}/k", all_of, f"{BIND[1]}/none", before=(BIND,)),
    Row(
        "DELETE",
        ENDS + "/{key}",
        f"{BIND[1]}/k",
        all_of(204),
        before=(BIND,),
        wrong=(f"{BIND[1]}/none", None, 404),
    ),
)


def policies(kind: str, who: Any) -> tuple[Row, ...]:
    one, there = f"{kind}/{{vhost}}/{{name}}", ("PUT", f"{kind}/%2F/p", POLICY)
    none = (f"{kind}/%2F/none", None, 404)
    return (
        get(kind, kind, all_of),
        get(f"{kind}/{{vhost}}", f"{kind}/%2F", all_of, f"{kind}/none"),
        Row("GET", one, there[1], who(200), before=(there,), wrong=none),
        Row("PUT", one, there[1], who(201), POLICY, before=(("DELETE", there[1]),), wrong=(None, {}, 400)),
        Row("DELETE", one, there[1], who(204), before=(there,), wrong=none),
    )


LIMITED = {"value": {"max-queues": 99}}
SET = ("PUT", PARAMETER, LIMITED)
GLOBAL = ("PUT", "global-parameters/g", {"value": 1})
POLICIES = (
    *policies("policies", policymakers),
    *policies("operator-policies", administrators),
    get("parameters", "parameters", policymakers),
    get("parameters/{component}", LIMITS, policymakers),
    get("parameters/{component}/{vhost}", f"{LIMITS}/%2F", policymakers, f"{LIMITS}/none"),
    get(
        "parameters/{component}/{vhost}/{name}", PARAMETER, policymakers, f"{LIMITS}/%2F/none", before=(SET,)
    ),
    Row(
        "PUT",
        "parameters/{component}/{vhost}/{name}",
        PARAMETER,
        policymakers(201),
        LIMITED,
        before=(("DELETE", PARAMETER),),
        wrong=(None, {}, 400),
    ),
    Row(
        "DELETE",
        "parameters/{component}/{vhost}/{name}",
        PARAMETER,
        policymakers(204),
        before=(SET,),
        wrong=(f"{LIMITS}/%2F/none", None, 404),
    ),
    get("global-parameters", "global-parameters", policymakers),
    get("global-parameters/{name}", GLOBAL[1], policymakers, "global-parameters/none", before=(GLOBAL,)),
    Row(
        "PUT",
        "global-parameters/{name}",
        GLOBAL[1],
        policymakers(201),
        GLOBAL[2],
        before=(("DELETE", GLOBAL[1]),),
        wrong=(None, {}, 400),
    ),
    Row(
        "DELETE",
        "global-parameters/{name}",
        GLOBAL[1],
        policymakers(204),
        before=(GLOBAL,),
        wrong=("global-parameters/none", None, 404),
    ),
)

OUR_QUEUE = "mirrormq/queues/{vhost}/{queue}"
FORM = "username=guest&password=guest"
NODES = (
    Row("POST", "login", "login", OPEN, FORM, wrong=(None, "username=guest&password=x", 401)),
    get("overview", "overview", all_of, f"overview?{AGE}", 400),
    get("nodes", "nodes", monitors, f"nodes?{AGE}", 400),
    get("nodes/{name}", "nodes/{node}", monitors, "nodes/none"),
    get("nodes/{node}/memory", "nodes/{node}/memory", monitors, "nodes/none/memory"),
    get(
        "nodes/{node}/memory/relative", "nodes/{node}/memory/relative", monitors, "nodes/none/memory/relative"
    ),
    get("cluster-name", "cluster-name", all_of),
    Row("PUT", "cluster-name", "cluster-name", administrators(204), {"name": "c"}, wrong=(None, {}, 400)),
    get("aliveness-test/{vhost}", "aliveness-test/%2F", all_of, "aliveness-test/none"),
    get("extensions", "extensions", all_of),
    Row("GET", "auth", "auth", OPEN),
    get("feature-flags", "feature-flags", administrators),
    Row(
        "PUT",
        "feature-flags/{name}/enable",
        "feature-flags/quorum_queue/enable",
        administrators(204),
        {},
        wrong=("feature-flags/none/enable", {}, 400),
    ),
    Row("POST", "rebalance/queues", "rebalance/queues", administrators(204), {}),
    Row("DELETE", "reset", "reset", administrators(204)),
    Row("DELETE", "reset/{node}", "reset/{node}", administrators(204), wrong=("reset/none", None, 404)),
    *(
        Row(verb, f"auth/attempts/{{node}}{end}", f"auth/attempts/{{node}}{end}", monitors(status))
        for end in ("", "/source")
        for verb, status in (("GET", 200), ("DELETE", 204))
    ),
    get("healthchecks/node", "healthchecks/node", all_of),
    get("healthchecks/node/{node}", "healthchecks/node/{node}", all_of, "healthchecks/node/none"),
    *(
        get(f"health/checks/{name}", f"health/checks/{name}", all_of)
        for name in (
            "alarms",
            "local-alarms",
            "virtual-hosts",
            "node-is-mirror-sync-critical",
            "node-is-quorum-critical",
        )
    ),
    *(
        get(f"health/checks/{name}", f"health/checks/{name}", all_of, is_ours=True)
        for name in ("ready-to-serve-clients", "is-in-service")
    ),
    get(
        "health/checks/port-listener/{port}",
        "health/checks/port-listener/{port}",
        all_of,
        "health/checks/port-listener/x",
        400,
    ),
    get(
        "health/checks/protocol-listener/{protocol}",
        "health/checks/protocol-listener/amqp091",
        all_of,
        "health/checks/protocol-listener/none",
        503,
    ),
    get(
        "health/checks/certificate-expiration/{within}/{unit}",
        "health/checks/certificate-expiration/1/days",
        all_of,
        "health/checks/certificate-expiration/1/moons",
        400,
    ),
)


def ours(verb: str, route: str, path: str, statuses: Any, body: Any = None, **more: Any) -> Row:
    return Row(verb, route, path, statuses, body, is_ours=True, **more)


OURS = (
    ours("POST", "ctl/{command}", "ctl/list_users", administrators(200), {}, wrong=("ctl/none", {}, 404)),
    ours("GET", "mirrormq/cluster", "mirrormq/cluster", monitors(200)),
    ours("GET", "mirrormq/pipelines", "mirrormq/pipelines", monitors(200)),
    ours("GET", "mirrormq/sync", "mirrormq/sync", all_of(200), wrong=("mirrormq/sync?page=0", None, 400)),
    *(
        # The cluster of this test keeps no events.
        ours(
            "GET",
            f"mirrormq/{name}",
            f"mirrormq/{name}",
            monitors(404),
            wrong=(f"mirrormq/{name}?limit=0", None, 400),
        )
        for name in ("events", "timeline")
    ),
    *(
        ours(
            "GET",
            f"{OUR_QUEUE}/{name}",
            f"mirrormq/queues/%2F/q/{name}",
            all_of(status),
            wrong=(f"mirrormq/queues/%2F/none/{name}", None, 404),
        )
        for name, status in (("view", 200), ("sync", 400), ("messages", 200), ("cursors", 200))
    ),
    ours("GET", "mirrormq/cursors", "mirrormq/cursors", all_of(200)),
    ours(
        "GET",
        "mirrormq/cursors/{vhost}",
        "mirrormq/cursors/%2F",
        all_of(200),
        wrong=("mirrormq/cursors/none", None, 404),
    ),
    ours(
        "DELETE",
        "mirrormq/cursors/{vhost}/{queue}/{cursor}",
        "mirrormq/cursors/%2F/q/c",
        administrators(404),
        wrong=("mirrormq/cursors/%2F/none/c", None, 404),
    ),
    ours(
        "POST",
        f"{OUR_QUEUE}/move",
        "mirrormq/queues/%2F/q/move",
        administrators(200),
        {"node": "{node}"},
        wrong=(None, {}, 400),
    ),
    ours("POST", f"{OUR_QUEUE}/promote", "mirrormq/queues/%2F/q/promote", administrators(400), {}),
    ours("POST", "mirrormq/session", "mirrormq/session", all_of(201)),
    ours("GET", "mirrormq/session", "mirrormq/session", all_of(200)),
    ours("DELETE", "mirrormq/session", "mirrormq/session", all_of(204)),
    ours(
        "GET",
        "mirrormq/stream",
        "mirrormq/stream?topics=users",
        all_of(400),
        wrong=("mirrormq/stream", None, 400),
    ),
    ours("GET", "openapi.json", "openapi.json", OPEN),
)

TABLE = (*ACCESS, *VHOSTS, *LIVE, *OBJECTS, *POLICIES, *NODES, *OURS)
