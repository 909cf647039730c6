"""Entry of the command `mirrormq`: hands over to the part that was asked for and imports nothing else.

`serve` is the node; `up` runs several of them, and `demo` shows what for; `ctl` administers nodes, `admin` by
HTTP; `pipeline` runs Spark jobs on their queues; `restore` makes a data folder of a backup. The node process
never imports what only the command line needs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import mirrormq

if TYPE_CHECKING:
    from mirrormq.ctl.session import Offline

USAGE = """\
usage: mirrormq serve [options]     run a node (mirrormq serve --help)
       mirrormq up [--nodes N]      run a cluster on this machine (mirrormq up --help)
       mirrormq demo                a guided tour: three nodes, a killed master, nothing lost
       mirrormq ctl COMMAND ...     administer a node (mirrormq ctl help)
       mirrormq admin VERB ...      the same by HTTP, as rabbitmqadmin (mirrormq admin --help)
       mirrormq plugins COMMAND     what is built in, as rabbitmq-plugins (mirrormq plugins help)
       mirrormq shims DIR           write rabbitmqctl and its like, which call these
       mirrormq completion SHELL    print the script for bash, zsh or fish
       mirrormq pipeline JOB ...    run a Spark job on queues (mirrormq pipeline help)
       mirrormq restore FROM ...    make a data folder of a backup (mirrormq restore --help)
       mirrormq --version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else "--help"
    if command == "serve":
        from mirrormq.runtime.main import serve

        return serve(words[1:])
    if command == "up":
        from mirrormq.runtime.up import up

        return up(words[1:])
    if command == "demo":
        from mirrormq.runtime.demo import demo

        return demo(words[1:])
    if command == "restore":
        from mirrormq.runtime.restore import restore

        return restore(words[1:])
    if "__complete" in words[:2]:
        from mirrormq.ctl.completion import complete

        return complete(words[words.index("__complete") + 1 :])
    if command == "ctl":
        return main_ctl(words[1:])
    if command in _TOOLS:
        return _TOOLS[command](words[1:])
    if command == "pipeline":
        return _main_pipeline(words[1:])
    if command in {"--version", "version"}:
        sys.stdout.write(f"mirrormq {mirrormq.__version__}\n")
        return 0
    if command in {"--help", "-h", "help"}:
        sys.stdout.write(USAGE)
        return 0
    sys.stderr.write(f"mirrormq: there is no command '{command}'.\n{USAGE}")
    return 64


def _main_pipeline(words: list[str]) -> int:
    """Run a job; what it is not told about mirroring may stand in the configuration."""
    from mirrormq.runtime.faults import ConfigError
    from mirrormq.runtime.jobwords import with_defaults
    from mirrormq.spark.jobs.cli import pipeline

    try:
        return pipeline(with_defaults(words))
    except ConfigError as error:
        sys.stderr.write(f"mirrormq pipeline: {error}\n")
        return 2


def main_ctl(argv: Sequence[str] | None = None) -> int:
    """Run `mirrormqctl`."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["__complete"]:
        return main(words)
    from mirrormq.ctl.main import main as ctl

    return ctl(words, offline=_offline_tools)


def _admin(words: list[str]) -> int:
    from mirrormq.ctl.admin.main import main as admin

    return admin(words)


def _plugins(words: list[str]) -> int:
    from mirrormq.ctl.main import main as ctl
    from mirrormq.ctl.registry import PLUGINS

    return ctl(words, tool=PLUGINS)


def _shims(words: list[str]) -> int:
    from mirrormq.ctl.shims import main as shims

    return shims(words)


def _completion(words: list[str]) -> int:
    from mirrormq.ctl.completion import main as completion

    return completion(words)


_TOOLS: dict[str, Callable[[list[str]], int]] = {
    "admin": _admin,
    "plugins": _plugins,
    "shims": _shims,
    "completion": _completion,
}


def _offline_tools() -> Offline:
    from mirrormq.runtime import offline

    return offline


if __name__ == "__main__":
    sys.exit(main())
