"""Administrators' requests about where masters are: rebalancing, and maintenance of this node.

A rebalancing is carried out by the node that was asked for it, and seen and cancelled from any node. A node
goes into maintenance and comes back by its own wish only: `drain` and `revive` concern whoever is asked.
"""

from collections.abc import Generator
from typing import Any, Protocol

from mirrormq.broker.host import BrokerSettings
from mirrormq.broker.queueport import Later
from mirrormq.meta import commands, patterns
from mirrormq.node import balancer as bl
from mirrormq.node import requests
from mirrormq.node.admin_access import expect
from mirrormq.node.balancing import STRATEGIES
from mirrormq.node.inquiry import Ask, Inquiries, Replies
from mirrormq.node.inquiry_rows import NOT_READY
from mirrormq.node.inquiryframes import row_of
from mirrormq.node.report import Row, Source
from mirrormq.node.report_mirrors import CopiesPort
from mirrormq.node.steps import Answer, Await, Operation, Propose, Refusal, Steps, Wait


class BalanceHost(Source, Protocol):
    """The node, as these requests see it."""

    settings: BrokerSettings
    inquiries: Inquiries


def rebalance(host: BalanceHost, request: requests.Rebalance) -> Steps:
    """Plan, take the lock and begin to move; the answer does not wait for the end."""
    strategy = request.strategy or host.settings.rebalance_strategy
    if strategy not in STRATEGIES:
        raise Refusal("bad_request", f"no strategy '{strategy}'; there are {', '.join(STRATEGIES)}")
    for pattern in (request.vhost_pattern, request.queue_pattern):
        wrong = patterns.complaint(pattern)
        if wrong:
            raise Refusal("bad_request", wrong)
    mode = host.settings.rebalance
    if mode in (bl.OFF, bl.APPOINT) and not (request.moves or request.plan or request.force):
        raise Refusal("rebalance_off", f"cluster_rebalance = {mode}: name the moves, or give --force")
    trigger = bl.APPOINT if request.moves else bl.ON_DEMAND
    order = bl.Order(
        trigger,
        bl.APPOINT if request.moves else strategy,
        request.kind,
        request.vhost_pattern,
        request.queue_pattern,
        request.moves,
        request.plan,
    )
    lock = host.state.rebalance
    if lock is not None and not request.plan:
        raise Refusal("rebalance_in_progress", bl.busy(lock.node, lock.since, host.now.wall))
    answer: Answer = yield Await(_copies(host).balancer.begin(order))
    if answer.problem is not None:
        raise Refusal(*answer.problem)
    return {"node": host.node_name, **answer.value}


def rebalance_status(host: BalanceHost, _request: requests.RebalanceStatus) -> Steps:
    """Of the run that holds the lock, or of the last one that this node carried out."""
    lock = host.state.rebalance
    balancer = _copies(host).balancer
    own = balancer.run or balancer.last
    if lock is None or lock.node == host.node_name:
        return _status(host, lock, own.row() if own is not None else None)
    found = yield from _far_run(host, lock.node)
    return _status(host, lock, found)


def _far_run(host: BalanceHost, node: str) -> Generator[Wait, Any, Row | None]:
    later: Later[Replies] = Later()
    host.inquiries.ask(Ask(0, "rebalance"), [node], later.answer)
    replies: Replies = yield Await(later)
    for raw in replies.rows.get(node, ()):
        found: Row | None = row_of(raw)["run"]
        return found
    return None


def _status(host: BalanceHost, lock: Any, run: Row | None) -> Row:
    found: Row = {"running": lock is not None, "node": host.node_name, "run": run}
    if lock is not None:
        found |= {"node": lock.node, "number": lock.number, "cancelled": lock.is_cancelled}
    return found


def cancel_rebalance(host: BalanceHost, _request: requests.CancelRebalance) -> Steps:
    """Have the run under way end; moves that are all but done are finished."""
    lock = host.state.rebalance
    if lock is None:
        raise Refusal("not_rebalancing", "no rebalancing is under way")
    outcome = yield Propose(commands.CancelRebalance())
    if not outcome.ok and outcome.error == "missing":
        return {"node": lock.node}  # it has ended by itself
    expect(outcome)
    return {"node": lock.node}


def drain(host: BalanceHost, _request: requests.Drain) -> Steps:
    """Put this node into maintenance; its masters go one after the other from then on."""
    return (yield from _set_drained(host, is_drained=True))


def revive(host: BalanceHost, _request: requests.Revive) -> Steps:
    """Bring this node back."""
    return (yield from _set_drained(host, is_drained=False))


def _set_drained(host: BalanceHost, *, is_drained: bool) -> Steps:
    copies = _copies(host)
    was_drained = copies.maintenance.is_drained
    expect((yield Propose(commands.SetDrained(host.node_name, is_drained))))
    return {"was_drained": was_drained, **copies.maintenance.status()}


def maintenance_status(host: BalanceHost, _request: requests.MaintenanceStatus) -> Row:
    """What is left to give away."""
    return {"node": host.node_name, **_copies(host).maintenance.status()}


def _copies(host: BalanceHost) -> CopiesPort:
    if host.copies is None:
        raise Refusal("unavailable", f"node {host.node_name} {NOT_READY}")
    return host.copies


OPERATIONS: dict[type[requests.Request], Operation] = {
    requests.Rebalance: rebalance,
    requests.RebalanceStatus: rebalance_status,
    requests.CancelRebalance: cancel_rebalance,
    requests.Drain: drain,
    requests.Revive: revive,
    requests.MaintenanceStatus: maintenance_status,
}
