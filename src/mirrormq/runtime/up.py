"""`mirrormq up --nodes N`: a cluster on one machine, in the foreground, until it is stopped.

Everything that can be wrong is looked at before anything is changed: settings, ports, data. Then all nodes
are started at once, since none of them is a cluster alone, and the start is over when all are ready. A new
cluster mirrors every queue to all nodes by the policy `ha-all`, unless it is given other policies. A node
that dies later is reported and not started again: seeing that is what a local cluster is for. Exit codes are
those of `mirrormq serve`: 0 if every node stopped in order, 1 if one did not or the start failed, 2 misused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from mirrormq.base import limits
from mirrormq.runtime import banner, localcluster, main
from mirrormq.runtime.faults import ConfigError, StartError
from mirrormq.runtime.folder import is_locked
from mirrormq.runtime.localcluster import LocalNode
from mirrormq.runtime.nodechild import NodeChild
from mirrormq.runtime.ports import PORT_BASE_MAX, bind, free_base
from mirrormq.runtime.settings import Settings, SocketSettings
from mirrormq.runtime.supervisor import Supervisor

NODES = 3
BASE = 5672
DATA = "./data"
OWN_KEYS = (
    *(
        "node_name",
        "nodename",
        "data_dir",
        "log.file",
        "cluster_nodes",
        "cluster_listen",
        "cluster_advertise",
    ),
    *("listeners.tcp", "listeners.ssl", "management.tcp.port", "management.listener.port"),
)
"""Settings that differ from node to node, and are therefore not to be given for all of them."""


def up(argv: Sequence[str]) -> int:
    """Run a cluster until it is stopped; returns the exit code."""
    # Until the supervisor has its own handlers: process 1 has no default action for SIGTERM.
    signal.signal(signal.SIGTERM, main.leave)
    options, others = parser().parse_known_args(argv)
    try:
        if options.nodes == 1:
            return _alone(options, others)
        if others:
            raise ConfigError(f"option {others[0]} is for one node: use it with --nodes 1.")
        return _cluster(options)
    except StartError as error:
        return main.say(error)
    except KeyboardInterrupt:
        return main.COULD_NOT_START


def parser() -> argparse.ArgumentParser:
    """Return the options of `mirrormq up`."""
    made = argparse.ArgumentParser(
        prog="mirrormq up",
        description="Run a cluster on this machine in the foreground. Ctrl-C stops it.",
        epilog="With --nodes 1 every option of 'mirrormq serve' may be added.",
        allow_abbrev=False,
    )
    option = made.add_argument
    most = limits.local_nodes_max
    option("--nodes", type=_count, default=NODES, metavar="N", help=f"how many nodes, up to {most} ({NODES})")
    option(
        "--port-base",
        type=main.port_base,
        metavar="N",
        help=f"AMQP on ports N, N + 1, ... ({BASE}), the admin APIs 10000 above, other nodes 20000 above",
    )
    option("--data", default=DATA, metavar="DIR", help="folder with a folder per node (./data), kept")
    option("--fresh", action="store_true", help="remove the nodes' data first")
    option("--config", action="append", default=[], metavar="FILE", help="as of serve, for every node")
    option("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, for every node")
    option("--no-admin", action="store_true", help="serve no admin API")
    option("--ready-fd", type=int, metavar="N", help="write a line of node.json per node when all are ready")
    option("--invoked-as", default="mirrormq up", help=argparse.SUPPRESS)
    return made


def alone_name() -> str:
    """The name of a node that is not told one."""
    return f"mirrormq@{socket.gethostname()}"


def _alone(options: argparse.Namespace, others: Sequence[str]) -> int:
    """One node is `mirrormq serve` in this process."""
    invoked = shlex.split(options.invoked_as)
    root = Path(options.data)
    if options.fresh:
        # What this node leaves behind itself it removes itself, once its ports are its own.
        localcluster.remove_held(root, alone_name(), but=[alone_name()])
    localcluster.check_held(root, [alone_name()], alone_name(), _command(options))
    words = ["--invoked-as", shlex.join([*invoked, "--nodes", "1"]), "--banner", "--data-root", options.data]
    if options.port_base is not None:
        words += ["--port-base", str(options.port_base)]
    if options.ready_fd is not None:
        words += ["--ready-fd", str(options.ready_fd)]
    return main.serve([*words, *_shared(options), *(["--fresh"] if options.fresh else []), *others])


def _cluster(options: argparse.Namespace) -> int:
    root, base = Path(options.data), options.port_base or BASE
    nodes = localcluster.local_nodes(options.nodes, base, root)
    if base + options.nodes - 1 > PORT_BASE_MAX:
        raise ConfigError(f"option --port-base: the ports of {options.nodes} nodes do not fit above {base}.")
    words = [[*_shared(options), *localcluster.words_of(node, nodes)] for node in nodes]
    settings = [node_settings(options, given) for given in words]
    if not settings[0].mirroring_policies:
        # Whoever has given policies of his own wants those.
        words = [[*given, *localcluster.policy_words()] for given in words]
    for one in settings:
        _try_ports(one, options)
    if options.fresh:
        localcluster.remove_held(root, alone_name())
    names = [node.name for node in nodes]
    localcluster.check_held(root, names, alone_name(), _command(options))
    localcluster.check_unused(nodes)
    localcluster.prepare(root, nodes)
    with Supervisor(lambda name: again(options, name, nodes)) as supervisor:
        for node, given in zip(nodes, words, strict=True):
            supervisor.add(NodeChild(node.name, given, os.environ))
        return supervisor.run(lambda children: _announce(options, settings[0], children))


def _command(options: argparse.Namespace) -> list[str]:
    """Return the beginning of a command for the same data."""
    return [*shlex.split(options.invoked_as), *(["--data", options.data] if options.data != DATA else [])]


def _shared(options: argparse.Namespace) -> list[str]:
    """Return the options of `mirrormq serve` that all nodes have."""
    words = ["--no-admin"] if options.no_admin else []
    for file in options.config:
        words += ["--config", file]
    for pair in options.set:
        words += ["--set", pair]
    return words


def node_settings(options: argparse.Namespace, words: Sequence[str]) -> Settings:
    """Read a node's settings as it will; refuse those that several nodes cannot have."""
    for pair in options.set:
        key = pair.partition("=")[0].strip()
        if key in OWN_KEYS:
            raise ConfigError(
                f"option --set: {key} differs from node to node; start them one by one with 'mirrormq serve'."
            )
    settings = main.load_settings(main.parser().parse_args(words)).settings
    for key, value in (
        ("listeners.ssl", settings.listen_tls),
        ("management.ssl.port", settings.admin_tls_address),
        ("log.file", settings.log.file),
    ):
        if value:
            raise ConfigError(
                f"{key} would be the same for every node: use --nodes 1, or start them one by one with"
                " 'mirrormq serve'."
            )
    return settings


def _try_ports(settings: Settings, options: argparse.Namespace) -> None:
    """Refuse busy ports before anything is changed."""
    addresses = [*settings.listen, settings.links.listen]
    if settings.admin:
        addresses.append(settings.admin_address)
    for address in addresses:
        bind(address, SocketSettings(), lambda: cure(options)).close()


def cure(options: argparse.Namespace) -> str:
    """Return a command line that would work where this one met a busy port."""
    wanted = options.port_base or BASE

    def ports(base: int) -> list[int]:
        nodes = localcluster.local_nodes(options.nodes, base, Path())
        return [port for node in nodes for port in node.ports]

    base = free_base(wanted, ports)
    words = [*shlex.split(options.invoked_as), "--port-base", str(base)]
    if options.nodes != NODES:
        words += ["--nodes", str(options.nodes)]
    root = Path(options.data)
    if any(is_locked(node.folder) for node in localcluster.local_nodes(options.nodes, wanted, root)):
        words += ["--data", f"{options.data}-{base}"]
    elif options.data != DATA:
        words += ["--data", options.data]
    return shlex.join([*words, *_shared(options)])


def again(options: argparse.Namespace, name: str, nodes: Sequence[LocalNode]) -> str:
    """Return the command that starts a node again after its end."""
    node = next(node for node in nodes if node.name == name)
    serve = [*banner.program(options.invoked_as), "serve"]
    return shlex.join([*serve, *_shared(options), *localcluster.words_of(node, nodes)])


def _announce(options: argparse.Namespace, settings: Settings, children: Sequence[NodeChild]) -> None:
    """Say that all nodes are ready, to people and to programs."""
    announced = [child.announced or {} for child in children]
    # Who reads it may be gone, which must not take the nodes down.
    with contextlib.suppress(OSError):
        sys.stdout.write(banner.cluster_text(settings, announced, options.data, options.invoked_as))
        sys.stdout.flush()
    if options.ready_fd is not None:
        os.write(options.ready_fd, b"".join(json.dumps(node).encode() + b"\n" for node in announced))
        os.close(options.ready_fd)


def _count(text: str) -> int:
    most = limits.local_nodes_max
    if not text.isdigit() or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"expected a number of nodes between 1 and {most}")
    return int(text)
