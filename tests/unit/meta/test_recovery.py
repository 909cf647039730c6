"""Whatever a crash leaves of the files, recovery finds a state the node had, with everything promised."""

from random import Random
from typing import Any

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from mirrormq.meta import commands as c
from mirrormq.meta.records import VHost
from mirrormq.meta.state import MetaState
from mirrormq.meta.store import MetaStore
from mirrormq.sim.disk import MemoryDisk
from tests.support import metakit


class Life:
    """One life of a process, with a history of every state it had, by index."""

    def __init__(self, disk: MemoryDisk, history: list[Any], promised: int) -> None:
        self.disk = disk
        self.state = MetaState()
        self.store = MetaStore(self.state, disk, log_bytes_max=300, slice_records=20)
        self.recovered = self.store.recover(disk)
        found = self.store.last_index
        # A prefix of what was applied, with every command that was reported as durable.
        assert promised <= found < len(history)
        assert metakit.contents(self.state) == history[found]
        metakit.check_indexes(self.state)
        self.history = history[: found + 1]
        self.promised = promised
        self.store.barrier(lambda _: self._promise(found))

    def propose(self, command: c.Command) -> None:
        outcome = self.store.propose(command, lambda _: None, wait=False)
        if outcome.changes:
            assert self.store.last_index == len(self.history)
            self.history.append(metakit.contents(self.state))
            index = self.store.last_index
            self.store.barrier(lambda _: self._promise(index))

    def finish_next(self) -> None:
        token = self.disk.finish_next()
        if token is not None:
            assert self.store.flushed(token)

    def run_pass(self) -> None:
        self.store.commit()
        while self.disk.owed:
            self.finish_next()

    def _promise(self, index: int) -> None:
        self.promised = max(self.promised, index)


class Fate:
    """Decides, by seed, what happens next and what a crash spares."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def step(self) -> str:
        return self._random.choices(
            ["propose", "commit", "finish", "pass", "crash", "kill"], [8, 5, 4, 2, 1, 1]
        )[0]

    def spared(self, most: int) -> int:
        few = self._random.randint(0, min(most, 40))
        return self._random.choice([0, few, self._random.randint(0, most), most])

    def command(self, pool: list[c.Command]) -> c.Command:
        # Every other command nearly always changes something, whatever the pool holds.
        if self._random.random() < 0.5:
            return c.SetGlobalParameter(self._random.choice("ab"), self._random.randrange(1000))
        return self._random.choice(pool)


def first_life() -> Life:
    life = Life(MemoryDisk(), [metakit.contents(MetaState())], 0)
    life.propose(c.PutVHost(VHost("/")))
    return life


@settings(max_examples=200, deadline=None)
# A log file cut down to its head had the name of the file to come, and went with the old ones at a snapshot.
@example(
    pool=[
        c.PutVHost(VHost("/")),
        c.PutVHost(VHost("/")),
        c.PutVHost(VHost("a")),
        c.DeleteVHost("/"),
        c.PutVHost(VHost("/")),
    ],
    seed=0,
    steps=275,
)
@given(
    pool=st.lists(metakit.COMMANDS, min_size=5, max_size=20),
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 300),
)
def test_a_crash_at_any_byte_leaves_a_prefix_that_includes_every_flushed_command(
    pool: list[c.Command], seed: int, steps: int
) -> None:
    fate = Fate(seed)
    life = first_life()
    for step in [*(fate.step() for _ in range(steps)), "crash"]:
        if step == "propose":
            life.propose(fate.command(pool))
        elif step == "commit":
            life.store.commit()
        elif step == "finish":
            life.finish_next()
        elif step == "pass":
            life.run_pass()
        elif step == "crash":
            life = Life(life.disk.crash(fate.spared), life.history, life.promised)
        else:
            life = Life(life.disk.restart(), life.history, life.promised)
        event(f"torn: {life.recovered.torn_bytes > 0}")
        event(f"snapshot: {life.recovered.snapshot_index > 0}")


@settings(max_examples=50, deadline=None)
@given(st.lists(metakit.COMMANDS, min_size=5, max_size=20), st.integers(0, 2**32 - 1))
def test_a_crash_during_recovery_itself_loses_nothing(pool: list[c.Command], seed: int) -> None:
    fate = Fate(seed)
    life = first_life()
    for _ in range(40):
        life.propose(fate.command(pool))
        life.store.commit()
        life.finish_next()
    for _ in range(4):
        life = Life(life.disk.crash(fate.spared), life.history, life.promised)
