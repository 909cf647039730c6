"""etcd v3 in the place of the embedded Raft: the same log of commands, kept in etcd (docs/etcd.md).

`agreement` takes answers of etcd, links and time, and leaves requests; `view` follows the keys, `tenure`
keeps this node's lease, `writer` appends to the log, `snapshots` keeps it short, `bulk` carries what is too
long for one request.
"""
