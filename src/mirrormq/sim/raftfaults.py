"""The faults of a random run: links, processes, machines, disks, clocks, and what operators do meanwhile."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mirrormq.cluster import identity as ids
from mirrormq.cluster.raft.membership import NON_VOTER, VOTER, WITNESS
from mirrormq.sim.disk import MemoryDisk, SlowDisk
from mirrormq.sim.raftnode import RaftNode

if TYPE_CHECKING:
    from mirrormq.sim.raftworld import RaftWorld

SECOND = 1_000_000


class Faults:
    """Draws faults for a world and undoes them."""

    def __init__(self, world: "RaftWorld") -> None:
        """Each seed has its own mixture."""
        self.world = world
        self.rng = world.rng
        kinds: list[Callable[[], bool]] = [
            self._kill,
            self._power_off,
            self._pause,
            self._cut,
            self._cut_one_way,
            self._isolate,
            self._clog,
            self._reset,
            self._stall,
            self._drift,
            self._wipe,
            self._roll_back,
            self._change_role,
            self._transfer,
            self._kill_leader,
            self._black_out,
            self._storm,
            self._storage_failure,
        ]
        self._kinds = [(kind, self.rng.choice([0, 1, 1, 3])) for kind in kinds]
        self._kinds.append((self._storm, 2))
        self._period = self.rng.choice([100_000, 400_000, 1_500_000])
        self._is_on = True

    def run(self, duration: int) -> None:
        """Faults for a while."""
        world = self.world
        end = world.now + duration
        chosen = [kind for kind, weight in self._kinds for _ in range(weight)]
        if self.rng.random() < 0.5:
            # While everything is still whole: a narrow race needs luck as it is.
            world.run_for(SECOND)
            world.stats.faults += self._storm()
            world.run_for(SECOND)
        while world.now < end:
            world.run_for(1 + int(self.rng.expovariate(1 / self._period)))
            if chosen and self.rng.choice(chosen)():
                world.stats.faults += 1
            if self.rng.random() < 0.1:
                self._keep_copy()

    def heal(self) -> None:
        """Undo everything."""
        world = self.world
        self._is_on = False
        world.net.clogged.clear()
        for direction in sorted(world.net.cut):
            world.net.mend(direction)
        for node in world.nodes.values():
            if node.is_rolled_back:
                self._join_anew(node)
            if not node.is_up:
                world.start(node.name)
        for name, role in world.desired.items():
            if role is None:
                world.desired[name] = VOTER

    # --- choices ---

    def _up(self) -> RaftNode | None:
        up = [
            node for node in self.world.nodes.values() if node.is_up and node.paused_until <= self.world.now
        ]
        return self.rng.choice(up) if up else None

    def _pair(self) -> tuple[str, str] | None:
        names = list(self.world.nodes)
        if len(names) < 2:
            return None
        one, other = self.rng.sample(names, 2)
        return one, other

    def _later(self, delay: int, do: Callable[[], None]) -> None:
        self.world.at(self.world.now + delay, lambda: do() if self._is_on else None)

    def _some_time(self) -> int:
        return int(self.rng.choice([0.05, 0.5, 2, 8]) * SECOND * (0.5 + self.rng.random()))

    def _start_later(self, node: RaftNode, delay: int | None = None) -> None:
        life = node.life

        def start() -> None:
            if node.life == life and not node.is_up:
                self.world.start(node.name)

        self._later(self._some_time() if delay is None else delay, start)

    # --- processes and machines ---

    def _kill(self) -> bool:
        node = self._up()
        if node is None:
            return False
        self.world.kill(node.name)
        self._start_later(node)
        return True

    def _kill_leader(self) -> bool:
        node = self.world.leader()
        if node is None:
            return False
        self.world.kill(node.name)
        self._start_later(node)
        return True

    def _power_off(self) -> bool:
        node = self._up()
        if node is None:
            return False
        self.world.power_off(node.name)
        self._start_later(node)
        return True

    def _black_out(self) -> bool:
        """Several machines lose power at once, and come back at different times."""
        up = [node for node in self.world.nodes.values() if node.is_up]
        if not up:
            return False
        for node in self.rng.sample(up, self.rng.randrange((len(up) + 1) // 2, len(up) + 1)):
            self.world.power_off(node.name)
            self._start_later(node)
        return True

    def _storage_failure(self) -> bool:
        """All disks but the leader's stop, then everything loses power; the leader is back last."""
        leader = self.world.leader()
        others = [node for node in self.world.nodes.values() if node.is_up and node is not leader]
        if leader is None or not others:
            return False
        self.world.say("storage failure")
        for node in others:
            node.disk.stall(self.world.now + 2 * SECOND)
        lives = {node.name: node.life for node in (*others, leader)}

        def fail() -> None:
            for node in (*others, leader):
                if node.is_up and node.life == lives[node.name]:
                    self.world.power_off(node.name)
                    delay = (
                        self.rng.randrange(3, 8) * SECOND if node is leader else self.rng.randrange(SECOND)
                    )
                    self._start_later(node, delay)

        self._later(self.rng.randrange(20_000, 900_000), fail)
        return True

    def _storm(self) -> bool:
        """The leader dies, the others wake up at once and hardly hear each other; who votes is restarted."""
        leader = self.world.leader()
        if leader is None:
            return False
        others = [node for node in self.world.nodes.values() if node.is_up and node is not leader]
        names = list(self.world.nodes)
        self._clog_ways([(one, other) for one in names for other in names if one != other], 60_000)
        if len(others) >= 2:
            one, other = (node.name for node in self.rng.sample(others, 2))
            self._clog_ways([(one, other), (other, one)], 500_000)
        for node in others:
            node.paused_until = max(node.paused_until, self.world.now + 100_000)
        assert leader.raft is not None
        term = leader.raft.term
        self.world.kill(leader.name)
        self._start_later(leader, self.rng.randrange(300_000))
        bounced: set[str] = set()
        for at in range(500, SECOND, 500):
            self._later(at, lambda: self._bounce_voters(term, [*others, leader], bounced))
        return True

    def _bounce_voters(self, term: int, nodes: list[RaftNode], bounced: set[str]) -> None:
        for node in nodes:
            raft = node.raft
            if raft is None or node.name in bounced or raft.vote in ("", node.name):
                continue
            if raft.term > term and raft.storage.is_vote_durable and node.paused_until <= self.world.now:
                bounced.add(node.name)
                # A moment later, so that the vote is on its way.
                self._later(2_000, self._bounce(node, raft.vote))

    def _bounce(self, node: RaftNode, candidate: str) -> Callable[[], None]:
        def bounce() -> None:
            if node.is_up:
                self.world.kill(node.name)
                # The one it voted for has the vote, and is heard again after the others.
                self._clog_ways([(node.name, candidate), (candidate, node.name)], 700_000)
                self.world.start(node.name)

        return bounce

    def _pause(self) -> bool:
        node = self._up()
        if node is None:
            return False
        node.paused_until = self.world.now + self._some_time()
        self.world.say(f"pause {node.name} until {node.paused_until}")
        return True

    # --- links ---

    def _cut(self) -> bool:
        pair = self._pair()
        if pair is None:
            return False
        self._cut_ways([pair, (pair[1], pair[0])])
        return True

    def _cut_one_way(self) -> bool:
        pair = self._pair()
        if pair is None:
            return False
        self._cut_ways([pair])
        return True

    def _isolate(self) -> bool:
        """Cut some nodes off from the others, often in both directions."""
        names = list(self.world.nodes)
        if len(names) < 2:
            return False
        inside = self.rng.sample(names, self.rng.randrange(1, len(names)))
        outside = [name for name in names if name not in inside]
        ways = [(one, other) for one in inside for other in outside]
        if self.rng.random() < 0.7:
            ways += [(other, one) for one, other in ways]
        self._cut_ways(ways)
        return True

    def _cut_ways(self, ways: list[tuple[str, str]]) -> None:
        net = self.world.net
        net.cut.update(ways)
        self.world.say(f"cut {ways}")

        def mend() -> None:
            for way in ways:
                net.mend(way)

        self._later(self._some_time(), mend)
        # Long cuts are noticed: somebody's keep-alive gives up its end, the other learns of it much later.
        for one, other in ways:
            if self.rng.random() < 0.3:
                self._later(2 * SECOND, partial(self.world.reset, one, other))

    def _clog(self) -> bool:
        pair = self._pair()
        if pair is None:
            return False
        self._clog_ways([pair], self.rng.choice([20_000, 300_000, 3 * SECOND]))
        return True

    def _clog_ways(self, ways: list[tuple[str, str]], delay: int) -> None:
        clogged = self.world.net.clogged
        self.world.say(f"clog {ways} by {delay}")
        clogged.update(dict.fromkeys(ways, delay))

        def clear() -> None:
            for way in ways:
                clogged.pop(way, None)

        self._later(self._some_time(), clear)

    def _reset(self) -> bool:
        pair = self._pair()
        if pair is None or self.world.nodes[pair[0]].paused_until > self.world.now:
            return False
        self.world.say(f"reset {pair}")
        self.world.reset(*pair)
        return True

    # --- clocks and disks ---

    def _drift(self) -> bool:
        """A clock runs faster or slower; two never differ by more than a tenth (`lease.py`)."""
        node = self.rng.choice(list(self.world.nodes.values()))
        rate = 0.95 + self.rng.random() / 10
        self.world.say(f"clock of {node.name} at {rate:.3f}")
        node.run_clock_at(rate)
        return True

    def _stall(self) -> bool:
        node = self._up()
        if node is None:
            return False
        until = self.world.now + self._some_time()
        self.world.say(f"stall {node.name} until {until}")
        node.disk.stall(until)
        return True

    def _may_lose_disk(self, node: RaftNode) -> bool:
        """One bad disk at a time, and enough voters to do without: more could lose what was promised."""
        world = self.world
        leader = world.leader()
        if leader is None or leader.raft is None or leader is node or not world.is_as_desired():
            return False
        if any(one.is_rolled_back or one.is_wiped or not one.is_up for one in world.nodes.values()):
            return False
        return len(leader.raft.config.voters) >= 3

    def _wipe(self) -> bool:
        """A machine comes back with an empty disk."""
        node = self._up()
        if node is None or not self._may_lose_disk(node):
            return False
        self.world.say(f"wipe {node.name}")
        self.world.power_off(node.name)
        node.is_wiped = True
        node.disk = SlowDisk(self.rng)
        node.old_disks.clear()
        self._start_later(node)
        return True

    def _keep_copy(self) -> None:
        node = self._up()
        if node is not None:
            node.old_disks.append(node.disk.crash(lambda _: 0))

    def _roll_back(self) -> bool:
        """A machine comes back with a disk of before a start that all other voters have recorded."""
        node = self._up()
        if node is None or not node.old_disks or not self._may_lose_disk(node):
            return False
        copy = self.rng.choice(node.old_disks)
        if not self._knows_better(node, copy):
            return False
        self.world.say(f"roll back {node.name}")
        self.world.power_off(node.name)
        node.disk = SlowDisk(self.rng, copy)
        node.old_disks.clear()
        node.is_rolled_back = True
        self.world.start(node.name)
        self._later(5 * SECOND, lambda: self._join_anew(node))
        return True

    def _knows_better(self, node: RaftNode, copy: MemoryDisk) -> bool:
        if ids.FILE not in copy.list("") or "meta/vote" not in copy.list(""):
            return False
        tokens = ids.decode_identity(copy.read(ids.FILE)).tokens
        for other in self.world.nodes.values():
            if other is node:
                continue
            raft = other.raft
            if raft is None:
                return False
            member = raft.config.find(node.name)
            is_durable = raft.config.index <= max(raft.storage.durable_index, raft.commit_index)
            if member is None or member.token in tokens or not is_durable:
                return False
        return True

    def _join_anew(self, node: RaftNode) -> None:
        """What the refusal tells the operator to do."""
        if node.is_rolled_back:
            if node.is_up:
                self.world.power_off(node.name)
            node.disk = SlowDisk(self.rng)
            node.is_rolled_back = False
            node.is_wiped = True
            self.world.start(node.name)

    # --- operators ---

    def _change_role(self) -> bool:
        world = self.world
        name = self.rng.choice(list(world.nodes))
        role = self.rng.choice([VOTER, VOTER, NON_VOTER, WITNESS, None])
        others = [one for one, other in world.desired.items() if one != name and other == VOTER]
        if not others and role != VOTER:
            return False
        world.say(f"want {name} as {role}")
        world.desired[name] = role
        return True

    def _transfer(self) -> bool:
        leader = self.world.leader()
        target = self.rng.choice(list(self.world.nodes))
        if leader is None or leader.name == target:
            return False
        self.world.say(f"transfer to {target}")
        leader.soon(lambda raft: raft.transfer(leader.mono, target))
        return True
