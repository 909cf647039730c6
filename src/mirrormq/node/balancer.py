"""Moves masters until all nodes have their share (`balancing`), and makes sure that nobody else does.

Guarantees
- One rebalancing at a time in the whole cluster: nothing is moved before the lock in the metadata is this
  node's, and nothing is begun after it is lost or somebody has cancelled.
- Every move is a planned transfer by the queue's master. One whose queue or nodes are not what they were when
  it was planned is left out; one that fails leaves its queue where it was.
- At most `balance_moves_max` moves at a time, in the order of the plan; what takes long runs in slices.

States of a run: planning -> locking -> moving -> done. A plan without moves needs no lock. A node that looks
by the clock (`cluster_rebalance = timer`) does so while it leads the metadata.
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from mirrormq.base import limits
from mirrormq.base.errors import AmqpError
from mirrormq.broker.queueport import Later
from mirrormq.meta import patterns, records, system
from mirrormq.meta.commands import BeginRebalance, EndRebalance
from mirrormq.meta.records import Rebalance
from mirrormq.meta.tables import Change
from mirrormq.node import balancing, movable
from mirrormq.node.balancing import Move, Placed
from mirrormq.node.inquiry import Replies
from mirrormq.node.inquiry_rows import PROBLEM
from mirrormq.node.inquiryframes import Ask, octets, row_of
from mirrormq.node.steps import Answer, Await, Propose, Refusal, Steps, Wait, run

if TYPE_CHECKING:
    from mirrormq.node.copies import Copies
    from mirrormq.node.node import Node

OFF, TIMER, APPOINT, ON_DEMAND, RUN = "off", "timer", "appoint", "on-demand", "run"
KINDS = ("all", "classic", "quorum")
PLANNING, LOCKING, MOVING, DONE = "planning", "locking", "moving", "done"
DEPTHS = "depths"

Row = dict[str, Any]


class Order(NamedTuple):
    """What is to be done; `moves` are those an operator named, as (vhost, queue, node)."""

    trigger: str
    strategy: str
    kind: str = "all"
    vhosts: str = ".*"
    queues: str = ".*"
    moves: tuple[tuple[str, str, str], ...] = ()
    is_plan: bool = False

    def slice_queues(self) -> int:
        """How many queues may be looked at in one pass."""
        compiled = filter(None, map(patterns.try_pattern, (self.vhosts, self.queues)))
        return min((pattern.slice_names for pattern in compiled), default=limits.balance_slice_queues)

    def is_about(self, record: records.Queue) -> bool:
        """Does it concern this queue?"""
        kind = "quorum" if record.arguments.get("x-queue-type") == "quorum" else "classic"
        if self.kind not in ("all", kind):
            return False
        return _matches(self.vhosts, record.vhost) and _matches(self.queues, record.name)


def _matches(pattern: str, name: str) -> bool:
    if pattern == ".*":
        return True
    compiled = patterns.try_pattern(pattern)
    return compiled is not None and compiled.matches(name)


class Run:
    """One rebalancing on this node."""

    def __init__(self, order: Order, since: int) -> None:
        self.order = order
        self.since = since
        self.state = PLANNING
        self.number = 0
        self.planned: list[Move] = []
        self.moved = 0
        self.failed = 0
        self.problems: list[Row] = []
        self.is_cancelled = False
        self.masters: dict[str, int] = {}
        """How many of the queues every node is the master of; in the end, how many it should be."""

    def fail(self, move: Move, why: str) -> None:
        """A queue stays where it is."""
        self.failed += 1
        if len(self.problems) < limits.balance_problems_max:
            row = {"vhost": move.queue.vhost, "name": move.queue.name, "node": move.target, "reason": why}
            self.problems.append(row)

    def row(self) -> Row:
        """As administrators see it."""
        return {
            "state": self.state,
            "number": self.number,
            "trigger": self.order.trigger,
            "strategy": self.order.strategy,
            "since": self.since,
            "planned": len(self.planned),
            "moved": self.moved,
            "failed": self.failed,
            "cancelled": self.is_cancelled,
            "problems": self.problems,
            "masters": self.masters,
        }


class Balancer:
    """Rebalancing, as far as this node carries it out or follows it."""

    def __init__(self, node: "Node", copies: "Copies") -> None:
        self._node = node
        self._copies = copies
        self.run: Run | None = None
        """What this node carries out now."""
        self.last: Run | None = None
        """What it did last."""
        self._slice: Later[None] | None = None
        self._wake: Later[None] | None = None
        self._moving: dict[int, Move] = {}
        self._is_started = False
        """What `run` asks for has been begun."""
        self._leads_since: int | None = None
        self._looked_at = 0

    # --- inputs ---------------------------------------------------------------------------------

    def begin(self, order: Order) -> Later[Answer]:
        """Plan, and begin to move; answered with a row when the moves are under way, or with a problem."""
        begun: Later[Answer] = Later()
        if self.run is not None:
            begun.answer(_refused(busy(self._node.node_name, self.run.since, self._node.now.wall)))
            return begun
        self.run = Run(order, self._node.now.wall)

        def ended(answer: Answer) -> None:
            self.last, self.run = self.run, None
            if answer.problem is not None:
                begun.answer(answer)

        run(self._node, lambda _host, _order: self._carry_out(order, begun), order, ended)
        return begun

    def follow(self, change: Change) -> None:
        """The lock was taken, given back, or the run that holds it is to end."""
        lock = self._node.meta.rebalance
        goes_on = lock.number if lock is not None and not lock.is_cancelled else 0
        self._copies.policy.end_moves(goes_on)
        mine = self.run
        if mine is not None and mine.number and mine.number != goes_on and mine.state == MOVING:
            mine.is_cancelled = True
            self._go_on()
        if isinstance(change.record, Rebalance) and change.kind == "put" and change.record.is_cancelled:
            self._node.note(
                "info", "rebalancing was cancelled", by=change.record.node, event="rebalance.cancelled"
            )

    def tick(self) -> None:
        """Every second: begin what the settings ask for."""
        node = self._node
        mode, now = node.settings.rebalance, node.now.mono
        if self.run is not None or mode not in (RUN, TIMER) or not node.membership.has_lease():
            return
        if mode == RUN and not self._is_started and self.are_all_there():
            self._is_started = True
            self._begin_by(RUN)
        if mode == TIMER and self._is_time(now):
            self._begin_by(TIMER)

    def are_all_there(self) -> bool:
        """Is nobody waited for any more?"""
        node = self._node
        if node.now.mono - node.started_at.mono >= limits.balance_start_us:
            return True
        heard = node.news.live()
        return all(record.is_live and record.name in heard for record in node.meta.nodes.values())

    def _is_time(self, now: int) -> bool:
        if not self._node.membership.raft.is_leader:
            self._leads_since = None
            return False
        if self._leads_since is None:
            self._leads_since = self._looked_at = now
        if now - self._looked_at < self._node.settings.rebalance_interval_ms * 1000:
            return False
        self._looked_at = now
        return True

    def _begin_by(self, trigger: str) -> None:
        def begun(answer: Answer | AmqpError) -> None:
            if isinstance(answer, Answer) and answer.problem is not None:
                text = f"no rebalancing now: {answer.problem.text}"
                self._node.note("info", text, trigger=trigger, event="rebalance.put_off")

        if self._node.meta.rebalance is None:
            self.begin(Order(trigger, self._node.settings.rebalance_strategy)).when(begun)

    @property
    def needs_pass(self) -> bool:
        """Does a slice wait for the next pass?"""
        return self._slice is not None

    def step(self) -> None:
        """A pass is over."""
        if self._slice is not None:
            later, self._slice = self._slice, None
            later.answer(None)

    def _next_pass(self) -> Await:
        self._slice = Later()
        return Await(self._slice)

    # --- a run ----------------------------------------------------------------------------------

    def _carry_out(self, order: Order, begun: Later[Answer]) -> Steps:
        found = self.run
        assert found is not None
        found.planned = yield from self._plan(found, order)
        if order.is_plan or not found.planned:
            found.state = DONE
            begun.answer(Answer({**found.row(), "moves": [_described(move) for move in found.planned]}))
            return
        found.state = LOCKING
        lock = yield from self._lock(order, found.since)
        found.number, found.state = lock.number, MOVING
        self._tell("started", found)
        begun.answer(Answer({**found.row(), "moves": []}))
        yield from self._move_all(found)
        found.state = DONE
        self._tell("cancelled" if found.is_cancelled else "finished", found)
        yield Propose(EndRebalance(lock.number))

    def _lock(self, order: Order, since: int) -> Generator[Wait, Any, Rebalance]:
        node = self._node
        command = BeginRebalance(node.node_name, self._copies.start, order.trigger, order.strategy, since)
        outcome = yield Propose(command)
        held = outcome.record if isinstance(outcome.record, Rebalance) else node.meta.rebalance
        if outcome.ok and held is not None and held.node == node.node_name:
            return held
        if held is not None:
            raise Refusal("rebalance_in_progress", busy(held.node, held.since, node.now.wall))
        raise Refusal("cannot_rebalance", outcome.detail or "the lock could not be taken; try again")

    def _tell(self, what: str, found: Run) -> None:
        hidden = ("state", "problems", "masters")
        facts = {key: value for key, value in found.row().items() if key not in hidden}
        self._node.note(
            "warning" if found.failed else "info", f"rebalancing {what}", event="rebalance.told", **facts
        )
        self._copies.chronicle.publish(f"rebalance.{what}", **facts)

    # --- planning -------------------------------------------------------------------------------

    def _plan(self, found: Run, order: Order) -> Generator[Wait, Any, list[Move]]:
        depths = yield from self._depths()
        sites = movable.sites(self._node)
        placed = yield from self._placed(order, depths, sites)
        if order.moves:
            moves = self._appointed(order, placed)
        else:
            plan = balancing.Plan(placed, sites, order.strategy, self._node.rng)
            for _ in plan.slices():
                yield self._next_pass()
            moves = plan.moves()
        found.masters = balancing.spread(placed, moves)
        for name in sites:
            found.masters.setdefault(name, 0)
        return moves

    def _depths(self) -> Generator[Wait, Any, dict[int, int]]:
        """How many messages every queue has, as far as its master answers."""
        node = self._node
        found: dict[int, int] = {}
        replies: Later[Replies] = Later()
        node.inquiries.ask(Ask(0, DEPTHS), node.inquiries.others(), replies.answer)
        for place, live in enumerate(list(node.switch.masters.values())):
            found[live.record.id] = live.core.ready + live.core.unacked
            if place % limits.balance_slice_queues == 0:
                yield self._next_pass()
        answered: Replies = yield Await(replies)
        for rows in answered.rows.values():
            for raw in rows:
                found.update(row_of(raw)[DEPTHS])
        return found

    def _placed(
        self, order: Order, depths: Mapping[int, int], sites: Mapping[str, int]
    ) -> Generator[Wait, Any, list[Placed]]:
        node = self._node
        found: list[Placed] = []
        most = order.slice_queues()
        for place, record in enumerate(list(node.meta.queues.values())):
            if place % most == 0:
                yield self._next_pass()
            if record.exclusive or not system.is_ordinary(record) or not order.is_about(record):
                continue
            host = node.meta.nodes.get(record.node)
            if host is None or not host.is_live or node.meta.queues.get(record.identity) is not record:
                continue
            able, is_alone = movable.able(node, record, sites), movable.is_alone(node, record)
            messages = depths.get(record.id, 0)
            found.append(
                Placed(record.vhost, record.name, record.id, record.node, tuple(able), messages, is_alone)
            )
        return found

    def _appointed(self, order: Order, placed: list[Placed]) -> list[Move]:
        """What an operator named; anything that cannot be is refused before anything is moved."""
        known = {(queue.vhost, queue.name): queue for queue in placed}
        moves = []
        for vhost, name, target in dict.fromkeys(order.moves):
            queue = known.get((vhost, name))
            if queue is None:
                raise Refusal("no_such_queue", f"no queue '{name}' in vhost '{vhost}' can be moved now")
            if target not in queue.able and target != queue.master:
                could = ", ".join(sorted(queue.able)) or "none"
                text = f"queue '{name}' in vhost '{vhost}' cannot have its master on node {target}"
                raise Refusal("cannot_move", f"{text}; could: {could}")
            if target != queue.master:
                moves.append(Move(queue, target))
        return sorted(moves, key=lambda move: move.queue.messages)

    # --- moving ---------------------------------------------------------------------------------

    def _move_all(self, found: Run) -> Generator[Wait, Any, None]:
        left = deque(found.planned)
        while (left and not found.is_cancelled) or self._moving:
            while left and not found.is_cancelled and self._has_room(left[0]):
                self._begin_move(found, left.popleft())
            if self._moving:
                self._wake = Later()
                yield Await(self._wake)
            elif left:
                # All of these were left out: others have their turn before the next ones are looked at.
                yield self._next_pass()

    def _has_room(self, move: Move) -> bool:
        copied = sum(other.queue.is_alone for other in self._moving.values())
        is_full = move.queue.is_alone and copied >= limits.balance_copies_max
        return len(self._moving) < limits.balance_moves_max and not is_full

    def _begin_move(self, found: Run, move: Move) -> None:
        queue, node = move.queue, self._node
        record = node.meta.queues.get((queue.vhost, queue.name))
        why = ""
        if record is None or record.id != queue.id:
            why = "the queue was deleted"
        elif record.node != queue.master:
            why = f"its master is on node {record.node} by now"
        elif not movable.able(node, record, [move.target]) or move.target not in movable.sites(node):
            why = f"node {move.target} cannot take it any more"
        if why:
            found.fail(move, why)
            return
        self._moving[queue.id] = move

        def done(problem: str) -> None:
            if self._moving.pop(queue.id, None) is not None:
                if problem:
                    found.fail(move, problem)
                else:
                    found.moved += 1
                self._go_on()

        if queue.master == node.node_name:
            self._copies.transfer(queue.id, move.target, done, found.number)
        else:
            ask = Ask(0, "move_master", ids=(queue.id,), name=octets(move.target), limit=found.number)
            heard = _heard(queue.master, done)
            node.inquiries.ask(ask, [queue.master], heard, limits.move_us_max)

    def _go_on(self) -> None:
        if self._wake is not None:
            later, self._wake = self._wake, None
            later.answer(None)


def _heard(master: str, done: Callable[[str], None]) -> Callable[[Replies], None]:
    """What a queue's master answers, as one word to whoever waits."""

    def heard(replies: Replies) -> None:
        for raw in replies.rows.get(master, ()):
            done(str(row_of(raw).get(PROBLEM, "")))
            return
        done(f"node {master} {replies.missing.get(master, 'gave no answer')}")

    return heard


def busy(node: str, since: int, now: int) -> str:
    """Why a second rebalancing is refused."""
    seconds = max(0, now - since) // 1_000_000
    return (
        f"rebalance in progress: node {node} has been at it for {seconds} s;"
        " rebalance_status shows how far it is, cancel_rebalance ends it"
    )


def _refused(text: str) -> Answer:
    return Answer(problem=Refusal("rebalance_in_progress", text).problem)


def _described(move: Move) -> Row:
    queue = move.queue
    return {
        "vhost": queue.vhost,
        "name": queue.name,
        "from": queue.master,
        "to": move.target,
        "messages": queue.messages,
        "by": "copy" if queue.is_alone else "transfer",
    }
