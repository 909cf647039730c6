"""An embedded Raft: the same commands, in the same order, on every node (docs/protocol/raft.md).

`raft` takes inputs (time, frames, links, reports of the disk, proposals) and leaves effects; `storage` makes
term, vote, log and snapshots durable; what commands mean is behind the port in `machine`.
"""
