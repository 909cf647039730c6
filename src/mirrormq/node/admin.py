"""Carries out administrators' requests: `handle(request, done)` checks, changes the metadata through the
log, answers.

An answer comes when the change is flushed, so it may come later than the call. Checks and texts are
RabbitMQ's, since scripts match on them. Requests are grouped by what they are about: `admin_access`,
`admin_policies`, `admin_objects`, `admin_mirrors`, `admin_balance`, `admin_cursors`, `admin_live`,
`admin_cluster`, `admin_views`; vhosts and the node itself are here.
"""

from typing import Any, Protocol

import msgspec

from mirrormq.base import limits
from mirrormq.broker.host import BrokerSettings
from mirrormq.meta import commands, records
from mirrormq.meta.access import Access
from mirrormq.node import (
    admin_access,
    admin_balance,
    admin_cluster,
    admin_cursors,
    admin_live,
    admin_mirrors,
    admin_objects,
    admin_partition,
    admin_policies,
    admin_views,
    requests,
)
from mirrormq.node.effects import Effects
from mirrormq.node.inquiry import Inquiries
from mirrormq.node.membership import Membership
from mirrormq.node.report import Row, Source
from mirrormq.node.steps import Answer, Done, Operation, Propose, Refusal, Steps, Waiting, run

QUEUE_TYPES = ("", "undefined", "classic", "quorum")


class AdminHost(Source, Waiting, Protocol):
    """The node, as administrators' requests use it."""

    settings: BrokerSettings
    effects: Effects
    access: Access
    inquiries: Inquiries
    """Questions to other nodes."""
    membership: Membership


class Admin:
    """The administrator's entrance to a node."""

    def __init__(self, host: AdminHost) -> None:
        self._host = host

    def handle(self, request: requests.Request, done: Done) -> None:
        """Carry out a request; `done` is called once, now or later."""
        run(self._host, OPERATIONS[type(request)], request, done)


# --- vhosts ---


def add_vhost(host: AdminHost, request: requests.AddVHost) -> Steps:
    """Create a vhost; of an existing one change only what is given."""
    if not admin_access.need_short("the name", request.name):
        raise Refusal("bad_request", "a virtual host needs a name")
    if (request.default_queue_type or "") not in QUEUE_TYPES:
        raise Refusal(
            "bad_request", f"Unsupported default queue type '{request.default_queue_type}': classic or quorum"
        )
    existing = host.state.vhosts.get(request.name)
    record = existing or records.VHost(request.name)
    changes: dict[str, Any] = {}
    if request.description is not None:
        changes["description"] = request.description
    if request.tags is not None:
        changes["tags"] = request.tags
    if request.default_queue_type is not None:
        kind = request.default_queue_type
        changes["default_queue_type"] = "" if kind == "undefined" else kind
    if request.mirror_of:
        _check_mirror(host, existing, request.mirror_of)
        changes |= {"mirror_of": request.mirror_of, "via": request.via}
    wanted: commands.Command = commands.PutVHost(msgspec.structs.replace(record, **changes))
    if existing is None and request.actor in host.state.users:
        # As with RabbitMQ's API: who makes a vhost may use it.
        rights = records.Permission(str(request.actor), request.name, ".*", ".*", ".*")
        wanted = commands.Transaction((), (wanted, commands.SetPermission(rights)))
    outcome = yield Propose(wanted)
    admin_access.expect(outcome)
    return {"created": existing is None}


def _check_mirror(host: AdminHost, existing: records.VHost | None, source: str) -> None:
    if existing is not None and existing.mirror_of != source:
        raise Refusal("bad_request", f"vhost '{existing.name}' exists: only a new vhost can become a mirror")
    if source in (host.cluster_name, host.membership.identity.cluster.hex()):
        raise Refusal("bad_request", f"'{source}' is this cluster: it cannot mirror itself")


def promote_mirror(host: AdminHost, request: requests.PromoteMirror) -> Steps:
    """Make an ordinary vhost of a mirror; the mirror job is refused from then on."""
    admin_access.need_vhost(host.state, request.name)
    source = host.state.vhosts[request.name].mirror_of
    if not source:
        raise Refusal("bad_request", f"vhost '{request.name}' is no mirror, or was promoted before")
    outcome = yield Propose(commands.PromoteMirror(request.name))
    admin_access.expect(outcome)
    return {"mirror_of": source}


def delete_vhost(host: AdminHost, request: requests.DeleteVHost) -> Steps:
    """Delete a vhost with everything in it. Its queues go first, some at a time: in one command very many of
    them would hold the loop of every node, and their copies and files with it.
    """
    admin_access.need_vhost(host.state, request.name)
    for at, queue in enumerate(list(host.state.queues_in(request.name)), 1):
        command = commands.DeleteQueue(vhost=queue.vhost, name=queue.name, id=queue.id)
        outcome = yield Propose(command, wait=at % limits.delete_slice_queues == 0)
        admin_access.expect(outcome, "missing")
    outcome = yield Propose(commands.DeleteVHost(request.name))
    admin_access.expect(outcome)
    return {}


# --- the node ---


def stop(host: AdminHost, request: requests.Stop) -> Row:
    """Stop the node; the answer is on its way before the node is gone."""
    host.effects.stop(request.reason)
    return {}


OPERATIONS: dict[type[requests.Request], Operation] = {
    requests.AddVHost: add_vhost,
    requests.DeleteVHost: delete_vhost,
    requests.PromoteMirror: promote_mirror,
    requests.Stop: stop,
    **admin_access.OPERATIONS,
    **admin_live.OPERATIONS,
    **admin_policies.OPERATIONS,
    **admin_objects.OPERATIONS,
    **admin_mirrors.OPERATIONS,
    **admin_balance.OPERATIONS,
    **admin_cursors.OPERATIONS,
    **admin_cluster.OPERATIONS,
    **admin_partition.OPERATIONS,
    **admin_views.OPERATIONS,
}

__all__ = ["OPERATIONS", "Admin", "AdminHost", "Answer"]
