"""What clients hold when a queue gets another master: outstanding without a message, then back in place."""

import struct

import pytest

from mirrormq.kernel import forward
from mirrormq.kernel.cores import REASON_ACK, REASON_REJECTED, ChannelCore, ConsumerCore, QueueCore
from mirrormq.kernel.message import Message
from mirrormq.kernel.outbuffer import Dirty, OutBuffer
from tests.support.kernelkit import Kit

ACK, REQUEUE, REJECT, UNSEEN = 0, 1, 2, 3
PAIR = struct.Struct("=QQ")


def prioritised(priority: int, body: bytes) -> Message:
    return Message(b"", b"q", bytes([0x08, 0x00, priority]), body)


def outlet(kit: Kit) -> ChannelCore:
    return ChannelCore(0, 99, OutBuffer(Dirty(), "out", compact=True))


def inlet(kit: Kit) -> QueueCore:
    core = QueueCore(kit.work, kit.grave, None, 0)
    core.counted = core.paired = True
    return core


def promoted(kit: Kit, count: int, held: int) -> QueueCore:
    """A queue whose messages all lie in the log, some of them held by clients of the master before."""
    core = QueueCore(kit.work, kit.grave, None, 0)
    core.restore_run(1, count, count, 100 * count)
    forward.withhold(core, held)
    return core


def test_withheld_messages_are_not_ready_and_the_rest_is():
    core = promoted(Kit(), 10, 4)
    assert (core.ready, core.wanted()) == (6, (0, 1, 10, 6))
    forward.withhold(core, 6)
    assert (core.ready, core.ready_bytes, core.wanted()) == (0, 0, None)


def test_no_more_can_be_withheld_than_lie_in_the_log():
    core = promoted(Kit(), 3, 1)
    with pytest.raises(ValueError, match="fewer"):
        forward.withhold(core, 3)
    assert core.ready == 2


def test_a_withheld_message_is_ready_again_in_the_run_if_that_was_not_read_yet():
    core = promoted(Kit(), 10, 4)
    assert forward.give_to_run(core, 7)
    assert (core.ready, core.wanted()) == (7, (0, 1, 10, 7))
    assert forward.give_to_run(core, 11), "what comes next belongs to the run, which would reach over it"
    assert (core.ready, core.wanted()) == (8, (0, 1, 11, 8))
    forward.withhold(core, 8)
    assert not forward.give_to_run(core, 7), "nothing is left to be read there"


def test_among_priorities_a_message_tells_in_which_run_it_is_ready_again():
    kit = Kit(max_priority=3)
    core = kit.queue()
    for priority in (1, 3, 3, 1, 3, 3):
        core.push(prioritised(priority, b"x"))
    kit.admit(core)
    core.spill(1)
    message = prioritised(3, b"held")
    assert not forward.give_to_run(core, 4), "of which level it is nobody knows"
    assert not forward.give_to_run(core, 2, message), "before the run"
    assert forward.give_to_run(core, 4, message)
    assert core.ready == 7
    core.get(kit.channel, True, 0, 0)
    assert core.wanted() == (3, 3, 6, 4)


def test_what_came_back_into_the_middle_of_the_queue_is_read_with_the_run_that_is_made_over_it():
    kit = Kit()
    core = kit.fill([b"%d" % n for n in range(1, 21)])
    message = prioritised(0, b"held")
    for seq in (5, 9, 30):  # of another master's clients, as if 5, 9 and 30 were not among those
        core.put_back(message, seq, 0, 0)
    core.put_back(message, 8, 0, 2)  # counted: never read with a run
    core.spill(5)
    assert core.ready == 24
    bodies = [core.get(kit.channel, True, 0, 0) for _ in range(6)]
    assert all(bodies), "1, 2, 3, 4, 5 and the one that came back to 5"
    assert core.wanted() == (0, 6, 30, 17)


def test_inherited_deliveries_count_against_the_limits_of_their_consumer():
    kit = Kit()
    core = promoted(kit, 10, 3)
    channel = outlet(kit)
    forward.inherit(channel, core, [(2, 7), (0, 7), (4, 8), (5, 7)], 0)
    assert (channel.next_tag, channel.unacked, core.unacked) == (5, 3, 3)
    consumer = ConsumerCore(channel, (7).to_bytes(4, "little"), False, 2)
    forward.bind_consumer(channel, consumer, 7)
    assert (consumer.unacked, channel.held, consumer.may_take()) == (2, 2, False)
    forward.settle_span(channel, 1, 2, ACK)
    assert (consumer.unacked, channel.held, core.unacked) == (1, 1, 2)
    assert consumer.may_take()
    assert core.take_settled() == [(2, 2, REASON_ACK)]
    assert [seq for seq, _ in channel.outstanding(core)] == [4, 5]


@pytest.mark.parametrize("how", [REQUEUE, UNSEEN])
def test_what_is_given_back_without_a_message_is_to_be_read(how: int):
    kit = Kit()
    core = promoted(kit, 10, 2)
    channel = outlet(kit)
    forward.inherit(channel, core, [(2, 0), (3, 0)], 0)
    forward.settle_span(channel, 1, 9, how)
    assert core.has_strays
    assert core.take_strays() == [(2, how), (3, how)]
    assert (core.unacked, core.ready, channel.unacked) == (0, 8, 0)


def test_what_is_rejected_is_to_be_read_only_if_it_goes_somewhere():
    kit = Kit()
    core = promoted(kit, 10, 2)
    channel = outlet(kit)
    forward.inherit(channel, core, [(2, 0), (3, 0)], 0)
    forward.settle_span(channel, 1, 1, REJECT)
    assert core.take_settled() == [(2, 2, REASON_REJECTED)]
    core.dead_letter = True
    forward.settle_span(channel, 2, 2, REJECT)
    assert (core.take_settled(), core.take_strays()) == ([], [(3, REJECT)])


def test_a_channel_that_goes_gives_inherited_deliveries_back():
    kit = Kit()
    core = promoted(kit, 10, 2)
    channel = outlet(kit)
    forward.inherit(channel, core, [(2, 0), (3, 0)], 0)
    channel.release()
    assert core.take_strays() == [(2, REQUEUE), (3, REQUEUE)]


def test_a_queue_that_is_gone_takes_nothing_back():
    kit = Kit()
    core = promoted(kit, 10, 2)
    channel = outlet(kit)
    forward.inherit(channel, core, [(2, 0), (3, 0)], 0)
    core.destroy()
    channel.release()
    assert (core.take_strays(), core.unacked) == ([], 0)


# --- at the home node -------------------------------------------------------------------------------


def delivered(kit: Kit, count: int) -> tuple[QueueCore, QueueCore]:
    """A queue here whose client holds `count` messages, and an inlet for it."""
    queue = kit.fill([b"%d" % number for number in range(count)])
    consumer = kit.consumer()
    queue.set_consumers([[consumer]])
    assert queue.deliver(0, 0) == count
    return queue, inlet(kit)


def test_what_a_client_holds_of_a_master_here_becomes_that_of_one_elsewhere():
    kit = Kit()
    queue, core = delivered(kit, 4)
    epochs = [(1, 1), (3, 3)]
    assert forward.move_out(kit.channel, queue, core, 1, epochs) == 5
    assert (queue.unacked, queue.unacked_bytes, core.unacked) == (0, 0, 4)
    assert forward.held(kit.channel, core) == [(1, 0, 1, 1), (2, 0, 2, 1), (3, 0, 3, 3), (4, 0, 4, 3)]
    kit.channel.ack(2, False)
    kit.channel.nack(4, False, False)
    spans, pairs = forward.take_settled(core)
    assert spans == [(2, 2, REASON_ACK), (4, 4, REASON_REJECTED)]
    assert list(PAIR.iter_unpack(pairs)) == [(2, 1), (4, 3)]
    kit.channel.nack(3, False, True)
    spans, pairs = forward.take_returned(core)
    assert (spans, list(PAIR.iter_unpack(pairs))) == ([(3, 3)], [(3, 3)])


def test_what_a_client_holds_becomes_that_of_a_master_here_if_it_is_known():
    kit = Kit()
    queue, core = delivered(kit, 3)
    forward.move_out(kit.channel, queue, core, 1, [(1, 1)])
    successor = promoted(kit, 3, 2)
    assert forward.move_in(kit.channel, core, successor, {1, 3}) == 2
    assert (core.unacked, successor.unacked, successor.unacked_bytes) == (1, 2, 0)
    core.destroy()
    kit.channel.ack(3, True)
    assert successor.take_settled() == [(1, 1, REASON_ACK), (3, 3, REASON_ACK)]
    assert kit.channel.unacked == 0


def test_what_a_client_has_held_through_two_masters_comes_back_though_its_message_lies_in_a_log():
    kit = Kit()
    queue, core = delivered(kit, 3)
    forward.move_out(kit.channel, queue, core, 1, [(1, 1)])
    here = promoted(kit, 3, 3)
    assert forward.move_in(kit.channel, core, here, {1, 2, 3}) == 3
    further = inlet(kit)
    forward.move_out(kit.channel, here, further, 1, [(1, 1)])
    kit.channel.nack(2, False, True)
    kit.channel.release()
    spans, pairs = forward.take_returned(further)
    assert spans == [(2, 2), (1, 1), (3, 3)]
    assert list(PAIR.iter_unpack(pairs)) == [(2, 1), (1, 1), (3, 1)]


def test_tags_are_given_anew_for_another_master():
    kit = Kit()
    queue, core = delivered(kit, 3)
    forward.move_out(kit.channel, queue, core, 5, [(2, 1)])
    forward.renumber(kit.channel, core, {5: 1, 7: 2})
    assert [row[0] for row in forward.held(kit.channel, core)] == [1, 0, 2]


def test_an_arriving_delivery_knows_which_record_it_is():
    kit = Kit()
    far = kit.fill([b"x", b"y", b"z"])
    out = OutBuffer(Dirty(), "out", compact=True)
    sender = ChannelCore(0, 5, out)
    far.set_consumers([[ConsumerCore(sender, (7).to_bytes(4, "little"), False, 0)]])
    far.deliver(0, 0)
    core = inlet(kit)
    forward.take_deliveries(core, out.take(), 0, 11, 3, [(4, 1), (6, 2), (9, 3)])
    core.set_consumers([[kit.consumer()]])
    core.deliver(0, 0)
    assert forward.held(kit.channel, core) == [(11, 7, 1, 4), (12, 7, 2, 6), (13, 7, 3, 9)]


def test_the_epoch_of_a_record_older_than_what_is_known_is_none():
    kit = Kit()
    queue, core = delivered(kit, 2)
    forward.move_out(kit.channel, queue, core, 1, [(7, 2)])
    assert [row[3] for row in forward.held(kit.channel, core)] == [0, 7]
