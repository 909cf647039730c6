"""The application of a node and the cluster it belongs to: stopping and starting it, joining, leaving."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import typer

from mirrormq.ctl.commands.balance import give_away, left_over
from mirrormq.ctl.commands.nodes import POLL_SECONDS, listener_lines, sections
from mirrormq.ctl.faults import SOFTWARE, UNAVAILABLE, USAGE, Failure, Misuse
from mirrormq.ctl.registry import CLUSTER, FEATURES, NODES, columns_of, command, session_of
from mirrormq.ctl.session import UNREACHABLE, Session

PATIENT_SECONDS = 300.0
"""How long a command waits that depends on other nodes, or on very many files."""
FLAG_COLUMNS = ("name", "state", "stability", "desc")
TYPES = {"disc": "voter", "disk": "voter", "voter": "voter", "witness": "witness", "non-voter": "non-voter"}
RAM = "every MirrorMQ node keeps its data on disk: ram counts as disc."


# --- the application ---


@command(NODES)
def start_app(ctx: typer.Context) -> None:
    """Start the application of a node whose process runs, and wait until it accepts clients."""
    session = session_of(ctx)
    session.be_patient(PATIENT_SECONDS)
    session.say(f"Starting node {session.node_name} ...")
    try:
        session.call("start_app")
    except Failure as failure:
        if failure.kind != UNREACHABLE:
            raise
        found = session.call("status")
        detail = f" ({found['app_detail']})" if found.get("app_detail") else ""
        raise Failure(
            f"the application of node {found['node']} is {found['app']}{detail} after {session.timeout:g} s; "
            "it goes on by itself, and await_startup waits for it"
        ) from None
    session.finish()


@command(NODES)
def stop_app(ctx: typer.Context) -> None:
    """Stop the application: clients are sent away, the process and its data stay."""
    session = session_of(ctx)
    session.be_patient(PATIENT_SECONDS)
    session.say(f"Stopping MirrorMQ application on node {session.node_name} ...")
    session.call("stop_app")
    session.finish()


@command(NODES, "[--force]")
def reset(
    ctx: typer.Context,
    is_forced: Annotated[bool, typer.Option("--force", help="even if messages are lost with it")] = False,
) -> None:
    """Leave the cluster and forget all data; the application must be stopped."""
    session = session_of(ctx)
    session.be_patient(PATIENT_SECONDS)
    session.say(f"Resetting node {session.node_name} ...")
    session.call("reset", force=is_forced)
    session.finish()


@command(CLUSTER)
def force_reset(ctx: typer.Context) -> None:
    """Forget all data without telling the cluster; the application must be stopped."""
    session = session_of(ctx)
    session.be_patient(PATIENT_SECONDS)
    session.say(f"Forcefully resetting node {session.node_name} ...")
    session.call("force_reset")
    session.finish()


@command(CLUSTER)
def force_boot(ctx: typer.Context) -> None:
    """Let the next start not wait for other nodes; the application must be stopped, or the node not run."""
    session = session_of(ctx)
    if session.url is None and not session.is_local_node_running():
        session.offline.force_boot(session.data, session.options.node)
        if session.is_json:
            session.write_json({"result": "ok"})
        return
    session.call("force_boot")
    session.finish()


# --- members ---


@command(CLUSTER, "[--disc|--ram] [--address <host:port>] <existing_cluster_member>")
def join_cluster(
    ctx: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE")],
    *,
    address: Annotated[str | None, typer.Option("--address", help="where it listens for nodes")] = None,
    is_disc: Annotated[bool, typer.Option("--disc", help="accepted; every node is one")] = False,
    is_ram: Annotated[bool, typer.Option("--ram", help="accepted with a warning")] = False,
) -> None:
    """Let the next start join the cluster of a node; the application must be stopped, and the node reset."""
    if is_disc and is_ram:
        raise Misuse("--disc and --ram exclude each other.")
    session = session_of(ctx)
    session.say(f"Clustering node {session.node_name} with {node}")
    if is_ram:
        session.say(f"Warning: {RAM}")
    joined = session.call("join_cluster", node=node, address=address)
    session.finish(address=joined["address"])


@command(CLUSTER, "[--offline] [--force] <existing_cluster_member_node>")
def forget_cluster_node(
    ctx: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE")],
    *,
    is_offline: Annotated[bool, typer.Option("--offline", help="not here: use force_boot")] = False,
    is_forced: Annotated[bool, typer.Option("--force", help="although it may be serving on its own")] = False,
) -> None:
    """Remove a node that is gone for good, with the queues only it had."""
    if is_offline:
        raise Failure(
            "forget_cluster_node --offline: run force_boot on the node that is left and start it; "
            f"then forget_cluster_node {node} without --offline",
            USAGE,
        )
    session = session_of(ctx)
    session.say(f"Removing node {node} from the cluster")
    session.call("forget_cluster_node", node=node, **({"force": True} if is_forced else {}))
    session.finish()


@command(CLUSTER, "[--force]")
def leave_cluster(
    ctx: typer.Context,
    is_forced: Annotated[bool, typer.Option("--force", help="even if messages are lost with it")] = False,
) -> None:
    """Give all masters away, leave the cluster and forget all data; start_app makes it a node of its own."""
    session = session_of(ctx)
    session.be_patient(PATIENT_SECONDS)
    session.say(f"Node {session.node_name} leaves its cluster ...")
    is_drained = not is_forced and _emptied(session)
    try:
        session.call("leave_cluster", force=is_forced)
    except Failure:
        if is_drained:
            session.call("revive")
        raise
    session.finish()


def _emptied(session: Session) -> bool:
    """No client is to lose its connection, and no queue its messages; whether this began a maintenance."""
    status = session.call("status")
    is_running = status.get("app", "running") == "running"
    if not is_running or len(session.call("cluster_status").get("members", ())) < 2:
        return False
    name = session.node_name
    clients = [row["name"] for row in session.call("list_connections") if row.get("node") == name]
    if clients:
        raise Failure(
            f"{len(clients)} clients are connected to {name}, {clients[0]} among them:"
            " let them go, by close_all_connections for one, or give --force",
            UNAVAILABLE,
            "in_use",
        )
    was_drained = bool((status.get("maintenance") or {}).get("is_drained"))
    found = give_away(session)
    if found["masters"]:
        if not was_drained:
            session.call("revive")
        raise Failure(
            f"{left_over(found)}; give --force to lose what is only there", UNAVAILABLE, "not_empty"
        )
    return not was_drained


@command(CLUSTER, "<disc | ram | witness | non-voter>")
def change_cluster_node_type(
    ctx: typer.Context, kind: Annotated[str, typer.Argument(metavar="TYPE")]
) -> None:
    """Change what the node is in its cluster: a full node, a witness that only votes, or a non-voter."""
    if kind not in (*TYPES, "ram"):
        raise Misuse(f"'{kind}' is no type of node; there are disc, ram, witness and non-voter.")
    session = session_of(ctx)
    session.say(f"Turning {session.node_name} into a {kind} node")
    if kind == "ram":
        session.say(f"Warning: {RAM}")
    session.call("change_cluster_node_type", role=TYPES.get(kind, "voter"))
    session.finish()


@command(CLUSTER, "<count> [--timeout <timeout>]")
def await_online_nodes(ctx: typer.Context, count: int) -> None:
    """Wait until so many nodes of the cluster are running."""
    session = session_of(ctx)
    if count < 1:
        raise Misuse("the count must be at least 1.")
    seconds = session.options.timeout or PATIENT_SECONDS
    name = session.node_name
    session.say(
        f"Will wait for at least {count} nodes to join the cluster of {name}."
        f" Timeout: {int(seconds)} seconds."
    )
    for _ in range(max(1, int(seconds / POLL_SECONDS))):
        if len(session.call("cluster_status")["running_nodes"]) >= count:
            session.finish()
            return
        # Nodes come by themselves: there is nothing to wait on but what this one tells of them.
        threading.Event().wait(POLL_SECONDS)
    raise Failure(f"timed out while waiting. Not enough nodes joined {name}'s cluster.", SOFTWARE)


@command(CLUSTER)
def cluster_status(ctx: typer.Context) -> None:
    """Show the nodes of the cluster: who belongs to it, who is running, and what it can still lose."""
    session = session_of(ctx)
    found = session.call("cluster_status")
    if session.is_json:
        session.write_json(found)
        return
    session.say(f"Cluster status of node {found['node']} ...")
    session.write(status_text(found))


def status_text(found: dict[str, Any]) -> str:
    """`cluster_status` for people: rabbitmqctl's sections, and the members with their roles."""
    basics = [f"Cluster name: {found['cluster_name']}"]
    if found["cluster_id"]:
        basics.append(f"Cluster id: {found['cluster_id']}")
    basics.append(f"Leader: {found['leader'] or '(none known)'}")
    basics.append(f"Coordinator: {found.get('coordinator', 'raft')}")
    basics.append(f"The cluster {found['tolerance']}")
    if found["paused"]:
        basics.append(f"Node {found['node']} is paused: it hears no majority and serves no clients")
    partitions = [f"Node {node} does not hear {', '.join(of)}" for node, of in found["partitions"].items()]
    if found.get("partition"):
        partitions += _side(found["node"], found["partition"])
    alarms = [f"{entry['resource']} alarm on node {entry['node']}" for entry in found["alarms"]]
    listeners = [
        f"Node: {node}, {line[0].lower()}{line[1:]}"
        for node, entries in found["listeners"].items()
        for line in listener_lines(entries)
    ]
    versions = [f"{node}: MirrorMQ {of['mirrormq_version']}" for node, of in found["versions"].items()]
    maintenance = [f"Node: {node}, status: {of}" for node, of in found.get("maintenance_status", {}).items()]
    flags = [f"Flag: {flag['name']}, state: {flag['state']}" for flag in found["feature_flags"]]
    return sections(
        [
            ("Basics", basics),
            ("Disk Nodes", found["disk_nodes"]),
            ("Running Nodes", found["running_nodes"]),
            ("Members", [_member(entry) for entry in found["members"]]),
            ("Versions", versions),
            ("Maintenance status", maintenance or ["(unknown)"]),
            ("Alarms", alarms or ["(none)"]),
            ("Network Partitions", partitions if found["partitions"] else ["(none)", *partitions]),
            ("Listeners", listeners or ["(none)"]),
            ("Feature flags", [f"Feature level: {found['feature_level']}", *flags]),
        ]
    )


def _side(node: str, of: dict[str, Any]) -> list[str]:
    lines = [f"Node {node} is on the side of the {of['side']}: {of['why']}"]
    words = {"closed": "sent away", "stopped": "kept waiting", "serving": "served where that is safe"}
    clients = words.get(of["reaction"], "served")
    return [*lines, f"Partition handling: {of['handling']}, clients are {clients}"]


def _member(entry: dict[str, Any]) -> str:
    facts = [entry["role"], "running" if entry["running"] else "not running"]
    if entry["leader"]:
        facts.append("leader")
    if entry["address"]:
        facts.append(f"at {entry['address']}")
    return f"{entry['name']}: {', '.join(facts)}"


# --- features ---


@command(FEATURES, "<feature_flag>")
def enable_feature_flag(ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="FLAG")]) -> None:
    """Switch a feature flag on, or all: the cluster's feature level becomes the highest all nodes know."""
    session = session_of(ctx)
    session.say("Enabling all feature flags ..." if name == "all" else f'Enabling feature flag "{name}" ...')
    session.call("enable_feature_flag", name=name)
    session.finish()


@command(FEATURES, "[<column> ...]")
def list_feature_flags(
    ctx: typer.Context, columns: Annotated[list[str] | None, typer.Argument(metavar="COLUMN")] = None
) -> None:
    """List the feature flags and whether they are on."""
    session = session_of(ctx)
    wanted = columns_of(columns, ("name", "state"), FLAG_COLUMNS)
    session.say("Listing feature flags ...")
    session.table(session.call("list_feature_flags"), wanted)


@command(FEATURES, "<level>")
def set_feature_level(ctx: typer.Context, level: int) -> None:
    """Raise the cluster's feature level; older nodes cannot join from then on, and it cannot be lowered."""
    session: Session = session_of(ctx)
    session.say(f"Raising the feature level to {level} ...")
    session.call("set_feature_level", level=level)
    session.finish()
