"""Runs the simulator: `python -m mirrormq.sim log --seeds 1-500`, or `--seconds 3600`.

Worlds: `log` (a node and its queues), `cursors`, `raft`, `meta` (definitions on several nodes), `etcd` (the
same by etcd), `cluster` (whole nodes with clients, links, disks and clocks), `mirror` (the replication
protocol), `ha` (whole nodes with mirrored queues; with `--jobs N` in so many processes), `sink` (whole nodes
with drivers of sinks).

Prints what was run; on a broken promise the seed, the reason and the last events, and exits with 1.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import get_args

from mirrormq.cluster.raft.raft import Raft
from mirrormq.log.journal import Fsync
from mirrormq.node.node import Node
from mirrormq.node.partition import MODES, PAUSE_MINORITY
from mirrormq.sim import campaign, clusterplanted, haplanted, mirrorplanted, raftplanted, sinkplanted
from mirrormq.sim.client import Stats
from mirrormq.sim.clusterworld import ClusterStats, ClusterWorld
from mirrormq.sim.cursorworld import CursorWorld
from mirrormq.sim.etcdworld import EtcdWorld
from mirrormq.sim.haworld import ANY_MODE, HaStats
from mirrormq.sim.lossworld import LossWorld
from mirrormq.sim.metaworld import MetaStats, MetaWorld
from mirrormq.sim.mirrorworld import MirrorStats, MirrorWorld
from mirrormq.sim.planted import PLANTED
from mirrormq.sim.queueworld import QueueWorld
from mirrormq.sim.raftworld import RaftStats, RaftWorld
from mirrormq.sim.sinkworld import SinkStats, SinkWorld

TRACE_LINES = 25
PROGRESS_SEEDS = 500
"""A long run says after so many seeds what it has found."""
ETCD_TROUBLE = (0.0, 0.02, 0.1, 0.3)
"""How many of etcd's answers get lost, by seed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run seeds until one fails or all are done; returns the exit code."""
    gc.set_threshold(50_000, 20, 100)  # a world of a second's work: looking for garbage took a tenth of it
    options = _parser().parse_args(argv)
    runs = {
        "raft": _run_raft,
        "meta": _run_meta,
        "etcd": _run_meta,
        "cluster": _run_cluster,
        "mirror": _run_mirror,
        "ha": _run_ha,
        "loss": _run_loss,
        "sink": _run_sink,
    }
    run = runs.get(options.world, _run_log)
    return run(options)


def _run_log(options: argparse.Namespace) -> int:
    make_node = PLANTED[options.planted] if options.planted else Node
    flips = options.flips or options.planted == "checksum-skipped"
    total, seeds = Stats(), 0
    for seed in _seeds(options):
        world: QueueWorld | CursorWorld = CursorWorld(seed, make_node=make_node)
        if options.world == "log":
            small = not options.shipped_limits
            world = QueueWorld(seed, make_node=make_node, flips=flips, small=small, fsync=options.fsync)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001
            # Whatever the node raises is a finding: it would have taken a real one down.
            _say(f"seed {seed} failed: {type(error).__name__}: {error}")
            _say("\n".join(list(world.trace)[-TRACE_LINES:]))
            _summary(seeds, total)
            return 1
        seeds += 1
        _add(total, world.stats)
        if options.digests:
            _say(f"seed {seed}: {world.digest} {world.stats.events} events")
    _summary(seeds, total)
    return 0


def _run_meta(options: argparse.Namespace) -> int:
    total, seeds = MetaStats(), 0
    for seed in _seeds(options):
        trouble = ETCD_TROUBLE[seed % len(ETCD_TROUBLE)]
        world = EtcdWorld(seed, trouble=trouble) if options.world == "etcd" else MetaWorld(seed)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001
            _say(f"seed {seed} failed: {type(error).__name__}: {error}")
            return 1
        seeds += 1
        for name, value in vars(world.stats).items():
            setattr(total, name, getattr(total, name) + value)
    _say(f"{seeds} seeds, {total}")
    return 0


def _run_mirror(options: argparse.Namespace) -> int:
    make_world = mirrorplanted.PLANTED[options.planted] if options.planted else MirrorWorld
    if options.log == "memory":
        make_world = type(make_world.__name__, (make_world,), {"is_on_disk": False})
    total, seeds, counting = MirrorStats(), 0, 0
    for seed in _seeds(options):
        world = make_world(seed)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001
            _say(f"seed {seed} failed: {type(error).__name__}: {error}")
            _say("\n".join(list(world.trace)[-TRACE_LINES:]))
            _say(f"{seeds} seeds, {total}")
            return 1
        seeds += 1
        counting += world.stats.confirms >= 200 and world.stats.faults >= 5
        for name, value in vars(world.stats).items():
            setattr(total, name, getattr(total, name) + value)
        if options.digests:
            _say(f"seed {seed}: {world.digest} {world.stats.events} events")
    _say(f"{seeds} seeds ({counting} with 200 confirms and 5 faults or more), {total}")
    return 0


def _run_raft(options: argparse.Namespace) -> int:
    make_raft = raftplanted.PLANTED[options.planted] if options.planted else Raft
    return _run_groups(options, lambda seed: RaftWorld(seed, make_raft=make_raft), RaftStats())


def _run_cluster(options: argparse.Namespace) -> int:
    make_node = clusterplanted.PLANTED[options.planted] if options.planted else Node
    return _run_groups(options, lambda seed: ClusterWorld(seed, make_node=make_node), ClusterStats())


def _run_sink(options: argparse.Namespace) -> int:
    make_node = sinkplanted.PLANTED[options.planted] if options.planted else Node
    return _run_groups(options, lambda seed: SinkWorld(seed, make_node=make_node), SinkStats())


def _run_ha(options: argparse.Namespace) -> int:
    total, failed = campaign.Total(), 0
    for found in campaign.run(_seeds(options), options.planted or "", options.jobs, options.mode):
        total.add(found)
        if found.problem:
            failed += 1
            _say(f"seed {found.seed} failed: {found.problem}")
            _say("\n".join(found.trace[-TRACE_LINES:]))
            if options.jobs == 1 and not options.keep_going:
                break
        elif options.digests:
            _say(f"seed {found.seed}: {found.digest} {found.stats['events']} events")
        if total.seeds % PROGRESS_SEEDS == 0:
            _say(f"so far: {total.text()}")
    _say(total.text())
    return 1 if failed else 0


def _run_loss(options: argparse.Namespace) -> int:
    return _run_groups(options, LossWorld, HaStats())


def _run_groups(
    options: argparse.Namespace,
    make_world: Callable[[int], RaftWorld | ClusterWorld],
    total: RaftStats | ClusterStats,
) -> int:
    seeds = 0
    for seed in _seeds(options):
        world = make_world(seed)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001
            _say(f"seed {seed} failed: {type(error).__name__}: {error}")
            _say("\n".join(list(world.trace)[-TRACE_LINES:]))
            _say(f"{seeds} seeds, {total}")
            return 1
        seeds += 1
        for name, value in vars(world.stats).items():
            setattr(total, name, getattr(total, name) + value)
        if options.digests:
            _say(f"seed {seed}: {world.digest} {world.stats.events} events")
    _say(f"{seeds} seeds, {total}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mirrormq.sim", description=__doc__)
    parser.add_argument(
        "world",
        choices=["log", "cursors", "raft", "meta", "etcd", "cluster", "mirror", "ha", "loss", "sink"],
    )
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("--seeds", metavar="A-B")
    amount.add_argument("--seconds", type=float)
    parser.add_argument("--first", type=int, default=1, help="first seed with --seconds")
    parser.add_argument(
        "--planted",
        choices=sorted(
            {
                *PLANTED,
                *raftplanted.PLANTED,
                *clusterplanted.PLANTED,
                *mirrorplanted.PLANTED,
                *haplanted.PLANTED,
                *sinkplanted.PLANTED,
            }
        ),
        help="run a node with this bug",
    )
    parser.add_argument(
        "--log", choices=["disk", "memory"], default="disk", help="mirror: the shipped logs, or stand-ins"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes (world ha)")
    parser.add_argument(
        "--mode",
        choices=[*MODES, ANY_MODE],
        default=PAUSE_MINORITY,
        help="ha: what nodes do that are cut off; any: one that the seed chooses",
    )
    parser.add_argument("--fsync", choices=get_args(Fsync), default="always", help="log: the node's setting")
    parser.add_argument("--keep-going", action="store_true", help="ha: go on if a seed fails")
    parser.add_argument("--flips", action="store_true", help="flip a bit at the end of each run")
    parser.add_argument("--shipped-limits", action="store_true", help="do not shrink files and windows")
    parser.add_argument("--digests", action="store_true", help="print a fingerprint of each run")
    return parser


def _seeds(options: argparse.Namespace) -> Iterator[int]:
    if options.seeds:
        first, _, last = options.seeds.partition("-")
        yield from range(int(first), int(last or first) + 1)
        return
    end = time.monotonic() + options.seconds
    for seed in count(options.first):
        if time.monotonic() >= end:
            return
        yield seed


def _add(total: Stats, run: Stats) -> None:
    for name in Stats.__slots__:
        setattr(total, name, getattr(total, name) + getattr(run, name))


def _summary(seeds: int, total: Stats) -> None:
    _say(
        f"{seeds} seeds, {total.events} events, {total.faults} faults, {total.confirms} confirms,"
        f" {total.commits} commits, {total.deliveries} deliveries"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()  # a long run is watched, and what it found stays if it is ended


if __name__ == "__main__":
    sys.exit(main())
