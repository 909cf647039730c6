"""Compares what a queue holds with what the model says, message by message.

After a restart the judge reads a copy of the disk with a node of its own, so that looking changes nothing.
"""

from collections.abc import Callable

from mirrormq.sim.machine import Machine
from mirrormq.sim.model import (
    GONE,
    LIVE,
    MAYBE,
    Entry,
    Found,
    Message,
    ModelQueue,
    Violation,
    check_content,
    number_of,
)
from mirrormq.sim.session import Arrival, log_in, method_frame
from mirrormq.wire import methods

_CONN = 1_000_000


class Drain:
    """Empties queues of a machine that does nothing else."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._arrived: list[Arrival] = []
        machine.connect(_CONN, self._arrived.append)
        machine.send(_CONN, log_in("plain"))
        machine.settle()
        self._arrived.clear()

    def count(self, name: str) -> int | None:
        """Messages ready in a queue, None if there is no such queue."""
        if name not in self._machine.node.vhosts["/"].queues:
            return None
        self._ask(methods.QueueDeclare(queue=name, passive=True))
        [(answer, _)] = self._arrived
        assert isinstance(answer, methods.QueueDeclareOk), answer
        return answer.message_count

    def take(self, name: str) -> list[Found]:
        """Everything in a queue, in the order it is given out."""
        self._ask(methods.BasicConsume(queue=name, consumer_tag=name, no_ack=True))
        found = []
        for method, content in self._arrived:
            if isinstance(method, methods.BasicDeliver):
                assert content is not None
                found.append(Found(*content, method.redelivered, method.exchange, method.routing_key))
        return found

    def damage(self, name: str) -> str | None:
        """Why the node does not serve this queue."""
        queue = self._machine.node.vhosts["/"].queues.get(name)
        return None if queue is None else queue.damage

    def _ask(self, method: methods.Method) -> None:
        self._arrived.clear()
        self._machine.send(_CONN, method_frame(method))
        self._machine.settle()


class Judge:
    """Checks queues against the model and brings the model up to date."""

    def __init__(
        self, queues: dict[str, ModelQueue], messages: dict[int, Message], max_wall: Callable[[], int]
    ) -> None:
        self._queues = queues
        self._messages = messages
        self._max_wall = max_wall
        self.expects_damage = False
        """Bits were flipped: a queue may be damaged, but must say so."""
        self.damaged: set[str] = set()
        self.exact_marks = False

    def judge(self, machine: Machine, *, crashed: bool, is_durable: bool) -> list[str]:
        """Check every queue; `is_durable`: what is found now cannot be lost any more. Returns lines for
        the trace.
        """
        if crashed:
            self._forget_lost_letters()
        drain = Drain(machine)
        lines = []
        self.damaged = set()
        for name, queue in self._queues.items():
            if (why := drain.damage(name)) is not None:
                if not self.expects_damage:
                    raise Violation(f"{name} is damaged without cause: {why}")
                self.damaged.add(name)
                continue
            count = drain.count(name)
            if crashed:
                self._check_existence(queue, count, is_durable=is_durable)
            if count is None:
                continue
            found = drain.take(name)
            # What has expired behind the head is counted until it is reached.
            wall = self._max_wall()
            expired = sum(queue.may_have_expired(entry, wall) for entry in queue.entries.values())
            if not len(found) <= count <= len(found) + expired:
                raise Violation(f"{name} says it has {count} messages and gives out {len(found)}")
            self._check_queue(queue, found, crashed=crashed, is_durable=is_durable)
            lines.append(f"{name}: {count}")
        return lines

    def _forget_lost_letters(self) -> None:
        """A death that was not durable never happened. If the message dies again, that is another letter."""
        for source in self._queues.values():
            target = self._queues.get(source.spec.letters_to or "")
            for number, origin in source.entries.items() if target is not None else ():
                letter = target.entries.get(number) if target is not None else None
                if letter is not None and not letter.sure and source.may_have_died(origin, self._max_wall()):
                    letter.delivered = False

    def _check_existence(self, queue: ModelQueue, count: int | None, *, is_durable: bool) -> None:
        name = queue.spec.name
        queue.is_up = False
        if not queue.spec.durable:
            if count is not None:
                raise Violation(f"{name} is not durable, but is there after a restart")
            queue.entries.clear()
            queue.is_sure = queue.may_exist = False
        elif count is None:
            if queue.is_sure:
                raise Violation(f"{name} was declared, but is not there after a restart")
            queue.ask_end()
            queue.may_exist = queue.may_exist and not is_durable
        elif not queue.may_exist:
            raise Violation(f"{name} was deleted, but is there after a restart")
        elif is_durable:
            queue.is_sure = True

    def _check_queue(self, queue: ModelQueue, found: list[Found], *, crashed: bool, is_durable: bool) -> None:
        seen: set[int] = set()
        for one in found:
            number = number_of(one.body)
            if number is None or number not in self._messages:
                raise Violation(f"{queue.spec.name}: a message nobody sent: {one.body[:40]!r}")
            entry = self.entry_for(queue, number)
            if number in seen and not entry.fuzzy:
                raise Violation(f"{queue.spec.name}: message {number} is there twice")
            seen.add(number)
            self._check_found(queue, entry, one, crashed=crashed)
        self._check_order(queue, found)
        self._check_missing(queue, seen, crashed=crashed, is_durable=is_durable)
        for number in seen:
            entry = queue.entries[number]
            entry.removal = LIVE if queue.is_sure else entry.removal
            # A letter may have died only in the judge's copy.
            entry.sure = entry.sure or (is_durable and not entry.is_letter)
            entry.recovered = crashed

    def entry_for(self, queue: ModelQueue, number: int) -> Entry:
        """The model's entry; a letter nobody saw dying gets one if it may have died."""
        entry = queue.entries.get(number)
        if entry is None:
            message = self._messages[number]
            for source in self._queues.values():
                origin = source.entries.get(number)
                if (
                    source.spec.letters_to == queue.spec.name
                    and origin is not None
                    and source.may_have_died(origin, self._max_wall())
                ):
                    entry = queue.add(message)
                    entry.is_letter = True
                    return entry
            raise Violation(f"{queue.spec.name}: message {number} was never sent there")
        return entry

    def _check_found(self, queue: ModelQueue, entry: Entry, one: Found, *, crashed: bool) -> None:
        name, number = queue.spec.name, entry.message.number
        check_content(queue, entry.message, one, is_letter=entry.is_letter)
        if entry.removal == GONE:
            raise Violation(f"{name}: message {number} is back, although its removal was committed")
        if entry.refused:
            raise Violation(f"{name}: message {number} is there, although it was refused")
        if crashed and not entry.message.persistent:
            raise Violation(f"{name}: transient message {number} survived a restart")
        if entry.delivered and not one.redelivered and not entry.fuzzy:
            raise Violation(f"{name}: message {number} was delivered before, but says it was not")
        if one.redelivered and self.exact_marks and not queue.was_touched:
            raise Violation(f"{name}: message {number} says it was delivered, but nobody ever consumed")

    def _check_order(self, queue: ModelQueue, found: list[Found]) -> None:
        last: dict[tuple[int, int], int] = {}
        lowest = 1 << 30
        highest = queue.spec.arguments.get("x-max-priority", 0)
        for one in found:
            number = number_of(one.body)
            assert number is not None
            entry = queue.entries[number]
            priority = min(entry.message.priority, highest)
            if priority > lowest:
                raise Violation(f"{queue.spec.name}: message {number} comes after one of lower priority")
            lowest = priority
            lane = (entry.message.publisher, priority)
            if not entry.is_letter and entry.index < last.get(lane, -1):
                raise Violation(f"{queue.spec.name}: message {number} comes too late")
            if not entry.is_letter:
                last[lane] = entry.index

    def _check_missing(self, queue: ModelQueue, seen: set[int], *, crashed: bool, is_durable: bool) -> None:
        wall = self._max_wall()
        for number, entry in list(queue.entries.items()):
            if number in seen:
                continue
            if not (crashed and not entry.message.persistent) and not queue.may_be_missing(entry, wall):
                raise Violation(f"{queue.spec.name}: message {number} was confirmed and is not there")
            if is_durable and entry.is_letter and entry.removal != GONE:
                del queue.entries[number]  # its source may die again
            elif is_durable and not entry.fuzzy and not queue.may_have_expired(entry, wall):
                # Nothing can bring it back: what a power failure took stays away.
                entry.removal = GONE
            else:
                entry.removal = max(entry.removal, MAYBE)
