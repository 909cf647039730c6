"""Topic matcher: every pattern that matches a routing key, in one walk over the key's words."""

from collections.abc import Hashable
from typing import Any, final

@final
class TopicMatcher:
    """All topic bindings of one exchange."""

    def __init__(self) -> None: ...
    def __len__(self) -> int:
        """Number of different (pattern, value) pairs."""

    @property
    def node_count(self) -> int:
        """Number of trie nodes held, the root included."""

    def add(self, pattern: bytes, value: Hashable) -> None:
        """Bind `value` to `pattern`; a repeated binding is counted."""

    def remove(self, pattern: bytes, value: Hashable) -> None:
        """Undo one `add`; KeyError if there was none."""

    def match(self, key: bytes) -> list[Any]:
        """Return the values of all matching patterns, each value once per pattern."""
