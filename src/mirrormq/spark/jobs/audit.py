"""The job `audit`: do all in-sync copies of queues hold the same confirmed messages, in the same order?

Every member adds up its own records, a digest per thousand seqs; Spark compares these, reads the records of
ranges that differ from each member, and joins them by seq.

Guarantees
- A difference that is reported is one: clients, fail-overs and changes of the view while it runs are none
  (`auditrun`). A copy that is not in sync is listed as not judged.
- Nothing but a cursor per queue is written to the cluster, and that is dropped, however the run ends; a run
  that is killed drops it when it goes on.
- A run that was interrupted goes on with the queues it has not judged yet.
- The driver holds a row per queue and a few examples, never messages.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mirrormq.spark.jobs import charts, cli
from mirrormq.spark.jobs import state as states
from mirrormq.spark.jobs.auditplan import FAILED, Cluster, Refused
from mirrormq.spark.jobs.auditrun import DIFFER, UNREADABLE, Comparison
from mirrormq.spark.jobs.auditverdict import KINDS
from mirrormq.spark.jobs.frame import DONE, Job, JobFailed, Result, Work, main_of
from mirrormq.spark.jobs.messages import queue_arguments
from mirrormq.spark.options import Contact, read_options

DIFFERENCES, INCOMPLETE = 3, 4
"""Exit codes of a run that is done: copies differ; none does, but some queues could not be judged."""

GROUP = 200
"""Queues that are held and compared at a time; how far a run is is remembered after each group."""

QUEUES_SHOWN = 1_000
EXAMPLES_SHOWN = 200
PLAN, JUDGED, TABLE = "plan.json", "judged.jsonl", "findings"
_ORDER = {DIFFER: 0, UNREADABLE: 1, FAILED: 2}


def arguments(made: argparse.ArgumentParser) -> None:
    """What the job can be asked."""
    queue_arguments(made, is_needed=False)
    made.add_argument(
        "--system", action="store_true", help="without names: also the queues of the cluster itself"
    )
    made.add_argument("--out", type=Path, default=Path("audit"), help="folder for the table and report.html")


# --- the job -----------------------------------------------------------------------------------------------


def run(work: Work) -> Result:
    """Compare, write the table and the page."""
    contact = read_options({**work.contact, "queuePattern": ".*"}).contact
    cluster = Cluster(contact, f"audit-{work.state.id[:16]}")
    memory = Memory(work)
    try:
        groups = list(memory.groups(lambda: _names(work, cluster)))
        done = 0
        for number, queues in groups:
            if not memory.has(number):
                memory.add(number, _judged(work, contact, cluster, (number, queues)))
            done += len(queues)
            work.progress.show(f"{done} of {sum(len(some) for _, some in groups)} queues", done=done)
    finally:
        cluster.close()
    result = summary(list(memory.rows()), work.arguments.out)
    (Path(work.arguments.out) / "report.html").write_text(page(result), encoding="utf-8")
    return result


def _names(work: Work, cluster: Cluster) -> list[str]:
    given = work.arguments
    queues = [given.queue] if given.queue else [name.strip() for name in (given.queues or "").split(",")]
    try:
        found = cluster.names([name for name in queues if name], given.pattern, is_system=given.system)
    except Refused as refused:
        raise JobFailed(refused.why) from None
    if not found:
        raise JobFailed("there is no such queue in the virtual host")
    return found


def _judged(
    work: Work, contact: Contact, cluster: Cluster, group: tuple[int, list[str]]
) -> list[dict[str, Any]]:
    number, queues = group
    table = Path(work.arguments.out) / TABLE / f"group={number}"
    shutil.rmtree(table, ignore_errors=True)
    found = Comparison(work, contact, cluster, table.absolute()).run(queues)
    return [asdict(outcome) for outcome in found]


class Memory:
    """How far a run is: which queues it is about, and what was found so far."""

    def __init__(self, work: Work) -> None:
        self._folder = work.state.folder
        self._out = Path(work.arguments.out)
        if work.state.former.get("state") == states.DONE or not (self._folder / PLAN).exists():
            # Another audit, not the rest of the last one.
            (self._folder / PLAN).unlink(missing_ok=True)
            (self._folder / JUDGED).unlink(missing_ok=True)
            shutil.rmtree(self._out / TABLE, ignore_errors=True)
        self._out.mkdir(parents=True, exist_ok=True)
        self._done = {int(row["group"]) for row in self._lines()}

    def groups(self, names: Any) -> Iterator[tuple[int, list[str]]]:
        """The queues in groups, as they were when the run began."""
        path = self._folder / PLAN
        if not path.exists():
            states.write_json(path, {"queues": names()})
        queues = json.loads(path.read_text(encoding="utf-8"))["queues"]
        for at in range(0, len(queues), GROUP):
            yield at // GROUP, queues[at : at + GROUP]

    def has(self, group: int) -> bool:
        """Was it judged?"""
        return group in self._done

    def add(self, group: int, rows: list[dict[str, Any]]) -> None:
        """Remember what was found in a group."""
        line = json.dumps({"group": group, "rows": rows}, ensure_ascii=False, default=str)
        with (self._folder / JUDGED).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")  # what a killed run has not finished stays a line of its own
            file.flush()
            os.fsync(file.fileno())
        self._done.add(group)

    def rows(self) -> Iterator[dict[str, Any]]:
        """What is known of all queues."""
        for line in self._lines():
            yield from line["rows"]

    def _lines(self) -> Iterator[dict[str, Any]]:
        path = self._folder / JUDGED
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            with contextlib.suppress(ValueError):
                yield json.loads(line)


# --- the result --------------------------------------------------------------------------------------------


def summary(rows: list[dict[str, Any]], out: Path) -> Result:
    """The result: sums over all queues, a row for those that can be shown, what differs first."""
    rows.sort(key=lambda row: (_ORDER.get(row["status"], 3), row["vhost"], row["queue"]))
    statuses: dict[str, int] = {}
    for row in rows:
        statuses[row["status"]] = statuses.get(row["status"], 0) + 1
    findings = {kind: sum(row["findings"].get(kind, 0) for row in rows) for kind in KINDS}
    differs = sum(findings.values()) > 0 or UNREADABLE in statuses
    shown = [{name: value for name, value in row.items() if name != "last_word"} for row in rows]
    return {
        "verdict": "differences" if differs else "incomplete" if FAILED in statuses else "agreement",
        "queues_audited": len(rows),
        "statuses": statuses,
        "messages": sum(row["messages"] for row in rows),
        "ranges": sum(row["ranges"] for row in rows),
        "ranges_read": sum(row["ranges_read"] for row in rows),
        "findings": findings,
        "queues": shown[:QUEUES_SHOWN],
        "table": str((Path(out) / TABLE).absolute()) if sum(findings.values()) else None,
        "report": str((Path(out) / "report.html").absolute()),
    }


def code(result: Result) -> int:
    """The exit code."""
    return {"differences": DIFFERENCES, "incomplete": INCOMPLETE}.get(result["verdict"], DONE)


def _examples(result: Result) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    found = [(row, example) for row in result["queues"] for example in row["examples"]]
    return found[:EXAMPLES_SHOWN]


def _said(row: dict[str, Any]) -> str:
    """The verdict on a queue, in words."""
    if row["findings"]:
        found = ", ".join(f"{count} {kind}" for kind, count in row["findings"].items())
        where = ", ".join(f"{count} on {member}" for member, count in row["by_member"].items())
        return f"{found}{f' ({where})' if where else ' (nobody can tell where)'}"
    return str(row["why"])


def _aside(row: dict[str, Any]) -> str:
    return "; ".join(f"{one['node']}: {one['why']}" for one in row["not_judged"])


def page(result: Result) -> str:
    """The report."""
    numbers = {
        "queues": charts.number(result["queues_audited"]),
        "messages": charts.number(result["messages"]),
        "ranges compared": charts.number(result["ranges"]),
        "ranges read": charts.number(result["ranges_read"]),
        **{kind: charts.number(count) for kind, count in result["findings"].items()},
    }
    heads = ("queue", "result", "what", "copies", "messages", "from", "to", "not judged")
    rows = [
        [
            f"{row['vhost']} {row['queue']}",
            row["status"],
            _said(row),
            ", ".join(row["judged"]),
            charts.number(row["messages"]),
            str(row["first"]),
            str(row["last"]),
            _aside(row),
        ]
        for row in result["queues"]
    ]
    some = [
        [
            f"{row['vhost']} {row['queue']}",
            str(one["seq"]),
            one["kind"],
            one["member"] or "nobody can tell",
            one["detail"],
        ]
        for row, one in _examples(result)
    ]
    parts = [
        charts.tiles(numbers),
        charts.section(
            "Differences",
            f"the first ones of each queue; all of them are in {TABLE}",
            charts.table(("queue", "seq", "kind", "member", "what"), some, empty="No record differs."),
        ),
        charts.section("Queues", "what differs first", charts.table(heads, rows)),
    ]
    about = {
        "agreement": "all copies that are in sync hold the same messages",
        "differences": "copies that are in sync do not hold the same messages",
        "incomplete": "no difference, but not everything could be judged",
    }
    return charts.page("MirrorMQ audit", about[result["verdict"]], parts)


def lines(result: Result) -> list[str]:
    """The result for people."""
    rows = [
        {
            "queue": row["queue"],
            "result": row["status"],
            "copies": str(len(row["judged"])),
            "messages": str(row["messages"]),
            "seqs": f"{row['first']}-{row['last']}" if row["judged"] else "",
            "what": "; ".join(text for text in (_said(row), _aside(row)) if text),
        }
        for row in result["queues"]
    ]
    some = [
        {
            "queue": row["queue"],
            "seq": str(one["seq"]),
            "kind": one["kind"],
            "member": one["member"] or "?",
            "detail": one["detail"],
        }
        for row, one in _examples(result)
    ]
    counts = ", ".join(f"{count} {status}" for status, count in result["statuses"].items())
    found = ", ".join(f"{count} {kind}" for kind, count in result["findings"].items())
    shown = f"{result['messages']} messages in {result['queues_audited']} queues: {counts}; {found}"
    return [*cli.table(rows), *cli.table(some), shown, f"report: {result['report']}"]


JOB = Job(
    "audit",
    "Compare the copies of mirrored queues: all that are in sync must hold the same messages, in order.",
    arguments,
    run,
    identity=("queue", "queues", "pattern", "system", "out"),
    lines=lines,
    code=code,
)

if __name__ == "__main__":
    sys.exit(main_of(JOB))
