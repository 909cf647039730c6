"""How long to wait before a node is dialled again."""

from mirrormq.base import limits
from mirrormq.base.rng import Rng


def dial_delay_us(failures: int, rng: Rng) -> int:
    """Wait longer with every failure, and differently on every node: all of them lost the same peer at once.

    Without failures there is only the jitter: a link that was open and ended is dialled anew almost at once.
    """
    if not failures:
        return rng.below(limits.peer_dial_us_min)
    # The exponent is bounded so that a peer gone for a week does not become a very large number.
    longest = min(limits.peer_dial_us_max, limits.peer_dial_us_min << min(failures, 16))
    return longest // 2 + rng.below(longest // 2 + 1)
