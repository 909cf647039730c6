"""What those commands show and refuse that cannot be run beside others against one node: they stop or change
whole nodes and clusters, need several, or a data folder. A table for test_cases; the node is a fake.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from tests.unit.ctl.fakes import refused
from tests.unit.ctl.test_commands import CLUSTER_STATUS, STATUS

HERE = "mirrormq@here"
URL = "--url http://fake:1"
RUN: dict[str, Any] = {
    "state": "done", "number": 9, "trigger": "on-demand", "strategy": "masters", "since": 1, "planned": 0,
    "moved": 3, "failed": 0, "cancelled": False, "problems": [], "masters": {HERE: 2},
}  # fmt: skip
SYNC: dict[str, Any] = {
    "master": HERE, "epoch": 1, "in_sync": [HERE, "w@there"], "unsynchronised": [], "mirrors": [],
}  # fmt: skip
PLAN: dict[str, Any] = {"node": "w@there", "lossy": False, "passed_over": [], "waits_for": [], "copies": []}
FOLDER: dict[str, Any] = {
    "folder": "/data", "queues": 1, "live": 2, "journal_files": 1, "segments": 0, "batches": 1, "records": 2,
    "bytes": 3, "faults": [], "definitions": None, "torn_bytes": 0, "orphans": 0,
}  # fmt: skip
FAULT = {"file": "j1", "offset": 7, "queue": 1, "text": "a record is damaged"}
QUEUE = {
    "vhost": "/", "name": "q", "id": 1, "last_seq": 3, "horizon": 0, "epoch": 1, "dead": 0, "live": 2,
    "journal": [], "segments": [], "places": [], "damage": None,
}  # fmt: skip
CURSOR = {
    "queue": "q", "name": "c", "mode": "cursor", "seq": 4, "epoch": 1, "lag": 0, "held_bytes": 0,
    "opened_at": 1, "moved_at": 1, "reader": "", "reader_node": "", "lost": None,
}  # fmt: skip
NOT_MIRRORED = refused("bad_request", "queue 'q' is not mirrored")
NO_DISK = refused("start_failed", "there is no disk")
RUNNING = refused("app_running", "the application runs; stop_app first")


class Folder:
    """A data folder as the tools for one that is not in use see it."""

    def __init__(self, *faults: dict[str, Any]) -> None:
        self._faults = list(faults)

    def inspect(self, data: str, node: str | None, queue: Any) -> list[dict[str, Any]]:
        return [QUEUE]

    def verify(self, data: str, node: str | None) -> dict[str, Any]:
        return FOLDER | {"faults": self._faults}


@dataclass(frozen=True)
class Case:
    """A command: a good line with what it shows, and a bad one with its code and reason."""

    line: str
    shows: str
    """Pattern of the lines; the empty one: there are none that a script would read."""
    bad: str
    code: int
    says: str
    """Pattern of the reason."""
    has: str = '"result": "ok"'
    """Part of the JSON."""
    answers: dict[str, Any] = field(default_factory=dict)
    wrong: dict[str, Any] = field(default_factory=dict)
    """What the fake node answers to the good line, and to the bad one."""
    folder: Folder | None = None
    wrong_folder: Folder | None = None

    @property
    def name(self) -> str:
        return next(word for word in self.line.split() if not word.startswith("-"))


def _told(name: str, problem: Exception) -> dict[str, Any]:
    return {name: problem, "status": STATUS}


CASES = [
    # --- the process and its application ---
    Case(f"stop {URL}", "Stopping and halting node", f"stop a b {URL}", 64, "too many"),
    Case(f"shutdown --no-wait {URL}", "Shutting down node", "shutdown --wait --no-wait", 64, "exclude"),
    Case("stop_app", "Stopping MirrorMQ application", "stop_app x", 64, "too many"),
    Case("start_app", "Starting node", "start_app", 69, "no disk", wrong=_told("start_app", NO_DISK)),
    Case("reset", "Resetting node", "reset", 64, "stop_app", wrong=_told("reset", RUNNING)),
    Case(
        "force_reset", "Forcefully resetting", "force_reset", 64, "stop_app",
        wrong=_told("force_reset", RUNNING),
    ),
    Case(f"force_boot {URL}", "", f"force_boot {URL}", 64, "stop_app", wrong=_told("force_boot", RUNNING)),
    Case(
        f"wait --pid {os.getpid()} {URL}", "", "wait", 64, "pid file",
        answers={"status": STATUS},
    ),
    Case(
        "check_ready_to_serve_clients", "is ready to serve clients",
        "check_ready_to_serve_clients", 69, "in maintenance",
        answers={"status": STATUS}, wrong={"status": STATUS | {"maintenance": {"is_drained": True}}},
    ),
    Case(
        "log_tail_stream -d 0", "a line", "log_tail_stream -d 0", 64, "no log file", has='"line": "a line"',
        answers={"log_tail": {"offset": 1, "lines": ["a line"]}},
        wrong={"log_tail": refused("unsupported", "the node has no log file")},
    ),
    Case("help set_policy", "set_policy", "help no_such_command", 64, "no_such_command", has='"set_policy"'),
    # --- the cluster ---
    Case(
        "join_cluster mirrormq@b", "Clustering node", "join_cluster mirrormq@b --ram --disc", 64, "exclude",
        has='"address": "b:25672"', answers={"join_cluster": {"address": "b:25672"}},
    ),
    Case("leave_cluster --force", "leaves its cluster", "leave_cluster x", 64, "too many"),
    Case(
        "forget_cluster_node w@there", "Removing node w@there",
        "forget_cluster_node w@there --offline", 64, "force_boot",
    ),
    Case("change_cluster_node_type witness", "into a witness", "change_cluster_node_type big", 64, "no type"),
    Case("set_feature_level 2", "feature level to 2", "set_feature_level two", 64, "integer"),
    Case(
        "--silent haproxy_config", "backend|listen", "haproxy_config --proxy-protocol maybe", 64, "auto, on",
        has='"config"', answers={"cluster_status": CLUSTER_STATUS, "environment": {"proxy_protocol": True}},
    ),
    # --- maintenance and where masters are ---
    Case(
        "drain", "in maintenance", "drain", 69, "still have their masters", has='"masters": 0',
        answers={"drain": {"is_drained": True, "masters": 0, "stuck": 0, "problems": []}},
        wrong={
            "drain": {"is_drained": True, "masters": 1, "stuck": 1, "problems": []},
            "cluster_status": CLUSTER_STATUS,
        },
    ),
    Case(
        "revive", "serves clients again", "revive x", 64, "too many", has='"was_drained": true',
        answers={"revive": {"was_drained": True}},
    ),
    Case(
        "rebalance all", "mirrormq@here\\t2", "rebalance some", 64, "not one of", has='"planned": 0',
        answers={"rebalance": {"node": HERE, **RUN, "moves": []}},
    ),
    Case(
        "rebalance_status", "The last one of node", "rebalance_status x", 64, "too many",
        has='"running": false',
        answers={"rebalance_status": {"running": False, "node": HERE, "run": RUN}},
    ),
    Case(
        "cancel_rebalance", "moves no further masters", "cancel_rebalance", 69, "under way",
        has=f'"by": "{HERE}"', answers={"cancel_rebalance": {"node": HERE}},
        wrong={"cancel_rebalance": refused("not_rebalancing", "no rebalancing is under way")},
    ),
    # --- mirrored queues ---
    Case(
        "sync_queue q", "in sync already", "sync_queue q", 65, "not mirrored", has='"unsynchronised": []',
        answers={"sync_queue": {"unsynchronised": []}}, wrong={"sync_queue": NOT_MIRRORED},
    ),
    Case(
        "cancel_sync_queue q", "Stopping synchronising", "cancel_sync_queue q", 65, "not mirrored",
        wrong={"cancel_sync_queue": NOT_MIRRORED},
    ),
    Case(
        "repair_queue q --node w@there", "Node w@there fetches its copy anew",
        "repair_queue q", 65, "not mirrored", has='"node": "w@there"',
        answers={"repair_queue": {"node": "w@there"}}, wrong={"repair_queue": NOT_MIRRORED},
    ),
    Case(
        "move_master q w@there", "Moved from node", "move_master q", 64, "not enough",
        has='"master": "w@there"',
        answers={"move_master": {"from": HERE, "master": "w@there"}},
    ),
    Case(
        "force_promote q", "is the master of queue", "force_promote q", 64, "--yes", has='"node": "w@there"',
        answers={"force_promote": PLAN}, wrong={"force_promote": PLAN | {"lossy": True}},
    ),
    Case(
        "quorum_status q", "w@there\\tmirror", "quorum_status q", 65, "not mirrored", has='"role": "master"',
        answers={"sync_status": SYNC}, wrong={"sync_status": NOT_MIRRORED},
    ),
    Case("promote_mirror v", "Promoting mirror", "promote_mirror", 64, "not enough"),
    # --- readers and the data folder ---
    Case(
        "list_cursors", "q\\tc\\tcursor", "list_cursors colour", 64, "colour", has='"name": "c"',
        answers={"list_cursors": {"rows": [CURSOR], "missing": {}}},
    ),
    Case("drop_cursor q c", "Dropping cursor", "drop_cursor q", 64, "not enough"),
    Case(
        "backup /backup", "2 files with 10 bytes", "backup", 64, "not enough", has='"files": 2',
        answers={
            "backup_progress": {
                "finished": True, "copied_bytes": 10, "total_bytes": 10, "files": 2, "linked_files": 1,
                "taken_at": 1,
            }
        },
    ),
    Case(
        "inspect_log --data /data", "/\\tq\\t1", "inspect_log x", 64, "too many", has='"name": "q"',
        folder=Folder(),
    ),
    Case(
        "verify_log --data /data", "1 queues with 2 messages", "verify_log --data /data", 65, "1 fault",
        has='"faults": []', folder=Folder(), wrong_folder=Folder(FAULT),
    ),
]  # fmt: skip
IDS = [case.name for case in CASES]
ELSEWHERE = {"consume_event_stream": ("tests/cluster/test_ctl.py", "consume_event_stream")}
"""Commands that no fake can answer: the file of the test that runs each, and what it runs."""
