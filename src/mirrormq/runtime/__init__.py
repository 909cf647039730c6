"""Runs a node on a machine: the only package that touches sockets, files, clocks, threads and signals.

`main` starts everything, `driver` feeds the sans-io `node.Node` and carries out its effects; the other files
are one piece of the machine each. Nothing below this package may import it.
"""
