"""Rates: what is counted anyway, looked at every five seconds, kept within bounds."""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormq.base import limits, walk
from mirrormq.base.types import Now
from mirrormq.node import rates, report_rates
from mirrormq.node.history import History
from mirrormq.node.report_rates import Look
from mirrormq.wire import methods
from tests.support.adminkit import AdminKit

PERIOD = limits.rates_period_us / 1_000_000
LEVELS = limits.rates_levels_basic


@pytest.fixture
def kit() -> AdminKit:
    return AdminKit()


def look(kit: AdminKit, **spans: Any) -> Look:
    return Look(kit.node.now.wall // limits.rates_period_us, **spans)


def queue_rates(kit: AdminKit, name: str, **spans: Any) -> dict[str, Any]:
    record = kit.node.state.queues["/", name]
    return report_rates.of_queue(kit.node, record.id, look(kit, **spans))


# --- the past of one object ---


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=60),
    st.booleans(),
)
def test_a_history_gives_for_every_time_it_reaches_what_was_true_then(
    steps: list[tuple[int, int]], may_grow: bool
) -> None:
    past = History(LEVELS, 1)
    time = value = 0
    true_at: dict[int, int] = {}
    for wait, more in steps:
        for passed in range(time, time + wait):
            true_at[passed] = value
        time += wait
        if more:
            value += more
            past.put(time, (value,), may_grow)
    true_at[time] = value
    kept = (limits.rates_rows_min if not may_grow else LEVELS[0][1]) - 1
    for when in range(max(0, time - kept), time + 1):
        assert past.at(when) == (true_at[when],)
    step = LEVELS[1][0]
    minutes = [minute * step for minute in range(time // step, -1, -1)]
    minutes = minutes[: limits.rates_rows_min - 1]
    found = past.series([*minutes, minutes[0] - LEVELS[0][1]])
    assert found[:-1] == [(true_at[minute],) for minute in minutes]


def test_a_history_keeps_no_more_rows_than_its_levels_allow() -> None:
    past = History(LEVELS, 2)
    for time in range(10_000):
        past.put(time, (time, time), True)
    most = sum(rows for _, rows in LEVELS) * 3 * 8
    assert past.size <= most
    assert past.at(9_999) == (9_999, 9_999)
    oldest = 9_999 - LEVELS[0][1] + 1
    assert past.at(oldest) == (oldest, oldest)
    assert past.at(oldest - 1) == (0, 0)


def test_a_history_that_is_granted_nothing_keeps_a_minute() -> None:
    past = History(LEVELS, 1)
    for time in range(1_000):
        past.put(time, (time,), False)
    assert past.size == len(LEVELS) * limits.rates_rows_min * 2 * 8
    minute = [999 - back for back in range(13)]
    assert past.series(minute) == [(time,) for time in minute]


# --- rounds ---


def test_the_rate_of_a_queue_is_what_the_last_two_looks_differ_by(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    kit.advance(PERIOD)
    for _ in range(10):
        client.publish("q")
    kit.advance(PERIOD)
    found = queue_rates(kit, "q")
    assert found["message_stats"]["publish_details"] == {"rate": 2.0}
    assert found["messages_details"] == {"rate": 2.0}
    kit.advance(PERIOD)
    assert queue_rates(kit, "q")["message_stats"]["publish_details"] == {"rate": 0.0}


def test_every_way_of_taking_a_message_is_counted_apart(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    for _ in range(4):
        client.publish("q")
    for no_ack in (False, True, True):
        client.send(methods.BasicGet(queue="q", no_ack=no_ack))
    client.take()
    client.consume("q")
    client.send(methods.BasicGet(queue="q"))
    kit.run()
    client.send(methods.BasicAck(delivery_tag=1))
    kit.run()
    kit.advance(PERIOD)
    stats = queue_rates(kit, "q")["message_stats"]
    wanted = {
        "publish": 4,
        "get": 1,
        "get_no_ack": 2,
        "get_empty": 1,
        "deliver": 1,
        "deliver_no_ack": 0,
        "deliver_get": 4,
        "redeliver": 0,
        "ack": 1,
    }
    assert {name: stats[name] for name in wanted} == wanted
    channel = next(iter(kit.node.channels.values()))
    own = report_rates.of_channel(kit.node, channel, look(kit))["message_stats"]
    assert {name: own[name] for name in wanted} == wanted
    vhost = report_rates.of_vhost(kit.node, "/", look(kit))["message_stats"]
    assert {name: vhost[name] for name in wanted} == wanted


def test_publishes_count_for_their_channel_their_exchange_and_their_vhost(kit: AdminKit) -> None:
    client = kit.client()
    client.ask(methods.ConfirmSelect(), methods.ConfirmSelectOk)
    client.declare("a")
    client.declare("b")
    for queue in "ab":
        client.send(methods.QueueBind(queue=queue, exchange="amq.fanout"))
    for _ in range(3):
        client.publish("", exchange="amq.fanout")
    client.publish("nowhere")
    client.publish("nowhere", mandatory=True)
    kit.advance(PERIOD)
    fanout = report_rates.of_exchange(kit.node, "/", "amq.fanout", look(kit))["message_stats"]
    assert (fanout["publish_in"], fanout["publish_out"]) == (3, 6)
    default = report_rates.of_exchange(kit.node, "/", "", look(kit))["message_stats"]
    assert (default["publish_in"], default["publish_out"]) == (2, 0)
    found = report_rates.of_vhost(kit.node, "/", look(kit))
    stats = found["message_stats"]
    assert (stats["publish"], stats["confirm"]) == (5, 5)
    assert (stats["return_unroutable"], stats["drop_unroutable"]) == (1, 1)
    assert stats["publish_details"]["rate"] == 1.0
    assert (found["messages"], found["messages_ready"]) == (6, 6)


def test_what_a_channel_did_stays_counted_when_it_is_gone(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    client.publish("q")
    sent = kit.node.connections[client.conn].recv_oct
    kit.node.client_closed(kit.now, client.conn)
    kit.advance(PERIOD)
    found = report_rates.of_vhost(kit.node, "/", look(kit))
    assert found["message_stats"]["publish"] == 1
    assert found["recv_oct"] == sent
    assert not kit.node.rates.keys(rates.CHANNEL)
    assert not kit.node.rates.keys(rates.CONNECTION)


def test_samples_stand_at_multiples_of_the_increment_newest_first(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    for _ in range(6):
        client.publish("q")
        kit.advance(PERIOD)
    found = queue_rates(kit, "q", lengths=(20, 10), msg_rates=(20, 5))
    details = found["message_stats"]["publish_details"]
    assert [sample["sample"] for sample in details["samples"]] == [6, 5, 4, 3, 2]
    stamps = [sample["timestamp"] for sample in details["samples"]]
    assert stamps == sorted(stamps, reverse=True)
    assert {one - other for one, other in pairwise(stamps)} == {5_000}
    assert all(stamp % 5_000 == 0 for stamp in stamps)
    assert details["avg_rate"] == 0.2
    assert details["avg"] == 4.0
    lengths = found["messages_details"]["samples"]
    assert len(lengths) == 3
    assert all(sample["timestamp"] % 10_000 == 0 for sample in lengths)


def test_a_clock_that_is_set_back_begins_the_past_anew(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    client.publish("q")
    kit.advance(PERIOD)
    kit.now = Now(kit.now.mono, kit.now.wall - 3_600_000_000)
    kit.advance(PERIOD)
    kit.advance(PERIOD)
    found = queue_rates(kit, "q", lengths=(10, 5))
    assert [sample["sample"] for sample in found["messages_details"]["samples"]] == [1, 1, 0]


def test_a_queue_that_is_deleted_leaves_nothing_behind(kit: AdminKit) -> None:
    client = kit.client()
    before = kit.node.rates.size
    for number in range(20):
        client.declare(f"q{number}")
        client.publish(f"q{number}")
    kit.advance(PERIOD)
    grown = kit.node.rates.size
    assert len(kit.node.rates.keys(rates.QUEUE)) == 20
    for number in range(20):
        client.send(methods.QueueDelete(queue=f"q{number}"))
    kit.advance(PERIOD)
    assert not kit.node.rates.keys(rates.QUEUE)
    assert before < kit.node.rates.size < grown


def test_queues_that_go_while_others_are_looked_at_are_passed_over() -> None:
    kit = AdminKit(samples=True)
    client = kit.client()
    count = limits.rates_slice_objects * 2
    for number in range(count):
        client.send(methods.QueueDeclare(queue=f"q{number}", nowait=True))
    kit.advance(PERIOD)
    kit.now = Now(kit.now.mono + limits.rates_period_us, kit.now.wall + limits.rates_period_us)
    kit.node.tick(kit.now)
    kit.node.end_pass(kit.now)
    # A slice of each round was looked at, and this one was taken together with the last of them.
    client.send(methods.QueueDelete(queue=f"q{limits.rates_slice_objects + 5}"))
    client.publish("q0")
    kit.advance(PERIOD)
    assert queue_rates(kit, "q0")["message_stats"]["publish"] == 1


def test_a_pass_after_very_many_queues_went_goes_past_a_bounded_number_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kit = AdminKit(samples=True)
    client = kit.client()
    slices = max(limits.rates_slice_objects, limits.samples_slice_queues)
    gone = 4 * slices
    for number in range(gone + 1):
        client.send(methods.QueueDeclare(queue=f"q{number}", nowait=True))
    kit.advance(PERIOD)  # the queue of samples is declared
    kit.advance(PERIOD)
    for number in range(gone):
        client.send(methods.QueueDelete(queue=f"q{number}", nowait=True))
    monkeypatch.setattr(walk, "STEP", 2)
    kit.now = Now(kit.now.mono + limits.rates_period_us, kit.now.wall + limits.rates_period_us)
    kit.node.tick(kit.now)
    kit.node.end_pass(kit.now)
    copies = kit.node.copies
    assert copies is not None
    for round_of in (kit.node.rates, copies.samples):
        assert round_of.needs_pass
        assert round_of._walk._at <= 2 * slices + 2
    client.publish(f"q{gone}")
    kit.advance(PERIOD)
    assert queue_rates(kit, f"q{gone}")["message_stats"]["publish"] == 1


def test_idle_queues_cost_no_rows(kit: AdminKit) -> None:
    client = kit.client()
    for number in range(20):
        client.declare(f"q{number}")
    kit.advance(PERIOD)
    kit.advance(PERIOD)
    assert not kit.node.rates.keys(rates.QUEUE)


def returned(steps: Generator[None, None, dict[str, Any]]) -> dict[str, Any]:
    """What it gives in the end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return dict(end.value)


def test_opened_and_closed_connections_channels_and_queues_are_counted(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    client.declare("q")
    client.send(methods.QueueDelete(queue="q"))
    kit.node.client_closed(kit.now, client.conn)
    kit.advance(PERIOD)
    steps = report_rates.overview(kit.node, kit.node.node_name, look(kit), ["/"])
    found = returned(steps)["churn_rates"]
    wanted = {
        "connection_created": 1,
        "connection_closed": 1,
        "channel_created": 1,
        "channel_closed": 1,
        "queue_declared": 2,
        "queue_created": 1,
        "queue_deleted": 1,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert found["queue_declared_details"] == {"rate": 0.4}


# --- sums over nodes ---


def test_rates_of_nodes_are_added_sample_by_sample(kit: AdminKit) -> None:
    client = kit.client()
    client.declare("q")
    for _ in range(3):
        client.publish("q")
        kit.advance(PERIOD)
    row = queue_rates(kit, "q", msg_rates=(10, 5))
    both = report_rates.add(row, row)["message_stats"]
    assert both["publish"] == 6
    details = both["publish_details"]
    assert details["rate"] == 0.4
    assert [sample["sample"] for sample in details["samples"]] == [6, 4, 2]
    alone = row["message_stats"]["publish_details"]["samples"]
    assert [sample["timestamp"] for sample in details["samples"]] == [sample["timestamp"] for sample in alone]


@pytest.mark.parametrize("body", [b"", b"\xff", report_rates.packed(Look(1, lengths=(10**9, 1)))])
def test_a_question_for_rates_that_makes_no_sense_asks_for_none(body: bytes) -> None:
    assert report_rates.read(body) is None


def test_a_row_with_samples_counts_for_more_when_answers_are_cut_into_passes() -> None:
    assert Look(1).weight == 0
    assert Look(1, msg_rates=(60, 5), lengths=(60, 5)).weight == 13 * 15 // 2
    assert Look(1, msg_rates=(60, 5)).bounded(limits.rates_sampled_rows_max + 1) == Look(1)


def test_a_node_asks_to_be_woken_for_rounds_only_if_they_are_to_be_exact(kit: AdminKit) -> None:
    kit.advance(1)
    assert kit.node.next_timer() is None
    kit.node.rates.is_exact = True
    due = kit.node.next_timer()
    assert due is not None
    assert (kit.now.wall + due - kit.now.mono) % limits.rates_period_us == 0
