"""The commands, one file per noun; importing this package fills `registry.COMMANDS`."""

from mirrormq.ctl.commands import (
    absent,
    balance,
    checks,
    cluster,
    cursors,
    definitions,
    limits,
    listings,
    mirrors,
    nodes,
    operations,
    permissions,
    policies,
    storage,
    users,
    vhosts,
)

__all__ = [
    "absent",
    "balance",
    "checks",
    "cluster",
    "cursors",
    "definitions",
    "limits",
    "listings",
    "mirrors",
    "nodes",
    "operations",
    "permissions",
    "policies",
    "storage",
    "users",
    "vhosts",
]
