"""The port to whatever the group agrees on: a deterministic machine fed with committed commands.

Promises of the machine: `apply` depends only on what was applied before; `capture` describes the state at the
moment of the call, however late its parts are asked for; `restore` makes the state the captured one.
"""

from collections.abc import Iterator
from typing import Protocol


class Machine(Protocol):
    """What commands are applied to."""

    def apply(self, index: int, command: bytes) -> object:
        """Carry out a command; the result goes to whoever proposed it here."""
        ...

    def capture(self) -> Iterator[bytes]:
        """The state as it is now, in parts that are each made within a millisecond or so."""
        ...

    def restore(self, data: bytes) -> None:
        """Replace the state by a captured one."""
        ...
