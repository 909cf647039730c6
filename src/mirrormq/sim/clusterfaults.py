"""The faults of a random run: links, processes, machines, disks, clocks, and what operators do meanwhile."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mirrormq.base import limits
from mirrormq.cluster import identity as ids
from mirrormq.cluster.raft.membership import NON_VOTER, VOTER, WITNESS
from mirrormq.node.memberframes import Forget
from mirrormq.node.memberport import ClusterOptions, Contact
from mirrormq.sim.clusternode import SimNode
from mirrormq.sim.disk import MemoryDisk, SlowDisk
from mirrormq.sim.timeline import SECOND

if TYPE_CHECKING:
    from mirrormq.sim.clusterworld import ClusterWorld

RETRY_US = SECOND
"""A supervisor starts a process that ended itself again after this time."""


class Faults:
    """Draws faults for a world and undoes them."""

    forget_class: type[Forget] = Forget

    periods = (300_000, 1_000_000, 3_000_000)
    """Mean time between two faults."""

    def __init__(self, world: "ClusterWorld") -> None:
        """Each seed has its own mixture."""
        self.world = world
        self.rng = world.rng
        self._kinds = [(kind, self.rng.choice([0, 1, 1, 3])) for kind in self.kinds()]
        self._period = self.rng.choice(self.periods)
        self._is_on = True
        self._is_mending = False
        """An operator is busy with a node that has lost its folder, or has to go."""
        world.every(RETRY_US, self._supervise)

    def kinds(self) -> list[Callable[[], bool]]:
        """Everything that may go wrong; each returns whether it did."""
        return [
            self._kill,
            self._kill_soon,
            self._kill_leader,
            self._power_off,
            self._black_out,
            self._pause,
            self._cut,
            self._cut_one_way,
            self._isolate,
            self._clog,
            self._reset,
            self._stall,
            self._step_clock,
            self._change_role,
            self._wipe,
            self._roll_back,
            self._forget,
        ]

    def run(self, duration: int) -> None:
        """Faults for a while."""
        world = self.world
        end = world.now + duration
        chosen = [kind for kind, weight in self._kinds for _ in range(weight)]
        while world.now < end:
            world.run_for(1 + int(self.rng.expovariate(1 / self._period)))
            if chosen and self.rng.choice(chosen)():
                world.stats.faults += 1
            if self.rng.random() < 0.2:
                self._keep_copy()

    def heal(self) -> None:
        """Undo everything."""
        world = self.world
        self._is_on = False
        world.links.clogged.clear()
        world.links.mend(sorted(world.links.cut))
        for node in world.nodes.values():
            node.effects_left = -1
            self._start(node)
        for name in world.roles:
            world.roles[name] = VOTER  # nobody wishes for anything else from now on
        # What was wished before is granted or given up by then; one that was frozen may pass on an old wish.
        world.run_until(self._is_awake, 60 * SECOND, "a frozen node does not wake")
        world.run_for(limits.ask_us_max + SECOND)
        for name in world.roles:
            world.set_role(name, VOTER)

    def _is_awake(self) -> bool:
        return not any(node.is_paused for node in self.world.nodes.values())

    # --- choices ---

    def _up(self) -> SimNode | None:
        up = [node for node in self.world.nodes.values() if node.node is not None and not node.is_paused]
        return self.rng.choice(up) if up else None

    def _pair(self) -> tuple[str, str]:
        one, other = self.rng.sample(list(self.world.nodes), 2)
        return one, other

    def _later(self, delay: int, do: Callable[[], None]) -> None:
        self.world.after(delay, lambda: do() if self._is_on else None)

    def _some_time(self) -> int:
        return int(self.rng.choice([0.05, 0.5, 2, 8]) * SECOND * (0.5 + self.rng.random()))

    def _start_later(self, node: SimNode) -> None:
        life = node.life

        def start() -> None:
            if node.life == life:
                self._start(node)

        self._later(self._some_time(), start)

    def _start(self, node: SimNode) -> None:
        if node.node is None and not node.is_kept_off:
            self.world.start(node.name)

    def _supervise(self) -> None:
        """Start what ended itself."""
        for node in self.world.nodes.values():
            if node.stopped and not node.is_out:
                self._start(node)

    # --- processes and machines ---

    def _kill(self) -> bool:
        node = self._up()
        if node is None:
            return False
        self.world.kill(node.name)
        self._start_later(node)
        return True

    def _kill_soon(self) -> bool:
        """Kill a process between two effects."""
        node = self._up()
        if node is None:
            return False
        node.effects_left = self.rng.randrange(40)
        life = node.life

        def start() -> None:
            if node.life != life:
                self._start(node)

        self._later(2 * SECOND, start)
        return True

    def _kill_leader(self) -> bool:
        node = self.world.leader()
        if node is None:
            return False
        self.world.kill(node.name, "which leads")
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
        up = [node for node in self.world.nodes.values() if node.node is not None]
        if not up:
            return False
        for node in self.rng.sample(up, self.rng.randrange((len(up) + 1) // 2, len(up) + 1)):
            self.world.power_off(node.name)
            self._start_later(node)
        return True

    def _pause(self) -> bool:
        node = self._up()
        if node is None:
            return False
        until = self.world.now + self._some_time()
        self.world.say(f"pause {node.name} until {until}")
        node.pause(until)
        return True

    def _step_clock(self) -> bool:
        node = self.rng.choice(list(self.world.nodes.values()))
        step = self.rng.choice((-1, 1)) * self.rng.randrange(1_000, 3_600 * SECOND)
        self.world.say(f"the wall clock of {node.name} steps by {step}")
        node.wall_offset += step
        return True

    # --- links ---

    def _cut(self) -> bool:
        one, other = self._pair()
        self._cut_ways([(one, other), (other, one)])
        return True

    def _cut_one_way(self) -> bool:
        self._cut_ways([self._pair()])
        return True

    def _isolate(self) -> bool:
        """Cut some nodes off from the others, often in both directions."""
        names = list(self.world.nodes)
        inside = self.rng.sample(names, self.rng.randrange(1, len(names)))
        ways = [(one, other) for one in inside for other in names if other not in inside]
        if self.rng.random() < 0.7:
            ways += [(other, one) for one, other in ways]
        self._cut_ways(ways)
        return True

    def _cut_ways(self, ways: list[tuple[str, str]]) -> None:
        links = self.world.links
        links.cut_ways(ways)
        self.world.say(f"cut {ways}")
        self._later(self._some_time(), lambda: links.mend(ways))

    def _clog(self) -> bool:
        way = self._pair()
        delay = self.rng.choice([20_000, 300_000, 2 * SECOND])
        clogged = self.world.links.clogged
        clogged[way] = delay
        self.world.say(f"clog {way} by {delay}")

        def clear() -> None:
            clogged.pop(way, None)

        self._later(self._some_time(), clear)
        return True

    def _reset(self) -> bool:
        one, other = self._pair()
        if self.world.nodes[one].is_paused:
            return False
        self.world.say(f"{one} closes its link to {other}")
        self.world.links.close(one, other)
        return True

    # --- disks ---

    def _stall(self) -> bool:
        node = self._up()
        if node is None:
            return False
        until = self.world.now + self._some_time()
        self.world.say(f"stall {node.name} until {until}")
        node.disk.stall(until)
        return True

    def _may_lose(self, node: SimNode) -> bool:
        """One node at a time, and enough voters to do without: more could lose what was promised."""
        world = self.world
        leader = world.leader()
        if self._is_mending or leader is None or leader.raft is None or leader is node:
            return False
        return world.is_as_desired() and len(leader.raft.config.voters) >= 3

    def _wipe(self) -> bool:
        """A machine comes back with an empty disk."""
        node = self._up()
        if node is None or not self._may_lose(node):
            return False
        self.world.say(f"wipe {node.name}")
        self._is_mending = node.must_be_refused = True
        self.world.power_off(node.name)
        self.world.empty(node.name)
        self._tell_contact(node)
        self.world.start(node.name)
        self.world.after(self._some_time(), lambda: self._replace(node))
        return True

    def _tell_contact(self, node: SimNode) -> None:
        """Whoever founded the cluster alone must be told of another member: it would found another one."""
        contact = self.rng.choice([name for name in self.world.nodes if name != node.name])
        if not node.options.nodes or self.rng.random() < 0.5:
            node.options = ClusterOptions(
                join=Contact(contact, contact),
                address=node.name,
                death_certificate=node.options.death_certificate,
            )

    def _keep_copy(self) -> None:
        node = self._up()
        if node is not None:
            node.old_disks.append(node.disk.crash(lambda _: 0))

    def _roll_back(self) -> bool:
        """A machine comes back with a disk of before a start that all other voters have recorded."""
        node = self._up()
        if node is None or not node.old_disks or not self._may_lose(node):
            return False
        copy = self.rng.choice(node.old_disks)
        if not self._is_older(node, copy):
            return False
        self.world.say(f"roll back {node.name}")
        self._is_mending = node.must_be_refused = True
        self.world.power_off(node.name)
        self.world.lose_queues(node.name)
        node.disk = SlowDisk(self.rng, copy)
        node.old_disks.clear()
        self.world.start(node.name)
        self.world.after(self._some_time(), lambda: self._replace(node))
        return True

    def _is_older(self, node: SimNode, copy: MemoryDisk) -> bool:
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
            if member is None or member.token in tokens or raft.config.index > raft.commit_index:
                return False
        return True

    # --- operators ---

    def _replace(self, node: SimNode) -> None:
        """What the refusal tells the operator to do."""
        world = self.world
        if node.node is not None:
            world.power_off(node.name)
        node.is_kept_off = True

        def forgotten() -> None:
            node.is_out = True
            world.node_forgotten(node.name)
            world.say(f"{node.name} is forgotten")
            world.after(self.rng.randrange(5 * SECOND), lambda: self._join(node))

        self._have_forgotten(node, forgotten)

    def _have_forgotten(self, node: SimNode, done: Callable[[], None]) -> None:
        """Have others forget a node, and with it every queue it was given until then."""

        def is_wanted() -> bool:
            # Not once: it may have served for long after it had failed to leave, and its last queues are
            # known to the others only when they have a leader again.
            self.world.lose_queues(node.name)
            return True

        self.world.insist(self.forget_class(node.name, "n0"), done, is_wanted)

    def _join(self, node: SimNode) -> None:
        """Let a node in again, on an empty folder."""
        world = self.world
        if node.node is not None:
            world.power_off(node.name)
        world.empty(node.name)
        node.is_kept_off = node.is_out = node.is_leaving = node.must_be_refused = self._is_mending = False
        self._tell_contact(node)
        world.roles[node.name] = VOTER
        world.start(node.name)

    def _forget(self) -> bool:
        """A node leaves, or is forgotten while it is away; sometimes its old folder is started again."""
        node = self._up()
        if node is None or not self._may_lose(node):
            return False
        world = self.world
        self._is_mending = True
        is_leaving = self.rng.random() < 0.5
        world.say(f"{node.name} {'leaves' if is_leaving else 'is away for good'}")

        def out() -> None:
            node.is_out = True
            node.is_kept_off = False
            world.lose_queues(node.name)
            world.node_forgotten(node.name)
            self._start(node)
            world.after(self._some_time(), lambda: self._join(node))

        if is_leaving:
            life = node.life
            node.is_leaving = True
            world.lose_queues(node.name)

            def left(problem: str) -> None:
                if not problem:
                    out()
                elif "in time" not in problem:  # else it may still come true
                    self._is_mending = False

            world.wish(node, Forget(node.name, node.name), lambda answer: left(answer.problem))

            def look() -> None:
                # Whoever wished is gone: nobody knows whether it came true.
                if self._is_mending and not node.is_out and node.life != life:
                    self._replace(node)
                elif node.life == life:
                    self._is_mending = False

            world.after(20 * SECOND, look)
        else:
            world.power_off(node.name)
            node.is_kept_off = True
            self._have_forgotten(node, out)
        return True

    def _change_role(self) -> bool:
        world = self.world
        if self._is_mending:
            return False
        name = self.rng.choice(list(world.nodes))
        role = self.rng.choice([VOTER, VOTER, NON_VOTER, WITNESS])
        others = [one for one, other in world.roles.items() if one != name and other == VOTER]
        if role != VOTER and len(others) < 2:
            return False
        world.set_role(name, role)
        return True
