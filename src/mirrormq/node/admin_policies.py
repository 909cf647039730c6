"""Requests about policies, runtime parameters and whole definition files."""

from collections import deque
from itertools import islice
from typing import Protocol

import msgspec

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.broker import arguments, exchange
from mirrormq.meta import commands, policy, records
from mirrormq.meta.definitions import DefinitionError, import_, plain_passwords, read
from mirrormq.meta.state import MetaState
from mirrormq.node import requests
from mirrormq.node.admin_access import expect, need_short, need_vhost, set_vhost_limits
from mirrormq.node.changes import Following
from mirrormq.node.steps import Await, Hash, Operation, Propose, Refusal, Steps


class Host(Protocol):
    """The node, as these requests use it."""

    node_name: str
    following: Following

    @property
    def state(self) -> MetaState:
        """The metadata."""
        ...

    def place(self, queue: records.Queue) -> str:
        """The node where a queue that is about to be declared is to have its master."""
        ...


# --- policies ---


def set_policy(host: Host, request: requests.SetPolicy) -> Steps:
    """Create or replace a policy."""
    need_vhost(host.state, request.vhost)
    if not isinstance(request.definition, dict):
        raise Refusal("bad_request", _invalid(["definition should be an object"]))
    if isinstance(request.priority, bool) or not isinstance(request.priority, int):
        raise Refusal(
            "bad_request", _invalid([f"priority should be a number, actually was {request.priority!r}"])
        )
    record = records.Policy(
        request.vhost,
        request.name,
        request.pattern,
        request.definition,
        apply_to=request.apply_to,
        priority=request.priority,
        operator=request.operator,
    )
    wrong = policy.problems(record)
    if wrong:
        raise Refusal("bad_request", _invalid(wrong))
    created = record.identity not in host.state.policies
    outcome = yield Propose(commands.SetPolicy(record))
    expect(outcome)
    yield Await(host.following.followed(request.vhost))
    return {"created": created}


def clear_policy(host: Host, request: requests.ClearPolicy) -> Steps:
    """Remove a policy."""
    need_vhost(host.state, request.vhost)
    outcome = yield Propose(commands.ClearPolicy(request.vhost, request.name, request.operator))
    if outcome.error == "missing":
        raise Refusal("not_found", f"Policy '{request.name}' does not exist in vhost '{request.vhost}'")
    expect(outcome)
    yield Await(host.following.followed(request.vhost))
    return {}


def _invalid(sentences: list[str]) -> str:
    return "Validation failed\n\n" + "\n".join(sentences) + "\n"


# --- parameters ---


def set_parameter(host: Host, request: requests.SetParameter) -> Steps:
    """Set a parameter of a component; there is no component but the limits of a vhost."""
    need_vhost(host.state, request.vhost)
    if request.component in ("policy", "operator_policy"):
        raise Refusal("bad_request", "Validation failed\n\npolicies may not be set using this method\n")
    if request.component != "vhost-limits" or not isinstance(request.value, dict):
        raise Refusal("bad_request", f"Validation failed\n\ncomponent {request.component} not found\n")
    created = request.vhost not in host.state.vhost_limits
    yield from set_vhost_limits(host, requests.SetVHostLimits(vhost=request.vhost, limits=request.value))
    return {"created": created}


def clear_parameter(host: Host, request: requests.ClearParameter) -> Steps:
    """Remove a parameter."""
    need_vhost(host.state, request.vhost)
    is_limits = (request.component, request.name) == ("vhost-limits", "limits")
    if is_limits and request.vhost in host.state.vhost_limits:
        outcome = yield Propose(commands.ClearVHostLimits(request.vhost))
    else:
        outcome = yield Propose(commands.ClearParameter(request.vhost, request.component, request.name))
    if outcome.error == "missing":
        raise Refusal("not_found", "Parameter does not exist")
    expect(outcome)
    return {}


def set_global_parameter(host: Host, request: requests.SetGlobalParameter) -> Steps:
    """Set a parameter of the whole cluster."""
    created = request.name not in host.state.global_parameters
    outcome = yield Propose(commands.SetGlobalParameter(request.name, request.value))
    expect(outcome)
    return {"created": created}


def clear_global_parameter(_host: Host, request: requests.ClearGlobalParameter) -> Steps:
    """Remove a parameter of the whole cluster."""
    outcome = yield Propose(commands.ClearGlobalParameter(request.name))
    if outcome.error == "missing":
        raise Refusal("not_found", "Parameter does not exist")
    expect(outcome)
    return {}


# --- definition files ---


def import_definitions(host: Host, request: requests.ImportDefinitions) -> Steps:
    """Bring a definition file into force: what exists already stays, what is refused ends the import with
    its name.

    Commands go in slices, each of which waits for the disk, so that a file of 10,000 queues does not hold
    the loop. What was read of the request is taken out of it: it is let go in slices as well.
    """
    if request.vhost is not None and request.vhost not in host.state.vhosts:
        raise Refusal("bad_request", "vhost_not_found")
    try:
        hashes: dict[str, tuple[str, str]] = {}
        if request.vhost is None:
            for name, password in plain_passwords(request.definitions).items():
                hashes[name] = ("", "") if not password else (yield Hash(password))
        found = read(request.definitions, request.vhost, hashes=hashes, node=host.node_name, check=_complaint)
        wanted: deque[commands.Command] = deque()
        while some := list(islice(found, limits.import_read_max)):
            wanted += some
            yield Await(host.following.breath())
    except DefinitionError as error:
        raise Refusal("bad_request", str(error)) from error
    for part in request.definitions.values():
        while isinstance(part, list) and part:
            del part[-limits.import_read_max :]
            yield Await(host.following.breath())
    count = len(wanted)
    while wanted:
        command = wanted.popleft()
        is_slice_end = len(wanted) % limits.import_slice_max == 0
        outcome = yield Propose(_placed(host, command), wait=is_slice_end)
        expect(outcome)
    return {"commands": count}


def remove_definitions(host: Host, request: requests.RemoveDefinitions) -> Steps:
    """Remove from a mirror what is gone at its source; what is not there is passed over.

    For mirrors only, where no client can do it.
    """
    vhost = host.state.vhosts.get(request.vhost)
    if vhost is None or not vhost.mirror_of:
        raise Refusal("bad_request", f"vhost '{request.vhost}' is no mirror, or was promoted")
    try:
        named = import_(request.definitions, request.vhost, node=host.node_name)
    except DefinitionError as error:
        raise Refusal("bad_request", str(error)) from error
    wanted = [found for command in reversed(named) if (found := _undone(command)) is not None]
    for command in wanted:
        outcome = yield Propose(command)
        expect(outcome, "missing", "no_source", "no_destination")
    return {"commands": len(wanted)}


def _undone(command: commands.Command) -> commands.Command | None:
    """What takes back a command of an import."""
    if isinstance(command, commands.DeclareQueue):
        return commands.DeleteQueue(command.queue.vhost, command.queue.name)
    if isinstance(command, commands.DeclareExchange):
        return commands.DeleteExchange(command.exchange.vhost, command.exchange.name)
    if isinstance(command, commands.Bind):
        return commands.Unbind(command.binding)
    if isinstance(command, commands.SetPolicy):
        return commands.ClearPolicy(command.policy.vhost, command.policy.name, command.policy.operator)
    return None


def _placed(host: Host, command: commands.Command) -> commands.Command:
    """Choose the master of a queue now that the policies of the file, and the queues before it, are there."""
    if not isinstance(command, commands.DeclareQueue) or command.queue.identity in host.state.queues:
        return command
    queue = msgspec.structs.replace(command.queue, node=host.place(command.queue))
    return msgspec.structs.replace(command, queue=queue)


def _complaint(record: records.Queue | records.Exchange) -> str | None:
    """What a client would be told that declared this."""
    try:
        need_short("the name", record.name)
        if isinstance(record, records.Queue):
            arguments.check_queue_arguments(
                record.vhost,
                record.name,
                record.arguments,
                durable=record.durable,
                exclusive=False,
                auto_delete=record.auto_delete,
            )
        else:
            exchange.check_type(record.type)
            exchange.check_declare(record.vhost, record.name, record.type, record.arguments)
    except AmqpError as error:
        return error.text
    except Refusal as refusal:
        return refusal.problem.text
    return None


OPERATIONS: dict[type[requests.Request], Operation] = {
    requests.SetPolicy: set_policy,
    requests.ClearPolicy: clear_policy,
    requests.SetParameter: set_parameter,
    requests.ClearParameter: clear_parameter,
    requests.SetGlobalParameter: set_global_parameter,
    requests.ClearGlobalParameter: clear_global_parameter,
    requests.ImportDefinitions: import_definitions,
    requests.RemoveDefinitions: remove_definitions,
}
