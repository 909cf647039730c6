"""Write the closing table of ./test: group, passed, failed, not run, seconds and why.

Reads what ./test left in a folder: `<group>.status` (exit code, seconds), `<group>.xml` if the group was
a pytest run, and `<group>.log`. Exit code 1 if anything failed; with CI=true also if anything was not run.
"""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

NOT_RUN = 77
"""Exit code by which a group says that it could not run."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    group: str
    passed: int
    failed: int
    not_run: int
    seconds: int
    why: str


def main(folder: Path) -> int:
    """Write the table and return the exit code."""
    in_order = sorted(folder.glob("*.status"), key=lambda path: path.stat().st_mtime_ns)
    rows = [read_group(status) for status in in_order]
    width = max(len(row.group) for row in rows)
    write(f"\n{'group':<{width}}  passed  failed  not run  seconds  why")
    for row in rows:
        counts = f"{row.passed:>6}  {row.failed:>6}  {row.not_run:>7}  {row.seconds:>7}"
        write(f"{row.group:<{width}}  {counts}  {row.why}".rstrip())
    failed = sum(row.failed for row in rows)
    not_run = sum(row.not_run for row in rows)
    write(f"\n{sum(row.passed for row in rows)} passed, {failed} failed, {not_run} not run")
    if os.environ.get("CI") == "true" and not_run:
        write("CI=true: what was not run counts as failed")
        return 1
    return 1 if failed else 0


def read_group(status: Path) -> Row:
    """Count what one group left behind."""
    code, seconds = (int(word) for word in status.read_text(encoding="utf-8").split())
    report = status.with_suffix(".xml")
    if report.exists():
        return read_pytest(status.stem, report, code, seconds)
    if code == 0:
        return Row(status.stem, 1, 0, 0, seconds, "")
    if code == NOT_RUN:
        return Row(status.stem, 0, 0, 1, seconds, last_line(status.with_suffix(".log")))
    return Row(status.stem, 0, 1, 0, seconds, f"exit code {code}, see {status.with_suffix('.log')}")


def read_pytest(group: str, report: Path, code: int, seconds: int) -> Row:
    """Count a pytest run from its JUnit report."""
    passed = failed = 0
    skipped: Counter[str] = Counter()
    names: list[str] = []
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
            names.append(case.get("name") or "")
        elif (skip := case.find("skipped")) is not None:
            skipped[(skip.get("message") or "no reason given").splitlines()[0]] += 1
        else:
            passed += 1
    if code == 5:  # pytest collected nothing
        return Row(group, 0, 0, 1, seconds, "no tests found")
    if code != 0 and not failed:
        failed, names = 1, [f"pytest ended with exit code {code}"]
    why = [*names[:3], *(["…"] if len(names) > 3 else [])]
    why += [f"not run: {count} × {reason}" for reason, count in skipped.most_common(3)]
    return Row(group, passed, failed, sum(skipped.values()), seconds, "; ".join(why))


def last_line(log: Path) -> str:
    """Return the last line that says something."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")


def write(line: str) -> None:
    """Write one line to standard output."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
