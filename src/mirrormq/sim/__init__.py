"""The simulator: the shipped node under virtual time on a faulty disk, checked against a reference model.

Nothing here is part of a running node. The same seed gives the same run, byte for byte.
"""
