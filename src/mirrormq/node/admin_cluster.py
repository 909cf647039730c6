"""Administrators' requests about the nodes of the cluster: who belongs to it, in which role, at which level.

What is asked here may concern any node: the leader decides, and the answer comes when it is committed. A node
that is alone is its own leader.
"""

from typing import Protocol

from mirrormq.broker.mirrorqueue import stored
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import Later
from mirrormq.meta import commands, system, views
from mirrormq.node import memberframes as mf
from mirrormq.node import report_cluster, requests
from mirrormq.node.membership import FEATURE_LEVEL, Membership
from mirrormq.node.report import Row, Source
from mirrormq.node.steps import Await, Operation, Propose, Refusal, Steps
from mirrormq.node.switch import Switch

NOT_A_MEMBER = "The node selected is not in the cluster."


class ClusterHost(Source, Protocol):
    """The node, as these requests see it."""

    membership: Membership
    switch: Switch


def forget_cluster_node(host: ClusterHost, request: requests.ForgetClusterNode) -> Steps:
    """Remove a node that is gone for good; what only it had is gone with it."""
    if request.node == host.node_name:
        raise Refusal(
            "bad_request",
            f"{request.node} is this node itself: run leave_cluster here, or forget it on another node",
        )
    if host.membership.raft.config.find(request.node) is None and request.node not in host.state.nodes:
        raise Refusal("not_a_cluster_node", NOT_A_MEMBER)
    kind = mf.ForceForget if request.force else mf.Forget
    answer = yield Await(_wish(host, kind(request.node, host.node_name)))
    if answer.problem:
        raise Refusal("cannot_forget", answer.problem)
    return {}


def leave_cluster(host: ClusterHost, request: requests.LeaveCluster) -> Steps:
    """Send clients away and leave the cluster; the process then stops the application and empties its folder.

    While it still votes: with two voters the other one could not decide alone.
    """
    if host.membership.is_alone:
        raise Refusal("not_clustered", f"{host.node_name} is alone in its cluster: there is nothing to leave")
    full = [queue for queue in host.switch.masters.values() if _is_only_here(host, queue)]
    if full and not request.force:
        messages = sum(stored(queue) + queue.core.unacked for queue in full)
        raise Refusal(
            "not_empty",
            f"{len(full)} durable queues with {messages} messages are only here, {full[0].name!r} among them:"
            " drain this node first, so that others take them, or give --force to lose them",
        )
    branches = host.membership.partition.branch_counts
    if branches["messages"] and not request.force:
        raise Refusal(
            "not_empty",
            f"{branches['messages']} messages of branches are only here: wait until they are merged"
            " (partition_handling shows how many are left), or give --force to lose them",
        )
    host.membership.prepare_to_leave()
    answer = yield Await(_wish(host, mf.Forget(host.node_name, host.node_name)))
    if answer.problem:
        host.membership.stay()
        raise Refusal("cannot_leave", answer.problem)
    return {}


def _is_only_here(host: ClusterHost, queue: Queue) -> bool:
    """Are there messages that no other node could take over?"""
    if system.is_system(queue.record.vhost, queue.name):
        return False  # the cluster's own story goes on elsewhere
    view = host.state.views.get(queue.record.identity)
    if view is not None and views.has_other(host.state.nodes, view, host.node_name):
        return False
    return queue.record.outlives_restart and bool(stored(queue) or queue.core.unacked)


def change_cluster_node_type(host: ClusterHost, request: requests.ChangeClusterNodeType) -> Steps:
    """Change whether this node votes on the metadata, and whether it leads."""
    if host.membership.is_alone and request.role != report_cluster.VOTER:
        raise Refusal(
            "not_clustered", f"{host.node_name} is alone in its cluster: the only node must be a voter"
        )
    if not host.membership.is_alone:
        answer = yield Await(_wish(host, mf.SetRole(request.node or host.node_name, request.role)))
        if answer.problem:
            raise Refusal("cannot_change", answer.problem)
    return {"role": request.role}


def enable_feature_flag(host: ClusterHost, request: requests.EnableFeatureFlag) -> Row:
    """Switch a feature on; `all`: everything that all nodes know."""
    if request.name != "all" and request.name not in report_cluster.FLAGS:
        raise Refusal("unsupported", f"This feature flag is not supported by node {host.node_name}")
    return {"level": host.state.level}


def set_feature_level(_host: ClusterHost, request: requests.SetFeatureLevel) -> Steps:
    """Raise the level below which no node may be from then on."""
    if request.level > FEATURE_LEVEL:
        text = f"feature level {request.level} is not known here; the highest is {FEATURE_LEVEL}"
        raise Refusal("unsupported", text)
    outcome = yield Propose(commands.SetLevel(request.level))
    if not outcome.ok:
        raise Refusal("unsupported", outcome.detail)
    return {"level": request.level}


def _wish(host: ClusterHost, wish: mf.Wish) -> Later[mf.Answer]:
    later: Later[mf.Answer] = Later()
    host.membership.council.wish(wish, later.answer)
    return later


OPERATIONS: dict[type[requests.Request], Operation] = {
    requests.ForgetClusterNode: forget_cluster_node,
    requests.LeaveCluster: leave_cluster,
    requests.ChangeClusterNodeType: change_cluster_node_type,
    requests.EnableFeatureFlag: enable_feature_flag,
    requests.SetFeatureLevel: set_feature_level,
}
