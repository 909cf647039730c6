"""What makes nodes a cluster: who a node is, and the replicated log of commands they agree on.

Nothing here knows what a command means, and nothing here reads a clock, a file or a random number.
"""
