"""What a leader knows of one peer, and what it may send it.

Probing: one message at a time until a common point of the logs is found. Replicating: entries are sent ahead
of their answers, up to `limits.raft_inflight_appends_max` messages. Snapshot: the entries the peer needs
are gone; it gets the snapshot part by part, and the transfer goes on where it stopped if the link breaks.

Links are reliable while they are open, so nothing is sent twice over one of them, unless it was not answered
for `limits.raft_resend_us`: sending a slow link what it is still busy with would make it slower.

A link's two lanes are not ordered against each other. Entries that overtake the ones before them would be
refused and all sent again, so entries go by one lane until everything on the other is answered.
"""

from collections import deque
from typing import NamedTuple

from mirrormq.base import limits
from mirrormq.cluster.raft.lease import NEVER
from mirrormq.cluster.raft.recovery import SnapshotMark

PROBE = "probe"
REPLICATE = "replicate"
SNAPSHOT = "snapshot"


class _Sent(NamedTuple):
    last: int
    at: int
    size: int
    is_bulk: bool


_LANE_HEAD_BYTES = 128
"""What a message with entries has around them, at most."""


class Progress:
    """One peer of a leader."""

    def __init__(self, now: int, next_index: int) -> None:
        """Nothing is known of the peer but that it exists."""
        self.state = PROBE
        self.match = 0
        self.next = next_index
        self.told_commit = 0
        self.answered_at = now
        """When the last round it answered was sent, for check-quorum: counted as heard at the election."""
        self.proven_at = NEVER
        """The same, but over the link that is open: part of the leader's proof."""
        self.answered_round = 0
        self.heard_at = NEVER
        """When its last answer came."""
        self.echo = 0
        self.echo_at = NEVER
        """The time its last answer over this link was sent by its clock, and came by ours."""
        self.has_ended = False
        """Its link ended after it had answered in this term: it holds no lease."""
        self.mark = SnapshotMark()
        self.offset = 0
        self.read_token = 0
        self.read_offset = 0
        """What is being read from the disk for it."""
        self._inflight: deque[_Sent] = deque()
        self._inflight_bytes = 0
        self._probe_at = NEVER
        self._part_at = NEVER
        """When the part at `offset` was asked for; NEVER: it is not on its way."""

    def on_link(self) -> None:
        """A link was opened or lost: what was under way is gone."""
        self._probe()
        self._part_at = NEVER
        self.proven_at = NEVER
        # A grant for an answer of before would outlive the end of the link, which says there is none; and by
        # the clock of a machine that was switched off since it might last for days.
        self.echo_at = NEVER
        self.echo = 0

    def on_round(self, now: int, number: int, sent_at: int, echo: int) -> None:
        """It answered a heartbeat."""
        self.answered_round = max(self.answered_round, number)
        self.answered_at = max(self.answered_at, sent_at)
        self.proven_at = max(self.proven_at, sent_at)
        self.echo = max(self.echo, echo)
        self.heard_at = self.echo_at = now
        self.has_ended = False

    def may_send(self, now: int) -> bool:
        """May entries, or a probe, be sent now?"""
        if self.state == PROBE:
            return self._probe_at + limits.raft_election_us_min <= now
        return (
            self.state == REPLICATE
            and len(self._inflight) < limits.raft_inflight_appends_max
            and self._inflight_bytes < limits.raft_inflight_bytes_max
        )

    @property
    def batch_bytes(self) -> int:
        """How many bytes of entries the next message should have, so that it need not wait for its lane."""
        if self._inflight and not self._inflight[-1].is_bulk:
            return min(limits.raft_append_bytes_max, limits.peer_chunk_bytes - _LANE_HEAD_BYTES)
        return limits.raft_append_bytes_max

    def keeps_order(self, is_bulk: bool) -> bool:
        """Would a message on that lane arrive behind everything that is on its way?"""
        return not self._inflight or self._inflight[-1].is_bulk == is_bulk

    def on_sent(self, now: int, last: int, size: int = 0, *, is_bulk: bool = False) -> None:
        """Entries up to `last` were sent (or none, as a probe)."""
        if self.state == PROBE:
            self._probe_at = now
        elif last >= self.next:
            self._inflight.append(_Sent(last, now, size, is_bulk))
            self._inflight_bytes += size
            self.next = last + 1

    def on_match(self, index: int) -> None:
        """The peer has flushed everything up to `index`."""
        self.match = max(self.match, index)
        while self._inflight and self._inflight[0].last <= self.match:
            self._inflight_bytes -= self._inflight.popleft().size
        is_restored = self.state == SNAPSHOT and self.match >= self.mark.index
        if self.state == PROBE or is_restored:
            self.state = REPLICATE
            self._forget_inflight()
            self.next = self.match + 1
        self.next = max(self.next, self.match + 1)

    def on_mismatch(self, prev_index: int, hint: int) -> None:
        """The logs differ at `prev_index`."""
        if self.state == PROBE and prev_index != self.next - 1:
            return
        if self.state == SNAPSHOT or prev_index <= self.match:
            return
        self._probe()
        self.next = max(self.match + 1, min(hint + 1, prev_index))

    def on_quiet(self, now: int) -> None:
        """The peer is alive. Has it owed an answer for too long?"""
        if self.state == REPLICATE and self._inflight:
            if self._inflight[0].at + limits.raft_resend_us <= now:
                self._probe()
        elif self.state == SNAPSHOT and self._probe_at + limits.raft_resend_us <= now:
            self._probe()

    # --- snapshot ---

    def begin_snapshot(self, now: int, mark: SnapshotMark) -> None:
        """Send this snapshot, from wherever the peer says it has got to."""
        self.state = SNAPSHOT
        if mark != self.mark:
            self.mark, self.offset, self._part_at = mark, 0, NEVER
        self.read_token = 0
        self._probe_at = now

    def is_sending(self, index: int, crc: int) -> bool:
        """Is this snapshot being sent?"""
        return self.state == SNAPSHOT and (index, crc) == (self.mark.index, self.mark.crc)

    def on_snapshot_wanted(self, now: int, offset: int) -> bool:
        """The peer wants the part at `offset`. Is it to be sent, or on its way already?"""
        self._probe_at = now
        if offset == self.offset and now < self._part_at + limits.raft_resend_us:
            return False
        self.offset, self._part_at = offset, now
        return True

    def end_snapshot(self) -> None:
        """The peer uses the snapshot, or another is needed."""
        self._probe()

    def _probe(self) -> None:
        self.state = PROBE
        self._probe_at = NEVER
        self._forget_inflight()
        self.read_token = 0
        self.next = self.match + 1 if self.match else self.next

    def _forget_inflight(self) -> None:
        self._inflight.clear()
        self._inflight_bytes = 0
