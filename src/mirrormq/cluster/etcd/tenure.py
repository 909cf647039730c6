"""This node's lease in etcd, and when this node may act for the cluster.

Guarantee: while the key of this node is not in etcd, this node does not act (provided clocks run alike within
a tenth). It counts nine tenths of a lease from the moment it *asked* for the renewal that was answered; etcd
removes the key one whole lease after it heard the last one, or later.

The lease is told to every linked node, so that the end of a link can be taken as a proof: whoever sees a link
end by the other side revokes the leases it was told over that link, and so has the key removed at once. For
that to be a proof a node stops acting before it closes such a link and as soon as it sees one end, and goes
on only with another lease, to which its key was moved by a transaction that is guarded on the key as it was:
if that succeeds the key was never gone, and nobody can have called this node dead. If it does not, the lease
was lost: that is counted in `lapses`, and the node comes back by a command of the metadata.
"""

from collections.abc import Callable

from mirrormq.base import limits
from mirrormq.cluster.etcd import api
from mirrormq.cluster.etcd.desk import Desk
from mirrormq.cluster.etcd.keys import Keys, Lead, Live, decode, encode
from mirrormq.cluster.etcd.view import Living, View

NEVER = 1 << 62


class Tenure:
    """One node's lease."""

    def __init__(self, me: tuple[str, bytes, int], keys: Keys, desk: Desk, view: View) -> None:
        """`me`: name, identity and start."""
        self._name, self._identity, self._start = me
        self._keys = keys
        self._desk = desk
        self._view = view
        self.lease = 0
        """The one our key goes with; 0: there is no such key."""
        self.lapses = 0
        """How often it was lost."""
        self.is_wanted = False
        self.on_held: Callable[[], None] = lambda: None
        self._until = 0
        self._mod = 0
        """The revision that wrote our key."""
        self._is_suspended = False
        self._spare = 0
        self._spare_until = 0
        self._seconds = limits.etcd_lease_s
        self._is_asking = False
        self._at = 0
        """When to ask next."""
        self._keeps_lead = True

    # --- questions ---

    def until(self) -> int:
        """Before this moment this node may act."""
        return 0 if self._is_suspended or not self.lease else self._until

    @property
    def mod(self) -> int:
        """The revision that wrote our key, for guards."""
        return self._mod

    def is_expired(self, now: int) -> bool:
        """Could this node not renew it in time?"""
        return not self.lease or self._until <= now

    # --- inputs ---

    def resign(self) -> None:
        """This node is no member any more: give the lease up, so that others need not wait for its end."""
        self.is_wanted = False
        if self.lease:
            self._desk.revoke(self.lease, lambda *_: None)
        self.lease = self._until = 0

    def suspend(self) -> None:
        """A link over which the lease was told ends: others may have it revoked."""
        if self.lease:
            self._is_suspended = True
            self._at = 0

    def on_key(self, living: Living | None, mod: int) -> None:
        """Our key was written or removed, as the watch tells."""
        if self.lease and mod > self._mod and (living is None or living.live.lease != self.lease):
            if living is not None and living.live.lease == self._spare:
                return  # the answer to our own transaction is on its way
            self._lose()

    def step(self, now: int, *, is_stalled: bool) -> None:
        """Ask for whatever is due."""
        if not self.is_wanted or self._is_asking or now < self._at or is_stalled:
            return
        if self.lease and not self._is_suspended:
            self._ask(now, lambda done: self._desk.renew(self.lease, done), self._on_renewed)
        elif self._spare and self._spare_until > now:
            self._place(now)
        else:
            self._spare = 0
            self._ask(now, lambda done: self._desk.grant(limits.etcd_lease_s, done), self._on_granted)

    # --- inside ---

    def _ask(
        self,
        now: int,
        ask: Callable[[Callable[[int, api.Answer], None]], None],
        done: Callable[[int, int, api.Answer], None],
    ) -> None:
        """One request at a time; `done` gets when it was sent as well."""
        self._is_asking = True

        def answered(then: int, answer: api.Answer) -> None:
            self._is_asking = False
            self._at = then
            done(then, now, answer)
            if isinstance(answer, api.Failed):
                self._at = then + limits.etcd_again_us

        ask(answered)

    def _usable(self, seconds: int) -> int:
        return seconds * 1_000_000 * limits.lease_use_percent // 100

    def _on_granted(self, _: int, sent: int, answer: api.Answer) -> None:
        if isinstance(answer, api.Granted):
            self._spare, self._seconds = answer.lease, answer.seconds
            self._spare_until = sent + self._usable(answer.seconds)

    def _on_renewed(self, now: int, sent: int, answer: api.Answer) -> None:
        if not isinstance(answer, api.Renewed):
            return
        if not answer.seconds:
            self._lose()
            return
        self._until = max(self._until, sent + self._usable(answer.seconds))
        if not self._is_suspended:
            self._at = now + limits.etcd_renew_us

    def _place(self, now: int) -> None:
        """Write our key with the new lease, in the place of what is known to be there."""
        key = self._keys.node(self._name)
        there = self._view.nodes.get(self._name)
        mod = self._mod if self.lease else (there.mod if there is not None else 0)
        live = Live(self._identity, self._start, self._spare)
        guards, puts = [api.Guard(key, mod)], [api.Put(key, encode(live), self._spare)]
        lead = self._own_lead()
        if lead is not None:
            # What goes with the old lease would go when that is revoked.
            guards.append(api.Guard(self._keys.leader, lead[1]))
            puts.append(api.Put(self._keys.leader, encode(lead[0]), self._spare))

        def done(_: int, __: int, answer: api.Answer) -> None:
            self._on_placed(mod, lead, answer)

        self._ask(
            now,
            lambda asked: self._desk.txn(tuple(guards), tuple(puts), asked, (api.Get(key),)),
            done,
        )

    def _own_lead(self) -> tuple[Lead, int] | None:
        leading = self._view.leading
        if leading is None or not self.lease or leading.lease != self.lease or not self._keeps_lead:
            return None
        return leading.lead, leading.mod

    def _on_placed(self, expected: int, lead: tuple[Lead, int] | None, answer: api.Answer) -> None:
        if not isinstance(answer, api.TxnDone):
            return  # it may have happened: the same is tried again, and finds out
        if answer.is_done:
            self._held(answer.revision)
            if lead is not None:
                self._view.led(lead[0], answer.revision, self.lease)
            return
        there = answer.found[0][0] if answer.found[0] else None
        if there is not None and decode(Live, there.value).lease == self._spare:
            self._held(there.mod)
        elif there is not None and self.lease and there.mod == expected:
            self._keeps_lead = False  # somebody else leads by now
        elif self.lease:
            self._lose()
        else:
            self._view.nodes.pop(self._name, None)
            if there is not None:
                self._view.lived(self._name, decode(Live, there.value), there.mod)

    def _held(self, mod: int) -> None:
        """Our key goes with the spare lease now."""
        old, self.lease, self._spare = self.lease, self._spare, 0
        self._until, self._mod = self._spare_until, mod
        self._is_suspended, self._keeps_lead = False, True
        self._at = self._until - self._usable(self._seconds) + limits.etcd_renew_us
        self._view.lived(self._name, Live(self._identity, self._start, self.lease), mod)
        if old:
            self._desk.revoke(old, lambda *_: None)
        self.on_held()

    def _lose(self) -> None:
        self.lease = self._until = self._spare = self._at = 0
        self._is_suspended, self._keeps_lead = False, True
        self.lapses += 1
