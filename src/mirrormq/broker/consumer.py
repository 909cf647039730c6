"""A subscription: who gets messages of a queue, in which order of preference.

Among consumers with credit the highest `x-priority` is served first and equals take turns; with a single
active consumer only the first registered one is served until it goes.
"""

from typing import TYPE_CHECKING, Any

from mirrormq.base.errors import access_refused
from mirrormq.kernel.cores import ConsumerCore

if TYPE_CHECKING:
    from mirrormq.broker.channel import Channel
    from mirrormq.broker.queue import Queue


class Consumer:
    """One basic.consume of one channel."""

    def __init__(
        self,
        channel: "Channel",
        queue: "Queue",
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        arguments: dict[str, Any],
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.arguments = arguments
        self.priority: int = arguments.get("x-priority", 0)
        self.active = True
        self.core = ConsumerCore(channel.core, tag.encode("utf-8", "surrogateescape"), no_ack, prefetch)

    @property
    def prefetch(self) -> int:
        """How many unacknowledged messages it may hold; 0 = any number."""
        return self.core.prefetch


class Consumers:
    """The consumers of one queue in the order they came."""

    def __init__(self, single_active: bool) -> None:
        self.single_active = single_active
        self.members: list[Consumer] = []
        self.had_any = False

    def __len__(self) -> int:
        return len(self.members)

    def add(self, consumer: Consumer, queue_text: str) -> None:
        """Register; refused while an exclusive consumer exists, or if this one wants to be exclusive among
        others.
        """
        if any(member.exclusive for member in self.members) or (consumer.exclusive and self.members):
            raise access_refused(f"{queue_text} in exclusive use")
        self.members.append(consumer)
        self.had_any = True
        self._choose_active()

    def remove(self, consumer: Consumer) -> bool:
        """Forget it; False if it was not registered."""
        if consumer not in self.members:
            return False
        self.members.remove(consumer)
        self._choose_active()
        return True

    def clear(self) -> list[Consumer]:
        """Forget all; return who they were."""
        members, self.members = self.members, []
        return members

    def groups(self) -> list[list[ConsumerCore]]:
        """Who may be served now, by falling priority."""
        by_priority: dict[int, list[ConsumerCore]] = {}
        for member in self.members:
            if member.active:
                by_priority.setdefault(member.priority, []).append(member.core)
        return [by_priority[priority] for priority in sorted(by_priority, reverse=True)]

    def _choose_active(self) -> None:
        for position, member in enumerate(self.members):
            member.active = position == 0 or not self.single_active
