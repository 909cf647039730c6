"""The configurations in the log, by index: the last one counts; cut off, it gives way to the one before."""

from collections.abc import Sequence

from mirrormq.cluster.raft import entries as entry_kinds
from mirrormq.cluster.raft.entries import Entry
from mirrormq.cluster.raft.layout import RaftTooNew, SnapshotFile
from mirrormq.cluster.raft.membership import BadConfiguration, Configuration, decode_configuration
from mirrormq.cluster.raft.recovery import SNAPSHOT


class Configurations:
    """Indexes ascend; the first one is that of the snapshot, or of a node that is alone."""

    def __init__(self) -> None:
        """Nobody belongs to the group."""
        self._known = [Configuration()]

    @property
    def latest(self) -> Configuration:
        """The one that counts."""
        return self._known[-1]

    def latest_is(self, configuration: Configuration) -> None:
        """Begin with this one."""
        self._known = [configuration]

    def load(self, snapshot: SnapshotFile | None, entries: Sequence[Entry]) -> None:
        """Begin with what start-up, or a leader's snapshot, has brought."""
        self._known = [Configuration()]
        if snapshot is not None and snapshot.configuration:
            try:
                self._known = [decode_configuration(snapshot.configuration, snapshot.index)]
            except BadConfiguration as error:
                raise RaftTooNew(SNAPSHOT, f"its members cannot be read ({error})") from error
        self.scan(entries)

    def scan(self, entries: Sequence[Entry]) -> None:
        """Entries were added to the log."""
        for entry in entries:
            if entry_kinds.is_configuration(entry.data):
                try:
                    found = decode_configuration(entry_kinds.encoded_configuration(entry.data), entry.index)
                except BadConfiguration as error:
                    raise RaftTooNew(f"entry {entry.index}", str(error)) from error
                self._known.append(found)
            elif entry_kinds.is_reserved(entry.data):
                raise RaftTooNew(f"entry {entry.index}", f"kind {entry.data[1:2].hex()} is unknown here")

    def at(self, index: int) -> Configuration:
        """The one that counts at `index`."""
        return next((one for one in reversed(self._known) if one.index <= index), self._known[0])

    def since(self, index: int) -> list[Configuration]:
        """The one that counts at `index` and all later ones."""
        at = self.at(index)
        return [one for one in self._known if one is at or one.index > index]

    def truncate(self, first: int) -> None:
        """Entries from `first` on are gone."""
        while len(self._known) > 1 and self._known[-1].index >= first:
            self._known.pop()

    def compact(self, index: int) -> None:
        """Nobody asks any more for configurations before `index`."""
        while len(self._known) > 1 and self._known[1].index <= index:
            del self._known[0]
