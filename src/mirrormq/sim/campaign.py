"""Many seeds of the world with mirrored queues, in several processes.

Guarantee: what a seed does depends on the seed alone, whatever runs beside it. One that fails does not stop
the others; it is reported with its last events.
"""

import gc
import multiprocessing
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.pool import AsyncResult

from mirrormq.node.partition import PAUSE_MINORITY
from mirrormq.sim.hafaults import CONFIRMS, FAULTS
from mirrormq.sim.haplanted import PLANTED
from mirrormq.sim.haworld import HaWorld, WatchedNode

TRACE_LINES = 60


@dataclass
class Found:
    """What became of one seed."""

    seed: int
    problem: str
    digest: str
    stats: dict[str, int]
    trace: list[str]


@dataclass
class Total:
    """What all seeds consisted of."""

    seeds: int = 0
    counting: int = 0
    failed: list[int] = field(default_factory=list)
    stats: dict[str, int] = field(default_factory=dict)

    def add(self, found: Found) -> None:
        """One more seed."""
        self.seeds += 1
        if found.problem:
            self.failed.append(found.seed)
        else:
            self.counting += found.stats["confirms"] >= CONFIRMS and found.stats["faults"] >= FAULTS
        for name, value in found.stats.items():
            self.stats[name] = self.stats.get(name, 0) + value

    def text(self) -> str:
        """All of it in words."""
        sums = ", ".join(f"{value} {name}" for name, value in self.stats.items())
        failed = f"; failed: {self.failed}" if self.failed else ""
        return (
            f"{self.seeds} seeds ({self.counting} with {CONFIRMS} confirms and {FAULTS} faults), {sums}"
            f"{failed}"
        )


def run_seed(
    seed: int, planted: str = "", mode: str = PAUSE_MINORITY, *, transactions: bool | None = None
) -> Found:
    """Run one seed, with a bug if one is named."""
    gc.collect()  # the world before: nobody else looks for it for long
    make_node = PLANTED.get(planted, WatchedNode)
    world = HaWorld(seed, make_node=make_node, mode=mode, transactions=transactions)
    problem = ""
    try:
        world.run()
    except Exception as error:  # noqa: BLE001
        # Whatever a node raises is a finding: it would have taken a real one down.
        problem = f"{type(error).__name__}: {error}"
        world.sum_up()
    return Found(seed, problem, world.digest, vars(world.stats), list(world.trace)[-TRACE_LINES:])


def run(seeds: Iterable[int], planted: str, jobs: int, mode: str = PAUSE_MINORITY) -> Iterator[Found]:
    """Run seeds, in several processes if more than one is asked for."""
    if jobs == 1:
        yield from (run_seed(seed, planted, mode) for seed in seeds)
        return
    # Each process ends after some seeds, and takes with it what a node that raised has left behind.
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=200) as pool:
        under_way = deque[AsyncResult[Found]]()
        for seed in seeds:
            under_way.append(pool.apply_async(run_seed, (seed, planted, mode)))
            if len(under_way) > 2 * jobs:
                yield under_way.popleft().get()
        while under_way:
            yield under_way.popleft().get()
