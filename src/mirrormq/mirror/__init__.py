"""Mirrored queues: how copies of a record stream on several nodes are kept equal."""
