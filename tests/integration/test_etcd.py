"""The promises of `Coordination`, kept by a real etcd server and the client that nodes use."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrormq.base import limits
from mirrormq.cluster.coordination import Coordination
from mirrormq.cluster.etcd import api
from mirrormq.cluster.etcd.agreement import EtcdAgreement, EtcdOptions
from mirrormq.cluster.metadata import Metadata
from mirrormq.cluster.raft import events as ev
from mirrormq.cluster.raft.raft import Myself
from mirrormq.meta import commands as c
from mirrormq.meta import records as r
from mirrormq.meta.state import MetaState, Outcome
from mirrormq.runtime.etcdclient import EtcdClient
from mirrormq.runtime.settings import EtcdSettings
from mirrormq.sim.machine import SeededRng
from tests.interop.certificates import Authority
from tests.support import etcdkit
from tests.support.etcdkit import Etcd, needs_etcd
from tests.unit.cluster.contract import CoordinationContract

pytestmark = [pytest.mark.slow, needs_etcd]

SECONDS = 20.0


class RealNode:
    """One node's metadata, its agreement and its client, driven by a loop."""

    def __init__(self, group: RealGroup, name: str) -> None:
        self.name = name
        self.state = MetaState()
        me = Myself(name, name.encode().ljust(16), 1, (name.encode().ljust(16),))
        options = EtcdOptions(group.prefix)
        self.metadata = Metadata(
            self.state,
            (name, 1),
            lambda machine: EtcdAgreement(me, machine, SeededRng(f"{group.prefix}{name}"), options),
            lambda peer, payload: None,
        )
        assert isinstance(self.metadata.raft, EtcdAgreement)
        self.raft = self.metadata.raft
        self.events: list[ev.Event] = []
        self.metadata.on_event = self.events.append
        self.client = EtcdClient(EtcdSettings(endpoints=tuple(group.etcd.endpoints)), self.hear)
        self.raft.begin()
        self.raft.speak_up()

    def hear(self, answer: api.Answer | api.Tidings) -> None:
        self.raft.answer(mono(), answer)
        self.step()

    def step(self) -> None:
        now = mono()
        if now >= self.raft.timer_at:
            self.raft.on_timer(now)
        self.metadata.end_pass(now)
        for request in self.raft.take_requests():
            self.client.order(request)


def mono() -> int:
    return time.monotonic_ns() // 1000


class RealGroup:
    """Nodes under one prefix."""

    numbers = iter(range(1_000_000))

    def __init__(self, etcd: Etcd, size: int) -> None:
        self.etcd = etcd
        self.prefix = f"/contract-{next(self.numbers)}"
        self.names = [f"n{number}" for number in range(1, size + 1)]
        self.loop = asyncio.new_event_loop()
        self._idle = asyncio.Event()
        self.nodes = {name: self.loop.run_until_complete(self._make(name)) for name in self.names}
        self.until(self.is_whole)

    async def _make(self, name: str) -> RealNode:
        return RealNode(self, name)

    def node(self, name: str) -> Coordination:
        return self.nodes[name].metadata

    def until(self, is_so: Callable[[], bool]) -> None:
        self.loop.run_until_complete(self._until(is_so))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not is_so():
            assert time.monotonic() < deadline, "it never is"
            for node in self.nodes.values():
                node.step()
            # Whatever comes next comes from a socket; timers are looked at in between.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), 0.002)

    def settle(self) -> None:
        self.until(self._is_quiet)

    def change_leader(self) -> None:
        leader = next(node for node in self.nodes.values() if node.raft.is_leader)
        others = [node for node in self.nodes.values() if node is not leader]
        if others:
            self.until(lambda: leader.raft.transfer(mono(), others[0].name))
            self.until(lambda: others[0].raft.is_leader)

    def is_whole(self) -> bool:
        nodes = self.nodes.values()
        leaders = {node.raft.leader for node in nodes}
        return len(leaders) == 1 and all(leaders) and all(node.raft.lease_until(0) > mono() for node in nodes)

    def _is_quiet(self) -> bool:
        nodes = self.nodes.values()
        last = {node.raft.applied_index for node in nodes}
        return len(last) == 1 and self.is_whole() and all(node.metadata.is_idle for node in nodes)

    def close(self) -> None:
        for node in self.nodes.values():
            self.loop.run_until_complete(node.client.close())
        self.loop.close()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with etcdkit.running(tmp_path_factory.mktemp("etcd")) as made:
        yield made


@pytest.fixture
def group(etcd: Etcd) -> Iterator[RealGroup]:
    made = RealGroup(etcd, 3)
    yield made
    made.close()


class TestRealEtcd(CoordinationContract):
    """All promises, with three nodes."""


# --- what only a real one does ---


def test_a_compacted_watch_and_a_long_command_are_no_trouble(group: RealGroup) -> None:
    heard: list[Outcome] = []
    first = group.names[0]
    long = c.PutVHost(r.VHost("long", description="x" * (3 * limits.etcd_part_bytes)))
    group.node(first).propose(long, heard.append)
    group.until(lambda: bool(heard))
    group.etcd.compact()
    last = group.nodes[group.names[-1]]
    last.raft.answer(mono(), api.WatchLost(last.raft._view._watch, "cut by the test"))
    group.node(first).propose(c.PutVHost(r.VHost("after")), heard.append)
    group.until(lambda: all("after" in node.state.vhosts for node in group.nodes.values()))
    assert all("long" in node.state.vhosts for node in group.nodes.values())


def test_a_log_is_cut_behind_a_snapshot_in_etcd_too(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "etcd_log_entries_max", 20)
    monkeypatch.setattr(limits, "etcd_trailing_entries", 5)
    made = RealGroup(etcd, 1)
    try:
        heard: list[Outcome] = []
        for number in range(60):
            made.node("n1").propose(c.PutVHost(r.VHost(f"v{number}")), heard.append)
            made.until(lambda number=number: len(heard) > number)
        made.until(lambda: made.nodes["n1"].raft.snapshot_index > 20)
        made.names.append("n2")
        made.nodes["n2"] = made.loop.run_until_complete(made._make("n2"))
        made.until(lambda: len(made.nodes["n2"].state.vhosts) == 60)
        assert any(isinstance(event, ev.Restored) for event in made.nodes["n2"].events)
    finally:
        made.close()


def test_etcd_is_asked_over_tls_with_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    # The gateway of etcd is a client of etcd itself.
    served = authority.issue("etcd", server=True, client=True)
    shown = authority.issue("broker", server=False)
    member = etcdkit.Member("e1", tmp_path / "e1", "127.0.0.1")
    member.client = member.client.replace("http:", "https:")
    member.cluster = f"e1={member.peer}"
    member.more = ["--cert-file", str(served.certificate), "--key-file", str(served.key)]
    member.more += ["--trusted-ca-file", str(authority.certificate), "--client-cert-auth"]
    member.start()
    try:
        settings = EtcdSettings(
            endpoints=(member.client,),
            cacertfile=str(authority.certificate),
            certfile=str(shown.certificate),
            keyfile=str(shown.key),
        )
        assert isinstance(asyncio.run(ask(settings)), api.Granted)
        bare = asyncio.run(ask(dataclasses.replace(settings, certfile="", keyfile=""), tries=1))
        assert isinstance(bare, api.Failed)
    finally:
        member.close()


async def ask(settings: EtcdSettings, tries: int = 200) -> api.Answer | api.Tidings:
    """A lease, as soon as etcd is up."""
    answered: asyncio.Queue[api.Answer | api.Tidings] = asyncio.Queue()
    client = EtcdClient(settings, answered.put_nowait)
    try:
        for token in range(1, tries + 1):
            client.order(api.Grant(token, 5))
            found = await answered.get()
            if isinstance(found, api.Granted):
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(answered.get(), etcdkit.POLL_S)
        return found
    finally:
        await client.close()
