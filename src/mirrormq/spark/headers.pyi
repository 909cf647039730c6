"""Header tables become maps from names to JSON texts."""

from typing import final

@final
class Headers:
    """The column of maps."""
