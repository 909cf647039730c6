"""The store under every mixture of priorities, expiry, runs and purges."""

from hypothesis import given, settings
from hypothesis import strategies as st

from mirrormq.kernel.message import Message
from tests.support.kernelkit import NO_PROPERTIES, Kit


def prioritised(priority: int, body: bytes, ttl_ms: int | None = None) -> Message:
    if ttl_ms is None:
        return Message(b"", b"q", bytes([0x08, 0x00, priority]), body)
    digits = b"%d" % ttl_ms
    return Message(b"", b"q", bytes([0x09, 0x00, priority, len(digits)]) + digits, body)


STEP = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 9), st.sampled_from([None, None, 1, 3, 50])),
    st.tuples(st.just("get"), st.booleans(), st.none()),
    st.tuples(st.sampled_from(["requeue", "ack"]), st.integers(0, 50), st.none()),
    st.tuples(st.just("wait"), st.integers(0, 3000), st.none()),
    st.tuples(st.just("drop"), st.integers(0, 5), st.none()),
    st.tuples(st.just("purge"), st.none(), st.none()),
    st.tuples(st.just("spill"), st.integers(0, 3), st.none()),
)


class Model:
    """A list of (level, seq, expiry, body), and a log that never forgets."""

    def __init__(self, max_priority: int) -> None:
        self.kit = Kit(max_priority)
        self.queue = self.kit.queue()
        self.max_priority = max_priority
        self.now = 1
        self.ready: list[tuple[int, int, int, bytes]] = []
        self.unacked: dict[int, tuple[int, int, int, bytes]] = {}
        self.log: dict[int, Message] = {}

    def publish(self, priority: int, ttl_ms: int | None) -> None:
        seq = self.kit.seq
        body = b"%d" % seq
        message = prioritised(priority, body, ttl_ms)
        self.queue.push(message)
        self.kit.admit(self.queue, self.now)
        expiry = 0 if ttl_ms is None else self.now + ttl_ms * 1000
        self.ready.append((-min(priority, self.max_priority), seq, expiry, body))
        self.log[seq] = message

    def refill(self) -> None:
        """Read back, half a run at a time, until the head of the queue is in memory."""
        while (wanted := self.queue.wanted()) is not None:
            level, first, last, count = wanted
            seqs = sorted(seq for lvl, seq, _, _ in self.ready if -lvl == level and first <= seq <= last)
            assert len(seqs) == count
            part = seqs[: max(1, count // 2)]
            rows = [(self.log[seq], seq, 0, False, 0) for seq in part]
            self.queue.refill(level, rows, part[-1] if len(part) < count else last)

    def expire(self) -> None:
        """Only the head expires: nothing behind a living entry does."""
        while self.ready and 0 < min(self.ready)[2] <= self.now:
            self.ready.remove(min(self.ready))
        after = min(self.ready)[2] if self.ready else 0
        assert self.queue.expire(self.now) == after

    def get(self, no_ack: bool) -> None:
        self.refill()
        self.expire()
        found = self.queue.get(self.kit.channel, no_ack, self.now, 0)
        assert found == bool(self.ready)
        if not found:
            return
        entry = min(self.ready)
        self.ready.remove(entry)
        [(tag, _, body)] = self.kit.delivered()
        assert body == entry[3]
        if not no_ack:
            self.unacked[tag] = entry

    def settle(self, step: str, number: int) -> None:
        if not self.unacked:
            return
        tag = sorted(self.unacked)[number % len(self.unacked)]
        assert self.kit.channel.settle(tag, False, 1 if step == "requeue" else 0)
        entry = self.unacked.pop(tag)
        if step == "requeue":
            self.ready.append(entry)

    def drop(self, keep: int) -> None:
        self.refill()
        while len(self.ready) > keep:
            before = self.queue.ready
            dropped = self.queue.drop_head(keep, 1 << 60)
            assert before - self.queue.ready == dropped
            for _ in range(dropped):
                self.ready.remove(min(self.ready))
            self.refill()

    def check(self) -> None:
        assert self.queue.ready == len(self.ready)
        assert self.queue.ready_bytes == sum(len(entry[3]) for entry in self.ready)
        assert self.queue.unacked == len(self.unacked)


@given(st.lists(STEP, max_size=80), st.sampled_from([0, 1, 4]))
@settings(max_examples=150, deadline=None)
def test_priorities_requeues_runs_and_drops_keep_the_order_of_a_sorted_list(steps, max_priority):
    model = Model(max_priority)
    for step, first, second in steps:
        if step == "publish":
            model.publish(first, None)  # without expiry: see the test below
        elif step == "get":
            model.get(first)
        elif step in ("requeue", "ack"):
            model.settle(step, first)
        elif step == "wait":
            model.now += first
        elif step == "drop":
            model.drop(first)
        elif step == "purge":
            assert model.queue.purge() == len(model.ready)
            model.ready.clear()
            model.kit.grave.free(3)
        elif step == "spill":
            model.queue.spill(first)
        model.check()
        assert second is None or step == "publish"


@given(st.lists(STEP, max_size=80), st.sampled_from([0, 1, 4]))
@settings(max_examples=150, deadline=None)
def test_expired_entries_leave_from_the_head_and_never_reach_a_client(steps, max_priority):
    model = Model(max_priority)
    for step, first, second in steps:
        if step == "publish":
            model.publish(first, second)
        elif step == "get":
            model.get(first)
        elif step in ("requeue", "ack"):
            model.settle(step, first)
        elif step == "wait":
            model.now += first
            model.expire()
        elif step == "drop":
            model.drop(first)
        model.check()


def test_get_hands_what_expired_to_the_turn_even_if_nothing_is_left():
    kit = Kit()
    queue = kit.fill([b"x"], properties=b"\x01\x00\x015", now=1000)
    queue.dead_letter = True
    kit.work.take()
    assert not queue.get(kit.channel, True, 1_000_000, 0)
    assert kit.work.take() == [queue]
    assert [reason for _, _, reason in queue.take_dying()] == [4]


def test_a_returned_entry_behind_a_run_waits_until_the_run_is_read_back():
    kit = Kit()
    queue = kit.fill([b"%d" % i for i in range(1, 21)])
    for _ in range(12):
        assert queue.get(kit.channel, False, 0, 0)
    kit.channel.nack(12, False, True)
    assert queue.spill(0) == 8
    assert queue.wanted() is None  # 12 is before the run, which begins at 13
    assert queue.get(kit.channel, True, 0, 0)
    assert queue.wanted() == (0, 13, 20, 8)
    kit.channel.nack(0, True, True)
    assert queue.wanted() is None
    kit.out.take()
    for _ in range(11):
        assert queue.get(kit.channel, True, 0, 0)
    assert [body for _, _, body in kit.delivered()] == [b"%d" % i for i in range(1, 12)]


def test_a_graveyard_frees_entries_runs_and_returned_ones_alike():
    kit = Kit()
    spilled = 0
    for _ in range(3):
        queue = kit.fill([b"%d" % i for i in range(700)])
        for _ in range(300):
            queue.get(kit.channel, False, 0, 0)
        kit.channel.nack(0, True, True)
        kit.out.take()
        some = queue.spill(50)
        assert some > 0
        spilled += some
        assert queue.purge() == 700
        assert queue.ready_bytes == 0
    left = kit.grave.free(0)
    assert left == 2100 + spilled
    while left:
        less = kit.grave.free(97)
        assert less < left
        left = less


WAY = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 40), st.integers(0, 300)),
    st.tuples(st.just("get"), st.integers(1, 30), st.just(0)),
    st.tuples(st.just("sweep"), st.integers(0, 50), st.just(0)),
    st.tuples(st.just("spill"), st.integers(0, 60), st.just(0)),
    st.tuples(st.just("refill"), st.integers(1, 30), st.just(0)),
)


@given(st.lists(WAY, max_size=40))
@settings(max_examples=150, deadline=None)
def test_a_queue_that_spills_all_it_has_takes_no_memory_however_it_came_and_went(ways):
    kit = Kit()
    queue = kit.queue()
    log: dict[int, Message] = {}
    for way, count, size in ways:
        if way == "publish":
            for _ in range(count):
                seq = kit.seq
                log[seq] = prioritised(0, b"x" * size, seq % 50)
                queue.push(log[seq])
                kit.admit(queue, 1)
        elif way == "get":
            for _ in range(count):
                queue.get(kit.channel, True, 0, 0)
        elif way == "sweep":
            queue.sweep(1 + count * 1000, 0, 10_000)
        elif way == "spill":
            queue.spill(count)
        elif (wanted := queue.wanted()) is not None:
            _, first, last, in_run = wanted
            seqs = [seq for seq in log if first <= seq <= last][:in_run][:count]
            rows = [(log[seq], seq, 0, False, 0) for seq in seqs]
            queue.refill(0, rows, seqs[-1] if len(seqs) < in_run else last)
    queue.spill(0)
    assert queue.resident == 0


def test_what_a_queue_spills_is_no_longer_counted_at_once_and_freed_little_by_little():
    kit = Kit()
    queue = kit.fill([b"%d" % i for i in range(1000)])
    before = queue.resident
    assert queue.spill(300) == 700
    assert queue.resident < before / 2
    assert kit.grave.free(0) == 700
    assert kit.grave.free(450) == 250
    assert kit.grave.free(450) == 0
    assert queue.ready == 1000
    for number in range(300):
        assert queue.get(kit.channel, True, 0, 0), number
    assert [body for _, _, body in kit.delivered()] == [b"%d" % i for i in range(300)]
    assert queue.wanted() == (0, 301, 1000, 700)


def test_a_gone_queue_takes_nothing_back():
    kit = Kit()
    queue = kit.fill([b"x"])
    queue.counted = True
    queue.get(kit.channel, False, 0, 0)
    kit.channel.nack(1, False, True)
    [(message, seq, expiry, deliveries)] = queue.take_coming_back()
    queue.destroy()
    queue.put_back(message, seq, expiry, deliveries)
    queue.throw_away(message, seq, 6)
    assert (queue.ready, queue.take_settled(), message.body) == (0, [], b"x")


def test_the_level_above_is_found_again_after_it_was_empty():
    kit = Kit(max_priority=9)
    queue = kit.queue()
    order = []
    for priorities in ([1], [9], [0, 5], [2], [9, 9]):
        for priority in priorities:
            queue.push(prioritised(priority, b"%d" % priority))
        kit.admit(queue)
        queue.get(kit.channel, False, 0, 0)
        order += [int(body) for _, _, body in kit.delivered()]
    kit.channel.nack(0, True, True)
    while queue.get(kit.channel, True, 0, 0):
        order += [int(body) for _, _, body in kit.delivered()]
    assert order == [1, 9, 5, 2, 9, 9, 9, 9, 5, 2, 1, 0]


def test_a_message_without_properties_has_the_lowest_priority():
    kit = Kit(max_priority=3)
    queue = kit.queue()
    queue.push(Message(b"", b"q", NO_PROPERTIES, b"plain"))
    queue.push(prioritised(1, b"one"))
    kit.admit(queue)
    assert queue.get(kit.channel, True, 0, 0)
    assert kit.delivered()[0][2] == b"one"
