"""Compiled data structures and codecs for the work done per message.

The kernel does no I/O, reads no clock and calls no Python per message; it imports `base` only.
"""
