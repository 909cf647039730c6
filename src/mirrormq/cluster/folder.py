"""The definitions in a data folder, read without a node.

Every entry of the log is applied. On a single node that is what a start finds; on a member of a cluster the
last entries may be some that were never agreed on, which only the others could tell.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from mirrormq.cluster.metadata import MetaMachine, describe_entry
from mirrormq.cluster.raft import entries as entry_kinds
from mirrormq.cluster.raft.configs import Configurations
from mirrormq.cluster.raft.membership import Configuration
from mirrormq.cluster.raft.recovery import Recovery, read_all
from mirrormq.log.disk import Disk
from mirrormq.meta.state import MetaState


class Definitions(NamedTuple):
    """What was found."""

    files: Recovery
    configuration: Configuration
    state: MetaState

    def facts(self) -> dict[str, Any]:
        """Term, vote, members and how much there is."""
        files = self.files
        formats = {file.format for file in files.files} | ({files.mark.format} if files.mark.size else set())
        return {
            "format": max(formats, default=0),
            "term": files.term,
            "vote": files.vote,
            "snapshot_index": files.mark.index,
            "snapshot_bytes": files.mark.size,
            "entries": len(files.entries),
            "last_index": files.entries[-1].index if files.entries else files.mark.index,
            "torn_bytes": files.torn_bytes,
            "members": [
                {
                    "name": member.name,
                    "role": member.role,
                    "identity": member.identity.hex(),
                    "start": member.start,
                }
                for member in self.configuration.members
            ],
        }

    def entries(self) -> Iterator[dict[str, Any]]:
        """What stands in the log behind the snapshot."""
        for entry in self.files.entries:
            row = {"index": entry.index, "term": entry.term, "bytes": len(entry.data)}
            if entry_kinds.is_reserved(entry.data):
                yield {**row, "command": "configuration", "node": "", "start": 0, "number": 0}
            else:
                yield {**row, **describe_entry(entry.data)}


def read_definitions(disk: Disk) -> Definitions:
    """Read the folder `meta/`; raises `MetaDamaged` or `MetaTooNew`."""
    found = read_all(disk)
    state = MetaState()
    machine = MetaMachine(state, "", lambda *_: None)
    if found.snapshot is not None:
        machine.restore(found.snapshot.state)
    configs = Configurations()
    configs.load(found.snapshot, found.entries)
    for entry in found.entries:
        if not entry_kinds.is_reserved(entry.data):
            machine.apply(entry.index, entry.data)
    return Definitions(found, configs.latest, state)
