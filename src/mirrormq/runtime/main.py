"""`mirrormq serve`: reads the options, runs one node, ends with an exit code and, if need be, one sentence.

Exit codes: 0 stopped in order, 1 could not start or had to be cut short, 2 misused. Plain argparse: the node
imports neither typer nor rich.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from mirrormq.runtime import banner, config
from mirrormq.runtime.faults import ConfigError, StartError
from mirrormq.runtime.folder import is_locked
from mirrormq.runtime.logs import Bridge, Log, open_log
from mirrormq.runtime.ports import ADMIN_OFFSET, CLUSTER_OFFSET, PORT_BASE_MAX, free_base
from mirrormq.runtime.settings import Settings
from mirrormq.runtime.values import Value

COULD_NOT_START = 1


def serve(argv: Sequence[str]) -> int:
    """Run a node until it is stopped; returns the exit code."""
    # Until the loop has its own handlers: process 1 has no default action for SIGTERM.
    signal.signal(signal.SIGTERM, leave)
    options = parser().parse_args(argv)
    try:
        loaded = load_settings(options)
        if options.check_config:
            return _checked(loaded)
        log = _open_log(loaded.settings)
    except StartError as error:
        return say(error)
    for warning in loaded.warnings:
        log.note("warning", warning, {"event": "config.warning"}, _wall())
    try:
        return _run(options, loaded.settings, log)
    except StartError as error:
        return say(error)
    except KeyboardInterrupt:
        return COULD_NOT_START
    finally:
        log.close()


def parser() -> argparse.ArgumentParser:
    """Return the options of `mirrormq serve`."""
    made = argparse.ArgumentParser(
        prog="mirrormq serve",
        description="Run one MirrorMQ node in the foreground. Ctrl-C stops it.",
        epilog="Every setting is also MIRRORMQ_<KEY> in the environment; docs/configuration.md lists them.",
    )
    option = made.add_argument
    option(
        "--config", action="append", default=[], metavar="FILE", help="TOML file or rabbitmq.conf; repeatable"
    )
    option("--data", metavar="DIR", help="data folder of this node (./data/<node name>)")
    option("--data-root", metavar="DIR", help="folder in which each node has its data folder (./data)")
    option("--node-name", metavar="NAME@HOST", help="name of this node (mirrormq@<hostname>)")
    option(
        "--port-base",
        type=port_base,
        metavar="N",
        help="AMQP on port N, the admin API on N + 10000, other nodes on N + 20000",
    )
    option("--listen", action="append", default=[], metavar="[HOST:]PORT", help="where to listen; repeatable")
    option("--no-admin", action="store_true", help="serve no admin API")
    option("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting; repeatable")
    option("--fresh", action="store_true", help="empty the data folder first")
    option("--check-config", action="store_true", help="check the configuration and exit")
    option("--banner", action="store_true", help="show how to use the node when it is ready")
    option(
        "--ready-fd", type=int, metavar="N", help="write node.json as one line to this descriptor when ready"
    )
    option("--stop-on-eof", action="store_true", help="stop when standard input ends")
    option("--invoked-as", default="mirrormq serve", help=argparse.SUPPRESS)
    return made


def load_settings(options: argparse.Namespace) -> config.Loaded:
    """Read every source of settings, the command line last."""
    line: config.Source = []

    def give(key: str, value: Value, option: str) -> None:
        line.append(config.Given(key, value, f"option {option}"))

    if options.node_name:
        give("node_name", options.node_name, "--node-name")
    if options.data:
        give("data_dir", options.data, "--data")
    if options.port_base is not None:
        give("listeners.tcp", options.port_base, "--port-base")
        give("management.tcp.port", options.port_base + ADMIN_OFFSET, "--port-base")
        give("cluster_listen", options.port_base + CLUSTER_OFFSET, "--port-base")
    if options.listen:
        give("listeners.tcp", ",".join(options.listen), "--listen")
    if options.no_admin:
        give("management.enabled", False, "--no-admin")
    for pair in options.set:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"option --set: expected KEY=VALUE, found '{pair}'.")
        give(key.strip(), value.strip(), "--set")
    loaded = config.load(options.config, os.environ, line, socket.gethostname())
    if options.data_root and not options.data:
        folder = str(Path(options.data_root) / loaded.settings.node_name)
        loaded = loaded._replace(settings=replace(loaded.settings, data_dir=folder))
    return loaded


def cure(options: argparse.Namespace, settings: Settings) -> str:
    """Return a command line that would work where this one met a busy port."""
    wanted = next((address.port for address in settings.listen), 5672)
    base = free_base(wanted, lambda port: (port, port + ADMIN_OFFSET, port + CLUSTER_OFFSET))
    words = [*shlex.split(options.invoked_as), "--port-base", str(base)]
    for file in options.config:
        words += ["--config", file]
    if is_locked(Path(settings.data_dir)):
        words += ["--data", f"{options.data or options.data_root or './data'}-{base}"]
    elif options.data or options.data_root not in {None, "./data"}:
        words += ["--data", options.data or options.data_root]
    return shlex.join(words)


def _run(options: argparse.Namespace, settings: Settings, log: Log) -> int:
    from mirrormq.runtime.server import Ready, Server

    logging.basicConfig(level=logging.WARNING, handlers=[Bridge(log)], force=True)
    server = Server(settings, log, fresh=options.fresh, cure=lambda: cure(options, settings))

    def on_ready(ready: Ready) -> None:
        if options.banner:
            sys.stdout.write(banner.text(settings, ready.amqp, ready.http, options.invoked_as))
            sys.stdout.flush()
        if options.ready_fd is not None:
            os.write(options.ready_fd, ready.node_json + b"\n")
            os.close(options.ready_fd)

    if options.stop_on_eof:
        threading.Thread(target=_stop_on_eof, name="stdin", daemon=True).start()
    # From here on a signal is only noted until the loop has its own handlers: one that raised in the middle
    # of the loop's start would leave a loop that neither runs nor can be closed.
    early: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: early.append(signal.Signals(number).name))
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(server.run(on_ready, early))


def _stop_on_eof() -> None:
    """Stop when standard input ends: a node must not outlive the program that started it for itself.

    Also one that is not ready yet, since a node of a cluster may wait for the others for ever.
    """
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def new_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop: uvloop's where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _open_log(settings: Settings) -> Log:
    try:
        return open_log(settings.log)
    except OSError as error:
        raise StartError(f"Log file {settings.log.file} cannot be opened: {error.strerror}.") from None


def _checked(loaded: config.Loaded) -> int:
    for warning in loaded.warnings:
        sys.stdout.write(f"warning: {warning}\n")
    sys.stdout.write(f"The configuration of node {loaded.settings.node_name} is valid.\n")
    return 0


def say(error: StartError) -> int:
    """Show why nothing was started; returns the exit code."""
    sys.stderr.write(f"mirrormq: {error}\n")
    return COULD_NOT_START


def port_base(text: str) -> int:
    """Read a port whose admin and cluster ports exist too."""
    if not text.isdigit() or not 1 <= int(text) <= PORT_BASE_MAX:
        raise argparse.ArgumentTypeError(f"expected a port between 1 and {PORT_BASE_MAX}")
    return int(text)


def _wall() -> int:
    from mirrormq.runtime import clock

    return clock.now().wall


def leave(number: int, _frame: object) -> NoReturn:
    """End on a signal by the ordinary way out."""
    raise SystemExit(128 + number)
