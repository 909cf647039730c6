"""Whatever a crash leaves of the files, recovery finds a state the node had, with everything that was promised."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.meta import commands as c
from mirrormq.meta.records import VHost
from mirrormq.meta.state import MetaState
from mirrormq.meta.store import MetaStore
from tests.support import metakit
from tests.support.memorydisk import MemoryDisk


class Run:
    """One life of a process, with a history of every state it had, by index."""

    def __init__(self, disk: MemoryDisk, history: list[Any], promised: int) -> None:
        self.disk = disk
        self.state = MetaState()
        self.store = MetaStore(self.state, disk, log_bytes_max=500, slice_records=5)
        self.store.recover(disk)
        found = self.store.last_index
        # A prefix of what was applied, with every command that was reported as durable.
        assert promised <= found < len(history)
        assert metakit.contents(self.state) == history[found]
        metakit.check_indexes(self.state)
        self.history = history[: found + 1]
        self.promised = promised

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

    def _promise(self, index: int) -> None:
        self.promised = max(self.promised, index)


STEPS = st.lists(
    st.sampled_from(("propose",) * 6 + ("commit",) * 4 + ("finish",) * 4 + ("pass", "pass", "crash", "kill")),
    min_size=10,
    max_size=120,
)
LASTING = st.builds(c.SetGlobalParameter, metakit.NAMES, st.integers(0, 99))
"""Commands that nearly always change something."""


@settings(max_examples=400, deadline=None)
@given(steps=STEPS, data=st.data())
def test_a_crash_at_any_byte_leaves_a_prefix_that_includes_every_flushed_command(
    steps: list[str], data: st.DataObject
) -> None:
    run = Run(MemoryDisk(), [metakit.contents(MetaState())], 0)
    run.propose(c.PutVHost(VHost("/")))
    for step in [*steps, "crash"]:
        if step == "propose":
            is_lasting = data.draw(st.booleans())
            run.propose(data.draw(LASTING if is_lasting else metakit.COMMANDS))
        elif step == "commit":
            run.store.commit()
        elif step == "finish":
            run.finish_next()
        elif step == "pass":
            run.store.commit()
            while run.disk.owed:
                run.finish_next()
        elif step == "crash":
            disk = run.disk.crash(lambda most: data.draw(st.integers(0, most)))
            run = Run(disk, run.history, run.promised)
        else:
            run = Run(run.disk.restart(), run.history, run.promised)


@settings(max_examples=50, deadline=None)
@given(st.lists(metakit.COMMANDS, min_size=5, max_size=40), st.data())
def test_a_crash_during_recovery_itself_loses_nothing(commands: list[c.Command], data: st.DataObject) -> None:
    run = Run(MemoryDisk(), [metakit.contents(MetaState())], 0)
    run.propose(c.PutVHost(VHost("/")))
    for command in commands:
        run.propose(command)
        run.store.commit()
        run.finish_next()
    disk = run.disk.crash(lambda most: data.draw(st.integers(0, most)))
    for _ in range(3):
        run = Run(disk, run.history, run.promised)
        disk = run.disk.crash(lambda most: data.draw(st.integers(0, most)))
