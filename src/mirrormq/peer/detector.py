"""Suspects peers that have been silent for too long, and peers whose clock is wrong. It only tells.

Guarantee: a peer heard within `limits.peer_suspect_us` is not suspected, and time in which this node itself
stood still (a frozen machine, a stopped process) counts for nobody's silence: after such a pause the bytes of
healthy peers lie unread in the sockets, and the one that was dead was this node.
"""

from mirrormq.base import limits

STALL_US = limits.peer_suspect_us // 2
"""A gap between two looks that is this long was a standstill of this node: looks come with every tick."""


class Detector:
    """When each peer was heard last, by name, and how far its clock is off."""

    def __init__(self, now: int) -> None:
        self._heard: dict[str, int] = {}
        self._skew: dict[str, int] = {}
        self._looked = now

    def add(self, peer: str, now: int) -> None:
        """Watch a peer from now on."""
        self._heard[peer] = now

    def remove(self, peer: str) -> None:
        """Watch a peer no more."""
        self._heard.pop(peer, None)
        self._skew.pop(peer, None)

    def heard(self, peer: str, now: int) -> None:
        """Something arrived from a peer."""
        if peer in self._heard:
            self._heard[peer] = now

    def silence(self, peer: str, now: int) -> int:
        """How long a watched peer has been silent, in microseconds."""
        return max(0, now - self._heard[peer])

    def suspects(self, now: int) -> list[str]:
        """Look at all peers, with every tick; returns those that are silent for too long."""
        gap = now - self._looked
        self._looked = now
        if gap >= STALL_US:
            self._heard = {peer: min(now, at + gap) for peer, at in self._heard.items()}
        return sorted(peer for peer, at in self._heard.items() if now - at >= limits.peer_suspect_us)

    def measured(self, peer: str, offset: int, round_trip: int) -> None:
        """A keepalive came back: the peer's clock is `offset` ahead, give or take half the round trip."""
        if peer not in self._heard:
            return
        if abs(offset) - round_trip // 2 > limits.peer_skew_us:
            self._skew[peer] = offset
        else:
            self._skew.pop(peer, None)

    def skewed(self) -> dict[str, int]:
        """Peers whose wall clock is certainly off by more than `limits.peer_skew_us`, and by how much."""
        return {peer: self._skew[peer] for peer in sorted(self._skew)}
