"""Entry of the command `mirrormq`: hands over to the part that was asked for and imports nothing else.

`serve` is the node; `ctl` administers nodes. The node process never imports what only the command line needs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import mirrormq

USAGE = """\
usage: mirrormq serve [options]     run a node (mirrormq serve --help)
       mirrormq ctl COMMAND ...     administer a node (mirrormq ctl help)
       mirrormq --version
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the commands and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = words[0] if words else "--help"
    if command == "serve":
        from mirrormq.runtime.main import serve

        return serve(words[1:])
    if command == "ctl":
        return main_ctl(words[1:])
    if command in {"--version", "version"}:
        sys.stdout.write(f"mirrormq {mirrormq.__version__}\n")
        return 0
    if command in {"--help", "-h", "help"}:
        sys.stdout.write(USAGE)
        return 0
    sys.stderr.write(f"mirrormq: there is no command '{command}'.\n{USAGE}")
    return 64


def main_ctl(argv: Sequence[str] | None = None) -> int:
    """Run `mirrormqctl`."""
    from mirrormq.ctl.main import main as ctl

    return ctl(argv)


if __name__ == "__main__":
    sys.exit(main())
