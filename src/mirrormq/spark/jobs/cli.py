"""`mirrormq pipeline`: the jobs by their names, and what became of their runs.

Guarantee: nothing of Spark is imported before a job is run; `status` and the help work without it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mirrormq.spark.jobs import state as states
from mirrormq.spark.jobs.frame import DONE, MISUSED, Job, main_of

JOBS = {
    "analytics": "throughput, depth, latencies and the time line of fail-overs: tables and a report",
    "archive": "copy queues into Parquet files with a manifest, exactly once",
    "audit": "compare the copies of mirrored queues, record by record where their digests differ",
    "duplicates": "messages that are there more than once, per queue and epoch",
    "mirror": "have a vhost follow another cluster: definitions, messages and removals",
    "redrive": "move dead letters back to where they came from",
    "replay": "publish what an archive holds, by seq, time, message id or SQL",
}
"""The jobs; each is a module of this package with a `JOB`."""

NOT_THERE = 69
JAVA = 17
"""The oldest Java that Spark runs on."""
JAVA_SECONDS = 30
INSTALLING = "install it, e.g. 'sudo apt-get install openjdk-17-jre-headless', or set JAVA_HOME to it"
COLUMNS = ("name", "job", "state", "updated", "progress")


def pipeline(argv: Sequence[str]) -> int:
    """Run `mirrormq pipeline` with these words."""
    command = argv[0] if argv else "--help"
    if command in {"--help", "-h", "help"}:
        sys.stdout.write(_usage())
        return DONE
    if command == "status":
        return status(argv[1:])
    if command not in JOBS:
        sys.stderr.write(f"mirrormq pipeline: there is no job '{command}'.\n{_usage()}")
        return MISUSED
    missing = missing_part(is_remote=_is_remote(argv))
    if missing is not None:
        sys.stderr.write(f"mirrormq pipeline: {missing}\n")
        return NOT_THERE
    return main_of(job_named(command), argv[1:], f"mirrormq pipeline {command}")


def job_named(name: str) -> Job:
    """A job of this package."""
    from mirrormq.spark.jobs import analytics, archive, audit, duplicates, mirror, redrive, replay

    modules = (analytics, archive, audit, duplicates, mirror, redrive, replay)
    jobs: list[Job] = [module.JOB for module in modules]
    return next(job for job in jobs if job.name == name)


def _is_remote(argv: Sequence[str]) -> bool:
    return bool(os.environ.get("SPARK_REMOTE")) or any(word.split("=")[0] == "--remote" for word in argv)


def missing_part(*, is_remote: bool = False) -> str | None:
    """What a job would lack on this machine; None if nothing. The Java of a Connect server is elsewhere."""
    if importlib.util.find_spec("pyspark") is None:
        return "Spark is not installed; it comes with: pip install 'mirrormq[spark]' (about 900 MB)"
    if is_remote:
        if importlib.util.find_spec("grpc") is None:
            return "Spark Connect is not installed; it comes with: pip install 'mirrormq[connect]'"
        return None
    return missing_java(os.environ)


def missing_java(environment: Mapping[str, str]) -> str | None:
    """What is wrong with the Java that Spark would start: that of JAVA_HOME, else the first in the PATH."""
    home = environment.get("JAVA_HOME")
    named = os.path.join(home, "bin", "java") if home else "java"
    java = shutil.which(named, path=environment.get("PATH"))
    if java is None and home:
        return (
            f"Spark needs Java {JAVA} or newer, and JAVA_HOME leads to none: there is no program {named}; "
            f"set it to the folder of such a Java, or unset it"
        )
    if java is None:
        return f"Spark needs Java {JAVA} or newer, and there is no java in the PATH: {INSTALLING}"
    version = _java_version(java)
    if version is not None and version < JAVA:
        cure = f"set JAVA_HOME to a newer one (it is {home})" if home else INSTALLING
        return f"Spark needs Java {JAVA} or newer, and {java} is Java {version}: {cure}"
    return None


def _java_version(java: str) -> int | None:
    """17 of `openjdk version "17.0.9"`, 8 of `java version "1.8.0_392"`; None if it cannot be told."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None  # Spark will say what is wrong with it
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return None if found is None else int(found[1])


def status(argv: Sequence[str]) -> int:
    """Show the runs, the last one first."""
    import argparse

    made = argparse.ArgumentParser(prog="mirrormq pipeline status", description="Show the runs of jobs.")
    made.add_argument("--state-dir", type=Path, metavar="DIR")
    made.add_argument("--json", action="store_true")
    arguments = made.parse_args(argv)
    found = states.runs(arguments.state_dir or states.default_root())
    if arguments.json:
        sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
        return DONE
    if not found:
        sys.stdout.write("There are no runs.\n")
    for line in table([_row(record) for record in found]):
        sys.stdout.write(line + "\n")
    return DONE


def _row(record: dict[str, Any]) -> dict[str, str]:
    shown = dict(record.get("progress") or {}).get("text", "")
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(record.get("updated", 0))))
    return {
        "name": str(record["name"]),
        "job": str(record["job"]),
        "state": str(record.get("state", "")),
        "updated": when,
        "progress": str(record.get("error") or shown),
    }


def table(rows: Sequence[dict[str, str]]) -> list[str]:
    """Rows under their heads, in columns as wide as they have to be."""
    if not rows:
        return []
    columns = list(rows[0])
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in columns}
    lines = ["  ".join(name.ljust(widths[name]) for name in columns).rstrip()]
    lines += ["  ".join(row[name].ljust(widths[name]) for name in columns).rstrip() for row in rows]
    return lines


def _usage() -> str:
    lines = "".join(f"       mirrormq pipeline {name:<11} {text}\n" for name, text in JOBS.items())
    return (
        "usage: mirrormq pipeline JOB [options]   run a job (mirrormq pipeline JOB --help)\n"
        f"{lines}       mirrormq pipeline status      the runs and what became of them\n"
    )
