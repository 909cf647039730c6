"""The randomness port: the only source of generated names, salts and jitter, so that a seed repeats a run."""

from typing import Protocol


class Rng(Protocol):
    """Randomness handed in from outside; `runtime` supplies the machine's, tests a seeded one."""

    def token(self, nbytes: int) -> bytes:
        """Return `nbytes` unpredictable bytes."""
        ...

    def below(self, n: int) -> int:
        """Return an integer in `range(n)`; `n` is at least 1."""
        ...
