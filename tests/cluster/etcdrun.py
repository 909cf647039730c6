"""The campaign of mirrorrun.py on nodes that agree by an etcd of three members, with faults of etcd as well.

python -m tests.cluster.etcdrun --faults 40 --seed 1
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.cluster import mirrorrun
from tests.cluster.mirrorfaults import FAULTS, Fault, Field
from tests.cluster.mirrorrun import Run
from tests.support import etcdkit
from tests.support.etcdkit import Etcd, Member

NODE_FAULTS = (
    "kill -9 of the master",
    "kill -9 of a mirror",
    "kill -9 of master and mirror",
    "kill -9 of all nodes",
    "master frozen longer than its lease",
    "master cut off from all",
    "link of master and mirror cut",
    "graceful stop of the master",
)
"""Those of mirrorfaults.py that say something about how nodes agree."""


def faults_of(etcd: Etcd) -> dict[str, tuple[int, Fault]]:
    """Faults of etcd, in the form of those of mirrorfaults.py."""

    def again(member: Member) -> None:
        member.start()
        etcd.wait_well()

    def kill_follower(field: Field, _: str) -> str:
        leader = etcd.leader()
        member = field.rng.choice([one for one in etcd.members if one is not leader])
        member.kill()
        again(member)
        return member.name

    def kill_leader(_: Field, __: str) -> str:
        member = etcd.leader()
        member.kill()
        etcd.wait_well()
        again(member)
        return member.name

    def kill_leader_and_master(field: Field, queue: str) -> str:
        member = etcd.leader()
        master = field.master(queue).name
        member.kill()
        told = FAULTS["kill -9 of the master"][1](field, queue)
        again(member)
        return f"{member.name}, {master}, {told}"

    def freeze_majority(field: Field, _: str) -> str:
        """etcd answers nobody for longer than a lease: every node must pause, and come back."""
        chosen = field.rng.sample(etcd.members, 2)
        marks = {node: len(node.lines) for node in field.cluster}
        for member in chosen:
            member.signal(signal.SIGSTOP)
        try:
            for node, mark in marks.items():
                node.wait_for("paused", since=mark)
        finally:
            for member in chosen:
                member.signal(signal.SIGCONT)
        for node, mark in marks.items():
            node.wait_for("resumed", since=mark)
        return ", ".join(member.name for member in chosen)

    def compact(_: Field, __: str) -> str:
        etcd.compact()
        return "all"

    return {
        "kill -9 of an etcd member": (3, kill_follower),
        "kill -9 of etcd's leader": (3, kill_leader),
        "kill -9 of etcd's leader and a master": (2, kill_leader_and_master),
        "majority of etcd frozen": (1, freeze_majority),
        "compaction of etcd": (1, compact),
    }


@contextlib.contextmanager
def running(folder: Path, nodes: int, seed: int, tell: Callable[[str], object]) -> Iterator[tuple[Run, Etcd]]:
    """A cluster on an etcd of three members, with clients."""
    with (
        etcdkit.running(folder / "etcd", 3) as etcd,
        mirrorrun.running(folder / "nodes", nodes, seed, tell, etcd.settings()) as run,
    ):
        run.faults |= faults_of(etcd)
        yield run, etcd


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="of the order of faults (0: by the clock)")
    parser.add_argument("--only", default="", help="the faults whose names contain this")
    options = parser.parse_args()
    seed = options.seed or int(time.time())
    rng = random.Random(seed)
    sys.stdout.write(f"{options.nodes} nodes, {options.faults} faults, seed {seed}\n")
    with (
        tempfile.TemporaryDirectory(prefix="mirrormq-etcd-") as folder,
        running(Path(folder), options.nodes, seed, sys.stdout.write) as (run, etcd),
    ):
        weights = {name: FAULTS[name][0] for name in NODE_FAULTS}
        weights |= {name: weight for name, (weight, _) in faults_of(etcd).items()}
        known = [name for name in weights if options.only in name]
        more = rng.choices(known, [weights[name] for name in known], k=max(0, options.faults - len(known)))
        chosen = [*known, *more][: options.faults]
        rng.shuffle(chosen)
        try:
            for fault in chosen:
                run.round(fault)
                sys.stdout.flush()
        finally:
            sys.stdout.write(mirrorrun.summary(run.rounds))
            if run.ledger.broken or len(run.rounds) < len(chosen):
                sys.stdout.write("\n".join(["broken:", *run.ledger.broken[:50]]) + "\n")
                mirrorrun.keep_logs(run.field.cluster)
    return 1 if run.ledger.broken else 0


if __name__ == "__main__":
    sys.exit(main())
