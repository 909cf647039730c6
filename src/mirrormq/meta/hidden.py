"""Queues of the broker's own that ordinary clients do not see: the staging queues of sinks.

Guarantee: no policy applies to them and no export of definitions names them; what they are is fixed here.
"""

from mirrormq.base import limits
from mirrormq.meta.records import Table

STAGING = "mirrormq.sink."
"""What the names of staging queues begin with; the sink's uuid follows."""

STAGING_DEFINITION: Table = {
    "ha-mode": "exactly",
    "ha-params": limits.sink_copies,
    "ha-sync-mode": "automatic",
    "ha-promote-on-failure": "when-synced",
    "ha-promote-on-shutdown": "when-synced",
}
"""What applies to them in the place of policies."""


def is_staging(name: str) -> bool:
    """Is this the name of a staging queue?"""
    return name.startswith(STAGING)
