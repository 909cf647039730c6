"""Links between the nodes of a cluster: who the other end is, frames in two lanes, and when it went silent.

No I/O in here; `runtime/links.py` owns the sockets. The bytes are described in docs/protocol/peer.md.
"""
