"""What the configuration says to the job `mirror`: `sync_strategy` and `sync_interval` as words of its line.

Guarantee: what stands on the command line wins, and without a configuration nothing is added. The settings
come from `--config FILE` (repeatable), MIRRORMQ_CONFIG and MIRRORMQ_SYNC_*, as those of a node do.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence

from mirrormq.runtime import config

JOB = "mirror"


def with_defaults(words: Sequence[str], environment: Mapping[str, str] | None = None) -> list[str]:
    """The words of `mirrormq pipeline`, with what the configuration adds."""
    if not words or words[0] != JOB:
        return list(words)
    files, rest = _split(words)
    given = os.environ if environment is None else environment
    if not files and not any(name in given for name in _VARIABLES):
        return rest
    settings = config.load(files, given, [], socket.gethostname()).settings
    if settings.sync_strategy and not _has(rest, "--strategy"):
        rest += ["--strategy", settings.sync_strategy]
    if settings.sync_interval_ms and not _has(rest, "--sync-interval"):
        rest += ["--sync-interval", f"{settings.sync_interval_ms}ms"]
    return rest


_VARIABLES = ("MIRRORMQ_CONFIG", "MIRRORMQ_SYNC_STRATEGY", "MIRRORMQ_SYNC_INTERVAL")


def _has(words: Sequence[str], option: str) -> bool:
    return any(word.split("=", 1)[0] == option for word in words)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files of `--config`, and the other words."""
    files: list[str] = []
    rest: list[str] = []
    waiting = iter(words)
    for word in waiting:
        name, equals, value = word.partition("=")
        if name == "--config":
            files.append(value if equals else next(waiting, ""))
        else:
            rest.append(word)
    return files, rest
