"""A durable queue of a vhost that mirrors another cluster, on its master.

Guarantees
- It changes by the rows of the mirror job and by nothing else: no client publishes, consumes or purges,
  nothing expires, is dropped for length or dead-lettered, and it does not go with its last use.
- Copies stand in the order of the source's records, each once (`log/origins.py`); a removal names the record.
- When the vhost is promoted it becomes an ordinary queue with what it holds at that moment. Removals that
  come later, committed before and still under way, change nothing: clients may hold those messages.

Its messages are in the log only; a promotion makes them ready as that of a mirror does (`log/copyfill.py`).
"""

from mirrormq.base.errors import access_refused
from mirrormq.broker.queue import Queue
from mirrormq.broker.queueport import Later, QueuePort
from mirrormq.broker.staging import StagingQueue
from mirrormq.log.copyfill import fill
from mirrormq.log.fold import Dropped


class MirrorQueue(Queue):
    """A queue that follows one of another cluster."""

    @property
    def is_mirror(self) -> bool:
        """Does it follow another cluster's queue?"""
        return bool(self.vhost.mirror_of)

    @property
    def message_count(self) -> int:
        """Messages in it."""
        log = self.log.kept
        if not self.is_mirror or log is None:
            return super().message_count
        return log.dead.missing_count(1, log.end) if log.end else 0

    def turn(self) -> None:
        """Take the rows of the mirror job."""
        core = self.core
        if not self.is_mirror:
            super().turn()
            return
        if core.gone:
            return
        if core.pending:
            core.refuse(core.pending, False)
            self.tell_refused()
        if not self._may_turn():
            return
        if self._inbox is not None and self._inbox.has_rows:
            self._inbox.admit_rows()
        if core.ready:
            core.purge()  # what is in the log is enough
        if core.has_dying:
            core.take_dying(settle=False)

    def purge(self) -> "int | Later[int]":
        """Nobody but the mirror job removes anything."""
        if self.is_mirror:
            raise access_refused(
                f"{self.text} mirrors another cluster's queue and is read-only until promoted"
            )
        return super().purge()

    def promoted(self) -> None:
        """It is an ordinary queue from now on."""
        log = self.log.kept
        self.used_at = self.host.now.mono  # nobody could use it before
        if log is None or self.core.gone or self.is_filling:
            self.core.touch()  # what is being filled is what an ordinary queue needs
            return
        self.core.purge()
        self.is_filling = True
        if log.copy is not None:
            log.copy.fill_queue(self.core, self.host.read, self.filled)
        else:
            fill(log, self.core, self.host.read, self._filled, is_restarted=False)

    def _filled(self, _: Dropped, error: str | None) -> None:
        self.filled(error)


def stored(queue: QueuePort) -> int:
    """Messages of a queue that nobody holds, in memory or in its log only."""
    if isinstance(queue, MirrorQueue):
        return queue.message_count
    return queue.stored if isinstance(queue, StagingQueue) else queue.core.ready
